"""What improve chooses on validation, and how often equal methods produce a clear gain."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve

from evenly.engine.accuracy import Measured
from evenly.experiment import choosing
from evenly.runs.arms import Arm
from evenly.runs.differences import holm, paired
from evenly.runs.example_intervals import Correct
from evenly.runs.results import DataSummary, RunResult
from evenly.runs.run import InMemory, Run

ERM = Arm("erm", "sgd")
SAM = Arm("group_dro", "sam")
METHODS = [Arm(name, "sgd") for name in ("group_dro", "reweight", "subsample", "dfr", "pde", "jtt")]
SIZES = np.array([100, 25, 25, 100])


def run_of(arm, seed, right, split, times=1):
    """A run that got `right` (N,) of a split."""
    groups = np.repeat(np.arange(4), times * SIZES)
    labels = (groups >= 2).astype(int)
    shares = [float(right[groups == g].mean()) for g in range(4)]
    classes = min(float(right[labels == k].mean()) for k in (0, 1))
    counts = tuple((times * SIZES).tolist())
    measured = Measured(float(right.mean()), None, classes, min(shares), None, tuple(shares), counts)
    result = RunResult(
        DataSummary("toy", "", {split: len(right)}, ("a", "b"), ("0", "1", "2", "3"), 4), arm.method, arm.optimizer,
        seed, "mlp", "worst-group", 1, 1.0, 1, 100.0, 100.0, 0.0, 0.0, "cpu", "plain", {split: measured},
    )  # fmt: skip
    correct = Correct(right, labels, groups, split)
    return Run(None, result, None, InMemory([], correct=correct))


def outcome(rng, gains, spread, times=1):
    """Screen on the first seed, take two to all seeds, SAM on top, choose on validation, test: (arm chosen, verdict).

    Args:
        gains: of each method in the worst groups, in shares.
        spread: the standard deviation of a network's accuracy over seeds.
        times: how many times as large both sets are.
    """
    base, arms = np.array([0.95, 0.6, 0.6, 0.95]), [ERM, *METHODS[: len(gains)], SAM]
    groups = np.repeat(np.arange(4), times * SIZES)
    truth = {
        arm: np.clip(base + [0, gain, gain, 0] + spread * rng.standard_normal((3, 4)), 0.02, 0.98)
        for arm, gain in zip(arms, [0.0, *gains, 0.0], strict=True)
    }
    validation, test = (
        {
            arm: {s: run_of(arm, s, rng.random(len(groups)) < truth[arm][s][groups], split, times) for s in range(3)}
            for arm in arms
        }
        for split in ("validation", "test")
    )
    better = choosing.ranked(arms[1:-1], {arm: {0: runs[0]} for arm, runs in validation.items()}, ERM, "worst_group", 0)
    finals = [*better[:2], *([SAM] if better else [])]
    summaries = [choosing.compared(arm, validation[arm], ERM, validation[ERM]) for arm in finals]
    best = choosing.best_of(choosing.corrected(summaries, "worst_group"), "worst_group", "given", 3)
    if best is None:
        return ERM, choosing.verdict_without(6, 100)
    on_test = choosing.compared(best.arm, test[best.arm], ERM, test[ERM]).difference("worst_group")
    return best.arm, choosing.verdict_on_test(on_test)


@pytest.mark.parametrize(("spread", "times"), [(0.0, 1), (0.1, 1), (0.05, 20)])
def test_equal_methods_seldom_produce_a_clear_gain(spread, times):
    """Also where sets are so large that only the seeds vary."""
    rng = np.random.default_rng(7)
    verdicts = [outcome(rng, [0.0] * 6, spread, times)[1] for _ in range(400)]
    assert verdicts.count("raised") <= 0.05 * 400
    assert verdicts.count("raised") + verdicts.count("raised-for-these") <= 0.05 * 400


def test_the_correction_is_what_keeps_chance_out():
    """With large sets, equal methods look better on three seeds; uncorrected, they are chosen about twice as often."""
    rng = np.random.default_rng(1)
    differences = [
        sorted((paired(list(row)) for row in rng.standard_normal((3, 3))), key=lambda each: each.p) for _ in range(2000)
    ]
    plain = sum(any(each.low > 0 for each in family) for family in differences)
    corrected = sum(
        any(p < 0.05 and each.mean > 0 for p, each in zip(holm([e.p for e in family]), family, strict=True))
        for family in differences
    )
    assert corrected < 0.6 * plain


def test_a_large_gain_is_found():
    rng = np.random.default_rng(3)
    chosen = [outcome(rng, [0.0, 0.35, 0.0], 0.02) for _ in range(40)]
    assert sum(arm == METHODS[1] for arm, _ in chosen) >= 20
    assert sum(verdict == "raised" for _, verdict in chosen) >= 12
    assert not any(arm in METHODS[2:] for arm, _ in chosen)


def fixed(arm, right, split="validation", seeds=(0, 1, 2)):
    return {seed: run_of(arm, seed, np.asarray(right[k % len(right)]), split) for k, seed in enumerate(seeds)}


def share_right(*shares):
    """(N,) booleans: of each group this share, the first ones."""
    return np.concatenate([np.arange(n) < share * n for share, n in zip(shares, SIZES, strict=True)])


def test_ties_on_the_first_seed_go_to_accuracy_then_to_the_order():
    runs = {
        ERM: fixed(ERM, [share_right(0.9, 0.4, 0.6, 0.9)]),
        METHODS[0]: fixed(METHODS[0], [share_right(0.8, 0.6, 0.6, 0.8)]),
        METHODS[1]: fixed(METHODS[1], [share_right(0.9, 0.6, 0.6, 0.9)]),
        METHODS[2]: fixed(METHODS[2], [share_right(0.9, 0.4, 0.6, 0.9)]),
    }
    assert choosing.ranked(METHODS[:3], runs, ERM, "worst_group", 0) == [METHODS[1], METHODS[0]]


def test_groups_that_nobody_asked_for_are_not_raised_at_the_expense_of_accuracy():
    erm = fixed(ERM, [share_right(0.95, 0.2, 0.6, 0.95), share_right(0.95, 0.2, 0.64, 0.95)])
    arm = METHODS[0]
    # the runs differ, so that seeds have a spread
    runs = fixed(arm, [share_right(0.7, 0.64, 0.64, 0.7), share_right(0.7, 0.68, 0.68, 0.7)])
    summary = choosing.compared(arm, runs, ERM, erm)
    assert summary.difference("worst_group").outcome == "raised"
    assert summary.difference("accuracy").outcome in choosing.LOWERED
    assert choosing.best_of([summary], "worst_group", "given", 3) is summary
    assert choosing.best_of([summary], "worst_group", "inferred", 3) is None


def test_with_fewer_than_three_seeds_these_models_suffice():
    erm, arm = fixed(ERM, [share_right(0.95, 0.2, 0.6, 0.95)], seeds=(0,)), METHODS[0]
    runs = fixed(arm, [share_right(0.95, 0.92, 0.92, 0.95)], seeds=(0,))
    summary = choosing.compared(arm, runs, ERM, erm)
    assert choosing.best_of([summary], "worst_group", "given", 1) is summary
    assert choosing.best_of([evolve(summary, seeds=3)], "worst_group", "given", 3) is None
    assert "clear for these models only" in choosing.reason_of(summary, "worst_group", choosing.Smallest(25, ""), 1, 1)


@pytest.mark.parametrize(
    ("over_seeds", "over_examples", "verdict"),
    [
        ((0.05, 0.15), (0.04, 0.2), "raised"),
        ((-0.05, 0.25), (0.04, 0.2), "raised-for-these"),
        ((-0.05, 0.25), (-0.04, 0.2), "not-confirmed"),
        ((-0.25, -0.15), (-0.24, -0.2), "not-confirmed"),
    ],
)
def test_the_verdict_of_a_chosen_method(over_seeds, over_examples, verdict):
    difference = choosing.Difference(0.1, *over_seeds, 3, 0.01, *over_examples)
    assert choosing.verdict_on_test(difference) == verdict


def test_the_verdict_where_nothing_was_chosen():
    assert choosing.verdict_without(3, 29) == "too-few"
    assert choosing.verdict_without(3, 30) == "no-clear-gain"
    assert choosing.verdict_without(0, 30) == "nothing-tried"


def test_the_smallest_part_has_examples():
    summary = choosing.compared(ERM, fixed(ERM, [share_right(0.9, 0.4, 0.6, 0.9)]), ERM, {})
    assert choosing.smallest(summary, "worst_group", ["a", "b", "c", "d"], [125, 125]).examples == 25
    assert choosing.smallest(summary, "worst_class", [], [0, 125, 20]).examples == 20
    assert choosing.smallest(summary, "accuracy", [], [125, 125]).examples == 250


def test_the_seed_that_is_handed_back_is_best_on_validation():
    arm = METHODS[0]
    right = [share_right(0.9, 0.4, 0.6, 0.9), share_right(0.9, 0.6, 0.6, 0.9), share_right(0.9, 0.6, 0.6, 0.9)]
    runs = fixed(arm, right, seeds=(5, 6, 7))
    assert choosing.seed_to_hand_back(runs, "worst_group", choosing.Smallest(100, "")) == 6


def test_where_the_metric_has_few_examples_accuracy_decides_the_seed():
    arm = METHODS[0]
    runs = fixed(arm, [share_right(0.5, 0.6, 0.6, 0.5), share_right(0.9, 0.4, 0.6, 0.9)], seeds=(5, 6))
    assert choosing.seed_to_hand_back(runs, "worst_group", choosing.Smallest(100, "")) == 5
    assert choosing.seed_to_hand_back(runs, "worst_group", choosing.Smallest(20, "")) == 6
