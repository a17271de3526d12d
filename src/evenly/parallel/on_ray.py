"""Nodes as tasks of Ray: on the cores of this machine, or on a cluster.

The work, and data that a worker cannot read for itself, go into Ray's object store once. Every node is one task with
the CPUs, GPUs and memory that it declares. Ray does not try a task again: a worker that dies is an event, and `walk`
begins the node anew.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Hashable, Mapping
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from attrs import asdict, evolve, frozen

from evenly.errors import EvenlyError, EvenlyWarning, first_line
from evenly.parallel.graph import Event, Failed, Finished, Lost, Node, Show, failed
from evenly.parallel.ray_cluster import connected
from evenly.parallel.ray_worker import Board, Outcome, checked_task, versions
from evenly.parallel.scratch import token_in, unpack
from evenly.settings import Execution

REFRESH = 5.0
"""Seconds between two looks at the machines of a cluster."""

KEPT = 4
"""Data sets of the last nodes that stay in the object store: the nodes of one seed follow each other."""


@frozen
class Needs:
    """What a task declares: CPUs, a share of GPUs, bytes of memory. The names are those that Ray has."""

    CPU: float = 1
    GPU: float = 0
    memory: float = 0

    def fit(self, machine: Mapping[str, float]) -> int:
        """How many such tasks a machine takes at once, given what it has."""
        shares = (machine.get(name, 0) / amount + 1e-6 for name, amount in asdict(self).items() if amount)
        return int(min(shares, default=1))


@runtime_checkable
class Portable(Protocol):
    """Work that can go to machines which see neither this disk nor this data. Other work gets one CPU and no folder."""

    @property
    def folder(self) -> Path | None:
        """The folder that all nodes write into."""
        ...

    def __call__(self, node: Any, show: Show) -> Any: ...

    def place(self, node: Any) -> Path | None:
        """The folder of a node."""
        ...

    def needs(self, node: Any) -> Needs:
        """The CPUs and the memory of a node."""
        ...

    def data_key(self, node: Any) -> Hashable:
        """Names data that only this machine can read; None where a worker makes it, or the work carries it along."""
        ...

    def data_of(self, node: Any) -> Any:
        """The data that `data_key` names, read on this machine."""
        ...

    def elsewhere(self, folder: Path | None, data: Any) -> Portable:
        """The same work on another machine, with a folder and data from `data_of` in place of its own."""
        ...

    def moved(self, result: Any, folder: Path) -> Any:
        """A node's result once its folder is this one."""
        ...


