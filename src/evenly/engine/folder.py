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
from pathlib import Path
from typing import Any

from evenly.errors import EvenlyError
from evenly.files import holds_something, make_folder, read_json, write_json

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
