"""What every optimizer by name owes its user."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from evenly.methods import find
from evenly.optim.perturbed import PerturbedOptimizer
from evenly.optim.registry import around, builder, known_name, passes
from evenly.testing.methods import (
    Case,
    counts_its_cost,
    leaves_no_trace,
    moves_every_weight,
    one_seed_decides_every_bit,
    resumes_to_the_same_bits,
)
from evenly.testing.problem import equal, keep, network_of


def check_optimizer(name: str) -> None:
    """Hold an optimizer, and SAM around it, to all that evenly's own keep.

    Args:
        name: as it is given to `evenly.train`: "lion", "sam:lion".
    """
    name = known_name(name)
    takes_the_rates(name)
    computes_its_passes(name)
    goes_on_from_its_state(name)
    for each in filter(None, (name, around("sam", name))):
        case = Case(find("erm"), each, {})
        for promise in (one_seed_decides_every_bit, leaves_no_trace, resumes_to_the_same_bits, counts_its_cost):
            promise(case)
        moves_every_weight(case)


def takes_the_rates(name: str) -> None:
    """The learning rate is that of every parameter group, where schedules change it."""
    rates = []
    for lr in (0.01, 0.02):
        optimizer = builder(name, lr=lr, rho=0.1)(network_of(3).parameters())
        rates.append([group.get("lr") for group in optimizer.param_groups])
    kept = all(rates[0]) and rates[1] == [2 * rate if rate else rate for rate in rates[0]]
    keep(f"{name} has its learning rate in its parameter groups", kept, 'pass {"lr": lr} as defaults of Optimizer')


def computes_its_passes(name: str) -> None:
    """A step calls its closure as often as the optimizer has passes, and returns the first loss."""
    model, calls = _linear(), list[float]()
    optimizer = builder(name, lr=0.01, rho=0.1)(model.parameters())
    loss: Any = optimizer.step(_closure(model, optimizer, calls))
    counted = len(calls) == passes(name)
    keep(f"{name} computes {passes(name)} a step, not {len(calls)}", counted, "call the closure once, SAM's kin twice")
    keep(f"{name} returns the loss of its first pass", loss is not None and loss.item() == calls[0], "return it")
    if isinstance(optimizer, PerturbedOptimizer):
        before = {key: value.clone() for key, value in model.state_dict().items()}
        optimizer.ascend()
        moved = not equal(before, model.state_dict())
        optimizer.restore()
        kept = moved and equal(before, model.state_dict())
        keep(f"{name} perturbs the weights and restores them exactly", kept, "see evenly.optim.perturbed")


def goes_on_from_its_state(name: str) -> None:
    """Its state dict, loaded into a new optimizer, gives the next step."""
    first = _linear()
    optimizer = builder(name, lr=0.01, rho=0.1)(first.parameters())
    for _ in range(2):
        optimizer.step(_closure(first, optimizer, []))
    second = copy.deepcopy(first)
    other = builder(name, lr=0.01, rho=0.1)(second.parameters())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for model, each in ((first, optimizer), (second, other)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            each.step(_closure(model, each, []))
    kept = equal(first.state_dict(), second.state_dict())
    keep(f"{name} goes on from its state dict", kept, "keep what it remembers in self.state[parameter]")


def _linear() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Linear(3, 2)


def _closure(model: nn.Module, optimizer: torch.optim.Optimizer, calls: list[Any]) -> Any:
    inputs = torch.linspace(-1, 1, 12).reshape(4, 3)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(inputs).square().sum()
        loss.backward()
        calls.append(float(loss.detach()))
        return loss

    return closure
