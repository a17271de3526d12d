"""Importance weights against autograd and against SAM's own ascent; Lorenz and Gini against closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binned_statistic_2d
from torch import Tensor, nn

import evenly
from evenly import EvenlyError
from evenly.diagnose.importance import from_logits, gini, importance_map, importance_weights, lorenz
from evenly.engine.losses import losses


def samples(n: int = 30, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=draw, dtype=torch.float64)
    return x, torch.randint(classes, (n,), generator=draw)


def network(outputs: int = 3) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


def by_autograd(outputs: Tensor, labels: Tensor) -> Tensor:
    """|d loss / d f_y|, or |d loss / d f| of one logit."""
    f = outputs.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(losses(f, labels).sum(), f)
    return (gradient.flatten() if f.ndim == 1 or f.shape[1] == 1 else gradient.gather(1, labels[:, None])[:, 0]).abs()


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_the_weight_is_the_gradient_of_the_loss_in_the_logit(outputs: int) -> None:
    x, y = samples(classes=max(outputs, 2))
    model = network(outputs)
    found = importance_weights(model, (x, y))
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, by_autograd(model(x), y), rtol=1e-12, atol=1e-15)


def test_the_papers_weight_and_its_reading_for_several_logits() -> None:
    """sigma(-y f) for y = ±1; two logits weigh as their difference does; half the l1 norm of the gradient for more."""
    draw = torch.Generator().manual_seed(2)
    f, y = torch.randn(50, generator=draw, dtype=torch.float64), torch.randint(2, (50,), generator=draw)
    torch.testing.assert_close(from_logits(f, y), 1 / (1 + (f * (2 * y - 1)).exp()))
    torch.testing.assert_close(from_logits(f[:, None], y), from_logits(f, y))
    two = torch.stack([0.3 - f, 0.3 * torch.ones_like(f)], 1)
    torch.testing.assert_close(from_logits(two, y), from_logits(f, y))
    many, z = torch.randn(50, 7, generator=draw, dtype=torch.float64), torch.randint(7, (50,), generator=draw)
    each = many.softmax(1) - nn.functional.one_hot(z, 7)
    torch.testing.assert_close(from_logits(many, z), each.abs().sum(1) / 2)


def test_small_weights_keep_their_digits() -> None:
    """1 - p is 0 in float64 from a margin of 37 on; the weight goes on falling as exp(-margin)."""
    margins = torch.tensor([10.0, 40.0, 300.0])
    both = torch.stack([margins, torch.zeros(3)], 1)
    expected = torch.exp(-margins.double()) / (1 + torch.exp(-margins.double()))
    torch.testing.assert_close(from_logits(both, torch.zeros(3, dtype=torch.long)), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(from_logits(margins, torch.ones(3)), expected, rtol=1e-12, atol=0)


def at_phantom(model: nn.Module, x: Tensor, y: Tensor, optimizer: Any) -> Tensor:
    """The weights where SAM's own ascent leads."""
    optimizer.zero_grad()
    losses(model(x), y).mean().backward()
    optimizer.ascend()
    found = by_autograd(model(x), y)
    optimizer.restore()
    model.zero_grad()
    return found


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("kind", ["sam", "lsam"])
def test_phantom_weights_are_those_of_the_optimizers_ascent(kind: str, outputs: int) -> None:
    x, y = samples(600, classes=max(outputs, 2))  # more than pass at once
    model = network(outputs)
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = evenly.SAM(base, rho=0.7) if kind == "sam" else evenly.LSAM(base, model[2].parameters(), rho=0.7)
    expected = at_phantom(model, x, y, optimizer)
    found = importance_weights(model, (x, y), rho=0.7, kind=kind)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-13)
    assert float((found - importance_weights(model, (x, y))).abs().max()) > 0.01


def test_lsam_perturbs_the_parameters_that_are_named() -> None:
    x, y = samples()
    model = network()
    for params in ([model[0].weight], [model[0].bias, model[2].weight]):
        base = torch.optim.SGD(model.parameters(), lr=0.1)
        expected = at_phantom(model, x, y, evenly.LSAM(base, params, rho=0.5))
        found = importance_weights(model, (x, y), 0.5, kind="lsam", params=iter(params))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-13)


