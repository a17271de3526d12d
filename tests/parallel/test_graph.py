from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import evolve, frozen

from evenly.parallel.graph import Event, Failed, Finished, Lost, Node, walk


@frozen
class Number:
    id: str
    after: str | None = None
    becomes: str | None = None

    @property
    def label(self) -> str:
        return f"node {self.id}"

    def completed(self, result: Any) -> Number:
        return Number(self.becomes or f"{self.id} after {result}")


class Listed:
    """An executor that runs a node when it is asked what happened."""

    def __init__(self, run: Callable[[Node], Event], slots: int = 2) -> None:
        self.run, self.slots, self.order, self.open = run, slots, list[str](), list[Node]()

    def submit(self, node: Node) -> None:
        assert len(self.open) < self.slots
        self.order.append(node.id)
        self.open.append(node)

    def event(self) -> Event:
        return self.run(self.open.pop(0))

    def __enter__(self) -> Listed:
        return self

    def __exit__(self, *raised: object) -> None: ...


def doubled(node: Node) -> Event:
    return Finished(node.id, node.id * 2)


def test_a_node_that_waits_is_completed_by_the_result_and_goes_first():
    executor = Listed(doubled, slots=1)
    walked = walk([Number("a"), Number("a control", after="a"), Number("b")], executor)
    assert executor.order == ["a", "a control after aa", "b"]
    assert walked.result("a control") == "a control after aa" * 2
    assert walked.completed == {"a control": "a control after aa"}


def test_a_completed_node_that_is_there_already_serves_for_both():
    executor = Listed(doubled)
    nodes = [Number("erm"), Number("sam"), Number("of sam", "sam", "erm"), Number("of of sam", "of sam", "erm")]
    happened: list[tuple[str, str]] = []
    walked = walk(nodes, executor, lambda event, node: happened.append((type(event).__name__, node.id)))
    assert executor.order == ["erm", "sam"]
    assert happened == [("Finished", "erm"), ("Shared", "of sam"), ("Shared", "of of sam"), ("Finished", "sam")]
    assert walked.result("of sam") == walked.result("of of sam") == "ermerm"


def test_a_failure_fails_what_waits_and_the_rest_go_on():
    def run(node: Node) -> Event:
        return Failed(node.id, "it diverged") if node.id == "a" else doubled(node)

    happened: list[tuple[str, str]] = []
    nodes = [Number("a"), Number("a control", after="a"), Number("b")]
    walked = walk(nodes, Listed(run), lambda event, node: happened.append((type(event).__name__, node.label)))
    assert walked.results == {"b": "bb"}
    assert [each.reason for each in walked.failures.values()] == ["it diverged", "it waits for node a, which failed"]
    assert happened == [("Failed", "node a"), ("Failed", "node a control"), ("Finished", "node b")]


def test_a_lost_node_is_begun_again_and_fails_after_three_times():
    lost = iter(["a", "a", "b", "b", "b"])
    ahead = next(lost)

    def run(node: Node) -> Event:
        nonlocal ahead
        if node.id == ahead:
            ahead = next(lost, "")
            return Lost(node.id, "its worker was killed")
        return doubled(node)

    executor = Listed(run, slots=1)
    walked = walk([Number("a"), Number("b")], executor)
    assert executor.order == ["a"] * 3 + ["b"] * 3
    assert walked.results == {"a": "aa"}
    assert walked.failures["b"].reason == "its worker was killed, 3 times"


def test_machines_that_leave_are_counted_apart_from_crashes():
    """Two crashes and nineteen departures are survived; the twentieth departure is not."""
    for departures, fate in ((19, "finished"), (20, "its machine left the cluster, 20 times")):
        events = [Lost("a", "its worker was killed")] * 2
        events += [Lost("a", "its machine left the cluster", departed=True)] * departures
        remaining = iter([*events, Finished("a", "finished")])
        walked = walk([Number("a")], Listed(lambda node, remaining=remaining: next(remaining)))
        assert (walked.results or {"a": walked.failures["a"].reason})["a"] == fate


def test_a_node_asked_for_twice_runs_once():
    executor = Listed(doubled)
    walk([Number("a"), evolve(Number("a"))], executor)
    assert executor.order == ["a"]
