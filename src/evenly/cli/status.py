"""evenly status"""

from __future__ import annotations

import json
import shlex
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from evenly.cli.arguments import Json
from evenly.runs.status import STATES, RunStatus, Status, read_status
from evenly.values import cut, duration

LISTED = 8
"""Runs of a state that have a line of their own. Failed ones all have."""
Cells = tuple[str, str, str]


def status(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Of a run, of a comparison, or of several of these.", show_default=False),
    ],
    as_json: Json = False,
) -> None:
    """Show what is done, under way, failed and waiting.

    Nothing is locked or written, so it can be asked while runs go on. The exit code is 1 where a run has failed.

    \b
    Examples:
      evenly status runs/a
      evenly status runs
      evenly status runs/compared --json
    """
    found = read_status(folder)
    print(json.dumps(found.to_dict(), indent=2) if as_json else "\n".join(_lines(found)))
    raise typer.Exit(1 if "failed" in found.counts else 0)


def _lines(found: Status) -> Iterator[str]:
    width = shutil.get_terminal_size().columns
    yield from _wrapped(f"{found.folder}: {_totals(found)}", width)
    table = _parts(found) if found.parts else _runs(found) if found.kind in ("comparison", "improvement") else []
    first = max((len(cells[0]) for cells in table), default=0)
    second = min(max((len(cells[1]) for cells in table), default=0), width * 2 // 5)
    for state, name, text in table:
        start = f"  {state:<{first}}  {cut(name, second):<{second}}  "
        lines = textwrap.wrap(text, max(width - len(start), 20)) or [""]
        yield (start + lines[0]).rstrip()
        yield from (" " * len(start) + line for line in lines[1:])
    yield from _wrapped(_next(found), width)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _totals(found: Status) -> str:
    if found.kind == "run":
        run = found.runs[0]
        role = f"control of {'; '.join(run.control_of)}" if run.control_of else ""
        return ", ".join(filter(None, (run.state, role, _how_far(run))))
    total = sum(found.counts.values())
    counts = ", ".join(f"{count} {state}" for state, count in found.counts.items())
    return f"{total} run{'s' * (total != 1)}: {counts}{f'; `{_verb(found)}` is running' if found.running else ''}"


def _runs(found: Status) -> list[Cells]:
    """A row per run that is not done: its state, its name, and how far it is or why."""
    rows: list[Cells] = []
    for state in STATES[1:]:
        runs = [run for run in found.runs if run.state == state]
        shown = len(runs) if state == "failed" or len(runs) == LISTED + 1 else LISTED
        rows += [(state, run.label, _how_far(run)) for run in runs[:shown]]
        rows += [(state, f"and {len(runs) - shown} more", "")] * (len(runs) > shown)
    return rows


def _parts(found: Status) -> list[Cells]:
    """A row per folder within: a run with how far it is, a comparison with how many of its runs are."""
    rows: list[Cells] = []
    for part in found.parts:
        if part.kind == "run":
            rows.append((part.runs[0].state, Path(part.folder).name, _how_far(part.runs[0])))
        else:
            worst = next((state for state in ("failed", "interrupted", "under way") if state in part.counts), None)
            over = "waiting" if "waiting" in part.counts else "done"
            rows.append((worst or over, Path(part.folder).name, _totals(part)))
    return rows


def _how_far(run: RunStatus) -> str:
    of = "" if run.epochs is None else f" of {run.epochs}"
    epoch = "" if run.epoch is None else f"epoch {run.epoch}{of}"
    left = "" if run.seconds_left is None else f"{duration(run.seconds_left)} left"
    return ", ".join(filter(None, (epoch, left, run.reason)))


def _next(found: Status) -> str:
    """What to type next; where all is done, what to open."""
    counts, failed = found.counts, found.counts.get("failed", 0)
    if found.parts:
        worst = next((part.folder for part in found.parts if "failed" in part.counts), None)
        return "" if worst is None else f"Next: evenly status {shlex.quote(worst)}"
    if counts.keys() <= {"done"} and found.page:
        return f"page: {found.page}"
    if found.running or (found.running is None and "under way" in counts):
        return ""
    if found.kind == "run":
        return f"Next: {found.resume or 'the same call of evenly.train goes on where it stopped'}"
    if failed:
        which = "the failed run" if failed == 1 else f"the {failed} failed runs"
        return f"Next: the same `{_verb(found)} ...` with --retry runs {which} again"
    return f"Next: the same `{_verb(found)} ...` goes on where it stopped"


def _verb(found: Status) -> str:
    return "evenly improve" if found.kind == "improvement" else "evenly compare"