class RayExecutor:
    """Nodes as tasks of Ray. It connects for the first node, and ends what it started when it is left.

    Args:
        connection: where a connection is kept for other executors, and ended; this one ends it where not given.
    """

    def __init__(self, work: Any, execution: Execution, connection: ExitStack | None = None) -> None:
        if getattr(find_spec("ray"), "origin", None) is None:  # a folder called ray has none
            raise EvenlyError("engine 'ray' needs Ray, which is not installed; run pip install 'evenly[ray]'")
        if ":" in execution.device:
            raise EvenlyError(
                f"device {execution.device!r} names one GPU and Ray hands out GPUs itself; give cuda, cpu or auto"
            )
        self.work, self.execution = work, execution
        self.most = execution.jobs if execution.jobs > 1 else None
        self.connection = connection
        self.portable = isinstance(work, Portable)
        self.stack, self.connected = ExitStack(), False
        self.tasks: dict[Any, tuple[int, Node]] = {}
        self.events: deque[Event] = deque()
        self.stored: dict[Hashable, Any] = {}
        self.submitted, self.due, self.needs = 0, 0.0, Needs()
        self.machines: list[Mapping[str, float]] = []
        self.avoided: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.close()

    @property
    def slots(self) -> int:
        """As many as fit the machines that are there now; at least one, which is refused where it does not fit."""
        self._look_around()
        room = sum(self.needs.fit(machine) for machine in self.machines)
        return max(1, room if self.most is None else min(room, self.most))

    def submit(self, node: Node) -> None:
        if self.portable and (place := self.work.place(node)) is not None and (place / "results.json").exists():
            self._read_here(node)  # a worker may not see that it is finished
            return
        self._look_around()
        self.needs = self._declared(self.work.needs(node) if self.portable else Needs())
        self.submitted += 1
        message = self.ray.cloudpickle.dumps((self.submitted, node, self.token))
        task = self.task.options(
            num_cpus=self.needs.CPU,
            num_gpus=self.needs.GPU,
            memory=self.needs.memory or None,
            label_selector={"ray.io/node-id": f"!in({','.join(self.avoided)})"} if self.avoided else None,
            max_retries=0,
            name=node.label,
        )
        stored = [self.stored_work, *self._stored_data(node)]
        self.tasks[task.remote(message, stored, self.board)] = (self.submitted, node)

    def event(self) -> Event:
        while not self.events:
            ready, _ = self.ray.wait([*self.tasks, self.posted], timeout=REFRESH)
            for reference in ready:
                if reference == self.posted:
                    self._take_posted()
                else:
                    self._receive(reference)
        return self.events.popleft()

    def _look_around(self) -> None:
        """Which machines there are: some may have joined, or left."""
        self._connect()
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + REFRESH
            there = (each for each in self.ray.nodes() if each["Alive"] and each["NodeID"] not in self.avoided)
            self.machines = [each["Resources"] for each in there]

    def _connect(self) -> None:
        """Start Ray, or connect to it, before the first node: where all is finished, it is not needed."""
        if self.connected:
            return
        import ray

        self.ray = ray
        with ExitStack() as stack:
            (self.connection or stack).enter_context(connected(self.execution.address, self.most or 1))
            folder = self.work.folder if self.portable else None
            self.token = None if folder is None else stack.enter_context(token_in(folder))
            self.stored_work = ray.put(self.work)
            self.task = ray.remote(checked_task(versions()))
            self._open_board()
            stack.callback(self._cancel)
            self.stack, self.connected = stack.pop_all(), True

    def _read_here(self, node: Node) -> None:
        try:
            self.events.append(Finished(node.id, self.work(node, lambda share, note: None)))
        except Exception as error:
            self.events.append(failed(node.id, error))

    def _declared(self, needs: Needs) -> Needs:
        """With the share of a GPU where there is to be one; an estimate of memory refuses no run."""
        device = self.execution.device
        if device == "cuda" or (device == "auto" and any(machine.get("GPU") for machine in self.machines)):
            needs = evolve(needs, GPU=1 / self.execution.together)
        largest = max((machine.get("memory", 0) for machine in self.machines), default=0)
        needs = evolve(needs, memory=min(needs.memory, largest))
        if not any(needs.fit(machine) for machine in self.machines):
            if self.avoided:
                raise EvenlyError(next(iter(self.avoided.values())))
            there = ", or ".join(
                f"{machine.get('CPU', 0):g} and {machine.get('GPU', 0):g}" for machine in self.machines
            )
            raise EvenlyError(
                f"a run needs {needs.CPU:g} CPUs and {needs.GPU:.2g} GPUs, and a machine of Ray has {there or 'left'}; "
                "lower threads, or give another device"
            )
        return needs

    def _stored_data(self, node: Node) -> list[Any]:
        """Data that only this machine can read, in the object store; those of one key are put there once."""
        key = self.work.data_key(node) if self.portable else None
        if key is None:
            return []
        if key not in self.stored:
            while len(self.stored) >= KEPT:  # tasks under way hold what they need
                del self.stored[next(iter(self.stored))]
            self.stored[key] = self.ray.put(self.work.data_of(node))
        return [self.stored[key]]

    def _open_board(self) -> None:
        """A board beside the driver, which takes no CPU of the runs."""
        here = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            self.ray.get_runtime_context().get_node_id(), soft=True
        )
        self.board = self.ray.remote(Board).options(num_cpus=0, scheduling_strategy=here).remote()
        self.posted = self.board.take.remote()

    def _take_posted(self) -> None:
        """What tasks under way have posted; a board whose process was killed is replaced."""
        under_way = {number: node.id for number, node in self.tasks.values()}
        try:
            posted = self.ray.get(self.posted)
        except self.ray.exceptions.RayError:
            self._open_board()
            return
        self.posted = self.board.take.remote()
        self.events.extend(event for number, event in posted if under_way.get(number) == event.id)

    def _receive(self, reference: Any) -> None:
        """The end of a task."""
        _, node = self.tasks.pop(reference)
        errors = self.ray.exceptions
        try:
            outcome: Outcome | tuple[str, str] = self.ray.get(reference)
        except errors.RayTaskError as error:  # before the work could begin
            self.events.append(failed(node.id, error.cause if isinstance(error.cause, Exception) else error))
            return
        except errors.RayError as error:
            departed = isinstance(error, errors.NodeDiedError | errors.ObjectLostError)  # that held its result
            reasons = {
                errors.WorkerCrashedError: "its worker was killed",
                errors.OutOfMemoryError: "its machine ran out of memory",
            }
            reason = reasons.get(type(error), f"Ray lost it ({first_line(error)})")
            self.events.append(Lost(node.id, "its machine left the cluster" if departed else reason, departed))
            return
        if isinstance(outcome, tuple):
            self._avoid(*outcome, node)
            return
        for warning in outcome.warned:
            warnings.warn(warning, EvenlyWarning, stacklevel=2)
        self.events.append(self._home(node, outcome))

    def _avoid(self, machine: str, reason: str, node: Node) -> None:
        """Send a node elsewhere that came to a machine of other versions, which is named once."""
        new, self.avoided[machine], self.due = machine not in self.avoided, reason, 0.0
        self.submit(node)  # refused where no other machine can take it
        if new:
            warnings.warn(f"{reason}; until then it gets no runs", EvenlyWarning, stacklevel=2)

    def _home(self, node: Node, outcome: Outcome) -> Event:
        """What came of a node, its folder written here where a worker had to write it elsewhere."""
        event = outcome.event
        if outcome.files is None:
            return event
        folder = self.work.place(node)
        try:
            unpack(outcome.files, folder)
        except EvenlyError as error:
            return event if isinstance(event, Failed) else failed(node.id, error)
        return Finished(node.id, self.work.moved(event.result, folder)) if isinstance(event, Finished) else event

    def _cancel(self) -> None:
        for reference in self.tasks:
            with suppress(Exception):
                self.ray.cancel(reference, force=True)
        with suppress(Exception):
            self.ray.kill(self.board)
        self.tasks.clear()
