"""Which groups decide the interval of a difference in worst-group accuracy, where the worst group is not certain.

A method has accuracy a_g in group g, its control b_h in group h. Which group is the lowest is read from the same test
examples, and the lowest of several is low by chance as well: most of all for a model whose groups are equally good. So
the interval is not that of the two groups that happen to be the lowest. It rests on

    min_g a_g - min_h b_h  =  max_h min_g (a_g - b_h)  =  min_g max_h (a_g - b_h)

Let L_gh be a lower bound of a_g - b_h. The lower end is the largest, over the control's groups h, of the smallest L_gh
over the method's groups g. It can only be too high if L_gh is too high for the method's true worst group g and some h.
The g is one, whichever it is, so the level is divided by the number of h alone. The upper end is the same with the
roles exchanged.

Only candidates are counted: the groups that a screen cannot separate from the lowest of their run. The screen takes
0.005 of the 0.05, over all groups, seeds and both sides. Where one group is clearly the lowest, it is the only
candidate, and the interval is the one of that group at 95.5%. Groups that are left out as h make the lower end lower,
never too high. Groups that are left out as g would have larger L_gh.

With several seeds the difference is the mean over seeds, and each seed may have another worst group. A *choice* names a
group for every seed, and g and h above are choices. Any set of choices for h gives a valid lower end: fewer make it
lower. All combinations of candidates would be too many to correct for, so there is one choice per candidate: that group
in every seed in which it is a candidate, and elsewhere the candidate that most seeds have. For g, the choice of each
seed's lowest group is added, which makes the difference smallest.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
from attrs import frozen

Array = np.ndarray[Any, Any]

SCREEN = 0.005
"""What the screen for candidates takes of the 5% of draws in which an interval may miss."""
MOST_TRIED = 16
"""Choices of a side that are tried, those with the lowest accuracies. The level is divided by the number of all."""


@frozen(eq=False)
class Side:
    """What one of the two, method or control, may have as its worst group.

    Args:
        choices: (S, C) a group for each seed; the last is that of each seed's lowest.
        candidates: how many choices a bound that takes the best of them has to be corrected for.
    """

    choices: Array
    candidates: int


def side_of(shares: Array, counts: Array) -> Side:
    """The choices of one side, from its accuracy (S, K) in each group, NaN where a group is empty, and the number of
    examples there (S, K)."""
    lowest = np.nanargmin(shares, axis=1)
    possible = candidates(shares, counts, lowest)
    choices = choices_of(possible)
    count = choices.shape[1]
    if count > MOST_TRIED:
        centre, variance = adjusted(shares, counts)
        seeds = np.arange(len(shares))[:, None]
        low = centre[seeds, choices].mean(0) - 2 * np.sqrt(variance[seeds, choices].mean(0))
        choices = choices[:, np.sort(np.argsort(low, kind="stable")[:MOST_TRIED])]
    return Side(np.column_stack([choices, lowest]), count)


def adjusted(shares: Array, counts: Array) -> tuple[Array, Array]:
    """Accuracies and their variances with one right and one wrong answer more, as Agresti and Coull have them."""
    centre = (shares * counts + 1) / (counts + 2)
    return centre, centre * (1 - centre) / (counts + 2)


def candidates(shares: Array, counts: Array, lowest: Array) -> Array:
    """(S, K) whether a group may be the worst of its run: it cannot be separated from the lowest (S,)."""
    centre, variance = adjusted(shares, counts)
    seeds = np.arange(len(shares))
    tests = 2 * len(shares) * np.maximum((counts > 0).sum(1) - 1, 1)
    limit = np.array([NormalDist().inv_cdf(1 - SCREEN / test) for test in tests.tolist()])
    above = centre - centre[seeds, lowest][:, None]
    separated = above > limit[:, None] * np.sqrt(variance + variance[seeds, lowest][:, None])
    possible: Array = ~separated & (counts > 0)
    return possible


def choices_of(possible: Array) -> Array:
    """(S, C) the choices of candidates (S, K): a function of which these are, not of how low they are."""
    in_most = np.where(possible, possible.sum(0), 0).argmax(1)
    groups = np.flatnonzero(possible.any(0))
    return np.unique(np.where(possible[:, groups], groups, in_most[:, None]), axis=1)


def quantile(error: float, side: Side) -> float:
    """Standard errors that a bound is away from an estimate, where it is the best of a side's choices."""
    return NormalDist().inv_cdf(1 - error / side.candidates)
