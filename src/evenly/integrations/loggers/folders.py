"""The runs in a folder, as loggers read them. Nothing is locked, and nothing of evenly's own files is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from evenly.errors import EvenlyError, first_line
from evenly.files import AGAIN, unsealed
from evenly.integrations.loggers.points import Point, points_of_results, points_of_row, settings_of_run
from evenly.runs.folder import read_config, read_results
from evenly.runs.status import Status, read_status


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
    status = read_status(folder)
    runs = [Path(run.folder) for each in (status, *status.parts) for run in each.runs if run.folder is not None]
    runs += [best for each in _improvements(status) if (best := Path(each.folder) / "best").is_dir()]
    return [run for run in runs if (run / "config.json").exists()]


def _improvements(status: Status) -> list[Status]:
    return [each for each in (status, *status.parts) if each.kind == "improvement"]


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
    for above in path.parents[:3]:
        try:
            content = json.loads((above / "config.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(content, dict) and {"compare", "improve"} & content.keys():
            return above.name
    return ""
