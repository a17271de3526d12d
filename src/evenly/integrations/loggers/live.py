"""A run's log that follows the run."""

from __future__ import annotations

import shlex
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evenly.engine.side_by_side import aside
from evenly.errors import EvenlyWarning, reason_of
from evenly.integrations.loggers.folders import read_run
from evenly.integrations.loggers.sending import Logger, connect

SHARE = 0.05
"""The share of the time that logging may take: shorter epochs are logged several at once."""


class LiveLog:
    """Brings a log up to date with the folder of a run that goes on, after an epoch and at the end.

    A log that cannot be written does not stop the run: a warning names the reason and the command that logs the folder
    afterwards.
    """

    def __init__(self, to: str, folder: Path) -> None:
        self.to, self.folder = to, folder
        self.logger: Logger | None = None
        self._due, self._warned = 0.0, False

    def __call__(self, row: Any) -> None:
        if time.monotonic() >= self._due:
            started = time.monotonic()
            self._update()
            self._due = time.monotonic() + (time.monotonic() - started) / SHARE

    def close(self) -> None:
        """Log what is left, with the results where the run is finished."""
        if (self.folder / "config.json").exists():
            self._update(last=True)

    def _update(self, last: bool = False) -> None:
        try:
            with aside():
                self.logger = self.logger or connect(self.to)
                self.logger.add(read_run(self.folder))
                if last:
                    self.logger.close()
        except Exception as error:  # of any library, for any reason: hours of training do not end for it
            if not self._warned:
                self._warned = True
                command = shlex.join(["evenly", "log", str(self.folder), "--to", self.to])
                message = f"{self.folder} could not be logged to {self.to} ({reason_of(error)}); the run goes on, and "
                warnings.warn(f"{message}`{command}` adds what is missing", EvenlyWarning, stacklevel=2)


@contextmanager
def live_log(to: str | None, folder: Path | None) -> Iterator[LiveLog | None]:
    """The log of a run in a folder, closed with the run; None where none was asked for."""
    log = None if to is None or folder is None else LiveLog(to, folder)
    try:
        yield log
    finally:
        if log is not None:
            log.close()


def log_finished(to: str | None, folder: Path) -> None:
    """Log a run that is finished in its folder, where a log was asked for; what is there already stays as it is."""
    with live_log(to, folder):
        pass
