"""A comparison as a graph of runs: every arm on every seed, and the controls, which wait for their arms."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from evenly.errors import EvenlyError
from evenly.experiment.arms import ArmPlan
from evenly.files import read_json, write_json
from evenly.parallel.graph import Walked
from evenly.runs.arms import Arm
from evenly.runs.comparison import Failure
from evenly.runs.folder import FORMAT
from evenly.runs.plan import Plan
from evenly.runs.results import RunResult
from evenly.runs.run import Run
from evenly.runs.summary import Row

GRAPH = "graph.json"
BETWEEN, SHARE = 1.0, 0.02
"""Seconds between two writes of the graph, and the share of time that writing a large one may take."""


@frozen
class RunNode:
    """A run as a node: its plan, and its name to the user.

    Args:
        control_of: of a control, the label of its arm.
        passes: of a control that may serve uncut, its passes over each example.
    """

    plan: Plan
    label: str
    control_of: str = ""
    passes: int | None = None
    id: str = field(init=False, eq=False)

    @id.default
    def _digest(self) -> str:
        return self.plan.digest

    @property
    def after(self) -> str | None:
        return self.plan.after

    @property
    def folder_name(self) -> str:
        return self.plan.folder_name_of(self.id)

    def completed(self, arm: Run) -> RunNode:
        return RunNode(self.completed_plan(arm.results), self.label, self.control_of)

    def completed_plan(self, arm: RunResult) -> Plan:
        """The control's plan once its arm has run."""
        if self.passes is None:
            return self.plan.completed(arm)
        full_cost = float(self.passes * self.plan.settings.epochs * arm.data.sizes["train"])
        return evolve(self.plan, full_cost=full_cost).completed(arm)


@frozen
class ArmOnSeed:
    """An arm on one seed, and its control."""

    arm: Arm
    node: RunNode
    control_arm: Arm | None = None
    control: RunNode | None = None

    @property
    def nodes(self) -> list[RunNode]:
        return [self.node] if self.control is None else [self.node, self.control]

    @property
    def seed(self) -> int:
        return self.node.plan.seed


def graph_of(arms: Sequence[ArmPlan], seeds: Iterable[int]) -> tuple[ArmOnSeed, ...]:
    """All arms on all seeds."""
    return tuple(_on_seed(arm, seed) for seed in seeds for arm in arms)


def _on_seed(arm: ArmPlan, seed: int) -> ArmOnSeed:
    label = f"{arm.arm.name.replace('+', ' with ', 1)}, seed {seed}"
    node = RunNode(evolve(arm.plan, seed=seed), label)
    if arm.control is None:
        return ArmOnSeed(arm.arm, node)
    waiting = RunNode(evolve(arm.control, seed=seed, after=node.id), f"control of {label}", label, arm.passes)
    return ArmOnSeed(arm.arm, node, arm.control_arm, waiting)


def nodes_of(graph: Iterable[ArmOnSeed]) -> list[RunNode]:
    """The nodes of a graph, each once, every control after its arm."""
    nodes: dict[str, RunNode] = {}
    for each in graph:
        for node in each.nodes:
            nodes.setdefault(node.id, node)
    return list(nodes.values())


def rows_of(graph: Iterable[ArmOnSeed], walked: Walked[Run]) -> dict[tuple[Arm, int], tuple[Row, Run]]:
    """The rows of what has run, ordered by seed, each arm before its control; an arm that serves two has one row."""
    rows: dict[tuple[Arm, int], tuple[Row, Run]] = {}
    for each in graph:
        if (run := walked.result(each.node.id)) is None:
            continue
        row, its_run = rows.setdefault((each.arm, each.seed), (_row(each.arm, run), run))
        if each.control is None or each.control_arm is None:
            continue
        control = each.control_arm
        if each.control.completed_plan(run.results).budget is not None:
            control = Arm(control.method, control.optimizer, each.arm.swept, control_of=each.arm)
        if (beside := walked.result(each.control.id)) is not None:
            rows.setdefault((control, each.seed), (_row(control, beside), beside))
        rows[each.arm, each.seed] = (evolve(row, control=control), its_run)
    return rows


def _row(arm: Arm, run: Run) -> Row:
    return Row(arm, run.plan.seed, run.results, folder=None if run.folder is None else f"runs/{run.folder.name}")


def failures_of(graph: Iterable[ArmOnSeed], walked: Walked[Run]) -> tuple[Failure, ...]:
    """The runs that failed, each once; a control whose arm failed is not named."""
    failures: dict[str, Failure] = {}
    for each in graph:
        for node in each.nodes:
            if (failure := walked.failure(node.id)) is None:
                continue
            failures.setdefault(failure.id, Failure(node.label, each.seed, failure.reason))
            break
    return tuple(failures.values())


class GraphFile:
    """`graph.json` in a comparison's folder: every node of this call and of earlier ones, and where its run lies."""

    def __init__(self, folder: Path, nodes: Iterable[RunNode]) -> None:
        self.path = folder / GRAPH
        stored = read_json(self.path, "remove it; the next call writes it")
        try:
            nodes_there = [] if stored is None else stored["nodes"]
            self.nodes: dict[str, dict[str, Any]] = {each["id"]: each for each in nodes_there}
        except (TypeError, KeyError):
            raise EvenlyError(
                f"{self.path} is damaged (it names no runs); remove it; the next call writes it"
            ) from None
        before = dict(self.nodes)
        for node in nodes:
            place = before.get(node.id, {}).get("folder") if node.after else f"runs/{node.folder_name}"
            entry = {"id": node.id, "label": node.label, "seed": node.plan.seed, "after": node.after}
            self.nodes[node.id] = {**entry, "folder": place}
        self.due = 0.0
        self.stale = self.nodes != before

    def became(self, waiting: RunNode, complete: RunNode) -> None:
        """Take note of the run that a waiting node became."""
        folder = f"runs/{complete.folder_name}"
        if self.nodes[waiting.id]["folder"] != folder:
            self.nodes[waiting.id] = {**self.nodes[waiting.id], "folder": folder}
            self.stale = True
        if time.monotonic() >= self.due:
            self.write()

    def write(self) -> None:
        if self.stale:
            started, self.stale = time.monotonic(), False
            write_json(self.path, {"format": FORMAT, "nodes": list(self.nodes.values())})
            self.due = started + max(BETWEEN, (time.monotonic() - started) / SHARE)
