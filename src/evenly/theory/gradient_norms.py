"""SAM upweights an example by the norm of its logit's gradient (Springer et al. 2024, Appendix D).

For one example, the exponential loss exp(-y f) and its importance weight lambda = exp(-y f), the phantom parameter is
theta~ = theta - rho y grad f / ||grad f||, and

    log(lambda~ / lambda) = -y (f(theta~) - f(theta)) = rho ||grad f(theta)|| + O(rho^2)          (eqs 15-25)

The four examples give ||grad f||. All but the first are the root of sum_j a_j ||r_j||^2, a weighted sum of the squared
norms of the representations r_j, from the input r_L = x to r_1, the input of v: see :func:`terms`.

>>> norm = relu_network(v, [W1, W2, W3], x)         # f(x) = v . relu(W1 relu(W2 relu(W3 x))), (N,)
>>> log_importance_ratio(norm, rho=0.05)            # how much each example gains in weight

Errors in the printed equations: ||x|| in eq. 29 must be squared. The weights in eqs 32-39 are those of the layer before
(a_1 is 1, not ||v||^2). They take W_1^T first, and in the ReLU network end with the mask of the gradient's own layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from evenly.errors import EvenlyError
from evenly.settings import checks_options
from evenly.theory.arguments import NotNegative


class Terms(NamedTuple):
    """||grad f||^2 = sum_j a_j ||r_j||^2 over the L representations, from the input of v to the input.

    Attributes:
        a: (N, L); the same for all examples in a linear network (eq. 33), not in a ReLU network (eq. 39).
        squares: (N, L), ||r_j||^2.
    """

    a: Tensor
    squares: Tensor


@checks_options
def log_importance_ratio(norm: Tensor, rho: NotNegative) -> Tensor:
    """log(lambda~ / lambda) to first order, rho ||grad f|| (eq. 25); exact if f is linear in what SAM perturbs."""
    return rho * norm


def last_layer(phi: Tensor) -> Tensor:
    """Example 1, LSAM: f = w . phi(x), where only w is perturbed. ||phi(x)||, (N,), of phi (N, k) (eq. 27)."""
    if phi.ndim != 2:
        raise EvenlyError(f"phi must have shape (N, k), got {tuple(phi.shape)}")
    return phi.square().sum(1).sqrt()


def two_layer_linear(v: Tensor, W: Tensor, x: Tensor) -> Tensor:
    """Example 2: f = v . W x. sqrt(||W x||^2 + ||v||^2 ||x||^2), (N,) (eq. 29). v (k,), W (k, d), x (N, d)."""
    _check(v, [W], x)
    return ((x @ W.T).square().sum(1) + v.square().sum() * x.square().sum(1)).sqrt()


def deep_linear(v: Tensor, weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """Example 3: f = v . W_1 ... W_{L-1} x. ||grad f||, (N,) (eq. 33). Shapes as in :func:`terms`."""
    return _norm(terms(v, weights, x, relu=False))


def relu_network(v: Tensor, weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """Example 4: f = v . relu(W_1 relu(... relu(W_{L-1} x))). ||grad f||, (N,) (eq. 39). Shapes as in :func:`terms`."""
    return _norm(terms(v, weights, x, relu=True))


def terms(v: Tensor, weights: Sequence[Tensor], x: Tensor, *, relu: bool) -> Terms:
    """The weights a_j and the squares ||r_j||^2 whose products add up to ||grad f||^2 (eqs 33 and 39).

    r_L = x and r_j = A_j W_j r_{j+1}, with A_j = 1 in a linear network and the mask of the active units in a ReLU
    network. The gradient by v is r_1, so that a_1 = 1; the gradient by W_i is the outer product of
    A_i W_{i-1}^T A_{i-1} ... W_1^T A_1 v and r_{i+1}, and a_{i+1} the squared norm of the former.

    Args:
        v: (k,).
        weights: W_1, ..., W_{L-1}, each (outputs, inputs); the last is applied first.
        x: (N, d), inputs of W_{L-1}.
    """
    _check(v, weights, x)
    r = [x]
    for W in reversed(weights):
        z = r[0] @ W.T
        r.insert(0, z.relu() if relu else z)
    a = [x.new_ones(len(x))]
    backward = v.expand(len(x), -1)
    for i, W in enumerate(weights):
        if relu:
            backward = backward * (r[i] > 0)
        a.append(backward.square().sum(1))
        backward = backward @ W
    return Terms(torch.stack(a, 1), torch.stack([r_j.square().sum(1) for r_j in r], 1))


def _norm(parts: Terms) -> Tensor:
    return (parts.a * parts.squares).sum(1).sqrt()


def _check(v: Tensor, weights: Sequence[Tensor], x: Tensor) -> None:
    if v.ndim != 1 or x.ndim != 2:
        raise EvenlyError(f"v and x must have shapes (k,) and (N, d), got {tuple(v.shape)} and {tuple(x.shape)}")
    outputs, above = len(v), "v"
    for i, W in enumerate(weights, 1):
        if W.ndim != 2 or len(W) != outputs:
            raise EvenlyError(f"W_{i} must have shape ({outputs}, ...), the inputs of {above}, got {tuple(W.shape)}")
        outputs, above = W.shape[1], f"W_{i}"
    if x.shape[1] != outputs:
        raise EvenlyError(f"x must have shape (N, {outputs}), the inputs of {above}, got {tuple(x.shape)}")
