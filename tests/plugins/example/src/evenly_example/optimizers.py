"""Lion, which steps by the sign of its momentum, and USAM, which is SAM without dividing by the gradient's norm."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from evenly.optim import SAM
from evenly.optim.perturbed import Shift


class Lion(Optimizer):
    """Chen et al. 2023, Algorithm 2."""

    def __init__(self, params: list[Parameter], lr: float, beta: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                update = average.lerp(p.grad, 1 - group["beta"]).sign_()
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])
                average.lerp_(p.grad, 0.01)
        return loss


def lion(params: list[Parameter], lr: float, momentum: float, weight_decay: float) -> Optimizer:
    """Lion: steps by the sign of a momentum, at a tenth of the learning rate."""
    return Lion(params, 0.1 * lr, momentum, weight_decay)


class USAM(SAM):
    """SAM whose perturbation is rho times the gradient, whatever its norm."""

    def perturbation(self) -> Iterator[Shift]:
        for part in self.gradients():
            yield Shift(part.params, part.grads, torch.tensor(1 / part.rho))
