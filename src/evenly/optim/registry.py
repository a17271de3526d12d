"""Optimizers by name: a function from parameters to an optimizer, with evenly's settings.

"sam:adamw" is SAM around AdamW. Without a base, as in "sam", the base is SGD.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from evenly.errors import SettingError, unknown
from evenly.optim.asam import ASAM
from evenly.optim.lsam import LSAM
from evenly.optim.perturbed import PerturbedOptimizer
from evenly.optim.random_perturbation import RandomPerturbation
from evenly.optim.sam import SAM
from evenly.settings import FLOAT32, above, at_least, below, checks_options

Build = Callable[[Iterable[Parameter]], Optimizer]
Parameters = list[Parameter]


def _sgd(params: Parameters, lr: float, momentum: float, weight_decay: float) -> Optimizer:
    return torch.optim.SGD(params, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=_on_gpu(params))


def _adam(
    adam: type[torch.optim.Adam], params: Parameters, lr: float, momentum: float, weight_decay: float
) -> Optimizer:
    on_gpu = _on_gpu(params)
    return adam(params, lr=lr, weight_decay=weight_decay, fused=on_gpu, capturable=bool(on_gpu))


def _lsam(base: Optimizer, params: Parameters, rho: float) -> PerturbedOptimizer:
    return LSAM(base, last_layer(params), rho)


def _local(kind: type[SAM | ASAM], base: Optimizer, _: Parameters, rho: float) -> PerturbedOptimizer:
    optimizer = kind(base, rho)
    optimizer.local_if_replicated = True
    return optimizer


def _random_perturbation(base: Optimizer, params: Parameters, rho: float) -> PerturbedOptimizer:
    """Noise whose root mean square length is rho, the length of SAM's perturbation."""
    return RandomPerturbation(base, rho / math.sqrt(sum(param.numel() for param in params if param.requires_grad)))


def last_layer(params: Parameters) -> Parameters:
    """The last weight matrix among a network's parameters and what comes after it, its bias."""
    trained = [param for param in params if param.requires_grad]
    matrices = [number for number, param in enumerate(trained) if param.ndim > 1]
    return trained[matrices[-1] if matrices else -1 :]


def _on_gpu(params: Parameters) -> bool | None:
    """True if all parameters are on a GPU, where one kernel for all of them is faster; None is torch's default."""
    return True if all(param.is_cuda for param in params) else None


BASES: dict[str, tuple[Callable[..., Optimizer], str]] = {
    "sgd": (_sgd, "stochastic gradient descent with momentum"),
    "adam": (partial(_adam, torch.optim.Adam), "Adam: steps scaled by moving averages of the gradient's squares"),
    "adamw": (partial(_adam, torch.optim.AdamW), "Adam with decoupled weight decay"),
}
PERTURBED: dict[str, tuple[Callable[[Optimizer, Parameters, float], PerturbedOptimizer], int, str]] = {
    "sam": (lambda base, _, rho: SAM(base, rho), 2, "sharpness-aware minimization, two passes a step"),
    "asam": (lambda base, _, rho: ASAM(base, rho), 2, "SAM with the radius in units of the weights"),
    "lsam": (_lsam, 2, "SAM that perturbs the last layer only"),
    "local_sam": (partial(_local, SAM), 2, "SAM that perturbs each process's network by its own part of a batch"),
    "local_asam": (partial(_local, ASAM), 2, "ASAM that perturbs each process's network by its own part of a batch"),
    "random_perturbation": (
        _random_perturbation,
        1,
        "the gradient at weights with noise of length rho, one pass a step",
    ),
}
"""For each optimizer that perturbs: how it wraps a base, its passes a step, and what it is."""
PLAIN = {f"{name}:{base}".removesuffix(":sgd"): base for name in PERTURBED for base in BASES}
"""The base of each optimizer that perturbs; the two are compared at equal cost."""
OPTIMIZERS = (*BASES, *PLAIN)
ADAPTIVE = {name: 10.0 for name in PLAIN if name.startswith(("asam", "local_asam"))}
"""The factor on a recipe's or default rho, which is SAM's, for optimizers whose radius is in units of the weights (Kwon
et al. 2021 use 0.5 and 1 where SAM has 0.05 and 0.1)."""


def known_name(name: str) -> str:
    """The name under which an optimizer is known: "sam" for "sam:sgd". An unknown one is refused."""
    known = name.removesuffix(":sgd") if isinstance(name, str) and name.partition(":")[0] in PERTURBED else name
    if known not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)
    return known


def passes(name: str) -> int:
    """Passes over a batch in a step of the named optimizer."""
    return PERTURBED[name.partition(":")[0]][1] if name in PLAIN else 1


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
    name = known_name(name_or_function)
    if name in PLAIN and not rho:
        raise SettingError("rho", rho, f"above 0 with {name}")
    make_base = BASES[PLAIN.get(name, name)][0]

    def build(parameters: Iterable[Parameter]) -> Optimizer:
        params = list(parameters)
        base = make_base(params, lr=lr, momentum=momentum, weight_decay=weight_decay)
        return PERTURBED[name.partition(":")[0]][0](base, params, rho) if name in PLAIN else base

    return build
