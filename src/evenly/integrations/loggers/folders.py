"""The runs in a folder, as loggers read them. Nothing is locked, and nothing of evenly's own files is written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from evenly.errors import EvenlyError, first_line
from evenly.files import AGAIN, read_json, unsealed
from evenly.integrations.loggers.points import Point, points_of_results, points_of_row, settings_of_run
from evenly.runs.folder import read_config, read_results


@frozen
class LoggedRow:
    """One row of the metrics: an epoch of a stage."""

    stage: str
    epoch: int
    points: tuple[Point, ...]


@frozen
class LoggedRun:
    """A run as far as it has come.

    Args:
        id: of the run's plan, data and initial weights, and of its group: the same in every call.
        group: the name of the comparison or improvement that the run is part of, if it is.
        results: what a finished run reached; None while it goes on.
        written: when the metrics were last written, in seconds since 1970.
    """

    folder: Path
    id: str
    name: str
    group: str
    settings: dict[str, Any]
    rows: tuple[LoggedRow, ...]
    results: tuple[Point, ...] | None
    written: float

    @property
    def points(self) -> Iterator[Point]:
        """All of them, in the order in which they were measured."""
        for row in self.rows:
            yield from row.points
        yield from self.results or ()


def read_run(folder: Path) -> LoggedRun:
    """A run from its folder; one that is under way as far as it has come."""
    config = read_config(folder)
    finished = (folder / "results.json").exists()  # before the metrics, which are then all there
    results = tuple(points_of_results(read_results(folder))) if finished else None
    rows, written = _read_rows(folder / "metrics.jsonl", finished, config.group_names)
    path = folder.resolve()
    group = _group_of(path)
    id = hashlib.sha256(f"{config.digest} {group}".encode(errors="replace")).hexdigest()[:16]
    return LoggedRun(folder, id, path.name, group, settings_of_run(config), rows, results, written)


def folders_in(folder: Path) -> list[Path]:
    """The folders of runs that have begun, in a folder that evenly wrote or in a folder of such folders."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise EvenlyError(f"{folder} {what}; give a folder that `evenly train` or `evenly compare` left")
    if _kind(folder):
        return _runs_of(folder)
    try:
        children = sorted(each for each in folder.iterdir() if each.is_dir() and _kind(each))
    except OSError as error:
        raise EvenlyError(f"{folder} cannot be read ({error.strerror}); give a folder that you may read") from None
    if not children:
        raise EvenlyError(f"{folder} holds no run or comparison; give a folder that `evenly train` or `compare` left")
    return [run for child in children for run in _runs_of(child)]


def _kind(folder: Path) -> str:
    """Whose folder it is: of a run, of a comparison, of an improvement, or of none."""
    try:
        content = read_json(folder / "config.json")
    except EvenlyError:
        return "run"  # whoever reads it as one says what is wrong with it
    kinds = {"plan": "run", "compare": "comparison", "improve": "improvement"}
    names = kinds.keys() & content.keys() if isinstance(content, dict) else set()
    return kinds[names.pop()] if names else ""


def _runs_of(folder: Path) -> list[Path]:
    if (kind := _kind(folder)) == "run":
        return [folder]
    parts = ("runs/*", "best") if kind == "improvement" else ("search/runs/*", "runs/*")
    runs = [run for part in parts for run in sorted(folder.glob(part))]
    return [run for run in runs if (run / "config.json").exists()]


def _read_rows(path: Path, finished: bool, group_names: Sequence[str]) -> tuple[tuple[LoggedRow, ...], float]:
    """The rows of the metrics, and when they were written; of a run under way, the last may be half-written."""
    try:
        content, written = path.read_bytes(), path.stat().st_mtime
    except FileNotFoundError:
        return (), 0.0
    except OSError as error:
        raise EvenlyError(f"{path} cannot be read ({error.strerror}); {AGAIN}") from None
    rows = []
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            row = unsealed(line)
            points = points_of_row(row, group_names)
            rows.append(LoggedRow(str(row["stage"]), int(row["epoch"]), tuple(points)))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            if not finished and number == len(lines) and not line.endswith(b"\n"):
                break
            reason = f"line {number}: {first_line(error)}"
            raise EvenlyError(f"{path} is damaged ({reason}); {AGAIN}") from None
    return tuple(rows), written


def _group_of(path: Path) -> str:
    """The comparison or improvement that a folder lies in: COMPARED/runs/RUN, COMPARED/search/runs/RUN, JOB/best."""
    return next((above.name for above in path.parents[:3] if _kind(above) in ("comparison", "improvement")), "")
