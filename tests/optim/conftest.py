"""Shared fixtures, and the oracle: steps written out in full on dictionaries of tensors, without any optimizer."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from evenly.optim import ASAM, LSAM, SAM, RandomPerturbation

Named = dict[str, Tensor]
WRAPPERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sam": lambda base, model, **options: SAM(base, rho=0.1, **options),
    "asam": lambda base, model, **options: ASAM(base, rho=0.7, eta=0.02, model=model, **options),
    "lsam": lambda base, model, **options: LSAM(base, params=model[-1].parameters(), rho=0.3, **options),
    "random": lambda base, model, **options: RandomPerturbation(base, sigma=0.05, **options),
}

NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 3), (5,)),
    "deep": (lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.GELU(), nn.Linear(6, 3)), (5,)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Softplus(), nn.Flatten(), nn.Linear(16, 3)), (2, 4, 4)),
    "norm": (lambda: nn.Sequential(nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)), (5,)),
}
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": nn.functional.cross_entropy,
    "squared": lambda out, y: (out - nn.functional.one_hot(y, 3)).square().mean(),
    "logistic": lambda out, y: nn.functional.softplus(-(2.0 * (y > 0) - 1) * out[:, 0]).mean(),
}
BASES: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.8, "nesterov": True}),
    "adam": (torch.optim.Adam, {"betas": (0.8, 0.95)}),
    "adamw": (torch.optim.AdamW, {"betas": (0.9, 0.99)}),
}


def hand_update(base: str, w: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    """One update of one tensor, as the papers and torch's documentation write it."""
    settings = BASES[base][1]
    lr, decay = group["lr"], group["weight_decay"]
    t = state["t"] = state.get("t", 0) + 1
    if base in ("sgd", "nesterov"):
        d = g + decay * w
        buffer = state["b"] = d if t == 1 else settings["momentum"] * state["b"] + d
        return w - lr * (d + settings["momentum"] * buffer if base == "nesterov" else buffer)
    beta1, beta2 = settings["betas"]
    if base == "adam":
        g = g + decay * w
    else:
        w = w - lr * decay * w
    m = state["m"] = beta1 * state.get("m", 0.0) + (1 - beta1) * g
    v = state["v"] = beta2 * state.get("v", 0.0) + (1 - beta2) * g * g
    return w - lr * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + 1e-8)


def make_closure(opt: torch.optim.Optimizer, loss: Callable[[], Tensor], scaler: Any = None) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        opt.zero_grad()
        value = loss()
        (value if scaler is None else scaler.scale(value)).backward()
        return value

    return closure


@pytest.fixture
def closure_of() -> Callable[..., Callable[[], Tensor]]:
    return make_closure


@pytest.fixture(params=WRAPPERS)
def wrapper(request: pytest.FixtureRequest) -> Callable[..., torch.optim.Optimizer]:
    """Every optimizer of evenly, as a function (base, model, **options)."""
    return WRAPPERS[request.param]


@dataclass
class Case:
    """A net, a loss, batches, and parameter groups with settings of their own."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    batches: list[tuple[Tensor, Tensor]]
    base: str
    groups: list[dict[str, Any]]
    defaults: dict[str, float] = field(default_factory=dict)

    def make_base(self) -> torch.optim.Optimizer:
        params = dict(self.model.named_parameters())
        groups = [
            {"params": [params[name] for name in group["names"]]} | {k: group[k] for k in group if k != "names"}
            for group in self.groups
        ]
        make, settings = BASES[self.base]
        return make(groups, lr=0.1, **settings)

    def train(self, opt: torch.optim.Optimizer) -> list[float]:
        """A step per batch with the real optimizer; the losses it returned."""
        return [
            float(opt.step(make_closure(opt, lambda x=x, y=y: self.loss(self.model(x), y)))) for x, y in self.batches
        ]

    def by_hand(self, eps: Callable[[Named, Named, dict[str, dict[str, float]]], Named]) -> tuple[Named, list[float]]:
        """The parameters after a step per batch with the perturbation eps(w, g, settings), and the losses at w."""
        model = copy.deepcopy(self.model)
        w = {name: p.detach().clone() for name, p in model.named_parameters()}
        settings = {name: {**self.defaults, **group} for group in self.groups for name in group["names"]}
        states: dict[str, dict[str, Any]] = {name: {} for name in w}
        losses = []

        def gradient(weights: Named, x: Tensor, y: Tensor) -> tuple[float, Named]:
            leaves = {name: p.clone().requires_grad_() for name, p in weights.items()}
            loss = self.loss(functional_call(model, leaves, (x,)), y)
            return loss.item(), dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

        for x, y in self.batches:
            value, g = gradient(w, x, y)
            losses.append(value)
            shift = eps(w, g, settings)
            _, g = gradient({name: p + shift[name] for name, p in w.items()}, x, y)
            w = {n: hand_update(self.base, p, g[n], states[n], settings[n]) for n, p in w.items()}
        return w, losses

    def worst_difference(self, w: Named) -> float:
        return max((p.detach() - w[name]).abs().max().item() for name, p in self.model.named_parameters())


@pytest.fixture
def draw_case() -> Callable[..., Case]:
    def draw(seed: int, steps: int = 5, **defaults: float) -> Case:
        """A random case; about half of the groups set the defaults' names themselves."""
        pick = random.Random(seed)
        torch.manual_seed(seed)
        make, shape = NETS[pick.choice(sorted(NETS))]
        model = make().double()
        for p in model.parameters():
            p.data += 0.1 * torch.randn_like(p)
        names = [name for name, _ in model.named_parameters()]
        cuts = sorted(pick.sample(range(1, len(names)), k=min(pick.randint(0, 2), len(names) - 1)))
        groups = []
        for start, stop in zip([0, *cuts], [*cuts, len(names)], strict=True):
            group: dict[str, Any] = {
                "names": names[start:stop],
                "lr": 10 ** pick.uniform(-3, -1),
                "weight_decay": pick.choice([0.0, 0.01, 0.1]),
            }
            for name in defaults:
                if pick.random() < 0.5:
                    group[name] = 10 ** pick.uniform(-3, 0.3)
            groups.append(group)
        n = pick.randint(2, 9)
        batches = [(torch.randn(n, *shape).double(), torch.randint(3, (n,))) for _ in range(steps)]
        return Case(model, LOSSES[pick.choice(sorted(LOSSES))], batches, pick.choice(sorted(BASES)), groups, defaults)

    return draw
