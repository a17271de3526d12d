"""What it cost to bring the worst group of validation so far: the first epoch that got there, in example-gradients."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evenly.engine import Trained as Run
from evenly.errors import EvenlyError

ABOVE_ERM = (0.0, 0.05, 0.10, 0.15)
"""Levels that arms are asked the cost of: so much above ERM's best worst group on validation."""


def cost_to_reach(history: Sequence[Mapping[str, Any]], worst_group: float) -> float | None:
    """Example-gradients spent when validation accuracy in the worst group first reached a share; None if it never did.

    Args:
        history: rows of epochs, as in `Run.history`; what a method spent before its first epoch is in their cost.
        worst_group: a share in [0, 1].
    """
    if not 0 <= worst_group <= 1:
        raise EvenlyError(f"worst_group {worst_group} is not a share; give a number in [0, 1], e.g. 0.75")
    reached = (row for row in history if _worst(row) >= worst_group - 1e-9)  # sums of shares are off by less
    return next((float(row["cost"]) for row in reached), None)


def is_erm_of(entry: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether an arm is plain ERM with the optimizer, and no other swept values, of an arm that is no control."""
    plain = other["method"] == "erm" and not other["control_of"] and not entry["control_of"]
    return plain and other["optimizer"] == entry["optimizer"] and other["sweep"].items() <= entry["sweep"].items()


def levels_reached(
    arm: str, erm: str, rows: Mapping[int, Mapping[str, Any]], trained: Mapping[tuple[str, int], Run]
) -> list[dict[str, Any]]:
    """For each level above ERM's best worst group of the same seed, what it cost every seed to reach it, None if it
    did not, how many did, and the median over all seeds, None where that is a seed that did not; nothing where
    validation does not tell, or where the weights are not those of any epoch."""
    found: dict[float, list[float | None]] = {above: [] for above in ABOVE_ERM}
    for seed in rows:
        mine, its = trained.get((arm, seed)), trained.get((erm, seed))
        if mine is None or its is None or not mine.history or mine.cost > mine.history[-1]["cost"]:
            return []
        best = max(map(_worst, its.history), default=-math.inf)
        if -math.inf in (best, max(map(_worst, mine.history))):
            return []
        for above, costs in found.items():
            costs.append(cost_to_reach(mine.history, best + above) if best + above <= 1 else None)
    units = [row["cost"] / row["cost_multiple"] for row in rows.values()]
    levels = []
    for above, costs in found.items():
        multiples = [None if cost is None else cost / unit for cost, unit in zip(costs, units, strict=True)]
        levels.append({
            "above_erm": above, "costs": costs, "cost_multiples": multiples,
            "seeds": len(costs), "seeds_reached": sum(cost is not None for cost in costs),
            "median_cost": _median(costs), "median_cost_multiple": _median(multiples),
        })  # fmt: skip
    return levels


def why_untold(arm: str, erm: str, rows: Iterable[int], trained: Mapping[tuple[str, int], Run]) -> str:
    """Why the runs of an arm do not tell what it cost to come so far, in a few words; nothing where no reason is known.

    Args:
        rows: the seeds.
    """
    pairs = [(trained.get((arm, seed)), trained.get((erm, seed))) for seed in rows]
    runs = [run for pair in pairs for run in pair if run is not None and run.history]
    if any("worst_inferred_group" in (row.get("validation") or {}) for run in runs for row in run.history):
        return "validation was looked at by inferred groups"
    if any(mine is not None and mine.history and mine.cost > mine.history[-1]["cost"] for mine, _ in pairs):
        return "its weights were changed after the last epoch"
    return ""


def _median(costs: Sequence[float | None]) -> float | None:
    """The median, with a seed that never came so far dearer than any other; None where it is such a seed's."""
    found = statistics.median(math.inf if cost is None else cost for cost in costs)
    return found if math.isfinite(found) else None


def _worst(row: Mapping[str, Any]) -> float:
    return float((row.get("validation") or {}).get("worst_group", -math.inf))
