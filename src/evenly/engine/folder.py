"""A run's folder: settings, metrics, checkpoints. Every write is atomic; a kill leaves the last checkpoint whole.

config.json          what was asked; a folder is only ever continued by the same settings
metrics.jsonl        one line per stage and epoch
checkpoint/STAGE.pt  the state after the last whole epoch of a stage (tensors and plain values only)
selection.npz        which examples, how often, why
results.json         written last: the run is finished
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from evenly.errors import EvenlyError
from evenly.files import atomic, holds_something, make_folder, read_json, write_json

try:
    import fcntl
except ImportError:  # not on Windows, where two processes in one folder are the user's to avoid
    fcntl = None  # type: ignore[assignment]


class Folder:
    """A run's folder, opened for one configuration: new, or continued where it stopped."""

    def __init__(self, path: str | Path, config: dict[str, Any]) -> None:
        self._held: int | None = None
        self.path = Path(path)
        self.config = json.loads(json.dumps(config))
        self._synced = 0.0
        if self.path.exists() and not self.path.is_dir():
            raise EvenlyError(f"{self.path} is a file; give a folder as out")
        there = read_json(self.path / "config.json")
        if there is None:
            if holds_something(self.path):
                raise EvenlyError(f"{self.path} is not empty and holds no run; choose another out")
        elif _asked(there) != _asked(self.config):
            differs = _difference(_asked(there), _asked(self.config))
            raise EvenlyError(f"{self.path} holds another run ({differs}); choose another out or remove it")

    def make(self) -> None:
        """Make the folder. It comes with the first thing to keep, so that a run refused at its start leaves none."""
        make_folder(self.path)
        if not (self.path / "config.json").exists():
            write_json(self.path / "config.json", self.config)
        (self.path / "checkpoint").mkdir(exist_ok=True)
        self._lock()

    def _lock(self) -> None:
        """Hold the folder while this object lives, so that no other process writes into it."""
        if fcntl is None or self._held is not None:
            return
        try:
            self._held = os.open(self.path / "config.json", os.O_RDWR)
            fcntl.lockf(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EvenlyError(f"{self.path} is in use by another process; wait for it or choose another out") from None
        except PermissionError:
            return  # a folder that cannot be written can still be read back

    def __del__(self) -> None:
        if self._held is not None:
            os.close(self._held)

    @property
    def results(self) -> dict[str, Any] | None:
        """The finished run's results, or None while there are none."""
        found: dict[str, Any] | None = read_json(self.path / "results.json")
        return found

    def save(self, stage: str, state: dict[str, Any]) -> None:
        """Replace the checkpoint of a stage. It waits for the disk once a second at most: epochs can be short."""
        sync = time.monotonic() - self._synced > 1
        metrics = self.path / "metrics.jsonl"
        if sync and metrics.exists():  # the checkpoint must not outlive, in a loss of power, the lines it counts on
            with metrics.open("rb") as file:
                os.fsync(file.fileno())
        with atomic(self.path / "checkpoint" / f"{stage}.pt", sync) as file:
            torch.save(state, file)
        if sync:
            self._synced = time.monotonic()

    def load(self, stage: str) -> dict[str, Any] | None:
        """The checkpoint of a stage, or None. Nothing in the file is executed."""
        path = self.path / "checkpoint" / f"{stage}.pt"
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise EvenlyError(
                f"{path} is not a checkpoint of evenly ({type(error).__name__}); remove it to start over"
            ) from error
        return state

    def append(self, row: dict[str, Any]) -> None:
        """Add a line to the metrics."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """All whole lines of the metrics; a line that a kill cut short is left out."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        rows = []
        for line in lines:
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    def rewind(self, keep: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Drop the lines that ran ahead of the checkpoint or were cut short; return what is left."""
        path = self.path / "metrics.jsonl"
        rows = [row for row in self.rows() if keep(row)]
        self.make()
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if not path.exists() or text != path.read_text():
            with atomic(path) as file:
                file.write(text.encode())
        return rows


def _asked(config: Any) -> Any:
    """The settings but for where the data lies: its fingerprint tells whether it is the same, on whatever machine."""
    if not isinstance(config, dict) or not isinstance(config.get("data"), dict):
        return config
    return config | {"data": {key: value for key, value in config["data"].items() if key != "folder"}}


FINGERPRINTS = {
    "data": "its data differ (other rows, splits, groups or columns)",
    "model": "its model starts from other weights",
}


def _difference(there: dict[str, Any], asked: dict[str, Any], of: str = "") -> str:
    """The first thing that differs, in the user's words: a setting before what only follows from it."""
    whose = "record's " if of == "record" else ""
    for key in sorted(set(there) | set(asked), key=lambda key: (key == "fingerprint", key)):
        then, now = there.get(key), asked.get(key)
        if then == now or (
            of == "data" and isinstance(then, list)
        ):  # names and moments of columns follow from the rows
            continue
        if isinstance(then, dict) and isinstance(now, dict):
            return _difference(then, now, of if of == "record" else key)
        if key == "fingerprint":
            return FINGERPRINTS.get(of, "settings differ")
        called = of if key == "name" else f"{whose}{key}"
        return f"its {called} {'are' if called.endswith('s') else 'is'} {then!r}, not {now!r}"
    return "settings differ"
