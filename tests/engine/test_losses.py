"""Losses, predictions and probabilities against their formulas, in plain Python floats."""

from __future__ import annotations

import math

import pytest
import torch

from evenly.engine.losses import losses, predictions, probabilities
from evenly.errors import EvenlyError

LOGITS = [-40.0, -3.0, -0.5, 0.0, 1e-9, 2.0, 35.0]
LABELS = [0, 1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("shape", [(7,), (7, 1)])
def test_one_logit(shape):
    outputs, labels = torch.tensor(LOGITS, dtype=torch.float64).reshape(shape), torch.tensor(LABELS)
    expected = [math.log1p(math.exp(-z if y else z)) for z, y in zip(LOGITS, LABELS, strict=True)]
    assert losses(outputs, labels).tolist() == pytest.approx(expected, rel=1e-14, abs=1e-17)
    assert predictions(outputs).tolist() == [0, 0, 0, 0, 1, 1, 1]
    right = [1 / (1 + math.exp(-z)) for z in LOGITS]
    assert probabilities(outputs)[:, 1].tolist() == pytest.approx(right, rel=1e-14)
    assert probabilities(outputs).sum(1).tolist() == pytest.approx([1.0] * 7)


@pytest.mark.parametrize("classes", [2, 5])
def test_several_logits(classes):
    rows = [[math.sin(3 * i + k) * 5 for k in range(classes)] for i in range(6)]
    labels = [i % classes for i in range(6)]
    shares = [[math.exp(z) / sum(map(math.exp, row)) for z in row] for row in rows]
    outputs = torch.tensor(rows, dtype=torch.float64)
    each = losses(outputs, torch.tensor(labels))
    assert each.dtype == torch.float64
    assert each.tolist() == pytest.approx([-math.log(p[y]) for p, y in zip(shares, labels, strict=True)], rel=1e-13)
    assert predictions(outputs).tolist() == [row.index(max(row)) for row in rows]
    assert probabilities(outputs).tolist() == [pytest.approx(share, rel=1e-13) for share in shares]


def test_one_logit_is_two_logits_of_which_the_first_is_zero():
    z, labels = torch.tensor(LOGITS, dtype=torch.float64), torch.tensor(LABELS)
    two = torch.stack([torch.zeros_like(z), z], 1)
    torch.testing.assert_close(losses(z, labels), losses(two, labels), rtol=1e-13, atol=1e-17)
    torch.testing.assert_close(probabilities(z), probabilities(two))
    assert torch.equal(predictions(z), predictions(two))


def test_extreme_logits_stay_finite():
    assert losses(torch.tensor([-1e30, 1e30]), torch.tensor([1, 0])).isfinite().all()


def test_a_model_that_returns_too_few_rows_is_refused():
    with pytest.raises(EvenlyError, match="3 outputs for 4 labels"):
        losses(torch.zeros(3, 2), torch.zeros(4, dtype=torch.long))
