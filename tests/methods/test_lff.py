"""Learning from failure: both losses and the weights by hand, and two networks trained by hand beside it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from evenly.engine import Batch
from evenly.methods import METHODS
from evenly.methods.lff import UNSEEN, Pair, generalised, losses_of_both, relative_difficulty


@pytest.mark.parametrize("q", [0.1, 0.7, 1.0])
def test_generalised_cross_entropy_and_its_gradient(q: float) -> None:
    p = torch.tensor([0.01, 0.3, 0.9, 1.0], dtype=torch.float64)
    cross_entropy = (-p.log()).requires_grad_()
    value = generalised(cross_entropy, q)
    assert value.tolist() == pytest.approx([(1 - x**q) / q for x in p.tolist()], rel=1e-12, abs=1e-15)
    (gradient,) = torch.autograd.grad(value.sum(), cross_entropy)
    assert gradient.tolist() == pytest.approx([x**q for x in p.tolist()], rel=1e-12)  # p^q times cross-entropy's own


def test_relative_difficulty_by_hand() -> None:
    averages = torch.tensor([[4.0, 1.0], [2.0, 3.0], [1.0, 6.0], [0.5, 1.5]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 1])
    expected = []
    for (b, d), (most_b, most_d) in zip(averages.tolist(), [(4, 6), (2, 3), (4, 6), (2, 3)], strict=True):
        expected.append((b / most_b) / (b / most_b + d / most_d))
    assert relative_difficulty(averages, labels, 2).tolist() == pytest.approx(expected, rel=1e-6)
    assert relative_difficulty(0 * averages, labels, 3).tolist() == [0] * 4  # learned to the last digit: no 0 / 0


def test_both_networks_have_losses_in_training_and_the_debiased_one_counts(linear: Any) -> None:
    biased, debiased = linear(), linear()
    debiased.weight.data.mul_(-3)
    pair, x, y = Pair(biased, debiased), torch.randn(7, 5, dtype=torch.float64), torch.arange(7) % 2
    each, predicted = losses_of_both(pair, x, y)
    for column, network in enumerate((biased, debiased)):
        by_hand = -network(x).log_softmax(1)[torch.arange(7), y]
        torch.testing.assert_close(each[:, column], by_hand)
    assert torch.equal(predicted, debiased(x).argmax(1))
    assert torch.equal(pair.eval()(x), debiased(x))


def by_hand(data: Any, model: Any, steps: int, lr: float, q: float, past: float, rho: float) -> tuple[Tensor, Tensor]:
    """Full batches: two linear networks by explicit formulas; with rho, descent at weights ascended together."""
    x = torch.cat([data.train.inputs, torch.ones(60, 1, dtype=torch.float64)], 1)
    y = data.train.labels
    both = [torch.cat([model.weight, model.bias[:, None]], 1).detach() for _ in range(2)]
    averages: list[list[float]] = []
    for _ in range(steps):
        each = [-(x @ w.T).log_softmax(1)[torch.arange(60), y] for w in both]
        averages = [
            [past * old + (1 - past) * float(new) for old, new in zip(a, e, strict=True)]
            for a, e in zip(averages or each, each, strict=True)  # an average starts at the first loss
        ]
        most = [[max(a[i] for i in range(60) if y[i] == k) for k in (0, 1)] for a in averages]
        share = [[a[i] / m[int(y[i])] for i in range(60)] for a, m in zip(averages, most, strict=True)]
        weight = torch.tensor([b / (b + d) for b, d in zip(*share, strict=True)], dtype=torch.float64)

        def gradients(both: list[Tensor], weight: Tensor = weight) -> list[Tensor]:
            result = []
            for number, w in enumerate(both):
                p = (x @ w.T).softmax(1)
                own = p[torch.arange(60), y]
                scale = own**q if number == 0 else weight
                wrong = p - torch.eye(2, dtype=torch.float64)[y]
                result.append((scale[:, None] * wrong).T @ x / 60)
            return result

        g = gradients(both)
        if rho:
            norm = math.sqrt(sum(float((part**2).sum()) for part in g))
            g = gradients([w + rho * part / norm for w, part in zip(both, g, strict=True)])
        both = [w - lr * part for w, part in zip(both, g, strict=True)]
    return both[0], both[1]


@pytest.mark.parametrize(("optimizer", "rho"), [("sgd", 0.0), ("sam", 0.1)])
def test_training_is_the_algorithm_box(tiny: Any, engine: Any, linear: Any, optimizer: str, rho: float) -> None:
    data, built = tiny(dtype=torch.float64), []

    def build(draw: int = 0) -> Any:
        built.append(linear())
        return built[-1]

    fit = engine(optimizer, lr=0.5, momentum=0.0, batch_size=None, epochs=6)
    run = METHODS["lff"](build, data, fit, q=0.6, average=0.4)
    expected = by_hand(data, linear(), 6, 0.5, 0.6, 0.4, rho)
    for network, w in zip(built, expected, strict=True):
        trained = torch.cat([network.weight, network.bias[:, None]], 1).detach()
        torch.testing.assert_close(trained, w, rtol=1e-6, atol=1e-7)
    biased, debiased = by_hand(data, linear(), 1, 0.5, 0.6, 0.4, rho)
    x = torch.cat([data.train.inputs, torch.ones(60, 1, dtype=torch.float64)], 1)
    reported = -(x @ debiased.T).log_softmax(1)[torch.arange(60), data.train.labels].mean()
    assert run.history[1]["train_loss"] == pytest.approx(float(reported), rel=1e-6)
    assert not torch.allclose(biased, debiased)
    assert run.model is built[1]
    assert run.cost == 6 * 60 * 2 * (2 if rho else 1)


def test_each_network_starts_from_its_own_draw_and_the_debiased_one_from_erms(train: Any, tiny: Any, net: Any) -> None:
    """Weights that a learning rate of nothing leaves where they were."""
    started: list[Any] = []

    def watched() -> Any:
        started.append(network := net())
        return network

    still = {"epochs": 1, "lr": 1e-30, "batch_size": None, "seed": 4}
    erm, lff = (train(tiny(), method, model=watched, **still).model for method in ("erm", "lff"))
    biased, debiased = started[-2:]
    assert debiased is lff
    for one, other in zip(erm.parameters(), lff.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-25)
    assert not torch.equal(biased[0].weight, debiased[0].weight)
    train(tiny(), "lff", model=watched, **still)
    assert torch.equal(started[-2][0].weight, biased[0].weight)


def test_averages_move_for_the_examples_of_the_batch_and_in_the_first_pass_only(tiny: Any, asked: Any) -> None:
    objective = asked("lff", tiny(), average=0.75)["objective"]
    state = objective.state
    first = torch.tensor([[1.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    second = torch.tensor([[5.0, 2.0], [1.0, 8.0]], dtype=torch.float64)
    batch = Batch(torch.empty(2), torch.empty(2), torch.tensor([7, 3]), None)
    for losses, expected in ((first, first), (second, 0.75 * first + 0.25 * second)):
        batch.first = True
        objective.function(losses.requires_grad_(), batch, state).backward()
        torch.testing.assert_close(state["losses"][[7, 3]], expected.detach(), rtol=0, atol=0)
        assert int((state["losses"] != UNSEEN).any(1).sum()) == 2
        batch.first, kept = False, state["losses"]
        objective.function(10 * losses, batch, state)
        assert state["losses"] is kept
    assert objective.gradients == 2


def test_examples_not_seen_yet_do_not_count_in_their_class() -> None:
    averages = torch.tensor([[4.0, 1.0], [UNSEEN, UNSEEN], [1.0, 6.0]], dtype=torch.float64)
    weights = relative_difficulty(averages, torch.tensor([0, 0, 0]), 2)
    assert torch.equal(weights[[0, 2]], relative_difficulty(averages[[0, 2]], torch.tensor([0, 0]), 2))


def test_the_debiased_network_is_what_is_observed_measured_and_selected(train: Any, tiny: Any) -> None:
    seen = []

    def observe(model: Any) -> dict[str, float]:
        seen.append(model)
        return {}

    data = tiny(observe=observe)
    run = train(data, "lff", epochs=3, select="average")
    assert all(model is run.model for model in seen)
    best = run.history[run.selected_epoch - 1]["validation"]["accuracy"]
    right = run.outputs(data.validation).argmax(1) == data.validation.labels
    assert float(right.double().mean()) == best