def test_frozen_parameters_stay_in_the_ascent_too() -> None:
    x, y = samples()
    model = network()
    model[0].requires_grad_(False)
    optimizer = evenly.SAM(torch.optim.SGD(model[2].parameters(), lr=0.1), rho=0.5)
    expected = at_phantom(model, x, y, optimizer)
    torch.testing.assert_close(importance_weights(model, (x, y), 0.5), expected, rtol=1e-10, atol=1e-13)


def test_each_batch_is_seen_from_its_own_phantom_weights() -> None:
    x, y = samples(22)
    model = network()
    optimizer = evenly.SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.5)
    found = importance_weights(model, (x, y), 0.5, batch_size=5, seed=3)
    draw = torch.randperm(22, generator=evenly.randomness.generator(3, "importance"))
    expected = torch.empty(22, dtype=torch.float64)
    for part in draw.split(5):
        expected[part] = at_phantom(model, x[part], y[part], optimizer)
    expected[part] = at_phantom(model, x[draw[-5:]], y[draw[-5:]], optimizer)[-2:]  # 22 is 4 x 5 + 2: filled up
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-13)
    assert not torch.equal(found, importance_weights(model, (x, y), 0.5, batch_size=5, seed=4))
    assert torch.equal(found, importance_weights(model, (x, y), 0.5, batch_size=5, seed=3))
    whole = importance_weights(model, (x, y), 0.5)
    torch.testing.assert_close(importance_weights(model, (x, y), 0.5, batch_size=22), whole)
    assert torch.equal(importance_weights(model, (x, y), batch_size=5), importance_weights(model, (x, y)))


def test_where_there_is_no_way_up_the_phantom_stays() -> None:
    model = nn.Linear(4, 2, bias=False).double()
    data = torch.zeros(6, 4, dtype=torch.float64), torch.tensor([0, 1] * 3)
    assert importance_weights(model, data, 0.5).tolist() == [0.5] * 6


