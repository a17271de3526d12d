"""The difference between two methods, with two uncertainties.

Over test examples, for these very models: would other examples of the same kind show it too? Per example the difference
in right answers is averaged over seeds, d_i in [-1, 1]. The interval is that of Agresti and Min (2005) for matched
proportions. They add half an observation to each cell of the 2 x 2 table: to the N differences +1 and -1 half a time
each, and 0 once. With one seed it is theirs exactly. With several it keeps its coverage where a group is small, and a
few examples that all differ by the same are not taken for certainty.

Over repetitions: would other seeds show it too? The t-interval of the differences, paired by seed, from three seeds on.

A difference is *clear* where both intervals exclude 0, *clear for these models only* where the first does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from attrs import frozen

from evenly.values import Value

EQUAL = 1e-9
"""Differences between shares that are closer than this are the same but for rounding."""
FEWEST = 3
"""Seeds that a t-interval is given from."""
MOST = 100
"""Seeds that are counted up to, where it is said how many would settle it."""

Outcome = Literal["raised", "lowered", "raised-for-these", "lowered-for-these", "unclear", "unknown"]
CLEAR: dict[int, Outcome] = {1: "raised", -1: "lowered", 0: "unclear"}
FOR_THESE: dict[int, Outcome] = {1: "raised-for-these", -1: "lowered-for-these", 0: "unclear"}
CORRECT = ("judged_right", "judged_examples", "judged_groups")
"""The arrays of `predictions.npz` that say which examples of the split that is judged were got right."""
Array = np.ndarray[Any, Any]
Intervals = Mapping[str, tuple[float, float] | None]
"""Of each metric, by name."""


@frozen
class Difference(Value):
    """The mean of paired differences, its 95% t-interval over seeds, and its 95% interval over test examples.

    There is no t-interval from fewer than three pairs, nor from pairs that all differ by the same: on a few seeds that
    is chance, and their spread of 0 would make it certainty. `sd` is over pairs; None of one.

    For the worst group the examples are those of the group that is worst for the control.
    """

    mean: float
    low: float | None
    high: float | None
    pairs: int
    sd: float | None = None
    examples_low: float | None = None
    examples_high: float | None = None

    @property
    def outcome(self) -> Outcome:
        """What both intervals say; where no test examples are known, the seeds alone.

        Where the worst group is another one than the control's, the examples say nothing of it: seeds alone can show
        that it fell, and a rise stays unclear.
        """
        seeds, examples = _side(self.low, self.high), _side(self.examples_low, self.examples_high)
        if self.is_elsewhere:
            return CLEAR[-1] if seeds == -1 else "unclear"
        if not math.isfinite(self.mean) or (seeds is None and examples is None):
            return "unclear" if self.is_zero else "unknown"
        if examples is None or seeds == examples:
            return CLEAR[seeds or 0]
        return FOR_THESE[0 if seeds == -examples else examples]

    @property
    def is_elsewhere(self) -> bool:
        """Whether the control's worst group was raised (or lowered) by more than the worst group was."""
        if self.examples_low is None or self.examples_high is None:
            return False
        return self.mean < self.examples_low > 0 or self.mean > self.examples_high < 0

    @property
    def is_zero(self) -> bool:
        """Whether several seeds all have the value of their control."""
        return self.pairs > 1 and self.mean == 0 and self.sd == 0

    @property
    def points(self) -> str:
        """The difference alone, signed, with as many digits as its intervals need: "−0.4"."""
        return signed(self.mean, self._digits) if math.isfinite(self.mean) else "–"

    @property
    def over_examples(self) -> str:
        """The interval over test examples, in points: "[−1.9, 1.1]"; nothing where there is none."""
        return self._interval(self.examples_low, self.examples_high)

    @property
    def over_seeds(self) -> str:
        """The interval over seeds in points, or how many it needs: "needs 3 or more", "needs about 4 more"."""
        if self.low is not None:
            return self._interval(self.low, self.high)
        if self.pairs >= FEWEST:
            return "all the same"
        needed = self.seeds_needed
        return f"needs about {needed - self.pairs} more" if needed is not None else f"needs {FEWEST} or more"

    @property
    def seeds_needed(self) -> int | None:
        """How many seeds would exclude 0 if they varied as these do; None where that is not known, or over `MOST`."""
        if not self.sd or not self.mean:
            return None
        from scipy.stats import t

        n = np.arange(FEWEST, MOST + 1)
        settled = t.ppf(0.975, n - 1) * self.sd / np.sqrt(n) < abs(self.mean)
        return int(n[settled.argmax()]) if settled.any() else None

    @property
    def _digits(self) -> int:
        """One digit, or two where one would print a number as 0.0 that is not."""
        values = (self.mean, self.low, self.high, self.examples_low, self.examples_high)
        return 2 if any(value is not None and 1e-5 < abs(value) < 5e-4 for value in values) else 1

    def _interval(self, low: float | None, high: float | None) -> str:
        if low is None or high is None:
            return ""
        return f"[{signed(low, self._digits).lstrip('+')}, {signed(high, self._digits).lstrip('+')}]"


