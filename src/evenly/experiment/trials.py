"""The runs of `evenly improve` and what they cost: nothing is begun that would exceed the budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve

from evenly.data import Data
from evenly.errors import EvenlyError
from evenly.experiment.arms import Asked, arms_and_controls, control_of
from evenly.experiment.graph import RunNode, failures_of, graph_of, nodes_of, rows_of
from evenly.experiment.work import RunWork
from evenly.parallel.graph import Walked
from evenly.runs.arms import Arm
from evenly.runs.run import Run

Walk = Callable[[Sequence[RunNode], RunWork, str], Walked[Run]]
EXACT = 1.001
"""How much more than its arm a control may cost: it ends with the step that reaches the arm's cost."""


class Trials:
    """Runs arms on seeds, and keeps account.

    Args:
        asked: what all arms have in common.
        budget: in example-gradients.
        spent: before the first run.
    """

    def __init__(self, asked: Asked, data: Data, work: RunWork, walk: Walk, budget: float, spent: float) -> None:
        self.asked, self.data, self.work, self.walk, self.budget = asked, data, work, walk, budget
        self.runs: dict[Arm, dict[int, Run]] = {}
        self.controls: dict[Arm, dict[int, Arm]] = {}
        self.reasons: dict[Arm, str] = {}
        """Why an arm could not be trained."""
        self._before, self._costs = spent, dict[str, float]()

    @property
    def spent(self) -> float:
        """Example-gradients so far; a run that serves two arms counts once."""
        return self._before + sum(self._costs.values())

    @property
    def unit(self) -> float:
        """What one run of ERM costs."""
        return next(run.results.unit for runs in self.runs.values() for run in runs.values())

    @property
    def left(self) -> float:
        """What is left of the budget, in runs of ERM."""
        return (self.budget - self.spent) / self.unit

    def cost(self, arm: Arm) -> float | None:
        """What the arm costs at most, in runs of ERM, as its runs have shown."""
        costs = [run.results.cost_multiple for run in self.runs.get(arm, {}).values()]
        return max(costs) if costs else None

    def cost_on(self, arm: Arm, seeds: Sequence[int], most: float | None) -> float:
        """What an arm that has run costs at most on these seeds, those that it has run on left out.

        Args:
            most: what one run may cost where that depends on the seed.
        """
        missing = [seed for seed in seeds if seed not in self.runs[arm]]
        return len(missing) * ((self.cost(arm) or 0.0) if most is None else most)

    def control_cost_on(self, arm: Arm, seeds: Sequence[int]) -> float:
        """What its control costs: what the arm did. Plain training of the cost of ERM is ERM, which is there."""
        control = control_of(arm.method, arm.optimizer)
        if control is None:
            return 0.0
        costs = [self.runs[arm][seed].results.cost_multiple for seed in seeds]
        there = Arm(*control) in self.runs
        return sum(0.0 if there and math.isclose(cost, 1.0) else EXACT * cost for cost in costs)

    def run(
        self,
        arms: Sequence[Arm],
        seeds: Sequence[int],
        options: Mapping[str, Mapping[str, Any]],
        *,
        label: str,
        controls: bool = False,
    ) -> None:
        """Run arms on seeds, and their controls on request; what has run is not repeated."""
        possible = [arm for arm in arms if self._is_possible(arm, options)]
        if not possible:
            return
        asked = self._asked(possible, options, controls)
        graph = graph_of(arms_and_controls(asked, self.data), seeds)
        walked = self.walk(nodes_of(graph), self.work, label)
        for (arm, seed), (row, run) in rows_of(graph, walked).items():
            self.runs.setdefault(arm, {})[seed] = run
            self._costs[run.plan.digest] = run.results.cost
            if row.control is not None:
                self.controls.setdefault(arm, {})[seed] = row.control
        failed = {failure.label: failure.reason for failure in failures_of(graph, walked)}
        for each in graph:
            if each.node.label in failed:
                self.reasons[each.arm] = failed[each.node.label]

    def control(self, arm: Arm, seeds: Sequence[int]) -> tuple[Arm, dict[int, Run]] | None:
        """The arm's control of equal cost, and its runs by seed; None where it did not run on all of them."""
        controls = self.controls.get(arm, {})
        runs = {seed: self.runs[controls[seed]][seed] for seed in seeds if self._has_run(controls.get(seed), seed)}
        return (controls[seeds[0]], runs) if len(runs) == len(seeds) else None

    def _has_run(self, arm: Arm | None, seed: int) -> bool:
        return arm is not None and seed in self.runs.get(arm, {})

    def _is_possible(self, arm: Arm, options: Mapping[str, Mapping[str, Any]]) -> bool:
        try:
            arms_and_controls(self._asked([arm], options, controls=False), self.data)
        except EvenlyError as error:
            self.reasons[arm] = str(error)
            return False
        return True

    def _asked(self, arms: Sequence[Arm], options: Mapping[str, Mapping[str, Any]], controls: bool) -> Asked:
        names = {arm.method for arm in arms}
        own = {method: given for method, given in options.items() if method in names and given}
        methods = tuple(f"{arm.method}+{arm.optimizer}" for arm in arms)
        return evolve(self.asked, methods=methods, options=own, controls=controls).checked({}, {})
