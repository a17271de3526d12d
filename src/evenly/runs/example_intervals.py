"""The interval of a difference between two methods over test examples, for these very models.

Would other examples of the same kind show it too? What is estimated is the difference of the models' accuracies on all
examples of that kind, mean over seeds. It holds for these models only: other seeds are not in it.

Per example the difference in right answers is averaged over seeds, d_i in [-1, 1]. The interval is that of Agresti and
Min (2005) for matched proportions. They add half an observation to each cell of the 2 x 2 table: to the N differences
+1 and -1 half a time each, and 0 once. With one seed it is theirs exactly. With several it keeps its coverage where a
group is small, and a few examples that all differ by the same are not taken for certainty. It is then wider than it
need be: of 25 examples and several seeds it covers the truth in more than 97% of draws. With one seed and fewer than 50
examples it is 90% to 99%, depending on the truth, because shares of few examples are coarse.

Seeds may have test sets of their own. Where they split one set anew, an example may be in several of these. It is one
example then: its differences are summed over the seeds that have it, and vary together. So is an image that a test set
shows twice. Examples are known by where they are from (`Split.places`). Where that is not known, all are taken for
independent, also those of different test sets.

A metric by groups is a sum of the groups' accuracies with weights, per seed. Train-weighted accuracy has those of
training. The worst group's accuracy has weight 1 for one group: where method and control have the same, its examples
are paired, and otherwise the two groups are independent. The difference that is reported is the mean over seeds of one
lowest accuracy less the other. Its interval accounts for the choice of the lowest on the same examples: `worst_group`
says how. Where one group is clearly the lowest in each run, it is the interval of these groups. Where several may be,
it is wider, and it covers the truth in more than 95% of draws: it is not centred on the difference reported, which is
too high or too low itself where the groups of one side are equally good.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from attrs import define, frozen

from evenly.runs.worst_group import SCREEN, Side, quantile, side_of

CORRECT = ("judged_right", "judged_examples", "judged_groups", "judged_identities")
"""The arrays of `predictions.npz` that say which examples of the split that is judged were got right."""
Array = np.ndarray[Any, Any]
Intervals = Mapping[str, tuple[float, float] | None]
"""Of each metric, by name."""
LEVEL = 0.95


@frozen(eq=False)
class Correct:
    """Which examples of the split that a run is judged on it got right.

    Args:
        right: (N,) boolean.
        labels: (N,).
        groups: (N,) integers, or boolean (N, G); None where there are no groups.
        examples: a digest of the split. Runs with the same one were measured on the same examples.
        identities: (N,) numbers, the same for the same example in the test set of another seed; None where that is
            not known.
    """

    right: Array
    labels: Array
    groups: Array | None
    examples: str
    identities: Array | None = None

    def arrays(self) -> dict[str, Array]:
        """As `predictions.npz` has it: a bit per example, groups and identities in as few bytes as they need."""
        groups, identities = (
            array.astype(np.min_scalar_type(int(array.max()))) if array is not None and array.ndim == 1 else array
            for array in (self.groups, self.identities)
        )
        arrays = zip(CORRECT, (np.packbits(self.right), np.array(self.examples), groups, identities), strict=True)
        return {name: array for name, array in arrays if array is not None}


def over_examples(differences: Array, seeds: Array | None = None, level: float = LEVEL) -> tuple[float, float] | None:
    """The interval of a mean of per-example differences (N,), each in [-1, 1]; None of no example.

    Args:
        differences: of each example the mean over the seeds that it was tested with.
        seeds: (N,) how many these are, by which it counts. Each of the two observations that are added counts as an
            example on average does.
    """
    if not len(differences):
        return None
    if seeds is None:
        return agresti_min(float(differences.sum()), float((differences**2).sum()), len(differences), level)
    weights = seeds * (seeds.sum() / (seeds**2).sum())
    n, total = float(weights.sum()), float((weights * differences).sum())
    # the sum of (w d - w m)^2 with the mean m; of equal weights the second part is 0
    more = 2 * total / (n + 2) * float(((weights - weights**2) * differences).sum())
    return agresti_min(total, float(((weights * differences) ** 2).sum()) + more, n, level)


def agresti_min(total: float, squares: float, n: float, level: float = LEVEL) -> tuple[float, float]:
    """The interval of a mean of n differences, each in [-1, 1], from their sum and the sum of their squares."""
    n += 2
    centre = total / n
    half = NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(squares + 1 - total**2 / n) / n
    return max(-1.0, centre - half), min(1.0, centre + half)


def stratified(
    values: Array, groups: Array, examples: Array, weights: Array, level: float = LEVEL
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

    Args:
        pairs: per seed, what a method and its control got right.
        train_counts: how many training examples each group has, for the train-weighted accuracy.
    """
    by_set: dict[str, list[tuple[Correct, Correct]]] = {}
    for ours, theirs in pairs:
        if ours.examples != theirs.examples:
            return {}
        by_set.setdefault(ours.examples, []).append((ours, theirs))
    if not by_set:
        return {}
    sets = list(by_set.values())
    firsts = [of_set[0][0] for of_set in sets]
    examples = _numbered([(len(first.labels), first.identities) for first in firsts])
    differences, seeds = _mean_differences(sets, examples)
    found = {
        "accuracy": over_examples(differences, seeds),
        "worst_class": ByGroup(sets, examples, [first.labels for first in firsts]).over_worst(),
    }
    groups = [first.groups for first in firsts if first.groups is not None]
    if len(groups) < len(firsts):
        return found
    by_group = ByGroup(sets, examples, groups)
    found["worst_group"] = by_group.over_worst()
    if len(train_counts) and groups[0].ndim == 1:
        found["train_weighted"] = by_group.as_in_training(train_counts)
    return found


