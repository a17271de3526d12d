"""Small problems in float64, and training written out by hand: the oracle for the engine."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenly.data import Data
from evenly.engine import Fit
from evenly.settings import Execution, Settings, settings_of

LR, MOMENTUM, DECAY, RHO = 0.3, 0.8, 0.01, 0.2


def _draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    y = torch.arange(count) % 3
    return x, y, y + 3 * (x[:, 0] > 0).long()


@pytest.fixture
def problem() -> Callable[..., Data]:
    """Three classes in four dimensions, six groups; `validation` examples to look at, none where 0."""

    def build(count: int = 20, validation: int = 0) -> Data:
        generator = torch.Generator().manual_seed(count)
        train = _draw(count, generator)
        return Data(train=train, validation=_draw(validation, generator) if validation else None)

    return build


@pytest.fixture
def net() -> nn.Module:
    """A smooth network with three logits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


@pytest.fixture
def fit() -> Callable[..., Fit]:
    """The engine with SGD, momentum and weight decay, three epochs, and any settings, execution or arguments of Fit."""

    def build(**given: Any) -> Fit:
        settings = {name: given.pop(name) for name in settings_of(Settings) if name in given}
        execution = Execution(**{name: given.pop(name) for name in ("workers", "capture", "stream") if name in given})
        sgd = {"lr": LR, "momentum": MOMENTUM, "weight_decay": DECAY}
        optimizer = given.pop("optimizer", lambda params: torch.optim.SGD(params, **sgd))
        return Fit(Settings(**{"epochs": 3} | settings), optimizer, execution=execution, **given)

    return build


def _gradient(model: nn.Module, at: list[Tensor], x: Tensor, y: Tensor, factors: Tensor | float) -> list[Tensor]:
    leaves = {name: w.clone().requires_grad_() for (name, _), w in zip(model.named_parameters(), at, strict=True)}
    scores = torch.func.functional_call(model, leaves, (x,))
    each = scores.logsumexp(1) - scores[torch.arange(len(y)), y]
    return list(torch.autograd.grad((each * factors).mean(), list(leaves.values())))


@pytest.fixture
def by_hand() -> Callable[..., list[Tensor]]:
    """SGD with momentum and weight decay, or SAM over it, on the batches of indices given, written out."""

    def train(
        model: nn.Module,
        data: Data,
        epochs: Sequence[Sequence[Tensor]],
        rates: Sequence[float] | None = None,
        weights: Tensor | None = None,
        rho: float = 0.0,
    ) -> list[Tensor]:
        model = copy.deepcopy(model)
        w = [p.detach().clone() for p in model.parameters()]
        velocity = [torch.zeros_like(p) for p in w]
        for epoch, batches in enumerate(epochs):
            lr = LR if rates is None else rates[epoch]
            for index in batches:
                x, y = data.train.inputs[index], data.train.labels[index]
                factors = 1.0 if weights is None else weights[index]
                g = _gradient(model, w, x, y, factors)
                if rho:
                    norm = torch.cat([d.flatten() for d in g]).norm()
                    g = _gradient(model, [p + rho * d / norm for p, d in zip(w, g, strict=True)], x, y, factors)
                velocity = [MOMENTUM * v + d + DECAY * p for v, d, p in zip(velocity, g, w, strict=True)]
                w = [p - lr * v for p, v in zip(w, velocity, strict=True)]
        return w

    return train


@pytest.fixture
def distance() -> Callable[[nn.Module, Sequence[Tensor]], float]:
    """The largest difference between a network's weights and others."""

    def largest(model: nn.Module, w: Sequence[Tensor]) -> float:
        return max((p.detach() - q).abs().max().item() for p, q in zip(model.parameters(), w, strict=True))

    return largest
