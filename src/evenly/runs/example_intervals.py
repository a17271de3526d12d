"""The interval of a difference between two methods over test examples, for these very models.

Would other examples of the same kind show it too? What is estimated is the difference of the models' accuracies on all
examples of that kind, mean over seeds. It holds for these models only: other seeds are not in it.

Per example the difference in right answers is averaged over seeds, d_i in [-1, 1]. The interval is that of Agresti and
Min (2005) for matched proportions. They add half an observation to each cell of the 2 x 2 table: to the N differences
+1 and -1 half a time each, and 0 once. With one seed it is theirs exactly. With several it keeps its coverage where a
group is small, and a few examples that all differ by the same are not taken for certainty. It is then wider than it
need be: of 25 examples and several seeds it covers the truth in more than 97% of draws. With one seed and fewer than 50
examples it is 90% to 99%, depending on the truth, because shares of few examples are coarse.

A metric by groups is a sum of the groups' accuracies with weights, per seed. Train-weighted accuracy has those of
training. The worst group's accuracy has weight 1 for the group that is the worst of this model: where it is that of the
control too, its examples are paired, and otherwise the two groups are independent. So the interval is of the very
difference that is reported, the mean over seeds of one lowest accuracy less the other. That the lowest is chosen on the
same examples is not corrected for. The lowest of several is low by chance as well, most of all for a model whose groups
are equally good. Where that holds of method and control alike, the two cancel, and as the lowest varies less than each
group, the interval is wider than it need be. Where it holds of one, the difference is biased in favour of the other. A
control with .8 in every group of 50 examples and a method with .8 in one and .97 in the rest have equal worst groups.
With five seeds, the interval then covers the truth in about 90% of draws with 4 groups, 80% with 8, and 65% with 16,
and almost all misses are in favour of the method. That is where models mostly err on the same examples; where they err
more on their own, it covers less. Larger test groups make the bias smaller in points. As the interval
narrows with them, coverage does not improve while the groups are equally good. The difference in a group chosen on
other examples, such as the control's worst group on validation, has no such bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from attrs import frozen

CORRECT = ("judged_right", "judged_examples", "judged_groups")
"""The arrays of `predictions.npz` that say which examples of the split that is judged were got right."""
Array = np.ndarray[Any, Any]
Intervals = Mapping[str, tuple[float, float] | None]
"""Of each metric, by name."""


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


def stratified(
    values: Array, groups: Array, examples: Array, weights: Array, level: float = 0.95
) -> tuple[float, float] | None:
    """The interval of a sum of groups' means; None where no group has weight.

    The two observations that Agresti and Min add to one group, half of one to each cell of the 2 x 2 table, are shared
    out: each group has the part of them that it has in the variance of models that guess. So one group has their
    interval, a small group of large weight is adjusted as if it were alone, and many small groups are not drawn to 0.
    Only of one group are the squared deviations divided by their number: of many, by their number less one.

    Args:
        values: (P,) per example in a group, the group's weight for the method where the method is right, less the
            group's weight for the control where the control is; over several seeds, the sum.
        groups: (P,) integers below K.
        examples: (P,) which example it is: one may be in several groups, whose means are then correlated.
        weights: (2, K) of each group for the method and for the control.
    """
    if not weights.any():
        return None
    ours, theirs = weights
    counts = np.maximum(np.bincount(groups, minlength=len(ours)), 1)
    part = (ours**2 + theirs**2) / counts
    part = part / part.sum()
    cells, total = np.stack([ours - theirs, ours, -theirs, 0 * ours]), counts + 2 * part
    means = (np.bincount(groups, values, len(ours)) + 2 * part * cells.mean(0)) / total
    scale = 1 / np.sqrt(total * np.maximum(total - 1 + part, 1e-12))  # one example without weight deviates by 0
    observed = np.bincount(examples, (values - means[groups]) * scale[groups])
    variance = (observed**2).sum() + (2 * part * scale**2 * ((cells - means) ** 2).mean(0)).sum()
    half, centre = NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(variance), float(means.sum())
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
    firsts = [of_set[0][0] for of_set in sets.values()]
    found = {
        "accuracy": over_examples(np.concatenate([_mean_difference(of_set) for of_set in sets.values()])),
        "worst_class": _over_groups(sets.values(), [first.labels for first in firsts], _worst),
    }
    groups = [first.groups for first in firsts if first.groups is not None]
    if len(groups) < len(firsts):
        return found
    found["worst_group"] = _over_groups(sets.values(), groups, _worst)
    if len(train_counts) and groups[0].ndim == 1:
        found["train_weighted"] = _over_groups(sets.values(), groups, _as_in_training(train_counts))
    return found


def _mean_difference(pairs: Sequence[tuple[Correct, Correct]]) -> Array:
    """Per example of one test set the difference in right answers, mean over the seeds measured on it."""
    return np.asarray(np.mean([ours.right.astype(np.int8) - theirs.right for ours, theirs in pairs], axis=0))


def _over_groups(
    sets: Collection[Sequence[tuple[Correct, Correct]]], groups: Sequence[Array], weigh: Callable[[Array], Array]
) -> tuple[float, float] | None:
    """The interval of a metric that weights groups.

    Args:
        sets: per test set its pairs.
        groups: of the examples of each test set.
        weigh: the weight of each group, from a model's accuracy in each; that is NaN in a group without examples.
    """
    parts, all_weights, group_count, example_count = [], [], 0, 0
    for of_set, of_examples in zip(sets, groups, strict=True):
        several = of_examples.ndim == 2
        examples, members = np.nonzero(of_examples) if several else (np.arange(len(of_examples)), of_examples)
        members = members.astype(np.int64)  # groups are kept in as few bytes as they need
        counts, values = np.bincount(members), np.zeros(len(members))
        weights = np.zeros((2, len(counts)))
        for pair in of_set:
            for side, correct in enumerate(pair):
                right = correct.right[examples].astype(float)
                shares = np.divide(np.bincount(members, right), counts, np.full(len(counts), np.nan), where=counts > 0)
                weight = weigh(shares) / sum(map(len, sets))
                weights[side] += weight
                values += (1 - 2 * side) * weight[members] * right
        parts.append((values, members + group_count, examples + example_count))
        all_weights.append(weights)
        group_count, example_count = group_count + len(counts), example_count + len(of_examples)
    values, members, examples = map(np.concatenate, zip(*parts, strict=True))
    return stratified(values, members, examples, np.concatenate(all_weights, axis=1))


def _worst(shares: Array) -> Array:
    return np.eye(1, len(shares), int(np.nanargmin(shares)))[0] if len(shares) else shares


def _as_in_training(train_counts: Sequence[int]) -> Callable[[Array], Array]:
    def weigh(shares: Array) -> Array:
        weights = np.zeros(len(shares))
        weights[: len(train_counts)] = train_counts[: len(shares)]
        weights[np.isnan(shares)] = 0
        return np.asarray(weights / max(weights.sum(), 1))

    return weigh