@frozen(eq=False)
class Correct:
    """Which examples of the split that a run is judged on it got right.

    Args:
        right: (N,) boolean.
        labels: (N,).
        groups: (N,) integers, or boolean (N, G); None where there are no groups.
        examples: a digest of the split. Runs with the same one were measured on the same examples.
    """

    right: Array
    labels: Array
    groups: Array | None
    examples: str

    def arrays(self) -> dict[str, Array]:
        """As `predictions.npz` has it: a bit per example, and groups in as few bytes as they need."""
        groups = self.groups
        if groups is not None and groups.ndim == 1:
            groups = groups.astype(np.min_scalar_type(int(groups.max())))
        arrays = zip(CORRECT, (np.packbits(self.right), np.array(self.examples), groups), strict=True)
        return {name: array for name, array in arrays if array is not None}


def paired(differences: Sequence[float], level: float = 0.95) -> Difference:
    """Mean of paired differences with its t-interval."""
    n, centre, spread = len(differences), mean(differences), sd(differences)
    if spread < EQUAL:
        return Difference(0.0 if abs(centre) < EQUAL else centre, None, None, n, None if n < 2 else 0.0)
    if n < FEWEST:
        return Difference(centre, None, None, n, spread)
    from scipy.stats import t

    half = float(t.ppf(0.5 + level / 2, n - 1)) * spread / math.sqrt(n)
    return Difference(centre, centre - half, centre + half, n, spread)


def over_examples(differences: Array, level: float = 0.95) -> tuple[float, float] | None:
    """The interval of a mean of per-example differences (N,), each in [-1, 1]; None of no example."""
    if not len(differences):
        return None
    return agresti_min(float(differences.sum()), float((differences**2).sum()), len(differences), level)


def agresti_min(total: float, squares: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """The interval of a mean of n differences, each in [-1, 1], from their sum and the sum of their squares."""
    n += 2
    centre = total / n
    half = NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(squares + 1 - total**2 / n) / n
    return max(-1.0, centre - half), min(1.0, centre + half)


def example_intervals(pairs: Sequence[tuple[Correct, Correct]], train_counts: Sequence[int] = ()) -> Intervals:
    """The interval over examples of each metric.

    Seeds that were measured on the same examples are averaged per example. Those of different test sets are pooled.

    Args:
        pairs: per seed, what a method and its control got right.
        train_counts: how many training examples each group has, for the train-weighted accuracy.
    """
    sets: dict[str, list[tuple[Correct, Correct]]] = {}
    for ours, theirs in pairs:
        if ours.examples != theirs.examples:
            return {}
        sets.setdefault(ours.examples, []).append((ours, theirs))
    if not sets:
        return {}
    differences = np.concatenate([_mean_difference(of_set) for of_set in sets.values()])
    control = np.concatenate([np.mean([theirs.right for _, theirs in of_set], axis=0) for of_set in sets.values()])
    firsts = [of_set[0][0] for of_set in sets.values()]
    labels = np.concatenate([first.labels for first in firsts])
    found = {
        "accuracy": over_examples(differences),
        "worst_class": over_examples(differences[labels == _shares(labels, control).argmin()]),
    }
    if any(first.groups is None for first in firsts):
        return found
    groups = np.concatenate([first.groups for first in firsts if first.groups is not None])
    worst = int(_shares(groups, control).argmin())
    found["worst_group"] = over_examples(differences[groups == worst if groups.ndim == 1 else groups[:, worst]])
    if len(train_counts) and groups.ndim == 1:
        found["train_weighted"] = over_examples(differences * _weights(groups, np.asarray(train_counts)))
    return found


def _mean_difference(pairs: Sequence[tuple[Correct, Correct]]) -> Array:
    """Per example of one test set the difference in right answers, mean over the seeds measured on it."""
    return np.asarray(np.mean([ours.right.astype(np.int8) - theirs.right for ours, theirs in pairs], axis=0))


def _shares(groups: Array, right: Array) -> Array:
    """The share of right answers in each group; infinite for a group without examples."""
    if groups.ndim == 2:
        sums, counts = np.array([(right[member].sum(), member.sum()) for member in groups.T]).T
    else:
        sums, counts = np.bincount(groups, right), np.bincount(groups)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)


def _weights(groups: Array, train_counts: Array) -> Array:
    """Per example the weight, 1 on average, that makes a mean weigh groups as training does."""
    counts = np.bincount(groups, minlength=len(train_counts))
    share = train_counts * (counts[: len(train_counts)] > 0)
    weights = len(groups) * (share / share.sum()) / np.maximum(counts[: len(train_counts)], 1)
    return np.asarray(weights[groups])


def _side(low: float | None, high: float | None) -> int | None:
    """Which side of 0 an interval is on: 1 above, -1 below, 0 around it; None of no interval."""
    if low is None or high is None:
        return None
    return 1 if low > 0 else -1 if high < 0 else 0


def signed(share: float, digits: int = 1) -> str:
    """A difference in points with its sign: "+2.3", "−0.4", "0.0"."""
    text = f"{100 * share:+.{digits}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", "−")


def mean(values: Iterable[float | None]) -> float:
    """The mean of the values there are; NaN of none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def sd(values: Iterable[float]) -> float:
    """The standard deviation over repetitions; 0 of a single one."""
    known = list(values)
    centre = mean(known)
    return math.sqrt(sum((value - centre) ** 2 for value in known) / (len(known) - 1)) if len(known) > 1 else 0.0
