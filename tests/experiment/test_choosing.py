"""What improve chooses on validation, and how often equal methods produce a clear gain."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve

from evenly.engine.accuracy import Measured
from evenly.experiment import choosing
from evenly.runs.arms import Arm
from evenly.runs.example_intervals import Correct
from evenly.runs.results import DataSummary, RunResult
from evenly.runs.run import InMemory, Run

ERM = Arm("erm", "sgd")
METHODS = [Arm(name, "sgd") for name in ("group_dro", "reweight", "subsample", "dfr", "pde", "jtt")]
GROUPS = np.repeat(np.arange(4), [100, 25, 25, 100])
LABELS = (GROUPS >= 2).astype(int)


def run_of(arm, seed, right, split):
    """A run that got `right` (N,) of a split."""
    shares = [float(right[g == GROUPS].mean()) for g in range(4)]
    classes = min(float(right[k == LABELS].mean()) for k in (0, 1))
    measured = Measured(float(right.mean()), None, classes, min(shares), None, tuple(shares), (100, 25, 25, 100))
    result = RunResult(
        DataSummary("toy", "", {split: len(right)}, ("a", "b"), ("0", "1", "2", "3"), 4), arm.method, arm.optimizer,
        seed, "mlp", "worst-group", 1, 1.0, 1, 100.0, 100.0, 0.0, 0.0, "cpu", "plain", {split: measured},
    )  # fmt: skip
    correct = Correct(right, LABELS, GROUPS, split)
    return Run(None, result, None, InMemory([], correct=correct))


def drawn(rng, accuracies, split, seeds=(0, 1, 2)):
    """Runs of an arm by seed: `accuracies` (seeds, 4) by group."""
    return {
        seed: lambda arm, s=seed, p=accuracies[k]: run_of(arm, s, rng.random(len(GROUPS)) < p[GROUPS], split)
        for k, seed in enumerate(seeds)
    }


def outcome(rng, gains, spread):
    """Screen on the first seed, take two to all seeds, choose on validation, test: (arm chosen, verdict).

    Args:
        gains: of each method in the worst groups, in shares.
        spread: the standard deviation of a network's accuracy over seeds.
    """
    base, arms = np.array([0.95, 0.6, 0.6, 0.95]), [ERM, *METHODS[: len(gains)]]
    truth = {
        arm: np.clip(base + [0, gain, gain, 0] + spread * rng.standard_normal((3, 4)), 0.02, 0.98)
        for arm, gain in zip(arms, [0.0, *gains], strict=True)
    }
    validation, test = (
        {arm: {s: make(arm) for s, make in drawn(rng, truth[arm], split).items()} for arm in arms}
        for split in ("validation", "test")
    )
    screened = {arm: {0: runs[0]} for arm, runs in validation.items()}
    better = choosing.ranked(arms[1:], screened, ERM, "worst_group", 0)[:2]
    summaries = [choosing.compared(arm, validation[arm], ERM, validation[ERM]) for arm in better]
    best = choosing.best_of(summaries, "worst_group", "given", 3)
    if best is None:
        return ERM, "no-clear-gain"
    on_test = choosing.compared(best.arm, test[best.arm], ERM, test[ERM]).difference("worst_group")
    return best.arm, choosing.verdict_of(True, on_test, 25, len(arms) - 1)


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_equal_methods_seldom_produce_a_clear_gain(spread):
    rng = np.random.default_rng(7)
    verdicts = [outcome(rng, [0.0] * 6, spread)[1] for _ in range(400)]
    assert verdicts.count("raised") <= 0.05 * 400


def test_a_large_gain_is_found():
    rng = np.random.default_rng(3)
    chosen = [outcome(rng, [0.0, 0.35, 0.0], 0.02) for _ in range(40)]
    assert sum(arm == METHODS[1] for arm, _ in chosen) >= 28
    assert sum(verdict == "raised" for _, verdict in chosen) >= 20
    assert not any(arm in METHODS[2:] for arm, _ in chosen)


def fixed(arm, right, split="validation", seeds=(0, 1, 2)):
    return {seed: run_of(arm, seed, np.asarray(right[k % len(right)]), split) for k, seed in enumerate(seeds)}


def share_right(*shares):
    """(N,) booleans: of each group this share, the first ones."""
    return np.concatenate([np.arange(n) < share * n for share, n in zip(shares, (100, 25, 25, 100), strict=True)])


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
    ("chosen", "outcome_on_test", "examples", "tried", "verdict"),
    [
        (True, (0.1, 0.05, 0.15, 0.04, 0.2), 10, 3, "raised"),
        (True, (0.1, -0.05, 0.25, 0.04, 0.2), 10, 3, "raised-for-these"),
        (True, (0.1, -0.05, 0.25, -0.04, 0.2), 10, 3, "not-confirmed"),
        (False, None, 29, 3, "too-few"),
        (False, None, 30, 3, "no-clear-gain"),
        (False, None, 30, 0, "nothing-tried"),
    ],
)
def test_the_verdict(chosen, outcome_on_test, examples, tried, verdict):
    difference = None
    if outcome_on_test is not None:
        mean, low, high, examples_low, examples_high = outcome_on_test
        difference = choosing.Difference(
            mean, low, high, 3, 0.01, examples_low=examples_low, examples_high=examples_high
        )  # fmt: skip
    assert choosing.verdict_of(chosen, difference, examples, tried) == verdict


def test_the_seed_that_is_handed_back_is_best_on_validation():
    arm = METHODS[0]
    right = [share_right(0.9, 0.4, 0.6, 0.9), share_right(0.9, 0.6, 0.6, 0.9), share_right(0.9, 0.6, 0.6, 0.9)]
    assert choosing.seed_to_hand_back(fixed(arm, right, seeds=(5, 6, 7)), "worst_group") == 6
