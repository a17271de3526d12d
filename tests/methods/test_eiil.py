"""EIIL: the penalty against autograd, its maximiser against all assignments and against ascent, the groups by hand."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from evenly.methods import METHODS
from evenly.methods.eiil import penalty, scale_derivatives, second_environment


def toy(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, shape[1] if len(shape) == 2 and shape[1] > 1 else 2, shape[:1], generator=draw)
    return 2 * torch.randn(shape, generator=draw, dtype=torch.float64), labels


def losses_by_hand(logits: Tensor, labels: Tensor) -> Tensor:
    if logits.ndim == 1 or logits.shape[1] == 1:
        return F.softplus(-(2 * labels - 1) * logits.flatten())
    return F.cross_entropy(logits, labels, reduction="none")


@pytest.mark.parametrize("shape", [(9,), (9, 1), (9, 2), (9, 4)])
def test_the_penalty_and_its_gradient_are_those_of_the_risks_by_autograd(shape: tuple[int, ...]) -> None:
    logits, labels = toy(shape)
    q = torch.rand(9, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    w = torch.ones((), dtype=torch.float64, requires_grad=True)
    each = losses_by_hand(w * logits, labels)
    slopes = [torch.autograd.grad((s * each).sum() / 9, w, create_graph=True)[0] for s in (q, 1 - q)]
    expected = slopes[0] ** 2 + slopes[1] ** 2
    value = penalty(q, scale_derivatives(logits, labels))
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)
    ours, theirs = (torch.autograd.grad(v, q)[0] for v in (value, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("shape", "seed"), [((9,), 0), ((9, 2), 1), ((9, 3), 2), ((9, 3), 3)])
def test_no_assignment_has_a_larger_penalty(shape: tuple[int, ...], seed: int) -> None:
    logits, labels = toy(shape, seed)
    derivatives = scale_derivatives(logits, labels)
    found = torch.zeros(9, dtype=torch.float64)
    found[second_environment(logits, labels)] = 1
    assert 0 < found.sum() < 9
    corners = [float(penalty(torch.tensor(q, dtype=torch.float64), derivatives)) for q in product((0, 1), repeat=9)]
    assert float(penalty(found, derivatives)) == pytest.approx(max(corners), rel=1e-12)
    inside = torch.rand(2000, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert max(float(penalty(q, derivatives)) for q in inside) < max(corners)


def test_the_papers_ascent_climbs_to_the_same_environments() -> None:
    logits, labels = toy((40, 2), 5)
    derivatives = scale_derivatives(logits, labels)
    free = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    adam = torch.optim.Adam([free], lr=0.01)
    for _ in range(1500):
        adam.zero_grad()
        (-penalty(free.sigmoid(), derivatives)).backward()
        adam.step()
    apart = (free.sigmoid() > 0.5).nonzero().flatten().tolist()
    second = second_environment(logits, labels).tolist()
    assert apart in (second, sorted(set(range(40)) - set(second)))


@pytest.mark.parametrize("shape", [(30,), (30, 2)])
def test_of_two_classes_the_second_environment_is_what_the_reference_gets_wrong(shape: tuple[int, ...]) -> None:
    logits, labels = toy(shape)
    predicted = (logits > 0).long() if logits.ndim == 1 else logits.argmax(1)
    assert second_environment(logits, labels).tolist() == (predicted != labels).nonzero().flatten().tolist()


@pytest.mark.parametrize("batch_size", [None, 16])
def test_it_is_group_dro_on_class_and_environment(tiny: Any, engine: Any, linear: Any, batch_size: int | None) -> None:
    data, fit = tiny(dtype=torch.float64), engine(batch_size=batch_size)
    run = METHODS["eiil"](linear, data, fit, separating_epoch=3, step_size=0.3, C=1.0)
    reference = METHODS["erm"](linear, data, fit).history[:3]
    assert run.selection.details["early_losses"] == [row["train_loss"] for row in reference]
    early = fit(linear(), data, stage="early", until=lambda history: len(history) == 3)
    wrong = early.model(data.train.inputs).argmax(1) != data.train.labels
    assert run.selection.indices.tolist() == wrong.nonzero().flatten().tolist()
    data.train.groups = 2 * data.train.labels + wrong.long()
    data.validation = data.test = None
    same = METHODS["group_dro"](linear, data, fit, step_size=0.3, C=1.0)
    torch.testing.assert_close(run.model.weight, same.model.weight, rtol=1e-12, atol=1e-12)
    assert run.cost == pytest.approx(3 * 60 + 60 / 3 + same.cost, rel=1e-12)


def test_a_reference_without_errors_leaves_the_classes_as_groups(engine: Any, linear: Any) -> None:
    from evenly import Data

    labels = torch.arange(30) % 2
    x = torch.randn(30, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 0] += 20.0 * (2 * labels - 1)
    run = METHODS["eiil"](linear, Data((x, labels)), engine(), separating_epoch=2, step_size=0.3)
    assert run.selection.indices.tolist() == []
    assert run.selection.why.endswith("there are none, so the groups are the classes")
    assert run.remarks == ("no example is in a second environment: the groups are the classes",)
    classes = METHODS["group_dro"](linear, Data((x, labels, 2 * labels)), engine(), step_size=0.3)
    assert torch.equal(run.model.weight, classes.model.weight)
