"""What `evenly improve` tries, in which order, and why.

The order is that of the list. Where the budget has no room for all, the last are left out first. Costs are in runs of
ERM. What a method costs may depend on the data: how long its early stage is, how many examples it repeats. Nothing is
begun that could exceed the budget, so such a method is counted with the most that it can cost.

How the order was found: on shortcut digits (seeds 400-402, groups given and inferred) by the worst group on validation,
and by what else is known of the methods (docs/groups.md, docs/results/celeba.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import frozen

from evenly.data import Data
from evenly.runs.improvement import Goal, Grouping
from evenly.settings import Settings

REPEATED = 5
"""How often JTT repeats what a first network gets wrong: its default of 20 may cost twenty runs of ERM."""
LONGEST = 10
"""How many times ERM's epochs a method on a small balanced set may take; its cost is below ERM's even so."""


@frozen
class Candidate:
    """A method to try.

    Args:
        cost: in runs of ERM, the most that it can take without SAM.
        varies: whether its cost depends on the data and the seed.
        sam: whether with SAM, which doubles the cost.
        small_set: whether it trains on a balanced set that may be small, and so needs more epochs.
    """

    method: str
    reason: str
    cost: float = 1.0
    varies: bool = False
    sam: bool = False
    small_set: bool = False

    @property
    def most(self) -> float:
        """The most that it can cost, in runs of ERM."""
        return self.cost * (2 if self.sam else 1)

    def options(self, data: Data, settings: Settings) -> dict[str, Any]:
        """What the method is given where the data's recipe says nothing of it.

        An epoch of a balanced set is short: such a method gets as many epochs as make the cost of ERM, up to
        `LONGEST` times as many.
        """
        if self.method == "jtt":
            return {"factor": REPEATED}
        groups = data.train.groups
        if not self.small_set or groups is None or groups.ndim == 2 or data.recipe.get("options", {}).get(self.method):
            return {}
        counts = np.bincount(groups.numpy())
        smallest = counts[counts > 0]
        balanced = int(len(smallest) * smallest.min())
        longer = min(LONGEST, len(groups) / balanced) * (0.8 if self.method == "pde" else 1.0)  # its set grows
        return {"epochs": max(settings.epochs, int(settings.epochs * longer))}


KNOWN = (
    Candidate("group_dro", "raises the loss's weight on the groups that are worst so far"),
    Candidate("reweight", "draws every group equally often"),
    Candidate("subsample", "trains on as many examples of each group as the smallest has", small_set=True),
    Candidate("dfr", "keeps the features of plain training and fits the last layer on balanced draws", 1.4),
    Candidate("pde", "starts on a balanced set and adds the rest a little at a time", small_set=True),
    Candidate("jtt", "repeats what a first network gets wrong", REPEATED + 1.4, varies=True),
)
UNKNOWN = (
    Candidate("group_dro", "raises the loss's weight on the inferred groups that are worst so far"),
    Candidate("eiil", "infers environments that a first network does not explain alike, then group DRO", 2.4, True),
    Candidate("reweight", "draws every inferred group equally often"),
    Candidate("useful", "repeats the examples that an early network finds hard", 3.4, varies=True),
    Candidate("jtt", "repeats what a first network gets wrong", REPEATED + 1.4, varies=True),
    Candidate("subsample", "trains on as many examples of each inferred group as the smallest has", small_set=True),
    Candidate("lff", "trains a second network on what the first fails at", 2.0),
)
AVERAGE = (
    Candidate("useful", "repeats the examples that lack the easy features", 3.4, varies=True),
    Candidate("erm", "SAM learns features more evenly", sam=True),
    Candidate("useful", "both together", 3.4, varies=True, sam=True),
)
CLASSES = (
    Candidate("reweight", "draws every class equally often"),
    Candidate("group_dro", "raises the loss's weight on the classes that are worst so far"),
    Candidate("subsample", "trains on as many examples of each class as the smallest has", small_set=True),
    Candidate("useful", "repeats the examples that lack the easy features", 3.4, varies=True),
)
ON_TOP = Candidate("", "SAM on top of the best", sam=True)


def candidates_for(goal: Goal, grouping: Grouping) -> tuple[Candidate, ...]:
    """What fits the goal and what is known of the groups."""
    if goal == "average" or grouping == "none":
        return AVERAGE
    by_grouping: Mapping[str, tuple[Candidate, ...]] = {"given": KNOWN, "slice": KNOWN, "classes": CLASSES}
    return by_grouping.get(grouping, UNKNOWN)
