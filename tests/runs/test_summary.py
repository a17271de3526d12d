"""Summaries: paired differences, means over seeds, and the cost to reach a level."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from evenly.runs.arms import Arm
from evenly.runs.differences import paired
from evenly.runs.example_intervals import Correct, over_examples
from evenly.runs.results import Usage
from evenly.runs.summary import Row, Summary, summarise

ERM, USEFUL, PDE = (Arm(method, "sgd") for method in ("erm", "useful", "pde"))
RIGHT = {USEFUL: [0, 1, 2], ERM: [0]}
CUT = Arm("erm", "sgd", control_of=PDE)


def test_differences_are_paired_by_seed_not_by_position(result):
    rows = [Row(USEFUL, s, result(a, cost=48.0 * (1 + s)), ERM) for s, a in ((5, 0.9), (6, 0.8))]
    rows += [Row(ERM, s, result(a)) for s, a in ((6, 0.5), (5, 0.7))]
    useful, erm = summarise(rows)
    assert useful.metrics["accuracy"].difference == paired([0.9 - 0.7, 0.8 - 0.5])
    assert useful.metrics["accuracy"].values == (0.9, 0.8)
    assert useful.mean("accuracy") == pytest.approx(0.85)
    assert useful.metrics["accuracy"].sd == pytest.approx(np.std([0.9, 0.8], ddof=1))
    assert erm.difference("accuracy") is None
    assert (useful.seeds, useful.cost_multiple, useful.control_cost_multiple) == (2, 6.5, 1.0)
    assert useful.evaluation_cost_multiple == pytest.approx(8 / 48)
    assert (erm.control, erm.control_cost_multiple) == (None, None)
    assert useful.mean("worst_group") is useful.difference("worst_group") is None


def test_each_seed_is_paired_with_its_own_control(result):
    """Where a method's cost is ERM's in one seed only, the control is ERM itself there and a shorter ERM elsewhere."""
    rows = [Row(PDE, 0, result(0.9), ERM), Row(PDE, 1, result(0.8), CUT)]
    rows += [Row(ERM, 0, result(0.5)), Row(ERM, 1, result(0.1)), Row(CUT, 1, result(0.6))]
    assert summarise(rows)[0].difference("accuracy") == paired([0.9 - 0.5, 0.8 - 0.6])


def test_a_group_that_a_test_set_lacks(result):
    """In one seed, in all of them, or beyond the end of the list: it is left out, and the rest is still averaged."""
    rows = [Row(ERM, 0, result(0.5, (0.5, None, 1.0, None))), Row(ERM, 1, result(0.5, (0.25, 0.5, 1.0)))]
    (summary,) = summarise(rows)
    assert summary.groups == (0.375, 0.5, 1.0, None)
    assert summary.group_counts == (10, 10, 10, 10)
    assert summary.group_intervals[3] is None
    assert summary.group_intervals[0][0] < 0.375 < summary.group_intervals[0][1]
    assert summary.mean("worst_group") == pytest.approx(0.375)
    assert Summary.from_dict(json.loads(json.dumps(summary.to_dict(), allow_nan=False))) == summary


def test_what_was_used_is_averaged_where_every_seed_says(result):
    used = [Usage(24, 48, (12.0, 12.0), (24.0, 24.0)), Usage(24, 72, (10.0, 14.0), (30.0, 42.0))]
    rows = [Row(ERM, seed, result(used=each)) for seed, each in enumerate(used)]
    assert summarise(rows)[0].used == Usage(24, 60, (11.0, 13.0), (27.0, 33.0))
    assert summarise([*rows, Row(ERM, 2, result(used=None))])[0].used is None


def test_what_each_run_got_right_gives_the_uncertainty_over_examples(result):
    rows = [Row(USEFUL, 0, result(0.75), ERM), Row(ERM, 0, result(0.25))]
    right = {USEFUL: [1, 1, 1, 0], ERM: [1, 0, 0, 0]}
    runs = {
        (arm, 0): run(results=result(), correct=Correct(np.array(each, dtype=bool), np.arange(4) % 2, None, "a"))
        for arm, each in right.items()
    }
    found = summarise(rows, runs)[0].difference("accuracy")
    assert (found.mean, found.low, found.pairs) == (0.5, None, 1)
    assert (found.examples_low, found.examples_high) == pytest.approx(over_examples(np.array([0, 1, 1, 0])))
    runs[ERM, 0].correct = None  # in the folder of an older version
    assert summarise(rows, runs)[0].difference("accuracy") == paired([0.5])


def test_seeds_without_a_run_of_the_control_are_in_neither_uncertainty(result):
    """Of a seed without a control there is no difference, and its examples are not used. Where the control's row is
    there and its run is not, the examples would be of fewer seeds than the difference: there is no interval."""
    rows = [Row(USEFUL, seed, result(0.75), ERM) for seed in range(3)]
    rows += [Row(ERM, seed, result(0.25)) for seed in (0, 2)]
    labels = np.arange(4) % 2
    runs = {
        (row.arm, row.seed): run(
            results=result(), correct=Correct(np.isin(np.arange(4), RIGHT[row.arm]), labels, None, "a")
        )
        for row in rows
    }
    found = summarise(rows, runs)[0].difference("accuracy")
    assert (found.mean, found.pairs) == (0.5, 2)
    assert (found.examples_low, found.examples_high) == pytest.approx(over_examples(np.array([0, 1, 1, 0])))
    for lost in ((ERM, 2), (USEFUL, 2)):
        left = {key: each for key, each in runs.items() if key != lost}
        assert summarise(rows, left)[0].difference("accuracy") == paired([0.5, 0.5])


def test_the_methods_of_a_table_are_one_family_in_the_headline_metric(result):
    """Holm's correction, for every arm that has a control; not for other metrics, nor for arms without a difference."""
    draw, shares = np.random.default_rng(0), {}
    rows = []
    for arm, control in ((USEFUL, ERM), (PDE, CUT), (ERM, None), (CUT, None)):
        for seed, share in enumerate(draw.uniform(0.5, 0.9, (4, 2)).tolist()):
            shares[arm, seed] = min(share)
            rows.append(Row(arm, seed, result(0.8 + seed / 50, share, rule="worst-group"), control))
    useful, pde, erm, _ = summarise(rows)
    p = [
        stats.ttest_rel(*([shares[arm, seed] for seed in range(4)] for arm in pair)).pvalue
        for pair in ((USEFUL, ERM), (PDE, CUT))
    ]
    found = [each.difference("worst_group") for each in (useful, pde)]
    assert [each.p for each in found] == pytest.approx(p)
    assert [each.adjusted_p for each in found] == pytest.approx(
        [max(2 * min(p), q) if q > min(p) else 2 * q for q in p]
    )
    assert [each.family for each in found] == [2, 2]
    assert (useful.difference("accuracy").adjusted_p, useful.difference("accuracy").family) == (None, 1)
    assert erm.difference("worst_group") is None


