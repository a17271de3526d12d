"""Differences over seeds, against exact oracles and by simulation, and what is concluded from both uncertainties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attrs import evolve
from scipy import stats

from evenly.runs.differences import MOST, Difference, holm, paired


@pytest.mark.parametrize("n", [3, 10])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_over_seeds_the_intervals_are_those_of_scipy(n, level):
    differences = np.random.default_rng(n).normal(0.02, 0.1, n).tolist()
    ours = paired(differences, level)
    interval = stats.ttest_1samp(differences, 0).confidence_interval(level)
    expected = (np.mean(differences), interval.low, interval.high, np.std(differences, ddof=1))
    assert (ours.mean, ours.low, ours.high, ours.sd) == pytest.approx(expected, rel=1e-12)
    assert ours.p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=1e-12)
    assert ours.pairs == n
    assert paired(differences) == paired(differences, 0.95)


@pytest.mark.parametrize(
    ("differences", "mean", "over_seeds", "to_settle"),
    [
        ([0.25], 0.25, "3 or more needed", ""),
        ([0.0], 0.0, "3 or more needed", ""),
        ([0.3, 0.2], 0.25, "3 or more needed", "about 1 more seed might settle it"),
        ([0.3, 0.1], 0.2, "3 or more needed", "about 3 more seeds might settle it"),
        (
            [0.3, -0.2],
            0.05,
            "3 or more needed",
            f"more than {MOST} seeds would be needed to settle it: the difference is small",
        ),
        ([0.25, 0.25, 0.25], 0.25, "all the same", ""),
        ([0.9 - 0.6, 0.7 - 0.4], 0.3, "3 or more needed", ""),  # equal but for rounding
        ([0.1 + 0.2 - 0.3, 0.0], 0.0, "3 or more needed", ""),
    ],
)
def test_two_pairs_or_equal_pairs_have_no_interval_over_seeds(differences, mean, over_seeds, to_settle):
    found = paired(differences)
    assert (found.low, found.high, found.pairs) == (None, None, len(differences))
    assert found.mean == (0.0 if mean == 0 else pytest.approx(mean))
    assert found.p is None
    assert (found.over_seeds, found.to_settle) == (over_seeds, to_settle)
    assert found.is_zero == (mean == 0 and len(differences) > 1)
    assert found.outcome == ("unclear" if found.is_zero else "unknown")


@pytest.mark.parametrize(("mean", "sd"), [(0.1, 0.02), (-0.1, 0.1), (0.05, 0.2), (0.01, 0.3)])
@pytest.mark.parametrize("family", [1, 5])
def test_how_many_seeds_might_settle_it(mean, sd, family):
    """The first number of seeds whose t-interval, around the same mean and spread, leaves out 0."""
    level = 1 - 0.05 / family
    settled = (n for n in range(3, MOST + 1) if stats.t.interval(level, n - 1, abs(mean), sd / math.sqrt(n))[0] > 0)
    expected = next(settled, None)
    found = Difference(mean, None, None, 2, sd, family=family)
    assert found.seeds_needed == expected
    assert (expected is None) == (mean == 0.01 or (mean, family) == (0.05, 5))
    assert evolve(found, pairs=expected or 3).to_settle == ("" if expected else found.to_settle)
    around = evolve(found, examples_low=-0.1, examples_high=0.2)  # which more seeds do not change
    assert around.seeds_needed is None
    assert around.to_settle == "a larger test set is needed: the interval over test examples includes 0"
    assert evolve(found, examples_low=0.01, examples_high=0.2).to_settle == found.to_settle


def test_seeds_added_as_advised_until_it_is_clear_find_more_than_5_of_100_by_chance():
    """As documented: from 3 seeds up to 20, of a method that equals its control."""
    found = 0
    for draws in np.random.default_rng(0).normal(size=(1000, 20)).tolist():
        seeds: int | None = 3
        while seeds and seeds <= 20 and (difference := paired(draws[:seeds])).outcome == "unclear":
            seeds = difference.seeds_needed
        found += difference.outcome != "unclear"
    assert found / 1000 == pytest.approx(0.13, abs=0.03)


def test_holm_against_its_definition():
    """The smallest p is multiplied by the number of tests, the next by one less; none falls below one before it."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([0.04]) == [0.04]
    assert holm([]) == []
    p = np.random.default_rng(0).random(20) ** 4
    rejected = {level: [q < level for q in holm(p)] for level in (0.01, 0.05, 0.3)}
    for level, found in rejected.items():  # step down: reject while the k-th smallest is below level / (m - k)
        order = np.argsort(p)
        stop = next((k for k, i in enumerate(order) if p[i] >= level / (len(p) - k)), len(p))
        assert set(np.flatnonzero(found)) == set(order[:stop])


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_intervals_over_seeds_cover_the_truth_in_95_of_100_draws(seeds):
    draws = np.random.default_rng(0).normal(0.02, 0.1, (2000, seeds)).tolist()
    bounds = [paired(each) for each in draws]
    assert np.mean([each.low <= 0.02 <= each.high for each in bounds]) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("shared", [0.0, 0.7])
def test_of_eight_methods_equal_to_their_controls_any_is_called_clear_in_5_of_100_tables(seeds, shared):
    """Also where the methods have a control in common."""
    draw = np.random.default_rng(seeds)
    noise = math.sqrt(1 - shared) * draw.normal(size=(2000, 8, seeds)) + math.sqrt(shared) * draw.normal(
        size=(2000, 1, seeds)
    )
    any_clear = {"p": 0, "adjusted_p": 0}
    for table in noise.tolist():
        found = [paired(each) for each in table]
        adjusted = holm([each.p for each in found])
        corrected = [evolve(each, adjusted_p=p, family=8) for each, p in zip(found, adjusted, strict=True)]
        any_clear["p"] += any(each.outcome != "unclear" for each in found)
        any_clear["adjusted_p"] += any(each.outcome != "unclear" for each in corrected)
    assert any_clear["adjusted_p"] / 2000 < 0.06
    assert any_clear["p"] / 2000 > 0.15  # without correction


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
        (BELOW, ABOVE, "unclear"),
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
    ("adjusted", "examples", "outcome"),
    [(0.04, ABOVE, "raised"), (0.06, ABOVE, "raised-for-these"), (0.06, NONE, "unclear"), (0.06, AROUND, "unclear")],
)
def test_one_of_several_methods_is_clear_after_correction_only(adjusted, examples, outcome):
    found = Difference(0.1, *ABOVE, 3, 0.1, *examples, p=0.02, adjusted_p=adjusted, family=3)
    assert found.outcome == outcome
    assert found.is_corrected_away == (adjusted > 0.05)


def test_in_words():
    found = Difference(0.267, None, None, 2, 0.066, 0.2, 0.33333)
    assert (found.points, found.over_examples, found.over_seeds) == ("+26.7", "[20.0, 33.3]", "3 or more needed")
    small = Difference(-0.0003, -0.0012, 0.0006, 3, 0.001)
    assert (small.points, small.over_examples, small.over_seeds) == ("−0.03", "", "[−0.12, 0.06]")
