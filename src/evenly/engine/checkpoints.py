"""Where a fit's progress is kept: a line of metrics for each epoch, and the state after the last whole one.

metrics.jsonl                 one line per stage and epoch, each with its checksum
checkpoint/STAGE.pt           the state after the last whole epoch of a stage (tensors and plain values only)
checkpoint/STAGE.previous.pt  the one before it, for the case that the last one is damaged

Every write is atomic; a kill leaves the last checkpoint whole. A checkpoint is an archive with a CRC of every member,
which is verified before anything is read from it.
"""

from __future__ import annotations

import json
import os
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from evenly.engine.side_by_side import aside
from evenly.engine.world import ALONE, World
from evenly.errors import EvenlyError, EvenlyWarning, first_line
from evenly.files import atomic, sealed, unsealed, writing

Row = dict[str, Any]
"""What is measured in an epoch, by name; JSON as it stands."""
Saved = dict[str, Any]
"""What a checkpoint holds: tensors and plain values by name."""

CHECKPOINT_SECONDS = 0.05
CHECKPOINT_SHARE = 0.05
"""Epochs shorter than so many seconds share a checkpoint, and so do those shorter than what makes writing it this share
of the time: a large network on a fast GPU would spend more on writing than on training."""


class Checkpoints:
    """The metrics and checkpoints in a run's folder.

    Args:
        prepare: makes the folder and holds it against other processes; called once, before the first use, so that a
            run that is refused at its start leaves nothing behind.
        world: the processes that train together: the first one writes and reads, the others are given what it reads.
    """

    def __init__(self, path: Path, prepare: Callable[[], None] = lambda: None, world: World = ALONE) -> None:
        self.path, self._prepare, self.world = Path(path), prepare, world
        self._metrics = self.path / "metrics.jsonl"
        self._prepared, self._due = False, 0.0

    @property
    def due(self) -> bool:
        """Whether enough time has passed since the last checkpoint for the next."""
        return time.monotonic() >= self._due

    def save(self, stage: str, state: Saved) -> None:
        """Write the checkpoint of a stage and keep the one before it."""
        if not self.world.first:
            return
        self._ready()
        started = time.monotonic()
        state = tree_map_only(Tensor, lambda tensor: tensor.detach().cpu(), state)  # what follows leaves the GPU alone
        with aside():
            self._write(stage, state)
        took = time.monotonic() - started
        self._due = started + max(CHECKPOINT_SECONDS, took / CHECKPOINT_SHARE)

    def _write(self, stage: str, state: Saved) -> None:
        if self._metrics.exists():  # the checkpoint must not outlive, in a loss of power, the lines before it
            with self._metrics.open("rb") as file:
                os.fsync(file.fileno())
        with atomic(self._file(stage), previous=self._file(stage, ".previous")) as file:
            torch.save(state, file)

    def load(self, stage: str) -> Saved | None:
        """The last good checkpoint of a stage, or None. A damaged one is named; nothing in a file is executed."""
        return self.world.shared(lambda: self._load(stage))

    def _load(self, stage: str) -> Saved | None:
        self._ready()  # no other process may write on from what is read here
        damage = ""
        for path in filter(Path.exists, (self._file(stage), self._file(stage, ".previous"))):
            try:
                state = _read(path)
            except Exception as error:  # a damaged file can raise anything in the reader
                damage = damage or f"{path} is damaged ({first_line(error)[:100]})"
                continue
            if damage:
                warnings.warn(f"{damage}; the run goes on from the one before", EvenlyWarning, stacklevel=2)
            return state
        if damage:
            raise EvenlyError(f"{damage}, and there is none before it; remove {path.parent} to start over")
        return None

    def append(self, row: Row) -> None:
        """Add a line to the metrics."""
        if not self.world.first:
            return
        self._ready()
        with writing(self._metrics), self._metrics.open("a") as file:
            file.write(_line(row))

    def rows(self) -> list[Row]:
        """The lines of the metrics up to one that a kill cut short or that is damaged."""
        rows: list[Row] = []
        for line in self._metrics.read_bytes().splitlines() if self._metrics.exists() else []:
            try:
                rows.append(unsealed(line))
            except (ValueError, RecursionError):
                break
        return rows

    def rewind(self, stage: str, epochs: int) -> list[Row]:
        """Drop what follows the first epochs of a stage: lines that ran ahead of its checkpoint, or, where that is an
        earlier one because the last is damaged, later stages too. Return what is left."""
        return self.world.shared(lambda: self._rewind(stage, epochs))

    def _rewind(self, stage: str, epochs: int) -> list[Row]:
        self._ready()
        rows = self.rows()
        ahead = (i for i, row in enumerate(rows) if row["stage"] == stage and row["epoch"] > epochs)
        kept = next(ahead, len(rows))
        for later in {row["stage"] for row in rows[kept:]} - {stage}:
            for age in ("", ".previous"):
                self._file(later, age).unlink(missing_ok=True)
        text = "".join(map(_line, rows[:kept])).encode()
        if not self._metrics.exists() or text != self._metrics.read_bytes():
            with atomic(self._metrics) as file:
                file.write(text)
        return rows[:kept]

    def _file(self, stage: str, age: str = "") -> Path:
        return self.path / "checkpoint" / f"{stage}{age}.pt"

    def _ready(self) -> None:
        if not self._prepared:
            self._prepare()
            (self.path / "checkpoint").mkdir(parents=True, exist_ok=True)
            self._prepared = True


def _line(row: Row) -> str:
    return json.dumps(sealed(row), allow_nan=False) + "\n"


def _read(path: Path) -> Saved:
    with zipfile.ZipFile(path) as archive:
        if (member := archive.testzip()) is not None:
            raise ValueError(f"{member} does not match its checksum")
    state: Saved = torch.load(path, map_location="cpu", weights_only=True)
    return state
