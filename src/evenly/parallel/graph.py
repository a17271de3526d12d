"""A graph of work, walked over an executor: this process, local processes, or Ray.

A node is anything with an id: a plan, a claim's computation. It may wait for another node, whose result completes it.
The completed node may turn out to be one that is there already, which then serves for both. No id runs twice. A node
that fails is named with its reason, what waits for it fails with it, and the rest go on.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from attrs import field, frozen

from evenly.errors import reason_of

Result = TypeVar("Result")
TRIES = 3
"""How often a worker may die under a node."""
DEPARTURES = 20
"""How often a machine may leave with a node: machines that are lent for a while are taken back again and again."""


class Node(Protocol):
    """A piece of work. `after` is the id of the node that it waits for; `label` names it to the user."""

    @property
    def id(self) -> str: ...

    @property
    def after(self) -> str | None: ...

    @property
    def label(self) -> str: ...

    def completed(self, result: Any) -> Node:
        """The node that is to run, given the result of the node that this one waits for."""
        ...


@frozen
class Began:
    """A worker has begun a node."""

    id: str


@frozen
class Advanced:
    """A share in [0, 1] of a node is done."""

    id: str
    share: float
    note: str = ""


@frozen
class Finished(Generic[Result]):
    """A node's result."""

    id: str
    result: Result


@frozen
class Failed:
    """A node that cannot be finished: the reason in one line, and where it came from in full."""

    id: str
    reason: str
    traceback: str = ""


@frozen
class Lost:
    """A worker died under a node, or left with its machine; begun again, the node may go on."""

    id: str
    reason: str
    departed: bool = False


def failed(id: str, error: BaseException) -> Failed:
    """The failure of a node that raised an error."""
    return Failed(id, reason_of(error), "".join(traceback.format_exception(error)))


@frozen
class Shared:
    """A node that waited turned out to be another one, which serves for both."""

    id: str


Event = Began | Advanced | Finished[Any] | Failed | Lost
"""What an executor reports."""
Watch = Callable[[Event | Shared, Any], None]
"""Called with everything that happens, and the node that it happens to."""
Show = Callable[[float, str], None]


class Work(Protocol):
    """What runs a node. It is sent to every worker once."""

    def __call__(self, node: Any, show: Show) -> Any: ...

    def on(self, device: str) -> Work:
        """The same, computing on a device by name."""
        ...


class Executor(Protocol):
    """Where nodes run. It is handed the work."""

    @property
    def slots(self) -> int:
        """How many nodes it takes at once."""
        ...

    def submit(self, node: Node) -> None: ...

    def event(self) -> Event:
        """The next thing that happened; waits for it. Called only while a node is under way."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop what is under way and let the workers go."""
        ...


@frozen
class Walked(Generic[Result]):
    """What came of a graph: results and failures by id. `completed` names the node that each waiting one became."""

    results: Mapping[str, Result] = field(factory=dict)
    failures: Mapping[str, Failed] = field(factory=dict)
    completed: Mapping[str, str] = field(factory=dict)

    def result(self, id: str) -> Result | None:
        """Of a node that was asked for; None where it failed."""
        return self.results.get(self.completed.get(id, id))

    def failure(self, id: str) -> Failed | None:
        """Why a node that was asked for has no result."""
        return self.failures.get(self.completed.get(id, id))


def walk(
    nodes: Iterable[Node],
    executor: Executor,
    show: Watch = lambda event, node: None,
    known: Callable[[Any], Finished[Any] | Failed | None] = lambda node: None,
    became: Callable[[Any, Any], None] = lambda waiting, complete: None,
) -> Walked[Any]:
    """Run every node once, in their order where they need not wait.

    Args:
        show: called with everything that happens; with what came of waiting nodes before the result that settled it.
        known: what came of a node that need not run, because an earlier call has seen to it.
        became: called with a node that waited, and what it became.
    """
    walked = _Walk(nodes, show, became)
    while walked.ready or walked.under_way:
        while walked.ready and len(walked.under_way) < executor.slots:
            node = walked.next()
            if (event := known(node)) is None:
                executor.submit(node)
            else:
                walked.take(event)
        if walked.under_way:
            walked.take(executor.event())
    return Walked(walked.results, walked.failures, walked.completed)


class _Walk:
    """How far a walk has come."""

    def __init__(self, nodes: Iterable[Node], show: Watch, became: Callable[[Any, Any], None]) -> None:
        self.show, self.became = show, became
        asked = {node.id: node for node in nodes}
        self.ready = [node for node in reversed(asked.values()) if node.after is None]  # the next one stands last
        self.known = {node.id: node for node in self.ready}
        self.waiting: dict[str, list[Node]] = {}
        for node in asked.values():
            if node.after is not None:
                self.waiting.setdefault(node.after, []).append(node)
        self.lost: Counter[tuple[str, bool]] = Counter()
        self.under_way: set[str] = set()
        self.results: dict[str, Any] = {}
        self.failures: dict[str, Failed] = {}
        self.completed: dict[str, str] = {}

    def next(self) -> Node:
        node = self.ready.pop()
        self.under_way.add(node.id)
        return node

    def take(self, event: Event) -> None:
        """Take note of what happened to a node under way."""
        if isinstance(event, Lost):
            self.lost[event.id, event.departed] += 1
            times = self.lost[event.id, event.departed]
            if times >= (DEPARTURES if event.departed else TRIES):
                event = Failed(event.id, f"{event.reason}, {times} times")
        node = self.known[event.id]
        if isinstance(event, Finished):
            self.under_way.discard(event.id)
            self.results[event.id] = event.result
            self._settle(event.id)  # first: how many nodes are left is then known to who is shown the result
        self.show(event, node)
        if isinstance(event, Lost | Failed):
            self.under_way.discard(event.id)
        if isinstance(event, Lost):
            self.ready.append(node)
        elif isinstance(event, Failed):
            self.failures[event.id] = event
            self._settle(event.id)

    def _settle(self, id: str) -> None:
        """Complete, or fail, what waits for a node that is over."""
        for node in reversed(self.waiting.pop(id, [])):
            if id in self.failures:
                failure = Failed(node.id, f"it waits for {self.known[id].label}, which failed")
                self.failures[node.id], self.known[node.id] = failure, node
                self.show(failure, node)
                self._settle(node.id)
                continue
            complete = node.completed(self.results[id])
            self.completed[node.id] = complete.id
            self.became(node, complete)
            self.waiting.setdefault(complete.id, []).extend(self.waiting.pop(node.id, []))
            if complete.id not in self.known:
                self.known[complete.id] = complete
                self.ready.append(complete)
                continue
            self.show(Shared(node.id), node)
            if complete.id in self.results or complete.id in self.failures:
                self._settle(complete.id)
