"""What `evenly demo` leaves: improvements and comparisons, each in a folder of its own, and one page of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from evenly.errors import EvenlyError
from evenly.files import AGAIN
from evenly.runs.comparison import Comparison, load_comparison
from evenly.runs.improvement import Improvement, read_improvement
from evenly.values import Value, live

FILE, PAGE = "results.json", "report.html"
COMPARISONS, IMPROVEMENTS = "comparisons", "improvements"
"""Entries of results.json: the folders of each kind. A demo of an earlier version has comparisons only."""


@frozen
class Demo(Value):
    """What the demo found, and how long it took."""

    improvements: tuple[Improvement, ...]
    comparisons: tuple[Comparison, ...]
    seconds: float | None = None
    out: Path | None = live()


def read_demo(folder: Path, content: Mapping[str, Any]) -> Demo:
    """The demo in a folder, given what is in its results.json."""
    try:
        names = {kind: [Path(name).name for name in content.get(kind, ())] for kind in (IMPROVEMENTS, COMPARISONS)}
    except TypeError as error:
        raise EvenlyError(f"{folder / FILE} is damaged ({error}); {AGAIN}") from None
    improvements = (folder / name for name in names[IMPROVEMENTS])
    return Demo(
        tuple(evolve(read_improvement(path), out=path) for path in improvements),
        tuple(load_comparison(folder / name) for name in names[COMPARISONS]),
        content.get("seconds"),
        folder,
    )
