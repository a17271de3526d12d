"""Intervals over test examples, against exact oracles and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attrs import evolve
from scipy import stats

from evenly.runs.differences import paired
from evenly.runs.example_intervals import Correct, example_intervals, over_examples, stratified

Z = stats.norm.ppf(0.975)
CELLS = ((1, 1), (1, 0), (0, 1), (0, 0))
"""Whether the method and the control are right."""


def test_one_seed_has_the_interval_of_agresti_and_min():
    """By their formula on the 2 x 2 table with half an observation more in every cell."""
    for n, raised, lowered in ((10, 3, 0), (40, 7, 5), (200, 0, 0), (1000, 61, 20)):
        more, less, total = raised + 0.5, lowered + 0.5, n + 2
        centre, half = (more - less) / total, Z * math.sqrt(more + less - (more - less) ** 2 / total) / total
        found = over_examples(np.repeat([1.0, -1.0, 0.0], [raised, lowered, n - raised - lowered]))
        assert found == pytest.approx((centre - half, centre + half), rel=1e-12, abs=1e-15)
    assert over_examples(np.ones(1))[1] == 1.0  # no difference of shares is larger
    assert over_examples(np.empty(0)) is None


def test_several_seeds_have_it_of_their_means():
    means = np.random.default_rng(0).integers(-3, 4, 50) / 3
    values, weights = np.append(means, [1, -1, 0]), np.append(np.ones(50), [0.5, 0.5, 1])
    centre = np.average(values, weights=weights)
    half = Z * math.sqrt(np.average((values - centre) ** 2, weights=weights) / weights.sum())
    assert over_examples(means) == pytest.approx((centre - half, centre + half), rel=1e-12)
    assert stratified(means, np.zeros(50, dtype=int), np.arange(50), np.ones((2, 1))) == pytest.approx(
        over_examples(means), rel=1e-12
    )


def interval(groups):
    """By its definition, from each group's values and its weights for the method and for the control."""
    parts = np.array([(ours**2 + theirs**2) / len(values) for values, ours, theirs in groups])
    parts /= parts.sum()
    centre = variance = 0.0
    for part, (values, ours, theirs) in zip(parts, groups, strict=True):
        observed = [*values, *(ours * x - theirs * y for x, y in CELLS)]
        numbers = np.array([*np.ones(len(values)), *[part / 2] * 4])
        total, mean = numbers.sum(), np.average(observed, weights=numbers)
        centre += mean
        variance += (numbers * (observed - mean) ** 2).sum() / (total - 1 + part) / total
    return max(-1.0, centre - Z * math.sqrt(variance)), min(1.0, centre + Z * math.sqrt(variance))


def correct(right, labels=(0, 0, 0, 1, 1, 1), groups=(0, 0, 1, 2, 2, 2), examples="a"):
    groups = None if groups is None else np.array(groups)
    return Correct(np.array(right, dtype=bool), np.array(labels), groups, examples)


def pairs(ours, theirs, **how):
    return [(correct(a, **how), correct(b, **how)) for a, b in zip(ours, theirs, strict=True)]


METHOD = [[1, 1, 1, 0, 1, 1], [1, 0, 1, 0, 1, 1]]
CONTROL = [[1, 1, 0, 0, 1, 0], [1, 1, 1, 0, 0, 0]]
MEAN = np.array([0, -0.5, 0.5, 0, 0.5, 1])


def test_the_worst_group_of_each_run_is_paired_where_it_is_the_same_and_independent_where_it_is_not():
    """The worst group of the method is group 2, then group 0; that of the control group 1, then group 2."""
    found = example_intervals(pairs(METHOD, CONTROL), train_counts=(10, 0, 30, 5))
    assert found["accuracy"] == over_examples(MEAN)
    # class 1, but class 0 of the method in the second seed
    expected = interval([(np.array([1, 0, 1]) / 2, 0.5, 0), (np.array([0, 0, 0.5]), 0.5, 1)])
    assert found["worst_class"] == pytest.approx(expected, rel=1e-12)
    group_2 = [(0, 0), (0.5, 0), (0.5, 0)]  # 1/2 for the method in the first seed, for the control in the second
    group_0, group_1 = (np.array([1, 0]) / 2, 0.5, 0), (np.array([0]), 0, 0.5)
    expected = interval([group_0, group_1, (np.array([a - b for a, b in group_2]), 0.5, 0.5)])
    assert found["worst_group"] == pytest.approx(expected, rel=1e-12)
    # groups 0 and 2 make up 1/4 and 3/4 of the training examples that are measured; group 1 counts nothing
    expected = interval([(MEAN[:2] / 4, 0.25, 0.25), (MEAN[3:] * 0.75, 0.75, 0.75)])
    assert found["train_weighted"] == pytest.approx(expected, rel=1e-12)
    assert example_intervals(pairs(METHOD, CONTROL, groups=None)).keys() == {"accuracy", "worst_class"}


