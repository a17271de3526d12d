"""Random perturbation: the gradient at a random point near the weights. A control for SAM, at half its cost.

    delta ~ N(0, sigma^2 I), a new draw each step
    w  <- base(w, grad L(w + delta))

It descends the Gaussian-smoothed loss E L(w + delta). The closure runs once per step.

>>> opt = RandomPerturbation(torch.optim.SGD(model.parameters(), lr=0.1), sigma=0.01)
>>> loss = opt.step(closure)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch._compile import _disable_dynamo
from torch.amp import GradScaler
from torch.optim import Optimizer

from evenly.optim.foreach import group_tensors
from evenly.optim.noise import normal
from evenly.optim.perturbed import Loss, PerturbedOptimizer, Rounding, Shift


class RandomPerturbation(PerturbedOptimizer):
    """Takes the gradient at weights with Gaussian noise added.

    The noise comes from torch's global generator of each parameter's device, as dropout's does. A resumed run must
    restore its state (``torch.get_rng_state``, ``torch.cuda.get_rng_state``) beside the optimizer's. Under
    DistributedDataParallel, replicas whose generators differ draw different noise, and the gradient averages over it.
    Give them the same seed for one common draw. Under fully_shard every process draws for whole parameters and keeps
    its shards: with the same seed the noise is that of one process, with different ones the shards are independent.

    Args:
        base: the optimizer that steps. Every parameter of it that requires gradients is perturbed.
        sigma: the noise's standard deviation in each coordinate; its length is about sigma sqrt(d) for d
            parameters. A parameter group may have its own ``"sigma"``.
        check_finite: raise if a gradient is not finite.
        rounding: "stochastic" keeps noise that is small beside weights stored in half precision.
    """

    settings = ("sigma",)

    def __init__(
        self, base: Optimizer, sigma: float = 0.01, *, check_finite: bool = False, rounding: Rounding = "nearest"
    ) -> None:
        super().__init__(base, check_finite=check_finite, rounding=rounding, sigma=sigma)

    def perturbation(self) -> Iterator[Shift]:
        for group in self.param_groups:
            for params in group_tensors(p for p in group["params"] if p.requires_grad):
                yield Shift(params, normal(params), torch.ones((), dtype=torch.float64) / group["sigma"])

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Loss] | None = None, *, scaler: GradScaler | None = None) -> Loss:
        if self.is_to_make_state(closure):
            return cast(Loss, self.base.step())
        closure, scaler = self.begin(closure, scaler)
        with self.perturbed():
            loss = self.evaluate(closure)
        self.descend(scaler, "only")
        return cast(Loss, loss.clone()) if isinstance(loss, torch.Tensor) else loss
