"""evenly predict, evenly export and evenly report: what is done with a finished run"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from evenly.cli.arguments import Json
from evenly.errors import EvenlyError

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="A folder that `evenly train` left.", show_default=False)
]


def predict(
    run: RunFolder,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A folder of images, one image, a .csv file like the one that was trained on, with or without labels, "
            "or an .npz file with an array x, and perhaps y.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="The .csv file for classes and probabilities.", metavar="FILE")
    ] = Path("predictions.csv"),
    as_json: Json = False,
) -> None:
    """Predict classes of new data with a trained model.

    The .csv file has a row per example: its class and the probability of every class. Where the data has labels, the
    accuracy is printed too.

    \b
    Examples:
      evenly predict runs/a new.csv
      evenly predict runs/a photos/ --out photos.csv
    """
    from evenly.report.console import show_predictions
    from evenly.runs.run import load

    if (Path(data) / "config.json").is_file() and not (run / "config.json").is_file():
        raise EvenlyError(f"{data} is the run and {run} the data; write evenly predict {data} {run}")
    if Path(data).resolve() == out.resolve():
        raise EvenlyError(f"{out} is the data itself; give another file as --out")
    _refuse_inside(run, out)
    if out.exists() and (out.is_dir() or b"prediction" not in out.read_bytes()[:1000]):
        raise EvenlyError(f"{out} exists and holds no predictions; give another file as --out")
    predictions = load(run).predict(data)
    predictions.save(out)
    if as_json:
        print(json.dumps(predictions.to_dict(), indent=2))
        return
    show_predictions(predictions, out)


def _refuse_inside(run: Path, out: Path) -> None:
    if out.resolve().is_relative_to(run.resolve()):
        raise EvenlyError(f"{out} lies in the folder of the run; give a file elsewhere as --out")


def export(
    run: RunFolder,
    to: Annotated[
        Literal["safetensors", "onnx"], typer.Option(help="The format.", metavar="safetensors|onnx")
    ] = "safetensors",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="The file. [default: RUN.safetensors or RUN.onnx]", metavar="FILE", show_default=False
        ),
    ] = None,
) -> None:
    """Write a trained model to a file for use elsewhere.

    An ONNX file is checked with onnxruntime before it is written: pip install 'evenly[onnx]'.

    \b
    Examples:
      evenly export runs/a --out model.safetensors
      evenly export runs/a --to onnx
    """
    from evenly.runs.export import export_run
    from evenly.runs.run import load

    path = out or Path(f"{run.resolve().name}.{to}")
    if path.suffix in (".safetensors", ".onnx") and path.suffix != f".{to}":
        raise EvenlyError(f"{path} is named as {path.suffix[1:]} and would be {to}; give --to {path.suffix[1:]}")
    _refuse_inside(run, path)
    if path.exists() and (path.is_dir() or path.suffix not in (".safetensors", ".onnx")):
        raise EvenlyError(f"{path} exists and is no file of a model; give another file as --out")
    print(export_run(load(run), path, to))


def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that another command left.")],
    to_csv: Annotated[
        str | None, typer.Option("--csv", help="Write a comparison as csv; '-' prints it.", metavar="FILE|-")
    ] = None,
    to_latex: Annotated[
        str | None, typer.Option("--latex", help="Write a comparison as LaTeX; '-' prints it.", metavar="FILE|-")
    ] = None,
    per: Annotated[
        Literal["method", "run"], typer.Option(help="What a row of these is.", metavar="method|run")
    ] = "method",
) -> None:
    """Make the pages of a folder again, or write its table.

    Pages are made from the files of the folder. With --csv or --latex the table of a comparison is written instead.

    \b
    Examples:
      evenly report runs/a
      evenly report runs/table --csv table.csv --latex table.tex
      evenly report runs/table --csv - --per run
    """
    from evenly.report import write_report
    from evenly.runs.comparison import load_comparison
    from evenly.runs.tables import BOOKTABS
    from evenly.runs.verdict import CLAIMS

    if to_csv is None and to_latex is None:
        page = write_report(folder)
        for each in sorted(folder.glob("*.html")) if (folder / CLAIMS).exists() else [page]:
            print(f"page: {each}")
        return
    if to_csv == to_latex == "-":
        raise EvenlyError("--csv and --latex cannot both be printed; give one of them a file")
    for file, start in ((to_csv, "method,"), (to_latex, BOOKTABS)):
        _refuse_other(file, start)
    table = load_comparison(folder)
    for file, text in ((to_csv, table.to_csv), (to_latex, table.to_latex)):
        if file is not None:
            written = text(None if file == "-" else file, per=per)
            print(written if file == "-" else file, end="" if file == "-" else "\n")


def _refuse_other(file: str | None, start: str) -> None:
    """Refuse to overwrite anything but an earlier table."""
    if file is None or file == "-" or not (path := Path(file)).exists():
        return
    if path.is_dir() or not path.read_bytes().startswith(start.encode()):
        raise EvenlyError(f"{path} exists and holds no table of evenly; give another file")
