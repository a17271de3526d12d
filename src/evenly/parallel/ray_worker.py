"""What runs in a worker of Ray: the versions are compared, the work is read once per process, a node is run."""

from __future__ import annotations

import asyncio
import pickle
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attrs import frozen

import evenly
from evenly.errors import EvenlyWarning, InUseError
from evenly.parallel.graph import Advanced, Began, Event, Finished, Show, failed
from evenly.parallel.scratch import Files, packed, remove_scratch
from evenly.runs.folder import FAILED

BETWEEN = 0.5
"""Seconds between two messages of a task about how far it has come."""
PATIENCE = 15.0
"""Seconds that a task waits for a folder which another process writes into."""
_last: dict[str, Any] = {}
"""The work that this process ran last, and the references that it was read from."""


@frozen
class Outcome:
    """What a task returns: what came of the node, its folder if that lies on another disk, and what it warned of.

    The folder of a run that failed comes back with its checkpoint.
    """

    event: Event
    files: Files | None = None
    warned: tuple[str, ...] = ()


class Board:
    """Where tasks post how far they have come. An actor; `take` waits until there is something."""

    def __init__(self) -> None:
        self.posted: list[tuple[int, Event]] = []
        self.some = asyncio.Event()

    async def post(self, number: int, event: Event) -> None:
        self.posted.append((number, event))
        self.some.set()

    async def take(self) -> list[tuple[int, Event]]:
        await self.some.wait()
        self.some.clear()
        posted, self.posted = self.posted, []
        return posted


def versions() -> dict[str, str]:
    """The versions that must be the same everywhere; whether torch is built for a GPU does not matter."""
    return {"evenly": evenly.__version__, "torch": version("torch").partition("+")[0]}


def checked_task(expected: dict[str, str]) -> Callable[..., Any]:
    """The function of a task. It is sent by value and gets bytes: a worker may have another evenly, or none.

    It returns the outcome or, where the versions are others, Ray's name of the machine and the reason.
    """

    def task(message: bytes, stored: list[Any], board: Any) -> Any:
        import platform
        from importlib import metadata

        import ray

        here = {}
        for name in expected:
            try:
                here[name] = __import__(name).__version__ if name == "evenly" else metadata.version(name).split("+")[0]
            except (ImportError, metadata.PackageNotFoundError):
                here[name] = "missing"
        if here != expected:
            theirs, ours = (", ".join(map(" ".join, each.items())) for each in (here, expected))
            reason = f"the worker on {platform.node()} has {theirs}, this machine has {ours}; install the same on both"
            return ray.get_runtime_context().get_node_id(), reason
        from evenly.parallel.ray_worker import run_node

        return run_node(message, stored, board)

    return task


def run_node(message: bytes, stored: list[Any], board: Any) -> Outcome:
    """Run a node in this process.

    Args:
        message: the number of the task, the node and the token of the driver's folder, pickled.
        stored: references to the work, and to the data where the driver read it.
    """
    number, node, token = pickle.loads(message)
    board.post.remote(number, Began(node.id))
    away = token is not None and not token.seen
    folder = files = None
    with warnings.catch_warnings(record=True) as warned:
        try:
            work = _work(*stored, folder=token.own_scratch() if away else None)
            folder = work.place(node) if away else None
            event: Event = Finished(node.id, _patiently(work, node, _Reports(board, number, node.id)))
        except Exception as error:
            event = failed(node.id, error)
    # else the next try goes on there, or another process is at work
    if folder is not None and (isinstance(event, Finished) or (folder / FAILED).exists()):
        files = packed(folder)
        remove_scratch(folder)
    return Outcome(event, files, tuple(str(each.message) for each in warned if each.category is EvenlyWarning))


def _patiently(work: Any, node: Any, show: Show) -> Any:
    """What the work returns. A worker of a driver that was killed may hold the run's folder for some seconds more."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return work(node, show)
        except InUseError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def _work(stored: Any, data: Any = None, *, folder: Path | None) -> Any:
    """The work as this machine runs it. The last one is kept: most nodes of a process have the same."""
    key = (stored, data, folder)
    if _last.get("key") != key:
        _last.clear()
        work = _got(stored)
        if data is not None or folder is not None:
            work = work.elsewhere(folder, None if data is None else _got(data))
        _last.update(key=key, work=work)
    return _last["work"]


def _got(reference: Any) -> Any:
    """What is stored; an error in reading it back is raised as it is, not as one of Ray's system."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RaySystemError as error:
        raise error.client_exc if isinstance(error.client_exc, Exception) else error from None


class _Reports:
    """How far a node has come, for the board; not more often than anybody looks."""

    def __init__(self, board: Any, number: int, id: str) -> None:
        self.board, self.number, self.id, self.due = board, number, id, 0.0

    def __call__(self, share: float, note: str) -> None:
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + BETWEEN
            self.board.post.remote(self.number, Advanced(self.id, share, note))
