"""Accuracy by group against counting by hand."""

from __future__ import annotations

import math
import resource

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

import evenly
from evenly.data import Data
from evenly.data.samplers import GroupBalanced, ProgressiveExpansion, Upsample
from evenly.engine import Trained, measure
from evenly.engine.accuracy import Usage, intervals, usage, wilson
from evenly.errors import EvenlyError
from evenly.optim.registry import builder


def logits(predicted, classes=2):
    return torch.nn.functional.one_hot(torch.as_tensor(predicted), classes).double()


def test_by_hand():
    result = evenly.group_accuracy(
        outputs=logits([0, 0, 1, 1, 1, 0]),
        labels=[0, 0, 0, 1, 1, 1],
        groups=[0, 0, 1, 2, 2, 2],
        train_groups=[0] * 90 + [1] * 4 + [2] * 6,
    )
    assert result.per_group.tolist() == [1.0, 0.0, 2 / 3]
    assert result.counts.tolist() == [2, 1, 3]
    assert (result.worst, result.worst_group) == (0.0, 1)
    assert result.mean == pytest.approx(4 / 6)
    assert result.weighted == pytest.approx(0.90 * 1 + 0.04 * 0 + 0.06 * 2 / 3)


def test_without_training_groups_there_is_no_weighted_average():
    assert evenly.group_accuracy(logits([0, 1]), [0, 1], [0, 1]).weighted is None


def test_an_absent_group_is_nan_never_the_worst_and_takes_no_part_in_the_average():
    result = evenly.group_accuracy(logits([0, 1]), [0, 0], groups=[0, 3], train_groups=[0, 0, 0, 1, 3, 4])
    assert [math.isnan(a) for a in result.per_group.tolist()] == [False, True, True, False, True]
    assert result.counts.tolist() == [1, 0, 0, 1, 0]
    assert (result.worst, result.worst_group) == (0.0, 3)
    assert result.weighted == pytest.approx(3 / 4)  # groups 1 and 4 are frequent in training and not measured


def test_overlapping_groups():
    groups = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0]]).bool()
    train = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()
    result = evenly.group_accuracy(logits([0, 1, 1, 0]), [0, 0, 0, 0], groups, train)
    assert result.per_group[:2].tolist() == [0.5, 2 / 3]
    assert math.isnan(result.per_group[2])
    assert result.worst_group == 0
    assert result.mean == 0.5  # every example once, however many groups it is in
    assert result.weighted == pytest.approx((2 * 0.5 + 1 * 2 / 3) / 3)


@pytest.mark.parametrize("outputs", [torch.tensor([[math.nan, 1.0], [0.0, 1.0]]), torch.tensor([math.nan, -1.0])])
def test_outputs_that_are_not_numbers_are_refused_not_counted(outputs):
    with pytest.raises(EvenlyError, match="outputs hold NaN for 1 of 2 examples"):
        evenly.group_accuracy(outputs, [0, 0], [0, 1])


@pytest.mark.parametrize("kind", [list, np.array, lambda names: np.array(names, dtype=object)])
def test_groups_by_name_are_those_numbered_in_order(kind):
    outputs, labels = logits([0, 1, 1]), [0, 0, 1]
    named = evenly.group_accuracy(outputs, labels, kind(["water", "land", "water"]), kind(["land", "sky"]))
    numbered = evenly.group_accuracy(outputs, labels, [2, 0, 2], [0, 1])
    assert named.names == ("land", "sky", "water")
    torch.testing.assert_close(named.per_group, numbered.per_group, equal_nan=True)
    assert (named.worst_group, named.weighted, numbered.names) == (0, numbered.weighted, ())


def test_memory_grows_with_examples_plus_groups():
    """A table of membership would be 5 GB here."""
    count, groups = 500_000, torch.arange(500_000) % 10_000
    outputs, labels = torch.zeros(count), torch.zeros(count, dtype=torch.long)
    tracker = memory()
    next(tracker)
    result = evenly.group_accuracy(outputs, labels, groups, groups)
    assert next(tracker) < 200 * 2**20
    assert (result.worst, len(result.counts)) == (1.0, 10_000)


