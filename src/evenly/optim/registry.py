"""Optimizers by name: a function from parameters to an optimizer, with evenly's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from evenly.errors import unknown
from evenly.optim.asam import ASAM
from evenly.optim.sam import SAM
from evenly.settings import FLOAT32, above, at_least, below, checks_options

Build = Callable[[Iterable[Parameter]], Optimizer]


def _sgd(params: Iterable[Parameter], lr: float, momentum: float, weight_decay: float, rho: float) -> Optimizer:
    params = list(params)
    return torch.optim.SGD(params, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=_on_gpu(params))


def _adam(
    adam: type[torch.optim.Adam],
    params: Iterable[Parameter],
    lr: float,
    momentum: float,
    weight_decay: float,
    rho: float,
) -> Optimizer:
    params = list(params)
    on_gpu = _on_gpu(params)
    return adam(params, lr=lr, weight_decay=weight_decay, fused=on_gpu, capturable=bool(on_gpu))


def _sam(sam: type[SAM] | type[ASAM], params: Iterable[Parameter], rho: float, **sgd: float) -> Optimizer:
    return sam(_sgd(params, **sgd, rho=rho), rho=rho)


def _on_gpu(params: list[Parameter]) -> bool | None:
    """True if all parameters are on a GPU, where one kernel for all of them is faster; None is torch's default."""
    return True if all(param.is_cuda for param in params) else None


OPTIMIZERS: dict[str, tuple[Callable[..., Optimizer], str]] = {
    "sgd": (_sgd, "stochastic gradient descent with momentum"),
    "adam": (partial(_adam, torch.optim.Adam), "Adam"),
    "adamw": (partial(_adam, torch.optim.AdamW), "Adam with decoupled weight decay"),
    "sam": (partial(_sam, SAM), "sharpness-aware minimization over SGD, two passes a step"),
    "asam": (partial(_sam, ASAM), "SAM with the radius in units of the weights, over SGD"),
}
ADAPTIVE = {"asam": 10.0}
"""The factor on a recipe's or default rho, which is SAM's, for optimizers whose radius is in units of the weights (Kwon
et al. 2021 use 0.5 and 1 where SAM has 0.05 and 0.1)."""
PLAIN = {"sam": "sgd", "asam": "sgd"}
"""The base of each optimizer that perturbs; the two are compared at equal cost."""


@checks_options
def builder(
    name_or_function: str | Build,
    *,
    lr: Annotated[float, above(0), FLOAT32] = 0.05,
    momentum: Annotated[float, at_least(0), below(1)] = 0.9,
    weight_decay: Annotated[float, at_least(0), FLOAT32] = 0.0,
    rho: Annotated[float, at_least(0), FLOAT32] = 0.05,
) -> Build:
    """A function from parameters to the named optimizer; a function is returned as it is."""
    if callable(name_or_function):
        return name_or_function
    if not isinstance(name_or_function, str) or name_or_function not in OPTIMIZERS:
        raise unknown("optimizer", name_or_function, OPTIMIZERS)
    make = OPTIMIZERS[name_or_function][0]
    return lambda params: make(params, lr=lr, momentum=momentum, weight_decay=weight_decay, rho=rho)
