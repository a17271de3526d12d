"""Intervals over test examples, against exact oracles and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attrs import evolve
from scipy import stats

from evenly.runs.differences import paired
from evenly.runs.example_intervals import ByGroup, Correct, example_intervals, over_examples, stratified
from evenly.runs.worst_group import MOST_TRIED, side_of

Z, Z_WORST = stats.norm.ppf([0.975, 1 - 0.045 / 2])
"""Of 95%, and of what the screen for candidates leaves of it."""
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


def interval(groups, z=Z):
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
    return max(-1.0, centre - z * math.sqrt(variance)), min(1.0, centre + z * math.sqrt(variance))


def correct(right, labels=(0, 0, 0, 1, 1, 1), groups=(0, 0, 1, 2, 2, 2), examples="a"):
    groups = None if groups is None else np.array(groups)
    return Correct(np.array(right, dtype=bool), np.array(labels), groups, examples)


def pairs(ours, theirs, **how):
    return [(correct(a, **how), correct(b, **how)) for a, b in zip(ours, theirs, strict=True)]


METHOD = [[1, 1, 1, 0, 1, 1], [1, 0, 1, 0, 1, 1]]
CONTROL = [[1, 1, 0, 0, 1, 0], [1, 1, 1, 0, 0, 0]]
MEAN = np.array([0, -0.5, 0.5, 0, 0.5, 1])


def test_the_worst_group_of_each_run_is_paired_where_it_is_the_same_and_independent_where_it_is_not():
    """The worst group of the method is group 2, then group 0; that of the control group 1, then group 2. Each example
    is there 200 times, so that they are clearly the worst."""
    many = {"labels": [0, 0, 0, 1, 1, 1] * 200, "groups": [0, 0, 1, 2, 2, 2] * 200}
    found = example_intervals(
        pairs([row * 200 for row in METHOD], [row * 200 for row in CONTROL], **many), (10, 0, 30, 5)
    )
    assert found["accuracy"] == over_examples(np.tile(MEAN, 200))
    group_2 = [(0, 0), (0.5, 0), (0.5, 0)]  # 1/2 for the method in the first seed, for the control in the second
    group_0, group_1 = (np.array([1, 0]) / 2, 0.5, 0), (np.array([0]), 0, 0.5)
    parts = [group_0, group_1, (np.array([a - b for a, b in group_2]), 0.5, 0.5)]
    expected = interval([(np.tile(values, 200), *weights) for values, *weights in parts], Z_WORST)
    assert found["worst_group"] == pytest.approx(expected, rel=1e-12)
    # groups 0 and 2 make up 1/4 and 3/4 of the training examples that are measured; group 1 counts nothing
    expected = interval([(np.tile(MEAN[:2], 200) / 4, 0.25, 0.25), (np.tile(MEAN[3:], 200) * 0.75, 0.75, 0.75)])
    assert found["train_weighted"] == pytest.approx(expected, rel=1e-12)
    classes = pairs([row * 200 for row in METHOD], [row * 200 for row in CONTROL], labels=many["groups"], groups=None)
    assert example_intervals(classes).keys() == {"accuracy", "worst_class"}
    assert example_intervals(classes)["worst_class"] == found["worst_group"]


def test_two_groups_of_one_seed_are_two_independent_samples():
    """As Agresti and Caffo (2000) have them, but with as many observations more in both as Agresti and Min add."""
    right = np.repeat([1, 0, 1, 0], [300, 100, 380, 20]), np.repeat([1, 0, 1, 0], [390, 10, 200, 200])
    groups = np.repeat([0, 1], 400)
    found = example_intervals([tuple(Correct(each == 1, groups, groups, "a") for each in right)])["worst_group"]
    shares = (300 + 0.5) / 401, (200 + 0.5) / 401
    half = Z_WORST * math.sqrt(sum(p * (1 - p) / 400.5 for p in shares))
    assert found == pytest.approx((shares[0] - shares[1] - half, shares[0] - shares[1] + half), rel=1e-12)


def test_the_ends_are_those_of_all_choices_where_several_groups_may_be_the_worst():
    """One seed, by the definition: the largest over the control's candidates of the smallest bound, at the level of as
    many candidates; exchanging the two exchanges the ends. The point estimate is always inside."""
    draw, groups = np.random.default_rng(1), np.repeat(np.arange(4), 500)
    shares = np.array([[0.8, 0.82, 0.95, 0.95], [0.81, 0.8, 0.8, 0.95]])
    ours, theirs = (draw.random(2000) < each for each in shares[:, groups])
    by_group = [groups == k for k in range(4)]

    def bound(g, h, candidates, end):
        z = stats.norm.ppf(1 - 0.0225 / candidates)
        if g == h:
            return interval([(ours[by_group[g]] * 1.0 - theirs[by_group[g]], 1, 1)], z)[end]
        return interval([(ours[by_group[g]], 1, 0), (-1.0 * theirs[by_group[h]], 0, 1)], z)[end]

    low = max(min(bound(g, h, 3, 0) for g in (0, 1)) for h in (0, 1, 2))
    high = min(max(bound(g, h, 2, 1) for h in (0, 1, 2)) for g in (0, 1))
    found = worst_interval([(Correct(ours, groups, groups, "a"), Correct(theirs, groups, groups, "a"))])
    assert found == pytest.approx((low, high), abs=1e-12)
    other = worst_interval([(Correct(theirs, groups, groups, "a"), Correct(ours, groups, groups, "a"))])
    assert other == pytest.approx((-high, -low), abs=1e-12)
    for both, _ in zip(simulated((0.8,) * 8, (0.7, *[0.95] * 7), 3, sizes=[25] * 8), range(50), strict=False):
        low, high = worst_interval(both[0])
        reported = np.mean([worst_group(a) - worst_group(b) for a, b in both[0]])
        assert low <= reported <= high


def test_a_choice_names_a_candidate_of_every_seed():
    counts = np.array([[400] * 4, [400] * 4, [400, 400, 400, 0]])
    side = side_of(np.array([[0.5, 0.51, 0.9, 0.9], [0.9, 0.5, 0.9, 0.9], [0.5, 0.9, 0.51, np.nan]]), counts)
    assert side.candidates == 3
    assert side.choices.T.tolist() == [[0, 1, 0], [0, 1, 2], [1, 1, 0], [0, 1, 0]]  # the last: the lowest of each
    clear = side_of(np.array([[0.5, 0.9], [0.9, 0.5]]), counts[:2, :2])
    assert (clear.candidates, clear.choices.T.tolist()) == (1, [[0, 1], [0, 1]])
    many = side_of(np.linspace(0.7, 0.8, 200)[None], np.full((1, 200), 30))
    assert many.candidates == 200
    assert many.choices.tolist() == [[*range(MOST_TRIED), 0]]


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
HUNDREDS = 4 * SIZES.clip(60)
EQUALLY_BAD, SMALL_WORST, LARGE_WORST = (0.8, 0.8, 0.8, 0.8), (0.6, 0.9, 0.9, 0.9), (0.95, 0.95, 0.95, 0.7)


def simulated(ours, theirs, seeds, spread=0.0, sizes=SIZES, shared=0.8):
    """Test sets of two methods with these accuracies per group, `DRAWS` times: (pairs, the true accuracies (2, S, G)).

    Examples differ in difficulty, which is common to both methods and all seeds: a share `shared` of the variance.
    Models err on their own for the rest. With `spread`, each seed's model has accuracies of its own.
    """
    draw, limits = np.random.default_rng(seeds), stats.norm.ppf([[ours], [theirs]])
    of_place = np.repeat(np.arange(len(sizes)), sizes)
    for _ in range(DRAWS):
        limit = limits + spread * draw.normal(size=(2, seeds, len(ours)))
        groups = of_place[draw.integers(0, len(of_place), len(of_place))]
        difficulty, noise = draw.normal(size=len(groups)), draw.normal(size=(2, seeds, len(groups)))
        right = math.sqrt(shared) * difficulty + math.sqrt(1 - shared) * noise < limit[:, :, groups]
        pairs = [tuple(Correct(each, groups // 2, groups, "a") for each in pair) for pair in right.swapaxes(0, 1)]
        yield pairs, limit


def worst_group(correct):
    return (np.bincount(correct.groups, correct.right) / np.bincount(correct.groups)).min()


def worst_interval(pairs):
    """That of the worst group, without those of the other metrics."""
    groups = pairs[0][0].groups
    return ByGroup([pairs], [np.arange(len(groups))], [groups]).over_worst()


@pytest.mark.parametrize(("seeds", "shared"), [(1, 0.8), (3, 0.2), (5, 0.8)])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ((0.95, 0.95, 0.95, 0.8), LARGE_WORST),  # the same group is the worst
        ((0.95, 0.95, 0.75, 0.95), (0.95, 0.95, 0.95, 0.65)),  # another one
    ],
)
def test_they_cover_the_truth_in_95_of_100_draws_where_one_group_is_clearly_the_worst(seeds, shared, ours, theirs):
    """For these models: what is drawn anew are the test examples."""
    accuracy = np.average(np.subtract(ours, theirs), weights=HUNDREDS)
    truth = {"accuracy": accuracy, "worst_group": min(ours) - min(theirs)}
    found = [example_intervals(both) for both, _ in simulated(ours, theirs, seeds, sizes=HUNDREDS, shared=shared)]
    for metric, value in truth.items():
        low, high = np.array([each[metric] for each in found]).T
        assert 0.93 <= np.mean((low <= value) & (value <= high)) <= 0.97, metric


SPREAD = 0.8, *[0.97] * 15


@pytest.mark.parametrize(
    ("ours", "theirs", "size", "seeds", "shared"),
    [
        (SPREAD[:4], SPREAD[:1] * 4, 50, 1, 0.2),
        (SPREAD[:8], SPREAD[:1] * 8, 50, 5, 0.2),
        (SPREAD, SPREAD[:1] * 16, 50, 3, 0.8),
        (SPREAD[:1] * 16, SPREAD, 50, 1, 0.8),
        (SPREAD[:1] * 4, SPREAD[:4], 200, 3, 0.2),
        (SPREAD[:4], (0.8, 0.83, 0.86, 0.89), 100, 3, 0.8),  # nearly equal
        (SPREAD[:1] * 4, SPREAD[:1] * 4, 50, 5, 0.2),
        (SMALL_WORST, SMALL_WORST, SIZES, 1, 0.8),  # of 25 examples, to which two are added
    ],
)
def test_groups_that_are_equally_good_favour_neither_side(ours, theirs, size, seeds, shared):
    """The worst groups are equal in truth. The lowest of a side whose groups are equally good is low by chance: in
    the first five cases the interval of the two groups that happen to be the lowest covers 0 in 59% to 93% of draws."""
    sizes = np.broadcast_to(size, len(ours))
    drawn = simulated(ours, theirs, seeds, sizes=sizes, shared=shared)
    low, high = np.array([worst_interval(both) for both, _ in drawn]).T
    assert np.mean((low <= 0) & (high >= 0)) >= 0.93
    assert max(np.mean(low > 0), np.mean(high < 0)) <= 0.035


def test_seeds_that_split_one_set_anew_share_examples():
    """Every seed tests on 200 of 1,000 examples. Without identities these are taken for independent: too narrow."""
    draw, groups, draws = np.random.default_rng(0), np.repeat([0, 1], [600, 400]), 500
    limits = stats.norm.ppf([[0.95, 0.6], [0.95, 0.5]])
    truth = {"accuracy": 0.4 * 0.1, "worst_group": 0.1, "train_weighted": 0.9 * 0.1}
    known, unknown = [], []
    for _ in range(DRAWS):
        difficulty, pairs = draw.normal(size=(2, 1000)), []  # method and control err on different examples
        for k in range(6):
            chosen = draw.permutation(1000)[:200]
            latent = math.sqrt(0.8) * difficulty[:, chosen] + math.sqrt(0.2) * draw.normal(size=(2, 200))
            right, of_chosen = latent < limits[:, groups[chosen]], groups[chosen]
            pairs.append(tuple(Correct(each, 0 * of_chosen, of_chosen, str(k), chosen) for each in right))
        found = example_intervals(pairs, (10, 90))
        known.append([low <= truth[name] <= high for name in truth for low, high in [found[name]]])
        if len(unknown) < draws:
            found = example_intervals(
                [tuple(evolve(each, identities=None) for each in pair) for pair in pairs], (10, 90)
            )
            unknown.append([low <= truth[name] <= high for name in truth for low, high in [found[name]]])
    shares = np.mean(known, axis=0)
    assert ((shares >= 0.93) & (shares <= 0.97)).all(), shares
    assert np.mean(unknown, axis=0).max() < 0.92


def test_an_example_that_is_there_twice_is_one():
    """Twice in one test set, or once in two: as one example with the sum of its differences."""
    draw = np.random.default_rng(0)
    right, names, groups = draw.random((2, 60)) < 0.7, np.arange(60), np.arange(60) % 2
    once = [tuple(Correct(each, groups, groups, "a", names) for each in right)]
    in_two = [*once, *(tuple(evolve(each, examples="b") for each in pair) for pair in once)]
    twice = [
        tuple(
            Correct(np.tile(each, 2), np.tile(groups, 2), np.tile(groups, 2), "a", np.tile(names, 2)) for each in right
        )
    ]
    expected = example_intervals(once)
    for more in (in_two, twice):
        found = example_intervals(more)
        assert found["accuracy"] == pytest.approx(expected["accuracy"], rel=1e-12)
        assert found["worst_group"] == pytest.approx(expected["worst_group"], abs=0.03)
    independent = [tuple(evolve(each, identities=None) for each in pair) for pair in in_two]
    low, high = example_intervals(independent)["accuracy"]
    assert high - low == pytest.approx(np.ptp(expected["accuracy"]) / math.sqrt(2), rel=0.05)


def test_accuracy_counts_an_example_by_the_seeds_that_have_it():
    """The mean of a ratio, by its definition; with two observations more, which count as an example does on average."""
    draw = np.random.default_rng(0)
    seeds = draw.integers(1, 5, 80)
    differences = draw.integers(-seeds, seeds + 1) / seeds
    count = (seeds**2).sum() / seeds.sum()
    numbers, values = np.append(seeds, [count, count, count]), np.append(differences, [1, -1, 0])
    times = np.append(np.ones(80), [0.5, 0.5, 1])
    centre = (times * numbers * values).sum() / (times * numbers).sum()
    half = Z * math.sqrt((times * (numbers * (values - centre)) ** 2).sum()) / (times * numbers).sum()
    assert over_examples(differences, seeds) == pytest.approx((centre - half, centre + half), rel=1e-12)
    assert over_examples(differences, np.full(80, 3)) == pytest.approx(over_examples(differences), rel=1e-12)


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
    for both, limit in simulated(LARGE_WORST, LARGE_WORST, 3, spread=0.2, sizes=HUNDREDS):
        truth = np.subtract(*stats.norm.cdf(limit).min(2).mean(1))
        low, high = example_intervals(both)["worst_group"]
        covered.append((low <= truth <= high, low <= 0 <= high))
    these, all_models = np.mean(covered, axis=0)
    assert 0.93 <= these <= 0.97
    assert all_models < 0.9