def memory():
    """First nothing, then by how many bytes the peak of this process's memory rose meanwhile."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield 0
    yield 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


@pytest.mark.parametrize(
    "kind", [list, np.array, torch.tensor, lambda values: pd.Series(values, range(9, 9 - len(values), -1))]
)
def test_takes_lists_arrays_tensors_and_columns_of_pandas(kind):
    result = evenly.group_accuracy(kind([-1.0, 2.0, 3.0]), kind([0, 1, 0]), kind([0, 0, 1]), kind([0, 1]))
    assert (result.mean, result.worst, result.weighted) == (pytest.approx(2 / 3), 0.0, 0.5)
    predicted = evenly.group_accuracy(kind([0, 2, 1]), kind([0, 2, 0]), kind([0, 0, 1]))
    assert predicted.per_group.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("labels", "groups", "message"),
    [
        ([0, 1, 1], [0, 1], r"groups have shape \(2,\) for 3 examples"),
        ([0, 1, 1], [0, 0.5, 1], r"groups are not whole numbers \(e.g. 0.5\); give integers"),
        ([0, 1, 1], [0, math.nan, 1], "groups are not whole numbers"),
        ([0], [0, 1, 1], r"labels have shape \(1,\) for 3 examples"),
        ([[0], [1], [1]], [0, 1, 1], r"labels have shape \(3, 1\) for 3"),
        ([0, 2, 1], [0, 1, 1], r"label 2 is not among the model's 2 classes; give labels 0..1"),
        ([0, math.nan, 1], [0, 1, 1], "labels are not whole numbers"),
        ([0, 1, 1], [0, -1, 1], "groups hold -1; number the groups from 0"),
    ],
)
def test_what_does_not_go_together_is_refused_not_stretched(labels, groups, message):
    with pytest.raises(EvenlyError, match=message):
        evenly.group_accuracy(logits([0, 1, 1]), labels, groups)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([], "outputs have shape"),
        ([[[0.0]]], "outputs have shape"),
        (["a"], "outputs cannot be read as numbers"),
        ([-1], "-1 is no class; number classes from 0"),
        (np.array([-1.0]), "label 7 is not among the model's 2 classes"),
    ],
)
def test_outputs_that_go_with_no_labels_are_refused(outputs, message):
    with pytest.raises(EvenlyError, match=message):
        evenly.group_accuracy(outputs, [7], [0])


examples = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(examples, st.lists(st.integers(0, 5), min_size=1, max_size=20), st.booleans(), st.randoms(use_true_random=False))
def test_equals_counting_and_does_not_depend_on_the_order_of_storage(rows, train, overlapping, random):
    def run(rows):
        predicted, labels, groups = zip(*rows, strict=True)
        if not overlapping:
            return evenly.group_accuracy(logits(predicted, 3), labels, groups, train)
        bits = torch.tensor([[bool(g >> b & 1) for b in range(3)] for g in groups])
        return evenly.group_accuracy(logits(predicted, 3), labels, bits)

    def belongs(group, g):
        return bool(group >> g & 1) if overlapping else group == g

    if overlapping and not any(g & 7 for *_, g in rows):
        return  # nobody is in any group
    result = run(rows)
    for g, accuracy in enumerate(result.per_group.tolist()):
        right = [p == y for p, y, group in rows if belongs(group, g)]
        assert math.isnan(accuracy) if not right else accuracy == pytest.approx(sum(right) / len(right))
        assert result.counts[g] == len(right)
    present = [a for a in result.per_group.tolist() if not math.isnan(a)]
    assert result.worst == min(present)
    assert result.per_group[result.worst_group] == result.worst
    assert result.mean == pytest.approx(sum(p == y for p, y, _ in rows) / len(rows))
    if not overlapping and any(g in train for *_, g in rows):
        share = {g: train.count(g) for g in {group for *_, group in rows}}
        expected = sum(share[g] * result.per_group[g].item() for g in share) / sum(share.values())
        assert result.weighted == pytest.approx(expected)

    shuffled = rows.copy()
    random.shuffle(shuffled)
    again = run(shuffled)
    torch.testing.assert_close(again.per_group, result.per_group, equal_nan=True)
    assert (again.worst, again.worst_group) == (result.worst, result.worst_group)
    assert again.mean == pytest.approx(result.mean)


def test_what_is_reported_of_a_split():
    """With a place for every group of the data, also those that this split lacks."""
    x, labels = torch.zeros(5, 1), [0, 0, 1, 1, 1]
    data = Data(
        train=(x, labels, [0, 1, 2, 2, 2]),
        validation=(x, labels, [0, 0, 2, 2, 3]),
        test=(x[:4], labels[:4], [0, 0, 2, 2]),
    )
    outputs = logits([0, 1, 1, 1])
    row = measure(outputs, data.test, data).row()
    wrong, right = math.log(1 + math.e), math.log(1 + math.exp(-1))
    assert row == {
        "accuracy": 0.75,
        "loss": pytest.approx((wrong + 3 * right) / 4),
        "worst_class": 0.5,
        "worst_group": 0.5,
        "train_weighted": pytest.approx((0.5 + 3) / 4),
        "groups": [0.5, None, 1.0, None],
        "group_counts": [2, 0, 2, 0],
    }
    plain = Data(train=(x[:4], labels[:4]))
    assert measure(outputs, plain.train, plain).row() == {key: row[key] for key in ("accuracy", "loss", "worst_class")}


def test_intervals_are_wilsons_and_none_of_nothing():
    """Against scipy's, of every group that has an example."""
    found = intervals([0.75, None, 1.0, 0.0, None, 0.5], [8, 0, 5, 3, 4, 0])
    for got, (right, n) in zip([found[0], *found[2:4]], [(6, 8), (5, 5), (0, 3)], strict=True):
        other = binomtest(right, n).proportion_ci(0.95, method="wilson")
        assert got == pytest.approx((other.low, other.high), abs=1e-12)
    assert found[1] is found[4] is found[5] is None
    assert wilson(6, 8, level=0.99)[0] < found[0][0]