def test_two_groups_of_one_seed_are_two_independent_samples():
    """As Agresti and Caffo (2000) have them, but with as many observations more in both as Agresti and Min add."""
    right = np.repeat([1, 0, 1, 0], [30, 10, 38, 2]), np.repeat([1, 0, 1, 0], [39, 1, 20, 20])
    groups = np.repeat([0, 1], 40)
    found = example_intervals([tuple(Correct(each == 1, groups, groups, "a") for each in right)])["worst_group"]
    shares = (30 + 0.5) / 41, (20 + 0.5) / 41
    half = Z * math.sqrt(sum(p * (1 - p) / 40.5 for p in shares))
    assert found == pytest.approx((shares[0] - shares[1] - half, shares[0] - shares[1] + half), rel=1e-12)


def test_overlapping_groups_share_examples():
    """Groups that are the same twice over vary together; the centre is that of their own."""
    draw, n = np.random.default_rng(0), 400
    x, y = draw.random(n) < 0.5, draw.random(n) < 0.5
    single, ones = np.zeros(n, dtype=int), np.arange(n)
    values = np.concatenate([0.5 * x - 0.5 * y.astype(float)] * 2)
    once = stratified(2 * values[:n], single, ones, np.ones((2, 1)))
    twice = stratified(values, np.repeat([0, 1], n), np.tile(ones, 2), np.full((2, 2), 0.5))
    assert twice == pytest.approx(once, rel=0.01)
    overlapping = np.array([[1, 1], [1, 0], [0, 0], [0, 1], [0, 1], [0, 1]], dtype=bool)
    found = example_intervals(pairs(METHOD, CONTROL, groups=overlapping))
    assert found["worst_group"] is not None
    assert example_intervals(pairs(METHOD, CONTROL, groups=np.zeros((6, 2), dtype=bool)))["worst_group"] is None


def test_examples_of_different_test_sets_are_pooled():
    """Groups have as few bytes as they need, which many test sets do not overflow."""
    first, second = (
        (correct(METHOD[k], examples=name), correct(CONTROL[k], examples=name)) for k, name in enumerate("ab")
    )
    differences = np.concatenate([np.subtract(METHOD[k], CONTROL[k]) for k in range(2)]).astype(float)
    assert example_intervals([first, second])["accuracy"] == over_examples(differences)
    assert (
        example_intervals([(first[0], second[1])]) == {}
    )  # of other examples than its control there is nothing to say
    assert example_intervals([]) == {}
    groups = np.array([0, 0, 1, 2, 2, 2], dtype=np.uint8)
    many = [pairs(METHOD[:1], CONTROL[1:], groups=groups, examples=str(k))[0] for k in range(200)]
    low, high = example_intervals(many)["worst_group"]
    assert low < 2 / 3 < high < low + 0.15  # 2/3 of group 2 for the method, none of it for the control


def test_what_a_run_keeps_is_small():
    """A bit per example, and a byte for its group."""
    count = 100_000
    many = Correct(np.ones(count, dtype=bool), np.zeros(count), np.arange(count) % 200, "a")
    assert sum(array.nbytes for array in many.arrays().values()) < 1.2 * count


SIZES, DRAWS = np.array([25, 60, 120, 240]), 2000
"""Examples of each group, on average."""
EQUALLY_BAD, SMALL_WORST, LARGE_WORST = (0.8, 0.8, 0.8, 0.8), (0.6, 0.9, 0.9, 0.9), (0.95, 0.95, 0.95, 0.7)


