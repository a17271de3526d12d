"""evenly improve"""

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
    check_names,
    config_values,
    default_folder,
    is_of_a_run,
    merged,
    only_given,
    out_of,
    pairs,
    takes,
)
from evenly.errors import EvenlyError
from evenly.settings import Execution, Improving, Settings, settings_of


@takes(Improving, Settings, Execution)
def improve(
    data: Annotated[str | None, typer.Argument(metavar="DATA", help=DATA_HELP, show_default=False)] = None,
    model: ModelName = None,
    optimizer: Annotated[
        str | None,
        typer.Option(help="A name from `evenly optimizers`. [default: sgd]", metavar="NAME", show_default=False),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="How many runs each method has that goes on to the end. [default: 3]",
            metavar="INTEGER",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="The first of these seeds; it also draws or divides the data. [default: 0]",
            metavar="INTEGER",
            show_default=False,
        ),
    ] = None,
    model_option: ModelOptions = None,
    data_option: DataOptions = None,
    recipe: RecipeName = None,
    config: ConfigFile = None,
    out: Out = None,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Find where a model fails, try what could help, and hand back the best one.

    Plain training (ERM) is trained and audited. Methods that fit the data are tried within the budget and compared with
    it on validation. The test set is used once, after the choice. The folder holds the chosen model in best/, every
    run, improve.json and a page. If nothing is clearly better, plain training is handed back. What was interrupted goes
    on with the same command.

    \b
    Examples:
      evenly improve shortcut-digits
      evenly improve photos/ --out runs/photos
      evenly improve reviews.csv --groups label,product --budget 20
      evenly improve rows.csv --goal worst-class --seeds 5
      evenly predict runs/photos/best new/
    """
    from evenly.experiment.improving import improve as run_improve

    typed = only_given(
        data=data, model=model, optimizer=optimizer, seeds=seeds, seed=seed, out=out, recipe=recipe,
        model_options=pairs(model_option) or None, data_options=pairs(data_option) or None,
    )  # fmt: skip
    values = merged(config_values(config), typed | settings)
    if is_of_a_run(values):
        raise EvenlyError(f"{config} is the config of a run; name its DATA and settings")
    check_names(config, values, "optimizer", "seeds", "seed", *settings_of(Improving))
    if not values.get("data"):
        raise EvenlyError("there is no DATA; give a name from `evenly datasets`, a file or a folder, or --config FILE")
    place = str(values.pop("data"))
    values["out"] = (
        out_of(place, Path(values["out"])) if "out" in values else default_folder(place, "improved", typed=values)
    )
    improvement = run_improve(place, **values)
    if as_json:
        print(json.dumps(improvement.to_dict(), indent=2))
        return
    from evenly.report.improve_console import show_improvement

    assert improvement.out is not None
    show_improvement(improvement, improvement.out / "improve.html")
