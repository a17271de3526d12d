"""Accuracy by group against counting by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import evenly
from evenly.data import Data
from evenly.engine import measure
from evenly.errors import EvenlyError


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


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_takes_lists_arrays_and_tensors(kind):
    result = evenly.group_accuracy(kind([-1.0, 2.0, 3.0]), kind([0, 1, 0]), kind([0, 0, 1]), kind([0, 1]))
    assert (result.mean, result.worst, result.weighted) == (pytest.approx(2 / 3), 0.0, 0.5)


def test_groups_of_another_length_are_refused():
    with pytest.raises(EvenlyError, match="2 groups for 3 examples"):
        evenly.group_accuracy(logits([0, 1, 1]), [0, 1, 1], [0, 1])


@pytest.mark.parametrize("labels", [[0], [[0], [1], [1]], [0, 1]], ids=str)
def test_labels_of_another_shape_are_refused_not_stretched(labels):
    with pytest.raises(EvenlyError, match="labels"):
        evenly.group_accuracy(logits([0, 1, 1]), labels, [0, 1, 1])


def test_nothing_to_measure_is_refused():
    with pytest.raises(EvenlyError):
        evenly.group_accuracy(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), [])


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
    row = measure(outputs, data.test, data)
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
    assert measure(outputs, plain.train, plain) == {key: row[key] for key in ("accuracy", "loss", "worst_class")}
