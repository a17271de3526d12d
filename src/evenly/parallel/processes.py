"""Nodes in processes of this machine. Each worker has its own pipe, so that one that dies takes no other along."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self, cast

from evenly.errors import EvenlyError
from evenly.parallel.graph import Advanced, Began, Event, Finished, Lost, Node, Work, failed

BETWEEN = 0.2
"""Seconds between two messages of a worker about how far a node has come."""
GRACE = 5.0
"""Seconds that a worker has to end when it is asked to."""


class Processes:
    """Nodes in worker processes, which begin when they are needed.

    Args:
        devices: the device of each worker by name; there are as many workers as devices.
        keep: workers stay for the next walk, until `close`; after an error they do not.
    """

    def __init__(self, work: Work, devices: Sequence[str], keep: bool = False) -> None:
        self.slots, self.devices, self.keep = len(devices), list(devices), keep
        self.packed = {device: _packed(work.on(device)) for device in dict.fromkeys(devices)}
        self.free = deque(devices)  # those of workers yet to begin
        self.idle: list[_Worker] = []
        self.busy: dict[Connection, _Worker] = {}
        self.events: deque[Event] = deque()

    def does(self, work: Work, devices: Sequence[str]) -> bool:
        """Whether this is what these workers do on these devices."""
        return self.devices == list(devices) and all(
            packed == _packed(work.on(device)) for device, packed in self.packed.items()
        )

    def submit(self, node: Node) -> None:
        message = pickle.dumps((node.id, _packed(node)))
        while True:
            worker = self.idle.pop() if self.idle else self._begun()
            worker.node = node.id
            try:
                worker.connection.send_bytes(message)
            except OSError:  # it died while it was idle
                self._lost(worker)
                continue
            self.busy[worker.connection] = worker
            return

    def event(self) -> Event:
        while not self.events:
            for connection in wait(list(self.busy)):
                self._receive(self.busy[cast(Connection, connection)])  # on Windows a PipeConnection
        return self.events.popleft()

    def _receive(self, worker: _Worker) -> None:
        try:
            event: Event = pickle.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            del self.busy[worker.connection]
            self.events.append(Lost(worker.node, self._lost(worker)))
            return
        worker.answered = True
        if not isinstance(event, Began | Advanced):
            self.idle.append(self.busy.pop(worker.connection))
        self.events.append(event)

    def _begun(self) -> _Worker:
        device = self.free.popleft()
        return _Worker(device, self.packed[device])

    def _lost(self, worker: _Worker) -> str:
        """Let a fresh worker take the place of one that is dead; how it ended."""
        self.free.append(worker.device)
        code = worker.end(GRACE)
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}, perhaps for lack of memory"
        if not worker.answered:  # it imports the script anew, and the script calls this again
            raise EvenlyError(
                "a worker process could not start; in a script, put the call under if __name__ == '__main__':"
            )
        return f"its process ended with exit code {code}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.keep or error is not None or self.busy:
            self.close()

    def close(self) -> None:
        """End the workers; another call to `submit` begins new ones."""
        workers = [*self.idle, *self.busy.values()]
        for worker in self.busy.values():
            worker.process.terminate()  # what it has written is whole at any moment
        for worker in workers:
            worker.end(GRACE)
        self.idle, self.busy, self.free = [], {}, deque(self.devices)


class _Worker:
    """A process, this end of its pipe, and the node that it has."""

    def __init__(self, device: str, packed: bytes) -> None:
        context = get_context("spawn")
        self.device, self.node, self.answered = device, "", False
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, packed), name=f"evenly on {device}")
        self.process.start()
        other.close()  # so that the pipe ends with the worker

    def end(self, grace: float) -> int:
        """Close the pipe, at which a worker that waits ends; its exit code."""
        self.connection.close()
        self.process.join(grace)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return self.process.exitcode or 0


def cores() -> int:
    """The processor's cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _packed(content: Any) -> bytes:
    try:
        return pickle.dumps(content)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise EvenlyError(
            f"this model or data cannot be sent to another process ({error}); use jobs 1, or give both by name"
        ) from None


def _serve(connection: Connection, packed: bytes) -> None:
    """Run nodes until the pipe is closed."""
    # at Ctrl-C the parent reports, unless it was started to ignore it; what a worker has written is whole at any moment
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work: Work | None = None
    with suppress(EOFError, OSError):
        while True:
            id, node = pickle.loads(connection.recv_bytes())
            try:
                work = work or pickle.loads(packed)  # and with it torch, which takes seconds that are no node's
                connection.send_bytes(pickle.dumps(Began(id)))
                # by value: as they are, every tensor would hold a file open in the parent
                message = pickle.dumps(Finished(id, work(pickle.loads(node), _Reports(connection, id))))
            except Exception as error:
                message = pickle.dumps(failed(id, error))
            connection.send_bytes(message)


class _Reports:
    """How far a node has come, through the pipe; not more often than anybody looks."""

    def __init__(self, connection: Connection, id: str) -> None:
        self.connection, self.id, self.due = connection, id, 0.0

    def __call__(self, share: float, note: str) -> None:
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + BETWEEN
            self.connection.send_bytes(pickle.dumps(Advanced(self.id, share, note)))


def _end_with_parent() -> None:
    """A parent that was killed cannot stop its workers, which would go on with their nodes."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
