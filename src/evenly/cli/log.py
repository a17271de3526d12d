"""evenly log"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from evenly.cli.arguments import Json

if TYPE_CHECKING:
    from evenly.integrations.loggers import Logged


def log(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Of a run, of a comparison, of an improvement, or of several of these.",
            show_default=False,
        ),
    ],
    to: Annotated[
        Literal["tensorboard", "wandb", "mlflow"],
        typer.Option(help="Where to log the metrics.", metavar="tensorboard|wandb|mlflow", show_default=False),
    ],
    as_json: Json = False,
) -> None:
    """Send the metrics of runs to TensorBoard, W&B or MLflow.

    Every number of every epoch, the settings and the results are logged. What is there already is not logged again, so
    the command can be repeated while a run goes on. Each logger is an extra: pip install 'evenly[tensorboard]'. The
    exit code is 1 where one of several runs could not be logged.

    \b
    Examples:
      evenly log runs/a --to tensorboard
      evenly log runs/compared --to wandb
      evenly log runs --to mlflow --json
    """
    from evenly.engine.progress import Progress
    from evenly.integrations.loggers import log_folder

    with Progress(f"logging to {to}") as bar:
        logged = log_folder(folder, to, bar)
    if as_json:
        print(json.dumps({"to": to, "runs": [each.to_dict() for each in logged]}, indent=2))
    else:
        for each in logged:
            print(_line(each))
        if to == "tensorboard":
            print(f"Next: tensorboard --logdir {shlex.quote(str(folder))}")
    raise typer.Exit(1 if any(each.reason for each in logged) else 0)


def _line(logged: Logged) -> str:
    if logged.reason:
        return f"{logged.folder}: {logged.reason}"
    epochs = f"{logged.rows} epoch{'s' * (logged.rows != 1)}"
    if not logged.added:
        return f"{logged.folder}: nothing to add, {epochs} logged in {logged.where}"
    return f"{logged.folder}: {logged.added:,} numbers added, {epochs} logged in {logged.where}"
