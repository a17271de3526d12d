"""Where a fit's progress is kept: a line of metrics for each epoch, and the state after the last whole one.

metrics.jsonl        one line per stage and epoch
checkpoint/STAGE.pt  the state after the last whole epoch of a stage (tensors and plain values only)

Every write is atomic; a kill leaves the last checkpoint whole.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from evenly.engine.side_by_side import aside
from evenly.errors import EvenlyError
from evenly.files import atomic

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
    """

    def __init__(self, path: Path, prepare: Callable[[], None] = lambda: None) -> None:
        self.path, self._prepare = Path(path), prepare
        self._metrics = self.path / "metrics.jsonl"
        self._prepared = False
        self._synced = self._due = 0.0

    @property
    def due(self) -> bool:
        """Whether enough time has passed since the last checkpoint for the next."""
        return time.monotonic() >= self._due

    def save(self, stage: str, state: Saved) -> None:
        """Replace the checkpoint of a stage. It waits for the disk once a second at most: epochs can be short."""
        self._ready()
        started = time.monotonic()
        state = tree_map_only(Tensor, lambda tensor: tensor.detach().cpu(), state)  # what follows leaves the GPU alone
        with aside():
            self._write(stage, state, sync=started - self._synced > 1)
        took = time.monotonic() - started
        self._due = started + max(CHECKPOINT_SECONDS, took / CHECKPOINT_SHARE)

    def _write(self, stage: str, state: Saved, sync: bool) -> None:
        if sync and self._metrics.exists():  # the checkpoint must not outlive, in a loss of power, the lines before it
            with self._metrics.open("rb") as file:
                os.fsync(file.fileno())
        with atomic(self._file(stage), sync) as file:
            torch.save(state, file)
        if sync:
            self._synced = time.monotonic()

    def load(self, stage: str) -> Saved | None:
        """The checkpoint of a stage, or None. Nothing in the file is executed."""
        self._ready()  # no other process may write on from what is read here
        path = self._file(stage)
        if not path.exists():
            return None
        try:
            state: Saved = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise EvenlyError(
                f"{path} is not a checkpoint of evenly ({type(error).__name__}); remove it to start over"
            ) from error
        return state

    def append(self, row: Row) -> None:
        """Add a line to the metrics."""
        self._ready()
        with self._metrics.open("a") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    def rows(self) -> list[Row]:
        """All whole lines of the metrics; a line that a kill cut short is left out."""
        lines = self._metrics.read_text().splitlines() if self._metrics.exists() else []
        rows = []
        for line in lines:
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    def rewind(self, keep: Callable[[Row], bool]) -> list[Row]:
        """Drop the lines that ran ahead of the checkpoint or were cut short; return what is left."""
        self._ready()
        rows = [row for row in self.rows() if keep(row)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if not self._metrics.exists() or text != self._metrics.read_text():
            with atomic(self._metrics) as file:
                file.write(text.encode())
        return rows

    def _file(self, stage: str) -> Path:
        return self.path / "checkpoint" / f"{stage}.pt"

    def _ready(self) -> None:
        if not self._prepared:
            self._prepare()
            (self.path / "checkpoint").mkdir(parents=True, exist_ok=True)
            self._prepared = True
