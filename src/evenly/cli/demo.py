"""evenly demo"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from evenly.cli.arguments import Device, Json


def demo(
    out: Annotated[
        Path, typer.Option("--out", help="Folder for results.json, report.html and the runs.", metavar="FOLDER")
    ] = Path("evenly-demo"),
    seed: Annotated[int, typer.Option(help="The first seed.", metavar="INTEGER")] = 10,
    device: Device = "cpu",
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Processes that share the runs. [default: one per core, four at most]",
            metavar="INTEGER",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the point on data that ships with evenly.

    evenly improve on digits with a shortcut: where plain training fails, what helps, and the model that does better.
    Beside it, evenly compare on synthetic patches. It takes a minute or two on two cores, without a GPU or a download.
    What was interrupted goes on with the same command.

    \b
    Examples:
      evenly demo --out /tmp/demo
      evenly predict /tmp/demo/shortcut-digits/best shortcut-digits
    """
    from evenly.experiment.demo import demo as run_demo

    done = run_demo(out, seed=seed, device=device, jobs=min(4, os.cpu_count() or 1) if jobs is None else jobs)
    if as_json:
        print(json.dumps(done.to_dict(), indent=2))
    else:
        from evenly.report.improve_console import show_demo

        show_demo(done, out / "report.html")
    if any(each.failures for each in done.comparisons):
        raise typer.Exit(1)
