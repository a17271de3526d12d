"""evenly predict, evenly export and evenly report: what is done with a finished run"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from evenly.cli.arguments import Json

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `evenly train` left.")]


def predict(
    run: RunFolder,
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A folder of images, one image, a .csv file or an .npz file with x[, y]."),
    ],
    out: Annotated[Path, typer.Option("--out", help="The csv file for classes and probabilities.")] = Path(
        "predictions.csv"
    ),
    as_json: Json = False,
) -> None:
    """Predict classes and probabilities for new data with a trained model; leaves a csv.

    Examples:

      evenly predict runs/a new.csv

      evenly predict runs/a photos/ --out photos.csv
    """
    from evenly.report.console import show_predictions
    from evenly.runs.run import load

    predictions = load(run).predict(data)
    predictions.save(out)
    if as_json:
        print(json.dumps(predictions.to_dict(), indent=2))
        return
    show_predictions(predictions, out)


def export(
    run: RunFolder,
    to: Annotated[Literal["safetensors", "onnx"], typer.Option(help="The format.")] = "safetensors",
    out: Annotated[
        Path | None, typer.Option("--out", help="The file; RUN.safetensors or RUN.onnx where not given.")
    ] = None,
) -> None:
    """Export a trained model for use elsewhere.

    Examples:

      evenly export runs/a --to safetensors --out model.safetensors

      evenly export runs/a --to onnx
    """
    from evenly.runs.export import export_run
    from evenly.runs.run import load

    path = out or Path(f"{run.resolve().name}.{to}")
    print(export_run(load(run), path, to))


def report(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that evenly left.")]) -> None:
    """Make the pages of a folder again from what is in it.

    Example: evenly report runs/a
    """
    from evenly.report import write_report

    print(f"page: {write_report(folder)}")
