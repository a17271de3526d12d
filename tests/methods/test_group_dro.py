"""Group DRO against Algorithm 1 of Sagawa et al., written out in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from evenly.data import Everything, GroupBalanced
from evenly.engine import Batch
from evenly.methods import METHODS
from evenly.methods.group_dro import exponentiated, mean_by_group

numbers = st.lists(st.tuples(st.floats(0.01, 1), st.floats(0, 20), st.booleans()), min_size=1, max_size=6)


@given(groups=numbers, step_size=st.floats(1e-3, 2))
def test_weights_follow_the_written_update(groups: list[tuple[float, float, bool]], step_size: float) -> None:
    q, losses, here = (torch.tensor(column) for column in zip(*groups, strict=True))
    q = q.double() / q.double().sum()
    updated = exponentiated(q.log(), losses.double(), here, step_size).exp()
    raised = [float(w) * math.exp(step_size * float(loss)) for w, loss in zip(q, losses, strict=True)]
    together = sum(float(w) for w, present in zip(q, here, strict=True) if present)
    total = sum(r for r, present in zip(raised, here, strict=True) if present)
    for g, present in enumerate(here.tolist()):
        if present:
            assert float(updated[g]) == pytest.approx(raised[g] * together / total, rel=1e-12)
        else:
            assert float(updated[g]) == pytest.approx(float(q[g]), rel=1e-15)
    assert float(updated.sum()) == pytest.approx(1, rel=1e-12)


def test_the_update_does_not_overflow_and_a_weight_of_zero_stays_zero() -> None:
    q = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    updated = exponentiated(q.log(), torch.tensor([1e6, 1.0, 1e9], dtype=torch.float64), torch.ones(3).bool(), 1.0)
    assert updated.exp().tolist() == [1.0, 0.0, 0.0]


def test_a_weight_too_small_for_a_number_comes_back_when_its_group_has_the_higher_loss_for_as_long() -> None:
    """The written update undoes itself: losses that change places bring the weights to where they were."""
    log_q = torch.tensor([0.3, 0.7], dtype=torch.float64).log()
    both, second = torch.tensor([True, True]), torch.tensor([False, True])
    losses = torch.tensor([1e4, 1.0], dtype=torch.float64)
    far = exponentiated(log_q, losses, both, 1.0)
    assert far.exp().tolist() == [1.0, 0.0]
    alone = exponentiated(far, losses, second, 1.0)
    assert torch.equal(alone, far)  # it shares what it has with nobody
    back = exponentiated(alone, losses.flip(0), both, 1.0)
    assert back.exp().tolist() == pytest.approx([0.3, 0.7], rel=1e-10)


@pytest.mark.parametrize("step_size", [1e3, 1e6])
def test_large_steps_train_the_worst_group_and_stay_finite(tiny: Any, engine: Any, net: Any, step_size: float) -> None:
    """Batches of one or two hold groups whose weight is 0 in any float; their weights must not become NaN."""
    run = METHODS["group_dro"](net, tiny(), engine(epochs=3, batch_size=2, lr=0.01), step_size=step_size)
    assert all(math.isfinite(row["train_loss"]) for row in run.history)
    assert all(bool(weight.isfinite().all()) for weight in run.model.parameters())


def test_group_means_by_hand() -> None:
    losses = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    means, here = mean_by_group(losses, torch.tensor([3, 0, 3, 3]), 5)
    assert means.tolist() == pytest.approx([2, 0, 0, 13 / 3, 0], rel=1e-15)
    assert here.tolist() == [True, False, False, True, False]


def test_the_objective_is_the_weighted_sum_after_the_update(tiny: Any, asked: Any) -> None:
    objective = asked("group_dro", tiny(), step_size=0.3, C=2.0)["objective"]
    state = objective.state
    assert state["log_q"].exp().tolist() == pytest.approx([0.25] * 4)
    losses = torch.tensor([0.5, 1.5, 2.0, 4.0, 0.1], dtype=torch.float64, requires_grad=True)
    batch = Batch(torch.empty(5), torch.empty(5), torch.arange(5), torch.tensor([0, 0, 1, 3, 3]))
    value = objective.function(losses, batch, state)
    means, sizes = (1.0, 2.0, 2.05), (30, 6, 16)  # of groups 0, 1 and 3; group 2 is absent
    raised = [math.exp(0.3 * (mean + 2.0 / math.sqrt(n))) for mean, n in zip(means, sizes, strict=True)]
    q = [0.75 * r / sum(raised) for r in raised]
    assert state["log_q"].exp().tolist() == pytest.approx([q[0], q[1], 0.25, q[2]], rel=1e-6)  # float32 margins
    assert state["log_q"][2] == math.log(0.25)
    assert value.item() == pytest.approx(sum(a * b for a, b in zip(q, means, strict=True)), rel=1e-6)
    value.backward()
    assert losses.grad.tolist() == pytest.approx([q[0] / 2, q[0] / 2, q[1], q[2] / 2, q[2] / 2], rel=1e-6)
    batch.first, kept = False, state["log_q"].clone()
    objective.function(losses * 5, batch, state)
    assert torch.equal(state["log_q"], kept)


def test_groups_without_training_examples_start_and_stay_at_zero(tiny: Any, asked: Any) -> None:
    objective = asked("group_dro", tiny([0, 1, 3] * 10))["objective"]
    assert objective.state["log_q"].exp().tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])
    batch = Batch(torch.empty(2), torch.empty(2), torch.arange(2), torch.tensor([0, 3]))
    objective.function(torch.tensor([1.0, 5.0]), batch, objective.state)
    assert objective.state["log_q"][2] == -math.inf
    assert float(objective.state["log_q"].exp().sum()) == pytest.approx(1)


def test_batches_are_balanced_and_a_full_batch_is_whole(tiny: Any, asked: Any) -> None:
    balanced, whole = (asked("group_dro", tiny(), size)["sampler"] for size in (16, None))
    assert isinstance(balanced, GroupBalanced)
    assert torch.bincount(tiny().train.groups[balanced.indices()]).tolist() == [15] * 4
    assert isinstance(whole, Everything)
    assert len(whole) == 60


def by_hand(data: Any, model: Any, steps: int, lr: float, step_size: float, rho: float) -> Tensor:
    """Full-batch Group DRO; with rho the descent uses the gradient at the ascended weights and the same q."""
    x, y, groups = data.train.inputs, data.train.labels, data.train.groups
    w = torch.cat([model.weight, model.bias[:, None]], 1).detach()
    x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    q = torch.full((4,), 0.25, dtype=torch.float64)

    def group_losses(w: Tensor) -> Tensor:
        scores = x @ w.T
        each = scores.logsumexp(1) - scores.gather(1, y[:, None])[:, 0]
        return torch.stack([each[groups == g].mean() for g in range(4)])

    def gradient(w: Tensor, q: Tensor) -> Tensor:
        w = w.clone().requires_grad_()
        return torch.autograd.grad((q * group_losses(w)).sum(), w)[0]

    for _ in range(steps):
        q = q * (step_size * group_losses(w)).exp()
        q = q / q.sum()
        g = gradient(w, q)
        if rho:
            g = gradient(w + rho * g / g.norm(), q)
        w = w - lr * g
    return w


@pytest.mark.parametrize(("optimizer", "rho"), [("sgd", 0.0), ("sam", 0.1)])
def test_training_is_the_algorithm_box(tiny: Any, engine: Any, linear: Any, optimizer: str, rho: float) -> None:
    data = tiny(dtype=torch.float64)
    fit = engine(optimizer, lr=0.3, momentum=0.0, batch_size=None, epochs=6)
    run = METHODS["group_dro"](linear, data, fit, step_size=0.7)
    trained = torch.cat([run.model.weight, run.model.bias[:, None]], 1).detach()
    torch.testing.assert_close(trained, by_hand(data, linear(), 6, 0.3, 0.7, rho), rtol=1e-12, atol=1e-12)
