"""Group reweighting: N / (G n_g), and what that makes of the loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenly.methods import METHODS
from evenly.methods.reweight import inverse_size


@given(groups=st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_every_group_weighs_the_same_and_all_together_as_many_as_there_are(groups: list[int]) -> None:
    weights = inverse_size(torch.tensor(groups)).tolist()
    for g in set(groups):
        assert sum(w for w, of in zip(weights, groups, strict=True) if of == g) == pytest.approx(
            len(groups) / len(set(groups)), rel=1e-5
        )


@pytest.mark.parametrize("by", ["loss", "sampling"])
def test_a_full_batch_descends_the_mean_of_the_groups_mean_losses(tiny: Any, engine: Any, linear: Any, by: str) -> None:
    data = tiny(dtype=torch.float64)
    x, y, groups = data.train.inputs, data.train.labels, data.train.groups
    run = METHODS["reweight"](linear, data, engine(batch_size=None, momentum=0.0, lr=0.3, epochs=5), by=by)
    start = linear()
    w, b = start.weight.detach(), start.bias.detach()
    for _ in range(5):
        w, b = w.requires_grad_(), b.requires_grad_()
        z = x @ w.T + b
        each = z.exp().sum(1).log() - z[torch.arange(60), y]
        loss = sum(each[groups == g].mean() for g in range(4)) / 4
        steps = torch.autograd.grad(loss, [w, b])
        w, b = (part.detach() - 0.3 * step for part, step in zip((w, b), steps, strict=True))
    torch.testing.assert_close(run.model.weight, w, rtol=1e-6, atol=1e-7)  # the weights are float32
    torch.testing.assert_close(run.model.bias, b, rtol=1e-6, atol=1e-7)
    assert run.cost == 5 * 60


def test_batches_hold_every_group_equally_often_or_every_example_once(watch: Any, engine: Any) -> None:
    _, seen, data = watch("reweight", engine())
    for epoch in seen.epochs:
        assert torch.bincount(data.train.groups[list(epoch.elements())]).tolist() == [15] * 4
    _, seen, _ = watch("reweight", engine(), by="loss")
    assert all(epoch == dict.fromkeys(range(60), 1) for epoch in seen.epochs)


def test_batches_weighed_by_loss_multiply_each_loss(tiny: Any, asked: Any) -> None:
    data = tiny()
    weights = asked("reweight", data, by="loss")["objective"].weights
    assert weights.tolist() == pytest.approx([60 / (4 * (30, 6, 8, 16)[g]) for g in data.train.groups])