class Calls(nn.Module):
    """Its linear layer has weights and is not run."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.linear.weight.T


def test_what_has_no_importance_weights_is_refused() -> None:
    x, y = samples()
    model = network()

    def refused(match: str, data: Any = (x, y), model: nn.Module = model, **options: Any) -> None:
        with pytest.raises(EvenlyError, match=match) as error:
            importance_weights(model, data, **options)
        assert "\n" not in str(error.value)

    refused("params are given, and SAM perturbs all", rho=0.1, params=model.parameters())
    refused("1 of 1 params are not trainable parameters of Sequential", rho=0.1, kind="lsam", params=[torch.ones(1)])
    refused("has no trainable parameter to perturb", rho=0.1, kind="lsam", params=[])
    refused("does not run its linear layers", rho=0.1, kind="lsam", model=Calls().double(), data=(x, y % 2))
    refused("label 2 is not among the model's 2 classes", model=network(2))
    refused("label 2 is not among the model's 2 classes", model=network(1))
    refused("label -1 is not among the model's 2 classes; give labels 0..1", (x, 2 * (y % 2) - 1), network(1))
    refused("cannot take inputs of shape", (x[:, :3], y))
    refused(r"Sequential gives \(30, 4, 3\) for 30 examples", (x[:, :, None].repeat(1, 1, 4), y))
    with torch.no_grad():
        model[2].bias[0] = torch.nan
    refused("outputs that are not finite, so neither is its loss")
    with pytest.raises(EvenlyError, match="do not go with labels"):
        from_logits(torch.zeros(3, 2), torch.zeros(2))


def test_gini_of_known_weights() -> None:
    assert gini([3.0] * 5) == pytest.approx(0, abs=1e-15)
    assert gini([0, 0, 0, 7]) == pytest.approx(3 / 4)
    assert gini([1, 3]) == pytest.approx(1 / 4)
    assert gini(torch.arange(1, 101)) == pytest.approx(99 / 300)  # 1..n: (n - 1) / 3n
    n = 200_000
    grid = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    assert gini(grid) == pytest.approx(1 / 3, abs=1e-9)  # uniform
    assert gini(-torch.log(grid)) == pytest.approx(1 / 2, abs=1e-4)  # exponential
    assert gini(grid ** (-1 / 3)) == pytest.approx(1 / 5, abs=1e-4)  # Pareto with exponent 3: 1 / (2 a - 1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30).filter(lambda w: max(w) > 1e-6), st.floats(1e-3, 1e3))
def test_gini_is_the_mean_difference_and_the_area_under_lorenz(weights: list[float], scale: float) -> None:
    w = np.array(weights)
    expected = np.abs(w[:, None] - w).mean() / (2 * w.mean())
    assert gini(w) == pytest.approx(expected, abs=1e-9)
    assert gini(scale * w[::-1]) == pytest.approx(expected, abs=1e-9)
    curve = lorenz(w)
    assert 1 - 2 * float(torch.trapezoid(curve.weight, curve.examples)) == pytest.approx(expected, abs=1e-9)


def test_the_lorenz_curve_by_hand() -> None:
    examples, weight = lorenz(torch.tensor([5.0, 1.0, 0.0, 4.0]))
    assert examples.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert weight.tolist() == pytest.approx([0, 0, 0.1, 0.5, 1])
    top = 1 - weight.flip(0)  # the share of the top k, as the paper has it
    assert top.tolist() == pytest.approx([0, 0.5, 0.9, 1, 1])
    assert lorenz([2.0, 2.0]).weight.tolist() == [0, 0.5, 1]


@pytest.mark.parametrize("curve", [gini, lorenz])
def test_weights_without_shares_are_refused(curve: Any) -> None:
    for weights, match in (
        ([0.0, 0.0], "all 2 weights are 0"),
        ([1.0, -1.0], "weights run from -1.0 to 1.0"),
        ([1.0, float("nan")], "give finite ones"),
        ([], "give one number for each example"),
        ([[1.0]], r"weights have shape \(1, 1\)"),
    ):
        with pytest.raises(EvenlyError, match=match):
            curve(weights)


def test_the_map_of_medians_is_scipys() -> None:
    draw = np.random.default_rng(0)
    w, easy, hard = draw.random(300), draw.normal(size=300), draw.normal(size=300) * 5
    found = importance_map(w, easy, hard, bins=6)
    expected = binned_statistic_2d(easy, hard, w, "median", bins=6)
    np.testing.assert_allclose(found.median.numpy(), expected.statistic)
    counts = binned_statistic_2d(easy, hard, w, "count", bins=6).statistic
    assert found.counts.tolist() == counts.tolist()
    assert 0 in found.counts
    assert int(found.counts.sum()) == 300
    np.testing.assert_allclose(found.easy_edges.numpy(), expected.x_edge)
    np.testing.assert_allclose(found.hard_edges.numpy(), expected.y_edge)


def test_the_map_on_given_edges_leaves_out_what_is_outside() -> None:
    w, easy, hard = [1.0, 2.0, 3.0, 4.0, 9.0, 9.0], [0.0, 0.5, 0.5, 2.0, 2.1, -0.1], [0.0, 0.0, 0.0, 3.0, 0.0, 0.0]
    found = importance_map(w, easy, hard, edges=([0, 1, 2], [-1, 1, 2, 3]))
    assert found.counts.tolist() == [[3, 0, 0], [0, 0, 1]]
    assert found.median.nan_to_num(-1).tolist() == [[2, -1, -1], [-1, -1, 4]]
    alike = importance_map([1.0, 5.0], [2.0, 2.0], [0.0, 1.0], bins=1)
    assert alike.median.tolist() == [[3.0]]


def test_maps_that_cannot_be_drawn_are_refused() -> None:
    three = [1.0, 2.0, 3.0]
    for arguments, match in (
        ((three, three, three[:2]), "3 weights for 3 easy and 2 hard contributions"),
        ((three, [1.0, float("inf"), 2.0], three), r"easy of shape \(3,\) cannot be used"),
        ((three, three, three, 1, ([0, 1], [1, 0])), "edges of bins do not rise"),
    ):
        with pytest.raises(EvenlyError, match=match):
            importance_map(*arguments)
