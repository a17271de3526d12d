"""Confusion, calibration and rates against numbers by hand and against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics

from evenly.data import Data, Split
from evenly.diagnose.rates import auc, calibration_of, confusion_of, rates_of


def drawn(classes: int = 2, n: int = 1000, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(seed)
    labels, shares = random.integers(0, classes, n), random.dirichlet(np.ones(classes), n).round(2)
    shares[:, 0] += 1 - shares.sum(1)
    return torch.from_numpy(labels), torch.from_numpy(shares.argmax(1)), torch.from_numpy(shares)


def test_the_confusion_matrix_is_scikit_learns() -> None:
    labels, predicted, _ = drawn(classes=4)
    found = confusion_of(labels, predicted, 4)
    expected = metrics.confusion_matrix(labels, predicted)
    assert np.array(found.counts).tolist() == expected.tolist()
    np.fill_diagonal(expected, 0)
    assert found.mistakes[0].n == expected.max() == expected[found.mistakes[0].label, found.mistakes[0].predicted]


def test_of_many_classes_only_the_mistakes_are_kept() -> None:
    labels = torch.arange(30)
    found = confusion_of(labels, torch.where(labels == 7, 9, labels), 30)
    assert found.counts == ()
    assert [(each.label, each.predicted, each.n) for each in found.mistakes] == [(7, 9, 1)]


def test_true_probabilities_are_calibrated_and_false_ones_are_not() -> None:
    random = np.random.default_rng(0)
    p = random.uniform(0, 1, 20_000)
    labels, shares = (
        torch.from_numpy((random.random(20_000) < p).astype(int)),
        torch.from_numpy(np.stack([1 - p, p], 1)),
    )
    found = calibration_of(labels, shares.argmax(1), shares)
    assert found.error < 0.015
    assert len(found.bins) == 10
    assert max(each.n for each in found.bins) - min(each.n for each in found.bins) <= 2
    sharper = torch.stack([shares[:, 0] ** 3, shares[:, 1] ** 3], 1)
    sharper /= sharper.sum(1, keepdim=True)
    sure = calibration_of(labels, shares.argmax(1), sharper)
    assert sure.error == pytest.approx(sure.confidence - float((shares.argmax(1) == labels).double().mean()), abs=1e-6)
    assert sure.error > 0.1


def test_equal_confidences_share_a_bin() -> None:
    shares = torch.tensor([[0.8, 0.2]] * 10)
    (only,) = calibration_of(torch.tensor([0] * 6 + [1] * 4), torch.zeros(10, dtype=torch.long), shares).bins
    assert (only.n, only.confidence, only.accuracy) == (10, pytest.approx(0.8), 0.6)


def test_rates_are_scikit_learns_with_ties() -> None:
    labels, predicted, shares = drawn()
    data = Data(train=Split(torch.zeros(1000, 1), labels, torch.arange(1000) // 500))
    members = {"first": torch.arange(500), "second": torch.arange(500, 1000)}
    found = rates_of(labels, predicted, shares, "group", members, data.train, data)
    assert [row.name for row in found.groups] == ["all", "first", "second"]
    row, part = found.groups[2], slice(500, 1000)
    (tn, fp), (fn, tp) = metrics.confusion_matrix(labels[part], predicted[part])
    assert row.true_positive[0] == tp / (tp + fn)
    assert row.false_positive[0] == fp / (fp + tn)
    assert row.true_positive[1] < row.true_positive[0] < row.true_positive[2]
    assert row.auc == pytest.approx(metrics.roc_auc_score(labels[part], shares[part, 1]))
    assert auc([1, 1], [True, False]) == 0.5


def test_groups_of_one_label_each_give_way_to_attributes() -> None:
    labels, predicted, shares = drawn()
    a = torch.arange(1000) // 2 % 2
    data = Data(train=Split(torch.zeros(1000, 1), labels, 2 * labels + a, {"a": a}))
    members = {f"{g}": (2 * labels + a == g).nonzero().flatten() for g in range(4)}
    found = rates_of(labels, predicted, shares, "group", members, data.train, data)
    assert (found.by, [row.name for row in found.groups]) == ("attribute", ["all", "a 0", "a 1"])
    assert rates_of(labels, predicted, None, "group", members, data.train, data).groups[1].auc is None
    one = torch.zeros(3, dtype=torch.long)
    three = Data(train=Split(torch.zeros(3, 1), [0, 1, 2]))
    assert rates_of(one, one, None, "class", {}, three.train, three) is None
