"""The disentangled network of two features, easy and hard, and its importance weights, for many networks at once.

    Phi(x) = [phi_theta([x_easy, 0]), phi_theta([0, x_hard])],      f(x) = v_easy Phi_easy(x) + v_hard Phi_hard(x)

with one network phi_theta: R^4 -> R of two hidden layers with LayerNorm (Springer et al. 2024, "SAM enhances feature
quality via balanced learning", Section 5 and Appendix B). Under the logistic loss an example has the importance weight
lambda_i = sigmoid(-y_i v . Phi(x_i)) (eq. 6), at LSAM's phantom parameter v~ (eq. 5) instead of v.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenly.errors import EvenlyError
from evenly.randomness import generator
from evenly.settings import at_least, checks_options

HIDDEN = 100
"""Units in each of the two hidden layers (Appendix B)."""


class Networks(NamedTuple):
    """S networks: the parameters theta of phi, and v. Layer l is relu(gain * LayerNorm(h @ weight + bias) + shift)."""

    weight1: Tensor  # (S, 4, H)
    bias1: Tensor  # (S, 1, H), like all vectors of a layer
    gain1: Tensor
    shift1: Tensor
    weight2: Tensor  # (S, H, H)
    bias2: Tensor
    gain2: Tensor
    shift2: Tensor
    weight3: Tensor  # (S, H, 1)
    bias3: Tensor  # (S, 1, 1)
    v: Tensor  # (S, 2): v_easy, v_hard

    def module(self, run: int) -> Disentangled:
        """One of the networks as a module."""
        return Disentangled(Networks(*(part[run : run + 1] for part in self)))


class Disentangled(nn.Module):
    """One network: inputs (N, 4) to logits (N,); its `representation` is Phi, (N, 2)."""

    def __init__(self, network: Networks) -> None:
        super().__init__()
        if len(network.v) != 1:
            raise EvenlyError(f"a module is one network, got {len(network.v)}; take one of them, e.g. .module(0)")
        for name, part in network._asdict().items():
            setattr(self, name, nn.Parameter(part.detach().clone()))

    def representation(self, x: Tensor) -> Tensor:
        """Phi(x), (N, 2): easy, hard (eq. 4)."""
        theta = Networks(*(getattr(self, name) for name in Networks._fields))
        return representation(theta, x[None])[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.representation(x) @ self.get_parameter("v")[0]


@checks_options
def initial(
    seeds: Sequence[int], hidden: Annotated[int, at_least(2)] = HIDDEN, dtype: torch.dtype = torch.float32
) -> Networks:
    """S networks as torch initialises the layers of Appendix B, U(-1/sqrt(inputs), 1/sqrt(inputs)); v = (1, 1)."""
    drawn: dict[int, list[Tensor]] = {}
    for seed in set(seeds):
        draw = generator(seed, "disentangled network")
        for inputs, outputs in ((4, hidden), (hidden, hidden), (hidden, 1)):
            u = 2 * torch.rand(inputs + 1, outputs, generator=draw, dtype=torch.float64) - 1
            drawn.setdefault(seed, []).append((u / math.sqrt(inputs)).to(dtype))
    layers = [torch.stack([drawn[seed][layer] for seed in seeds]) for layer in range(3)]
    (weight1, bias1), (weight2, bias2), (weight3, bias3) = ((u[:, :-1].clone(), u[:, -1:].clone()) for u in layers)
    one, zero = torch.ones_like(bias1), torch.zeros_like(bias1)
    v = torch.ones(len(seeds), 2, dtype=dtype)
    first, second = (weight1, bias1, one, zero), (weight2, bias2, one.clone(), zero.clone())
    return Networks(*first, *second, weight3, bias3, v)


def representation(networks: Networks, x: Tensor) -> Tensor:
    """Phi(x), (S, N, 2): easy, hard (eq. 4). x: (S, N, 4)."""
    return feature_values(networks, separated(x)).mT


def importance_weights(v: Tensor, phi: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
    """lambda_i = sigmoid(-y_i v . Phi(x_i)), (..., N) (eq. 6); with rho > 0 at LSAM's phantom of the N examples.

    Args:
        v: (..., 2).
        phi: (..., N, 2).
        y: (..., N), ±1.
        rho: a number, or (...).
    """
    phi, rho = phi.mT, torch.as_tensor(rho, dtype=v.dtype, device=v.device)
    return logistic_weights(phantom_of(v, phi, y, rho), phi, y)


def gini(weights: Tensor) -> Tensor:
    """The Gini coefficient over the last dimension, (...): 0 if all weights are equal, near 1 if one has all.

    sum_i (2 i - N - 1) w_(i) / (N sum_i w_i) with w_(1) <= ... <= w_(N): twice the area between the Lorenz curve
    and the diagonal.
    """
    if not bool((weights >= 0).all()):
        raise EvenlyError(f"weights must be at least 0, got {float(weights.min()):g}")
    N = weights.shape[-1]
    rank = torch.arange(1 - N, N, 2, dtype=weights.dtype, device=weights.device)
    return (weights.sort(-1).values * rank).sum(-1) / (N * weights.sum(-1))


def separated(x: Tensor) -> Tensor:
    """[x_easy, 0] and [0, x_hard], (S, 2, N, 4), of x (S, N, 4)."""
    apart = x.new_zeros(len(x), 2, *x.shape[1:])
    apart[:, 0, :, :2], apart[:, 1, :, 2:] = x[..., :2], x[..., 2:]
    return apart


def feature_values(networks: Networks, x: Tensor) -> Tensor:
    """phi_theta, (S, 2, N), of the separated features x (S, 2, N, 4)."""
    weight1, bias1, gain1, shift1, weight2, bias2, gain2, shift2, weight3, bias3, _ = networks
    width = weight1.shape[-1:]
    h = torch.baddbmm(bias1, x.flatten(1, 2), weight1)
    h = torch.addcmul(shift1, F.layer_norm(h, width), gain1).relu()
    h = torch.baddbmm(bias2, h, weight2)
    h = torch.addcmul(shift2, F.layer_norm(h, width), gain2).relu()
    return torch.baddbmm(bias3, h, weight3).view(x.shape[:3])


def logistic_weights(v: Tensor, phi: Tensor, y: Tensor) -> Tensor:
    """sigmoid(-y v . Phi), (..., N), of v (..., 2), phi (..., 2, N) and y (..., N)."""
    return (-y * (v[..., None] * phi).sum(-2)).sigmoid()


def weighted_sum(phi: Tensor, weight: Tensor) -> Tensor:
    """sum_i weight_i Phi_i, (..., 2), of phi (..., 2, N) and weight (..., N)."""
    return (phi * weight[..., None, :]).sum(-1)


def phantom_of(v: Tensor, phi: Tensor, y: Tensor, rho: Tensor) -> Tensor:
    """v~ = v + rho grad_v L / ||grad_v L|| (eq. 5), and v if the gradient is 0."""
    gradient = weighted_sum(phi, -y * logistic_weights(v, phi, y))
    # if all examples are fit well, the gradient may be so small that its square is 0
    gradient = gradient / gradient.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
    return v + rho[..., None] * F.normalize(gradient, dim=-1)
