"""Weights & Biases: a run of its own for each run of evenly, whose id follows from the run.

The project is the one of ``WANDB_PROJECT``, else "evenly". Each row is a step of W&B. A server that is asked to resume
the run answers with the number of rows that it has, and only later rows are sent. It keeps what it was sent once: rows
that a resumed run computed anew stay as they were first.

Offline (``WANDB_MODE=offline``) nobody answers. What was written whole is noted in `wandb/evenly.json` in the run's
folder; if there is more to log, the offline run is written anew and takes the place of the old one, unless that was
uploaded by `wandb sync`: then the new one holds the rows that came later.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import wandb

from evenly.errors import EvenlyError, first_line
from evenly.files import read_json, write_json
from evenly.integrations.loggers.folders import LoggedRun
from evenly.integrations.loggers.points import part

NOTE = "evenly.json"


class WandbLogger:
    """Sends runs to a project, or writes them into their folders where W&B is offline."""

    failures = (wandb.Error, OSError)

    def __init__(self, project: str, offline: bool) -> None:
        self.project, self.offline = project, offline
        self._open: dict[str, Any] = {}
        self._sent: dict[str, LoggedRun] = {}  # as it was when the whole of it was sent
        self._next: dict[str, int] = {}  # row
        self._axes: set[tuple[str, str]] = set()  # of a run, a stage
        self._pages: dict[str, str] = {}

    def add(self, run: LoggedRun) -> int:
        """Send what W&B lacks of a run; how many points that is."""
        if self._note(run) == _read_note(run):
            return 0
        opened = self._opened(run)
        added = 0
        for number, row in enumerate(run.rows, 1):
            if number < self._next[run.id]:
                continue
            stage = part(row.stage)
            if (run.id, stage) not in self._axes:
                self._axes.add((run.id, stage))
                opened.define_metric(f"{stage}/*", step_metric=f"{stage}/epoch")
            values = {point.tag: point.value for point in row.points}
            opened.log({**values, f"{stage}/epoch": row.epoch}, step=number)
            self._next[run.id] = number + 1
            added += len(values)
        if run.results is not None:
            results = {point.tag: point.value for point in run.results}
            there = dict(opened.summary)
            added += sum(there.get(tag) != value for tag, value in results.items())
            opened.summary.update(results)
        self._sent[run.id] = run
        return added

    def where(self, run: LoggedRun) -> str:
        """The run's page, or the folder that `wandb sync` uploads."""
        if self.offline:
            return str(max(_offline_runs(run), default=run.folder / "wandb"))
        return self._pages.get(run.id) or f"project {self.project}, run {run.id}"

    def close(self) -> None:
        """Finish what is open, and note it."""
        while self._open:
            id, opened = self._open.popitem()
            place = Path(opened.dir).resolve().parent
            opened.finish()
            if (run := self._sent.pop(id, None)) is None:
                continue
            if self.offline and not _uploaded(run):
                for old in set(_offline_runs(run)) - {place}:
                    shutil.rmtree(old, ignore_errors=True)
            write_json(run.folder / "wandb" / NOTE, self._note(run))

    def _opened(self, run: LoggedRun) -> Any:
        if run.id in self._open:
            return self._open[run.id]
        opened = wandb.init(
            project=self.project,
            id=run.id,
            name=run.name,
            group=run.group or None,
            config=run.settings,
            dir=str(run.folder),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
        self._open[run.id] = opened
        self._axes -= {(run.id, part(row.stage)) for row in run.rows}
        there = int(opened.step)
        if self.offline and _uploaded(run) and (note := _read_note(run)) is not None:
            there = int(note["rows"]) + 1
        self._next[run.id] = there
        if not self.offline:
            self._pages[run.id] = opened.url or ""
        return opened

    def _note(self, run: LoggedRun) -> dict[str, Any]:
        finished = run.results is not None
        return {"id": run.id, "project": self.project, "offline": self.offline, "rows": len(run.rows),
                "finished": finished}  # fmt: skip


def connect() -> WandbLogger:
    """Log in where W&B is online; refused in one line where it cannot be."""
    settings = wandb.setup().settings
    offline = settings.mode in ("offline", "dryrun")
    if settings.mode == "disabled":
        raise EvenlyError("WANDB_MODE is disabled, so that nothing would be logged; set it to online or offline")
    try:
        if not offline and not wandb.login():
            raise wandb.Error("no login")
    except (wandb.Error, OSError) as error:
        raise EvenlyError(
            f"Weights & Biases cannot be used ({first_line(error).rstrip('.')}); run `wandb login`, or set "
            "WANDB_MODE=offline to log into the run's folder"
        ) from None
    return WandbLogger(settings.project or "evenly", offline)


def _offline_runs(run: LoggedRun) -> list[Path]:
    """Those in the run's folder; the time of their beginning is in their names."""
    return [path.resolve() for path in (run.folder / "wandb").glob(f"offline-run-*-{run.id}*")]


def _uploaded(run: LoggedRun) -> bool:
    """Whether `wandb sync` has uploaded one of the run's offline runs."""
    return any(any(path.glob("*.synced")) for path in _offline_runs(run))


def _read_note(run: LoggedRun) -> dict[str, Any] | None:
    note = read_json(run.folder / "wandb" / NOTE, "remove it")
    return note if isinstance(note, dict) and note.get("id") == run.id else None
