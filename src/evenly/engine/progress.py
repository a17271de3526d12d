"""Progress with the time left: a bar on a terminal, elsewhere lines in the log "evenly", which the shell prints."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import Any

from evenly.values import duration

log = logging.getLogger("evenly")

FIRST = 2.0
"""Seconds of work after which the time it takes can be estimated."""


class Progress:
    """Shows a share of work done, and nothing where `show` is False.

    Args:
        pause: seconds between two lines in the log, at least.
    """

    def __init__(self, label: str = "", show: bool = True, pause: float = 1.0) -> None:
        self._bar: Any = None
        self._lines, self._pause = show and not sys.stderr.isatty(), pause
        self._share = 2.0  # above any: the first call begins
        if show and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar
            from rich.table import Column

            console, length = Console(stderr=True), 16 if label else 8
            self._room = console.width - len(label) - length - len(" 0:00:00 ") - 1
            self._bar = Bar(
                *([TextColumn("{task.description}", table_column=Column(no_wrap=True))] if label else []),
                BarColumn(bar_width=length),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True)),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task(label, total=1.0, note="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __call__(self, share: float, note: str = "") -> None:
        """Show that a share in [0, 1] is done; without a note only the time left is new.

        The first call begins a piece of work, and so does a smaller share than before.
        """
        if self._bar is not None:
            self._bar.update(self._task, completed=share, **({"note": note[: self._room]} if note else {}))
        elif self._lines:
            self._write(share, note)

    def _write(self, share: float, note: str) -> None:
        if share < self._share:
            self._from, self._started, self._written, self._estimated = share, time.perf_counter(), -self._pause, False
        self._share, seconds = share, time.perf_counter() - self._started
        left = "" if share in (self._from, 1.0) else duration(seconds * (1 - share) / (share - self._from))
        if note and share > 0 and (share == 1.0 or seconds - self._written >= self._pause):
            self._written, self._estimated = seconds, True
            log.info("  %s%s", note, f", {left} left" if left else "")
        elif left and not self._estimated and seconds >= FIRST:
            self._estimated = True
            log.info("  this takes about %s", left)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