def run(*worst, results, correct=None):
    history = [{"cost": 24.0 * epoch, "validation": {"worst_group": w}} for epoch, w in enumerate(worst, 1)]
    return SimpleNamespace(history=history, results=results, correct=correct)


def test_the_cost_to_reach_is_measured_against_plain_erm_at_the_same_values(result):
    swept = Arm("erm", "sgd", {"batch_size": 8}), Arm("useful", "sgd", {"batch_size": 8, "useful.factor": 3})
    alone = Arm("useful", "adam")  # without ERM by that optimizer
    arms = {swept[0]: (0.4, 0.5), swept[1]: (0.3, 0.6), ERM: (0.9, 0.9), alone: (0.9, 0.9), CUT: (0.9, 0.9)}
    rows = [Row(arm, 0, result()) for arm in arms]
    runs = {(arm, 0): run(*worst, results=result()) for arm, worst in arms.items()}
    by_arm = {each.arm: each for each in summarise(rows, runs)}
    assert [level.median_cost for level in by_arm[swept[1]].cost_to_reach] == [48.0, 48.0, 48.0, None]
    assert by_arm[swept[1]].cost_to_reach[0].median_cost_multiple == 1.0
    assert by_arm[alone].cost_to_reach == by_arm[CUT].cost_to_reach == ()
    assert summarise(rows)[0].cost_to_reach == ()
    runs[swept[1], 0] = run(0.3, results=result(cost=60.0))
    changed = {each.arm: each for each in summarise(rows, runs)}[swept[1]]
    assert (changed.cost_to_reach, changed.cost_to_reach_reason) == (
        (),
        "its weights were changed after the last epoch",
    )
