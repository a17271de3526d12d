"""Nodes in this process: one at a time, or side by side on one GPU."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Self

import torch

from evenly.engine.side_by_side import Turns
from evenly.parallel.graph import Advanced, Began, Event, Finished, Node, Work, failed


class Here:
    """One node at a time, in this thread.

    Args:
        show: called with how far a node has come, since nothing else happens in this thread meanwhile.
    """

    slots = 1

    def __init__(self, work: Work, show: Callable[[Event, Node], None]) -> None:
        self.work, self.show = work, show
        self.node: Node | None = None

    def submit(self, node: Node) -> None:
        self.node = node

    def event(self) -> Event:
        node, self.node = self.node, None
        assert node is not None
        self.show(Began(node.id), node)
        try:
            result = self.work(node, lambda share, note: self.show(Advanced(node.id, share, note), node))
            return Finished(node.id, result)
        except Exception as error:
            return failed(node.id, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class SideBySide:
    """Several nodes on one device, each in a thread, which take turns (`evenly.engine.side_by_side`)."""

    def __init__(self, work: Work, device: torch.device, slots: int) -> None:
        self.work, self.slots = work, slots
        self.turns = Turns(device)
        self.events: SimpleQueue[Event | BaseException] = SimpleQueue()

    def submit(self, node: Node) -> None:
        self.turns.begin(lambda: self._run(node))

    def _run(self, node: Node) -> None:
        self.events.put(Began(node.id))
        try:
            result = self.work(node, lambda share, note: self.events.put(Advanced(node.id, share, note)))
            self.events.put(Finished(node.id, result))
        except Exception as error:
            self.events.put(failed(node.id, error))
        except BaseException as error:
            if self.turns.stopping:
                raise
            self.events.put(error)

    def event(self) -> Event:
        event = self.events.get()
        if isinstance(event, BaseException):
            raise event
        return event

    def __enter__(self) -> Self:
        self.turns.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.turns.__exit__(kind, error, trace)
