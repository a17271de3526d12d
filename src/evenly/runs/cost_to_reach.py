"""What it cost to bring the worst group of validation to a level: example-gradients up to the first epoch there."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from attrs import frozen

from evenly.errors import EvenlyError
from evenly.runs.run import History, HistoryRow, Run
from evenly.values import Value

ABOVE_ERM = (0.0, 0.05, 0.10, 0.15)
"""The levels: this much above ERM's best worst group on validation."""


@frozen
class Level(Value):
    """What it cost to reach a level: per seed, None where a seed never did, and in the median over all seeds. The
    median is None where it falls on a seed that never reached the level."""

    above_erm: float
    costs: tuple[float | None, ...]
    cost_multiples: tuple[float | None, ...]
    median_cost: float | None
    median_cost_multiple: float | None

    @property
    def seeds(self) -> int:
        return len(self.costs)

    @property
    def seeds_reached(self) -> int:
        return sum(cost is not None for cost in self.costs)


def cost_to_reach(history: History, worst_group: float) -> float | None:
    """Example-gradients spent when validation accuracy in the worst group first reached a share; None if it never did.

    Args:
        history: rows of epochs, as in `Run.history`; what a method spent before its first epoch is in their cost.
        worst_group: a share in [0, 1].
    """
    if not 0 <= worst_group <= 1:
        raise EvenlyError(f"worst_group must be a share from 0 to 1, got {worst_group}")
    reached = (row for row in history if _worst(row) >= worst_group - 1e-9)  # sums of shares are off by less
    return next((float(row["cost"]) for row in reached), None)


def levels_reached(pairs: Sequence[tuple[Run | None, Run | None]]) -> tuple[Level, ...]:
    """The levels of an arm; none where validation has no true groups, or the weights are not those of any epoch.

    Args:
        pairs: per seed, the arm's run and plain ERM's.
    """
    costs: dict[float, list[float | None]] = {above: [] for above in ABOVE_ERM}
    units = []
    for run, erm in pairs:
        if run is None or erm is None or not run.history or changed_after_training(run):
            return ()
        best = max(map(_worst, erm.history), default=-math.inf)
        if -math.inf in (best, max(map(_worst, run.history))):
            return ()
        units.append(run.results.unit)
        for above, of_level in costs.items():
            of_level.append(cost_to_reach(run.history, best + above) if best + above <= 1 else None)
    levels = []
    for above, of_level in costs.items():
        multiples = [None if cost is None else cost / unit for cost, unit in zip(of_level, units, strict=True)]
        levels.append(Level(above, tuple(of_level), tuple(multiples), _median(of_level), _median(multiples)))
    return tuple(levels)


def reason_for_none(pairs: Sequence[tuple[Run | None, Run | None]]) -> str:
    """Why an arm has no levels, in a few words; empty where no reason is known."""
    runs = [run for pair in pairs for run in pair if run is not None and run.history]
    if any("worst_inferred_group" in (row.get("validation") or {}) for run in runs for row in run.history):
        return "validation was measured by inferred groups"
    if any(run is not None and run.history and changed_after_training(run) for run, _ in pairs):
        return "its weights were changed after the last epoch"
    return ""


def changed_after_training(run: Run) -> bool:
    """Whether the method changed the weights after the last epoch, so that they are those of no epoch."""
    return bool(run.results.cost > run.history[-1]["cost"])


def _median(costs: Sequence[float | None]) -> float | None:
    """The median, with a seed that never reached the level above all others; None where it is such a seed's."""
    median = statistics.median(math.inf if cost is None else cost for cost in costs)
    return median if math.isfinite(median) else None


def _worst(row: HistoryRow) -> float:
    return float((row.get("validation") or {}).get("worst_group", -math.inf))