def grouped(overlapping=False):
    groups = torch.tensor([0] * 7 + [1] * 3 + [3] * 2)
    bits = torch.stack([groups == 0, torch.arange(12) % 2 == 0], 1)
    x, y = torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2
    apart = {"evaluation_groups": bits} if overlapping else {}
    return Data(train=evenly.Split(x, y, groups, name="train", **apart))


def test_where_examples_came_from_by_hand():
    shown = torch.tensor([0, 2, 1, 0, 0, 0, 4, 3, 3, 0, 0, 0])
    assert usage(shown, grouped()) == Usage(5, 13, (3, 2, 0, 0), (7, 6, 0, 0))
    # of overlapping groups an example counts in each
    assert usage(shown, grouped(True)) == Usage(5, 13, (3, 3), (7, 8))
    plain = Data(train=(torch.zeros(12, 1), torch.arange(12) % 2))
    assert usage(shown, plain) == Usage(5, 13)


class Watched(torch.nn.Module):
    """Remembers which examples it was trained on: the first number of each says which it is."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 2), []

    def forward(self, x):
        if self.training:
            self.seen += x[:, 0].long().tolist()
        return self.layer(x)


@pytest.mark.parametrize(
    ("sampler", "settings", "cost"),
    [
        (None, {}, 1),
        (Upsample([3, 5], 12, 3, seed=2), {}, 1),
        (ProgressiveExpansion([0] * 7 + [1] * 3 + [2] * 2, 1, 1, 2, seed=2), {}, 1),
        (GroupBalanced([0] * 7 + [1] * 3 + [2] * 2, seed=2), {}, 1),
        (GroupBalanced([0] * 7 + [1] * 3 + [2] * 2, seed=2), {"batch_size": None}, 1),
        (None, {"budget": 29.0}, 1),
        (Upsample([3, 5], 12, 3, seed=2), {"optimizer": builder("sam")}, 2),
    ],
    ids=["everything", "upsampled", "expanding", "balanced", "full batch", "budget within an epoch", "sam"],
)
def test_what_was_counted_is_what_the_network_saw(fit, sampler, settings, cost):
    data = Data(train=(torch.arange(12.0)[:, None], torch.arange(12) % 2))
    network = Watched()
    run = fit(**{"epochs": 4, "batch_size": 5, "seed": 2} | settings)(network, data, sampler=sampler)
    seen = torch.bincount(torch.tensor(network.seen), minlength=12) // cost  # SAM looks twice
    assert torch.equal(run.seen_counts, seen)
    assert run.selected_cost == run.cost == cost * int(seen.sum())


def test_only_what_led_to_the_weights_kept_counts(fit):
    """The best epoch is the second of three: what came later is not theirs, of the examples or of the cost."""
    groups = torch.tensor([0] * 7 + [1] * 5)
    data = Data(
        train=(torch.arange(12.0)[:, None], torch.arange(12) % 2),
        validation=(torch.zeros(4, 1), torch.tensor([0, 1, 0, 1])),
    )
    expanding = ProgressiveExpansion(groups, 1, 1, 1, seed=0)
    outputs = iter([[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 0, 0]])

    class Scripted(Watched):
        def forward(self, x):
            return super().forward(x) if self.training else 9.0 * logits(next(outputs)).float() + 0 * self.layer(x)

    run = fit(batch_size=5, select="average", spent=7.0)(Scripted(), data, sampler=expanding)
    assert run.selected_epoch == 2
    expanding.set_epoch(0)
    first = torch.bincount(expanding.members(), minlength=12)
    expanding.set_epoch(1)
    assert torch.equal(run.seen_counts, first + torch.bincount(expanding.members(), minlength=12))
    assert (run.selected_cost, run.cost) == (7 + 10 + 11, 7 + 10 + 11 + 12)


def test_what_a_method_does_after_its_epochs_is_in_the_cost_of_its_weights():
    history = [{"epoch": 1, "cost": 10.0}, {"epoch": 2, "cost": 20.0}, {"epoch": 3, "cost": 30.0}]
    assert Trained(torch.nn.Identity(), history, 34.0, "average", 2).selected_cost == 24
    assert Trained(torch.nn.Identity(), history, 30.0, "last", 3).selected_cost == 30
    assert Trained(torch.nn.Identity(), [], 5.0, "last", 0).selected_cost == 5


@pytest.mark.parametrize("train_groups", [[0, 1], [[True], [False]], [[True, False]] * 2])
def test_training_groups_of_another_form_are_refused(train_groups):
    with pytest.raises(EvenlyError, match=r"train_groups of shape .* do not go with groups \(2, 3\); give both"):
        evenly.group_accuracy(logits([0, 1]), [0, 0], groups=[[True, False, True]] * 2, train_groups=train_groups)


@pytest.mark.parametrize(("groups", "train_groups"), [(None, None), ([0, 1], [])])
def test_no_groups_are_refused(groups, train_groups):
    with pytest.raises(EvenlyError, match="give one for each example"):
        evenly.group_accuracy(logits([0, 1]), [0, 0], groups=groups, train_groups=train_groups)
