"""The progress of a graph: on a terminal a bar with the time left and a line per run under way, elsewhere lines in the
log "evenly", one per finished run, which the shell prints.

with executor, GraphProgress(len(nodes), "comparing on digits", executor.slots) as show:
    walk(nodes, executor, show)
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from attrs import define

from evenly.engine.progress import log
from evenly.parallel.graph import Advanced, Began, Event, Failed, Finished, Lost, Node, Shared
from evenly.values import cut, duration

WIDTH = 80
LINES = 8
"""Runs under way that have a line of their own on a terminal."""


@define
class _UnderWay:
    """A node under way. `since` and `first`: when its present stage began, and with which share; `due`: when it ends,
    where that can be told."""

    label: str
    began: float
    share: float = 0.0
    note: str = ""
    since: float = 0.0
    first: float | None = None
    due: float | None = None

    def advance(self, now: float, share: float, note: str) -> None:
        """Take note of a share; a smaller one than before begins another stage."""
        if self.first is None or share < self.share:
            self.first, self.since, self.due = share, now, None
        self.share, self.note = share, note or self.note
        if share > self.first:
            self.due = now + (now - self.since) * (1 - share) / (share - self.first)


class GraphProgress:
    """Shows what happens to the nodes of a graph; called by `walk` with an event and the node that it happens to.

    Args:
        total: how many nodes there are; those that turn out to be others are over when they do, and counted at the end.
        slots: how many run at once.
        resumes: whether a run whose worker was killed goes on from a checkpoint.
        show: whether a terminal gets a bar.
    """

    def __init__(
        self, total: int, label: str = "", slots: int = 1, resumes: bool = True, show: bool = True
    ) -> None:
        self.total, self.label, self.slots, self.resumes, self.show = total, label, slots, resumes, show
        self.over = self.read = self.failed = self.shared = 0
        self._logged = 0  # of those read, how many are in the log
        self._under_way: dict[str, _UnderWay] = {}
        self._trained = self._seconds = 0.0  # finished here, and what they took
        self._live: Any = None

    def __enter__(self) -> GraphProgress:
        if self.show and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(self, console=Console(stderr=True), refresh_per_second=4, transient=True)
            self._live.start()
        else:
            at_once = f", {self.slots} at a time" if self.slots > 1 else ""
            log.info("  %s%s", _runs(self.total), at_once)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        self._log_read()
        if self.shared:
            those = "1 control is a run" if self.shared == 1 else f"{self.shared} controls are runs"
            log.info("  %s that %s already here", those, "is" if self.shared == 1 else "are")

    def __call__(self, event: Event | Shared, node: Node) -> None:
        now = time.monotonic()
        if isinstance(event, Shared):
            self.over, self.shared = self.over + 1, self.shared + 1
            return
        if isinstance(event, Began | Advanced):
            run = self._under_way.setdefault(event.id, _UnderWay(node.label, now))
            if isinstance(event, Advanced):
                run.advance(now, event.share, event.note)
            return
        run = self._under_way.pop(event.id, _UnderWay(node.label, now))
        if isinstance(event, Lost):
            then = "it goes on from its last checkpoint" if self.resumes else "it starts again"
            self._log(f"{cut(node.label, 60)}: {event.reason}; {then}")
            return
        self.over += 1
        if isinstance(event, Failed):
            self.failed += 1
            self._log(f"{cut(node.label, 60)}: failed: {event.reason}")
        elif isinstance(event, Finished):
            self._finished(run, now)

    def _finished(self, run: _UnderWay, now: float) -> None:
        if run.first is None:  # nothing was trained: it was finished before
            self.read += 1
            return
        self._trained, self._seconds = self._trained + 1, self._seconds + now - run.began
        if self._live is None:
            text = f": done in {duration(now - run.began)} ({', '.join(filter(None, self._state(now)))})"
            self._log(cut(run.label, WIDTH - 2 - len(text)) + text)

    def _log(self, line: str) -> None:
        self._log_read()
        log.info("  %s", line)

    def _log_read(self) -> None:
        if self._live is None and (new := self.read - self._logged):
            self._logged = self.read
            log.info("  %s finished before", _runs(new, "was", "were"))

    def _state(self, now: float) -> tuple[str, str]:
        """How many are over, and the time left."""
        left = self._left(now)
        return f"{self.over} of {self.total}", "" if left is None else f"{duration(left)} left"

    def _left(self, now: float) -> float | None:
        """Seconds to the end: of what is under way by its share, of the rest by what finished ones took."""
        under_way = tuple(self._under_way.values())
        whole = [run.due - run.began for run in under_way if run.due is not None]
        if self.over == self.total or not (count := self._trained + len(whole)):
            return None
        typical = (self._seconds + sum(whole)) / count
        lefts = [max((run.began + typical if run.due is None else run.due) - now, 0.0) for run in under_way]
        waiting = max(self.total - self.over - len(lefts), 0)
        return max((sum(lefts) + waiting * typical) / min(self.slots, len(lefts) + waiting), *lefts, 0.0)

    def __rich__(self) -> Any:
        """The bar of the whole, and under it the runs under way."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        now, under_way = time.monotonic(), tuple(self._under_way.values())
        count, left = self._state(now)
        bar = ProgressBar(max(self.total, 1), self.over + sum(run.share for run in under_way), 16)
        width = self._live.console.width
        whole = Table.grid(padding=(0, 1))
        state = ", ".join(filter(None, (count, f"{self.failed} failed" if self.failed else "", left)))
        whole.add_row(Text(cut(self.label, max(width - len(state) - 19, 8))), bar, Text(state, no_wrap=True))
        labels = [cut(run.label, width // 2) for run in under_way[:LINES]]
        widest = max(map(len, labels), default=0)
        lines = [
            f"  {label:<{widest}} {run.share:4.0%}  {run.note}" for label, run in zip(labels, under_way, strict=False)
        ]
        if len(under_way) > LINES:
            lines.append(f"  and {len(under_way) - LINES} more")
        return Group(whole, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))


def _runs(count: int, one: str = "", many: str = "") -> str:
    return " ".join(filter(None, (f"{count} run{'s' * (count != 1)}", one if count == 1 else many)))
