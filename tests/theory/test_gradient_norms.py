"""Appendix D's gradient norms against autograd, and the importance weights against their definition."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from evenly import EvenlyError
from evenly.theory import gradient_norms

SHAPES = {
    "two layers": (3, 5),
    "deep": (3, 4, 6, 5),
    "square": (4, 4, 4, 4),
    "wide": (12, 12, 5),
    "no hidden layer": (5,),
}


def draws(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in shapes]


def network(v: Tensor, weights: Sequence[Tensor], x: Tensor, relu: bool) -> Tensor:
    for W in reversed(weights):
        x = (x @ W.T).relu() if relu else x @ W.T
    return x @ v


def case(name: str, seed: int = 0) -> tuple[Tensor, list[Tensor], Tensor]:
    widths = SHAPES[name]
    v, x, *weights = draws((widths[0],), (7, widths[-1]), *pairwise(widths), seed=seed)
    return v, weights, x


def by_autograd(function: Callable[..., Tensor], parameters: Sequence[Tensor], x: Tensor) -> Tensor:
    """||grad f(x_i)|| over the parameters, (N,), an example at a time."""
    leaves = [p.clone().requires_grad_() for p in parameters]
    norms = []
    for example in x:
        gradients = torch.autograd.grad(function(leaves, example[None])[0], leaves)
        norms.append(sum(g.square().sum() for g in gradients).sqrt())
    return torch.stack(norms)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_deep_networks(name: str, relu: bool, seed: int):
    v, weights, x = case(name, seed)
    function = gradient_norms.relu_network if relu else gradient_norms.deep_linear
    expected = by_autograd(lambda p, x: network(p[0], p[1:], x, relu), [v, *weights], x)
    torch.testing.assert_close(function(v, weights, x), expected, rtol=1e-12, atol=0)


def test_two_layers_and_the_square_that_equation_29_leaves_out():
    v, (W,), x = case("two layers")
    expected = by_autograd(lambda p, x: network(p[0], p[1:], x, False), [v, W], x)
    torch.testing.assert_close(gradient_norms.two_layer_linear(v, W, x), expected, rtol=1e-12, atol=0)
    printed = (x @ W.T).square().sum(1) + v.square().sum() * x.norm(dim=1)
    assert (printed.sqrt() / expected - 1).abs().max() > 0.1


def test_the_last_layer():
    v, phi = draws((4,), (6, 4))
    expected = by_autograd(lambda p, phi: phi @ p[0], [v], phi)
    torch.testing.assert_close(gradient_norms.last_layer(phi), expected, rtol=1e-12, atol=0)


def test_the_terms_are_the_representations_and_the_weights_printed_are_not():
    """a_j of eq. 33 is of the wrong layer: ||v||^2 stands with ||W_1 ... x||^2, where 1 belongs."""
    v, weights, x = case("square")
    a, squares = gradient_norms.terms(v, weights, x, relu=False)
    outputs = [x]
    for W in reversed(weights):
        outputs.insert(0, outputs[0] @ W.T)
    torch.testing.assert_close(squares, torch.stack([r.square().sum(1) for r in outputs], 1), rtol=1e-12, atol=0)
    assert torch.equal(a, a[:1].expand_as(a))
    assert a[0, :2].tolist() == pytest.approx([1, float(v @ v)], rel=1e-12)
    expected = by_autograd(lambda p, x: network(p[0], p[1:], x, False), [v, *weights], x)
    shifted = torch.cat([a[:, 1:], (weights[0] @ weights[1] @ weights[2] @ v).square().sum().expand(7, 1)], 1)
    assert ((shifted * squares).sum(1).sqrt() / expected - 1).abs().max() > 0.1


def test_in_a_relu_network_the_weights_depend_on_the_example():
    a, _ = gradient_norms.terms(*case("deep"), relu=True)
    assert len(a[:, 2].unique()) > 1


def exponential_ratio(
    function: Callable[..., Tensor], parameters: list[Tensor], x: Tensor, y: float, rho: float
) -> float:
    """log(lambda~ / lambda) of one example by its definition: SAM's phantom under exp(-y f) (eqs 15, 19)."""
    leaves = [p.clone().requires_grad_() for p in parameters]
    gradients = torch.autograd.grad(torch.exp(-y * function(leaves, x)).sum(), leaves)
    norm = sum(g.square().sum() for g in gradients).sqrt()
    phantom = [p + rho * g / norm for p, g in zip(parameters, gradients, strict=True)]
    return float(-y * (function(phantom, x) - function(parameters, x)).sum())


@pytest.mark.parametrize("y", [-1.0, 1.0])
def test_the_importance_ratio_is_exact_for_lsam_and_first_order_for_sam(y: float):
    v, weights, x = case("wide")
    phi = network(torch.eye(len(v), dtype=torch.float64), weights, x, True)
    first_order = gradient_norms.log_importance_ratio(gradient_norms.last_layer(phi), rho=0.7)
    for i in range(len(x)):
        exact = exponential_ratio(lambda p, phi: phi @ p[0], [v], phi[i : i + 1], y, 0.7)
        assert exact == pytest.approx(float(first_order[i]), rel=1e-10, abs=1e-12)

    norm = gradient_norms.relu_network(v, weights, x)
    errors = []
    for rho in (1e-4, 1e-5):
        first_order = gradient_norms.log_importance_ratio(norm, rho)
        exact = [
            exponential_ratio(lambda p, x: network(p[0], p[1:], x, True), [v, *weights], x[i : i + 1], y, rho)
            for i in range(len(x))
        ]
        errors.append(float((torch.tensor(exact, dtype=torch.float64) - first_order).abs().max()))
    assert errors[0] < 0.01 * float(norm.max()) * 1e-4
    assert errors[1] == pytest.approx(errors[0] / 100, rel=0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gradient_norms.last_layer(torch.ones(3)), "phi must have shape (N, k), got (3,)"),
        (
            lambda: gradient_norms.deep_linear(torch.ones(2, 2), [], torch.ones(3, 2)),
            "v and x must have shapes (k,) and (N, d), got (2, 2) and (3, 2)",
        ),
        (
            lambda: gradient_norms.relu_network(torch.ones(2), [torch.ones(2, 3), torch.ones(4, 3)], torch.ones(3, 3)),
            "W_2 must have shape (3, ...), the inputs of W_1, got (4, 3)",
        ),
        (
            lambda: gradient_norms.two_layer_linear(torch.ones(2), torch.ones(2, 3), torch.ones(5, 4)),
            "x must have shape (N, 3), the inputs of W_1, got (5, 4)",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(call: Callable[[], Tensor], message: str):
    with pytest.raises(EvenlyError, match=f"^{re.escape(message)}$"):
        call()
