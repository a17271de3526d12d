"""evenly train"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from evenly.cli.arguments import (
    DATA_HELP,
    PAIR,
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
    only_given,
    out_of,
    pairs,
    takes,
)
from evenly.errors import EvenlyError
from evenly.settings import Execution, Settings


@takes(Settings, (Execution, ("device", "workers", "capture", "stream", "accumulate", "sync_batchnorm", "log")))
def train(
    data: Annotated[str | None, typer.Argument(metavar="DATA", help=DATA_HELP, show_default=False)] = None,
    method: Annotated[
        str | None,
        typer.Option(help="A name from `evenly methods`. [default: erm]", metavar="NAME", show_default=False),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(help="A name from `evenly optimizers`. [default: sgd]", metavar="NAME", show_default=False),
    ] = None,
    model: ModelName = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="An option of the method. Repeatable.", metavar=PAIR, show_default=False),
    ] = None,
    model_option: ModelOptions = None,
    data_option: DataOptions = None,
    record: RecordOptions = None,
    recipe: RecipeName = None,
    config: ConfigFile = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Decides every random draw: synthetic data, initial weights, batches. [default: 0]",
            metavar="INTEGER",
            show_default=False,
        ),
    ] = None,
    out: Out = None,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Train a model by one method and leave a run folder.

    The folder holds the trained model, its results and a page. A run that was interrupted goes on with the same
    command. A setting that you leave out comes from the recipe of the data or the model, else it is the default.

    \b
    Examples:
      evenly train shortcut-digits --method pde
      evenly train my.npz --method useful --optimizer sam -o factor=3
      evenly train reviews.csv --method pde --groups label,product
      evenly train photos/ --model resnet18 --augment basic --epochs 60
      evenly train my.npz --record forgetting=true --record every=10
      evenly train my.npz --log tensorboard
      evenly train --config runs/a/config.json --out runs/b
      torchrun --nproc-per-node 4 -m evenly train photos/ --model resnet50
    """
    from evenly.report.console import show_run

    typed = only_given(
        data=data, method=method, optimizer=optimizer, model=model, seed=seed, out=out, options=pairs(option) or None,
        model_options=pairs(model_option) or None, data_options=pairs(data_option) or None,
        record=pairs(record) or None, recipe=recipe,
    )  # fmt: skip
    run = _run(config, config_values(config), typed | settings)
    if as_json:
        print(json.dumps(run.results.to_dict(), indent=2))
        return
    show_run(run)
    if run.record is not None and not run.record.history:
        print(f"  nothing was recorded: none of the {run.results.epochs} epochs was asked for; give --record every=1")


def _run(file: Path | None, config: dict[str, Any], typed: dict[str, Any]) -> Any:
    from evenly.experiment.training import run_again
    from evenly.experiment.training import train as run_train
    from evenly.methods import find
    from evenly.runs.folder import config_from

    if file is not None and is_of_a_run(config):
        if "out" not in typed:
            raise EvenlyError(f"{file} is the config of a run; give --out, a folder for the run that repeats it")
        return run_again(config_from(config, file), **typed)
    values = merged(config, typed)
    if not values.get("data"):
        raise EvenlyError("there is no DATA; give a name from `evenly datasets`, a file or a folder, or --config FILE")
    data, method = str(values.pop("data")), values.setdefault("method", "erm")
    found = find(method)
    check_names(file, config, "method", "optimizer", "seed", "budget", *found.options)
    options = found.checked(values.pop("options", {}))
    words = method, values.get("optimizer", "sgd"), f"seed{values.get('seed', 0)}"
    values["out"] = out_of(data, Path(values["out"])) if "out" in values else default_folder(data, *words)
    return run_train(data, **values, **options)