def _numbered(sets: Sequence[tuple[int, Array | None]]) -> list[Array]:
    """The numbers, from 0, of each test set's examples, given how many there are and their identities: the same number
    for the same example; all different where any of the sets has no identities."""
    ends = np.cumsum([count for count, _ in sets])
    known = [identities for _, identities in sets if identities is not None]
    if len(known) < len(sets):
        return np.split(np.arange(ends[-1]), ends[:-1])
    return np.split(np.unique(np.concatenate(known), return_inverse=True)[1], ends[:-1])


def _mean_differences(
    sets: Sequence[Sequence[tuple[Correct, Correct]]], examples: Sequence[Array]
) -> tuple[Array, Array]:
    """Per example the difference in right answers, mean over the seeds that have it, and how many these are."""
    numbers = np.concatenate(examples)
    total = [np.sum([ours.right.astype(np.int8) - theirs.right for ours, theirs in pairs], axis=0) for pairs in sets]
    seeds = np.bincount(numbers, np.repeat([len(pairs) for pairs in sets], [len(each) for each in examples]))
    return np.bincount(numbers, np.concatenate(total)) / seeds, seeds


@define(eq=False, slots=False)
class ByGroup:
    """The test sets of several seeds by groups.

    Args:
        sets: per test set its pairs. Seeds are numbered in this order, S in all.
        examples: per test set the numbers of its examples. The same example in two sets has the same number.
        groups: per test set those of its examples, integers (N,) or boolean (N, K).
    """

    sets: Sequence[Sequence[tuple[Correct, Correct]]]
    examples: Sequence[Array]
    groups: Sequence[Array]

    @cached_property
    def seeds(self) -> list[tuple[int, tuple[Correct, Correct]]]:
        """Of each seed the number of its test set, and its pair."""
        return [(k, pair) for k, pairs in enumerate(self.sets) for pair in pairs]

    @cached_property
    def members(self) -> list[tuple[Array, Array]]:
        """Per test set (P,) examples and (P,) the group of each; one may be in several."""
        found = []
        for groups in self.groups:
            examples, members = np.nonzero(groups) if groups.ndim == 2 else (np.arange(len(groups)), groups)
            found.append((examples, members.astype(np.int64)))  # groups are kept in as few bytes as they need
        return found

    @cached_property
    def counts(self) -> Array:
        """(S, K) how many examples of each group a seed is tested on."""
        width = 1 + max(int(members.max(initial=-1)) for _, members in self.members)
        of_set = [np.bincount(members, minlength=width) for _, members in self.members]
        return np.stack([of_set[k] for k, _ in self.seeds])

    @cached_property
    def shares(self) -> Array:
        """(2, S, K) the accuracy of method and control in each group; NaN in a group without examples."""
        right: Array = np.empty((2, *self.counts.shape))
        for s, (k, pair) in enumerate(self.seeds):
            examples, members = self.members[k]
            for side, correct in enumerate(pair):
                right[side, s] = np.bincount(members, correct.right[examples], right.shape[2])
        right[:, self.counts == 0] = np.nan
        return right / np.maximum(self.counts, 1)

    def as_in_training(self, train_counts: Sequence[int]) -> tuple[float, float] | None:
        """The interval of train-weighted accuracy."""
        weights: Array = np.zeros(self.counts.shape)
        weights[:, : len(train_counts)] = train_counts[: weights.shape[1]]
        weights[self.counts == 0] = 0
        weights /= np.maximum(weights.sum(1), 1)[:, None]
        return self._interval(np.stack([weights, weights]))

    def over_worst(self) -> tuple[float, float] | None:
        """The interval of the worst group's accuracy: `worst_group` has the reasons."""
        if not self.counts.any(1).all():
            return None
        ours, theirs = (side_of(shares, self.counts) for shares in self.shares)
        miss = (1 - LEVEL - SCREEN) / 2
        if ours.candidates == theirs.candidates == 1:
            low, high = self._between(ours.choices[:, 0], theirs.choices[:, 0], miss)
        else:
            low, high = self._over_choices(ours, theirs, miss)
        reported = float(np.subtract(*np.nanmin(self.shares, axis=2).mean(1)))
        return min(low, reported), max(high, reported)

    def _over_choices(self, ours: Side, theirs: Side, miss: float) -> tuple[float, float]:
        """The interval where several choices may be the worst groups, which misses on either side with at most `miss`.

        Which choices decide is found with plain standard errors; the bounds are those of `stratified`.
        """
        (centre, deviations, variance), (other_centre, other_deviations, other_variance) = (
            self._estimates(side, each.choices) for side, each in enumerate((ours, theirs))
        )
        difference = centre[:, None] - other_centre
        # (choices of the method, choices of the control)
        error = np.sqrt(np.maximum(variance[:, None] + other_variance - 2 * deviations.T @ other_deviations, 0))
        low = difference - quantile(miss, theirs) * error
        h = int(low[:, :-1].min(0).argmax())
        high = difference + quantile(miss, ours) * error
        g = int(high[:-1].max(1).argmin())
        lower = self._between(ours.choices[:, low[:, h].argmin()], theirs.choices[:, h], miss / theirs.candidates)
        upper = self._between(ours.choices[:, g], theirs.choices[:, high[g].argmax()], miss / ours.candidates)
        return lower[0], upper[1]

    def _estimates(self, side: int, choices: Array) -> tuple[Array, Array, Array]:
        """Of each choice (S, C) the accuracy (C,), the deviations from it by example (N, C), and the variance (C,).

        Two observations, one right and one wrong, are added and shared out over the test sets.
        """
        seeds, added = np.arange(len(choices))[:, None], 2 / len(self.sets)
        counts = self.counts[seeds, choices] + added
        centre = (self.shares[side][seeds, choices] * (counts - added) + added / 2) / counts
        by_set = [np.zeros((len(examples), choices.shape[1])) for examples in self.examples]
        for s, (k, pair) in enumerate(self.seeds):
            groups, right = self.groups[k], pair[side].right[:, None]
            member = groups[:, choices[s]] if groups.ndim == 2 else groups[:, None] == choices[s]
            by_set[k] += member * np.where(right, (1 - centre[s]) / counts[s], -centre[s] / counts[s])
        deviations = np.zeros((1 + max(int(each.max(initial=-1)) for each in self.examples), choices.shape[1]))
        for examples, of_set in zip(self.examples, by_set, strict=True):
            np.add.at(deviations, examples, of_set / len(choices))  # a set may have an example twice
        of_added = ((centre**2 + (1 - centre) ** 2) / counts**2).mean(0) / len(self.sets) ** 2
        return centre.mean(0), deviations, (deviations**2).sum(0) + of_added

    def _between(self, ours: Array, theirs: Array, miss: float) -> tuple[float, float]:
        """The interval of the method's accuracy in one group of each seed (S,) less the control's in another."""
        weights = np.zeros((2, *self.counts.shape))
        for side, choice in enumerate((ours, theirs)):
            weights[side, np.arange(len(choice)), choice] = 1
        found = self._interval(weights, 1 - 2 * miss)
        assert found is not None
        return found

    def _interval(self, weights: Array, level: float = LEVEL) -> tuple[float, float] | None:
        """The interval of a sum of accuracies with weights (2, S, K), mean over seeds."""
        weights = weights / len(self.seeds)
        values = [np.zeros(len(members)) for _, members in self.members]
        of_set = np.zeros((2, len(self.sets), weights.shape[2]))
        for s, (k, pair) in enumerate(self.seeds):
            examples, members = self.members[k]
            for side, correct in enumerate(pair):
                values[k] += (1 - 2 * side) * weights[side, s][members] * correct.right[examples]
            of_set[:, k] += weights[:, s]
        strata = np.concatenate([members + k * weights.shape[2] for k, (_, members) in enumerate(self.members)])
        numbers = np.concatenate([self.examples[k][examples] for k, (examples, _) in enumerate(self.members)])
        return stratified(np.concatenate(values), strata, numbers, of_set.reshape(2, -1), level)
