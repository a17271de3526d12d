"""Differences and their two uncertainties, against exact oracles and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attrs import evolve
from scipy import stats

from evenly.runs.differences import MOST, Correct, Difference, example_intervals, over_examples, paired

Z = stats.norm.ppf(0.975)


@pytest.mark.parametrize("n", [3, 10])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_over_seeds_the_intervals_are_those_of_scipy(n, level):
    differences = np.random.default_rng(n).normal(0.02, 0.1, n).tolist()
    ours = paired(differences, level)
    interval = stats.ttest_1samp(differences, 0).confidence_interval(level)
    expected = (np.mean(differences), interval.low, interval.high, np.std(differences, ddof=1))
    assert (ours.mean, ours.low, ours.high, ours.sd) == pytest.approx(expected, rel=1e-12)
    assert ours.pairs == n
    assert paired(differences) == paired(differences, 0.95)


@pytest.mark.parametrize(
    ("differences", "mean", "over_seeds"),
    [
        ([0.25], 0.25, "needs 3 or more"),
        ([0.0], 0.0, "needs 3 or more"),
        ([0.3, 0.2], 0.25, "needs about 1 more"),
        ([0.3, -0.2], 0.05, "needs 3 or more"),
        ([0.25, 0.25, 0.25], 0.25, "all the same"),
        ([0.9 - 0.6, 0.7 - 0.4], 0.3, "needs 3 or more"),  # equal but for rounding
        ([0.1 + 0.2 - 0.3, 0.0], 0.0, "needs 3 or more"),
    ],
)
def test_two_pairs_or_equal_pairs_have_no_interval_over_seeds(differences, mean, over_seeds):
    found = paired(differences)
    assert (found.low, found.high, found.pairs) == (None, None, len(differences))
    assert found.mean == (0.0 if mean == 0 else pytest.approx(mean))
    assert found.over_seeds == over_seeds
    assert found.is_zero == (mean == 0 and len(differences) > 1)
    assert found.outcome == ("unclear" if found.is_zero else "unknown")


@pytest.mark.parametrize(("mean", "sd"), [(0.1, 0.02), (-0.1, 0.1), (0.05, 0.2), (0.01, 0.3)])
def test_how_many_seeds_would_settle_it(mean, sd):
    """The first number of seeds whose t-interval, around the same mean and spread, leaves out 0."""
    settled = (n for n in range(3, MOST + 1) if stats.t.interval(0.95, n - 1, abs(mean), sd / math.sqrt(n))[0] > 0)
    expected = next(settled, None)
    assert Difference(mean, None, None, 2, sd).seeds_needed == expected
    assert (expected is None) == (mean == 0.01)


def test_over_examples_one_seed_has_the_interval_of_agresti_and_min():
    """By their formula on the 2 x 2 table with half an observation more in every cell."""
    for n, raised, lowered in ((10, 3, 0), (40, 7, 5), (200, 0, 0), (1000, 61, 20)):
        more, less, total = raised + 0.5, lowered + 0.5, n + 2
        centre, half = (more - less) / total, Z * math.sqrt(more + less - (more - less) ** 2 / total) / total
        found = over_examples(np.repeat([1.0, -1.0, 0.0], [raised, lowered, n - raised - lowered]))
        assert found == pytest.approx((centre - half, centre + half), rel=1e-12, abs=1e-15)
    assert over_examples(np.ones(1))[1] == 1.0  # no difference of shares is larger
    assert over_examples(np.empty(0)) is None


def test_over_examples_several_seeds_have_it_of_their_means():
    means = np.random.default_rng(0).integers(-3, 4, 50) / 3
    values, weights = np.append(means, [1, -1, 0]), np.append(np.ones(50), [0.5, 0.5, 1])
    centre = np.average(values, weights=weights)
    half = Z * math.sqrt(np.average((values - centre) ** 2, weights=weights) / weights.sum())
    assert over_examples(means) == pytest.approx((centre - half, centre + half), rel=1e-12)


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("examples", [20, 200])
@pytest.mark.parametrize(("ours", "theirs"), [(0.95, 0.93), (0.6, 0.3)])
def test_intervals_over_examples_cover_the_truth(seeds, examples, ours, theirs):
    """Examples differ in difficulty, which is common to both methods and all seeds, and models err on their own."""
    draw, repeats = np.random.default_rng(0), 1500
    difficulty = draw.normal(size=(repeats, examples, 1))

    def right(share):
        noise = 0.5 * draw.normal(size=(repeats, examples, seeds))
        return (difficulty + noise) / math.sqrt(1.25) < stats.norm.ppf(share)

    differences = (right(ours).astype(float) - right(theirs)).mean(2)
    bounds = np.array([over_examples(each) for each in differences])
    covered = np.mean((bounds[:, 0] <= ours - theirs) & (ours - theirs <= bounds[:, 1]))
    assert covered > 0.93
    assert examples < 200 or covered < 0.985  # and they are no wider than they need be


def test_intervals_over_seeds_cover_the_truth():
    draws = np.random.default_rng(0).normal(0.02, 0.1, (2000, 3))
    bounds = [paired(each.tolist()) for each in draws]
    assert np.mean([each.low <= 0.02 <= each.high for each in bounds]) == pytest.approx(0.95, abs=0.015)


ABOVE, AROUND, BELOW, NONE = (0.01, 0.2), (-0.1, 0.2), (-0.2, -0.01), (None, None)


@pytest.mark.parametrize(
    ("seeds", "examples", "outcome"),
    [
        (ABOVE, ABOVE, "raised"),
        (BELOW, BELOW, "lowered"),
        (AROUND, ABOVE, "raised-for-these"),
        (NONE, ABOVE, "raised-for-these"),
        (NONE, BELOW, "lowered-for-these"),
        (ABOVE, AROUND, "unclear"),
        (NONE, AROUND, "unclear"),
        (AROUND, AROUND, "unclear"),
        (BELOW, ABOVE, "lowered"),  # the worst group is another one than the examples are of
        (ABOVE, NONE, "raised"),  # where no examples are known, the seeds decide
        (BELOW, NONE, "lowered"),
        (AROUND, NONE, "unclear"),
        ((0.0, 0.2), NONE, "unclear"),
        (NONE, NONE, "unknown"),
    ],
)
def test_a_difference_is_clear_where_both_intervals_exclude_0(seeds, examples, outcome):
    found = Difference(-0.1 if BELOW in (seeds, examples) else 0.1, *seeds, 3, 0.1, *examples)
    assert found.outcome == outcome
    assert evolve(found, mean=math.nan).outcome == "unknown"


@pytest.mark.parametrize(
    ("mean", "seeds", "outcome"),
    [(-0.18, (-0.2, -0.1), "lowered"), (0.05, (0.02, 0.08), "unclear"), (-0.01, (-0.1, 0.08), "unclear")],
)
def test_examples_of_the_controls_worst_group_do_not_hide_a_fall_elsewhere(mean, seeds, outcome):
    difference = Difference(mean, *seeds, pairs=8, sd=0.1, examples_low=0.18, examples_high=0.22)
    assert difference.is_elsewhere
    assert difference.outcome == outcome


def test_in_words():
    found = Difference(0.267, None, None, 2, 0.066, 0.2, 0.33333)
    assert (found.points, found.over_examples, found.over_seeds) == ("+26.7", "[20.0, 33.3]", "needs about 1 more")
    small = Difference(-0.0003, -0.0012, 0.0006, 3, 0.001)
    assert (small.points, small.over_examples, small.over_seeds) == ("−0.03", "", "[−0.12, 0.06]")


def correct(right, labels=(0, 0, 0, 1, 1, 1), groups=(0, 0, 1, 2, 2, 2), examples="a"):
    groups = None if groups is None else np.array(groups)
    return Correct(np.array(right, dtype=bool), np.array(labels), groups, examples)


METHOD = [[1, 1, 1, 0, 1, 1], [1, 0, 1, 0, 1, 1]]
CONTROL = [[1, 1, 0, 0, 1, 0], [1, 1, 1, 0, 0, 0]]
MEAN = np.array([0, -0.5, 0.5, 0, 0.5, 1])


def test_examples_are_averaged_over_seeds_and_the_worst_are_those_of_the_control():
    pairs = [(correct(ours), correct(theirs)) for ours, theirs in zip(METHOD, CONTROL, strict=True)]
    found = example_intervals(pairs, train_counts=(10, 0, 30, 5))
    assert found["accuracy"] == over_examples(MEAN)
    assert found["worst_class"] == over_examples(MEAN[3:])  # class 1: 1 of 6 right
    assert found["worst_group"] == over_examples(MEAN[3:])  # group 2
    # groups 0 and 2 make up 1/4 and 3/4 of the training examples that are measured; group 1 counts nothing
    weighted = MEAN * 6 * np.array([0.125, 0.125, 0, 0.25, 0.25, 0.25])
    assert found["train_weighted"] == pytest.approx(over_examples(weighted))
    assert example_intervals([(correct(METHOD[0], groups=None), correct(CONTROL[0], groups=None))]).keys() == {
        "accuracy",
        "worst_class",
    }
    overlapping = np.array([[1, 1], [1, 0], [0, 0], [0, 1], [0, 1], [0, 1]], dtype=bool)
    pairs = [
        (correct(ours, groups=overlapping), correct(theirs, groups=overlapping))
        for ours, theirs in zip(METHOD, CONTROL, strict=True)
    ]
    assert example_intervals(pairs)["worst_group"] == over_examples(MEAN[[0, 3, 4, 5]])


def test_examples_of_different_test_sets_are_pooled():
    first, second = (
        (correct(METHOD[k], examples=name), correct(CONTROL[k], examples=name)) for k, name in enumerate("ab")
    )
    differences = np.concatenate([np.subtract(METHOD[k], CONTROL[k]) for k in range(2)]).astype(float)
    assert example_intervals([first, second])["accuracy"] == over_examples(differences)
    assert (
        example_intervals([(first[0], second[1])]) == {}
    )  # of other examples than its control there is nothing to say
    assert example_intervals([]) == {}


def test_what_a_run_keeps_is_small():
    """A bit per example, and a byte for its group."""
    count = 100_000
    many = Correct(np.ones(count, dtype=bool), np.zeros(count), np.arange(count) % 200, "a")
    assert sum(array.nbytes for array in many.arrays().values()) < 1.2 * count