def simulated(ours, theirs, seeds, spread=0.0, sizes=SIZES):
    """Test sets of two methods with these accuracies per group, `DRAWS` times: (pairs, the true accuracies (2, S, G)).

    Examples differ in difficulty, which is common to both methods and all seeds, and models err on their own. With
    `spread`, each seed's model has accuracies of its own.
    """
    draw, limits = np.random.default_rng(seeds), stats.norm.ppf([[ours], [theirs]])
    of_place = np.repeat(np.arange(len(sizes)), sizes)
    for _ in range(DRAWS):
        limit = limits + spread * draw.normal(size=(2, seeds, len(ours)))
        groups = of_place[draw.integers(0, len(of_place), len(of_place))]
        difficulty, noise = draw.normal(size=len(groups)), draw.normal(size=(2, seeds, len(groups)))
        right = math.sqrt(0.8) * difficulty + math.sqrt(0.2) * noise < limit[:, :, groups]
        pairs = [tuple(Correct(each, groups // 2, groups, "a") for each in pair) for pair in right.swapaxes(0, 1)]
        yield pairs, limit


def worst_group(correct):
    return (np.bincount(correct.groups, correct.right) / np.bincount(correct.groups)).min()


@pytest.mark.parametrize("seeds", [1, 2, 5])
@pytest.mark.parametrize(
    ("ours", "theirs", "most"),
    [
        ((0.95, 0.95, 0.95, 0.8), LARGE_WORST, 0.97),  # the same group is the worst
        ((0.95, 0.95, 0.75, 0.9), (0.95, 0.9, 0.95, 0.65), 0.97),  # another one
        (EQUALLY_BAD, EQUALLY_BAD, 1.0),  # the lowest of several varies less than each
        (SMALL_WORST, SMALL_WORST, 1.0),  # of 25 examples, to which two are added
    ],
)
def test_they_cover_the_truth_in_95_of_100_draws(seeds, ours, theirs, most):
    """For these models: what is drawn anew are the test examples."""
    accuracy = np.average(np.subtract(ours, theirs), weights=SIZES)
    truth = {"accuracy": accuracy, "worst_group": min(ours) - min(theirs)}
    found = [example_intervals(both) for both, _ in simulated(ours, theirs, seeds)]
    for metric, value in truth.items():
        low, high = np.array([each[metric] for each in found]).T
        covered = np.mean((low <= value) & (value <= high))
        assert 0.93 <= covered <= (0.97 if metric == "accuracy" else most), metric
        if value == 0:
            assert max(np.mean(low > 0), np.mean(high < 0)) <= 0.035, metric


@pytest.mark.parametrize(("groups", "size", "about"), [(4, 50, 0.9), (8, 50, 0.8), (16, 50, 0.65), (8, 400, 0.76)])
def test_against_a_control_whose_groups_are_equally_good_they_favour_the_method(groups, size, about):
    """A limit, as documented: equal worst groups are called raised too often. Larger groups have a smaller bias."""
    ours, theirs = (0.8, *[0.97] * (groups - 1)), (0.8,) * groups
    found = [example_intervals(both)["worst_group"] for both, _ in simulated(ours, theirs, 5, sizes=[size] * groups)]
    low, high = np.array(found).T
    assert np.mean((low <= 0) & (high >= 0)) == pytest.approx(about, abs=0.04)
    assert np.mean(high < 0) < 0.005
    assert np.mean(low + high) / 2 < 0.75 / math.sqrt(size)


@pytest.mark.parametrize("seeds", [1, 3])
def test_train_weighted_they_cover_the_truth_also_where_a_small_group_is_frequent_in_training(seeds):
    ours, theirs, train_counts = (0.97, 0.9, 0.9, 0.9), (0.9, 0.9, 0.85, 0.9), (850, 50, 50, 50)
    truth = np.average(np.subtract(ours, theirs), weights=train_counts)
    bounds = [example_intervals(both, train_counts)["train_weighted"] for both, _ in simulated(ours, theirs, seeds)]
    low, high = np.array(bounds).T
    assert np.mean((low <= truth) & (truth <= high)) >= 0.93


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("shares", [EQUALLY_BAD, LARGE_WORST])
def test_a_method_equal_to_its_control_is_called_better_in_at_most_5_of_100_comparisons(seeds, shares):
    """With several seeds, whose models differ, both uncertainties are judged. With one there are its examples alone."""
    outcomes = {"accuracy": [], "worst_group": []}
    for both, _ in simulated(shares, shares, seeds, spread=0.1 * (seeds > 1)):
        bounds = example_intervals(both)
        reached = {
            "accuracy": [ours.right.mean() - theirs.right.mean() for ours, theirs in both],
            "worst_group": [worst_group(ours) - worst_group(theirs) for ours, theirs in both],
        }
        for metric, of_metric in outcomes.items():
            low, high = bounds[metric]
            of_metric.append(evolve(paired(reached[metric]), examples_low=low, examples_high=high).outcome)
    better = "raised" if seeds > 1 else "raised-for-these"
    for metric, of_metric in outcomes.items():
        assert of_metric.count(better) / DRAWS <= 0.05, metric
        assert of_metric.count(better.replace("raised", "lowered")) / DRAWS <= 0.05, metric


def test_for_these_models_they_cover_the_difference_of_these_models():
    """Seeds whose models differ: the interval is of the mean of these models' worst groups, not of other models'."""
    covered = []
    for both, limit in simulated(LARGE_WORST, LARGE_WORST, 3, spread=0.2):
        truth = np.subtract(*stats.norm.cdf(limit).min(2).mean(1))
        low, high = example_intervals(both)["worst_group"]
        covered.append((low <= truth <= high, low <= 0 <= high))
    these, all_models = np.mean(covered, axis=0)
    assert 0.93 <= these <= 0.97
    assert all_models < 0.9
