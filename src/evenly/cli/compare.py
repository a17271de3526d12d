"""evenly compare"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from evenly.cli.arguments import (
    DATA_HELP,
    ConfigFile,
    DataOptions,
    Json,
    ModelName,
    ModelOptions,
    Out,
    RecipeName,
    RecordOptions,
    check_names,
    config_values,
    default_folder,
    is_of_a_run,
    merged,
    names,
    only_given,
    out_of,
    pairs,
    pairs_by_method,
    search_spaces,
    seeds_of,
    sweep_values,
    takes,
)
from evenly.errors import EvenlyError
from evenly.settings import Execution, Searching, Settings, settings_of


@takes(Settings, Execution, Searching)
def compare(
    data: Annotated[str | None, typer.Argument(metavar="DATA", help=DATA_HELP, show_default=False)] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Names from `evenly methods`. [default: erm,useful]", metavar="NAME,NAME", show_default=False
        ),
    ] = None,
    optimizers: Annotated[
        str | None,
        typer.Option(help="Names from `evenly optimizers`. [default: sgd]", metavar="NAME,NAME", show_default=False),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="How many (3) or which (100,101,102). [default: 3]", metavar="SEEDS", show_default=False),
    ] = None,
    model: ModelName = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="Run every method at several values: batch_size=128,256 or useful.factor=2,3. Repeatable; then every "
            "combination is run.",
            metavar="NAME=VALUE,VALUE",
            show_default=False,
        ),
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            help="Search values for each method on validation, before they are compared: lr=log:1e-4:1e-1, "
            "rho=uniform:0.01:0.2, batch_size=int:16:256 or useful.factor=2,3,4. Repeatable.",
            metavar="NAME=SPACE",
            show_default=False,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            help="An option of one method. Repeatable.",
            metavar="METHOD.NAME=VALUE",
            show_default=False,
        ),
    ] = None,
    model_option: ModelOptions = None,
    data_option: DataOptions = None,
    record: RecordOptions = None,
    recipe: RecipeName = None,
    config: ConfigFile = None,
    out: Out = None,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Compare methods, each with a control of equal cost.

    Every method runs with every optimizer on every seed. The folder holds all runs, results.json and a page with
    paired differences and their intervals. A setting that you leave out comes from the recipe of the data or the
    model, else it is the default.

    \b
    Examples:
      evenly compare shortcut-digits --methods erm,pde,group_dro --seeds 5
      evenly compare my.npz --optimizers sgd,sam -o useful.factor=3
      evenly compare cifar10 --sweep batch_size=128,256,512
      evenly compare my.npz --search lr=log:1e-4:1e-1 --trials 16
    """
    from evenly.experiment.comparing import compare as run_compare

    typed = only_given(
        data=data, methods=None if methods is None else names(methods),
        optimizers=None if optimizers is None else names(optimizers), model=model,
        seeds=None if seeds is None else seeds_of(seeds), out=out, options=pairs_by_method(option) or None,
        sweep=sweep_values(sweep) or None, search=search_spaces(search) or None, record=pairs(record) or None,
        model_options=pairs(model_option) or None, data_options=pairs(data_option) or None, recipe=recipe,
    )  # fmt: skip
    values = merged(config_values(config), typed | settings)
    if is_of_a_run(values):
        what = "a comparison; name its DATA and settings" if "compare" in values else "a run; give it to `evenly train`"
        raise EvenlyError(f"{config} is the config of {what}")
    check_names(
        config, values, "methods", "optimizers", "seeds", "controls", "sweep", "search", *settings_of(Searching)
    )
    if not values.get("data"):
        raise EvenlyError("there is no DATA; give a name from `evenly datasets`, a file or a folder, or --config FILE")
    place = str(values.pop("data"))
    values["out"] = (
        out_of(place, Path(values["out"])) if "out" in values else default_folder(place, "compared", typed=values)
    )
    table = run_compare(place, **values)
    if as_json:
        print(json.dumps(table.to_dict(), indent=2))
    else:
        from evenly.report.console import show_comparisons

        show_comparisons([table], (table.out or Path()) / "report.html")
    if table.failures:
        raise typer.Exit(1)
