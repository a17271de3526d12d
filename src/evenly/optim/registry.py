"""Optimizers by name: a function from parameters to an optimizer, with evenly's settings.

"sam:adamw" is SAM around AdamW. Without a base, as in "sam", the base is SGD. An optimizer of another package is a
function of parameters, lr, momentum and weight_decay, or a subclass of `PerturbedOptimizer`, which wraps any base.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any

import torch
from attrs import frozen
from torch.nn import Parameter
from torch.optim import Optimizer

from evenly.errors import EvenlyError, SettingError, unknown
from evenly.optim.asam import ASAM
from evenly.optim.lsam import LSAM
from evenly.optim.perturbed import PerturbedOptimizer
from evenly.optim.random_perturbation import RandomPerturbation
from evenly.optim.sam import SAM
from evenly.optim.sharpness_aware import SharpnessAware
from evenly.plugins import Registry, first_line_of
from evenly.settings import FLOAT32, above, at_least, below, checks_options

Build = Callable[[Iterable[Parameter]], Optimizer]
Parameters = list[Parameter]


@frozen
class Base:
    """An optimizer that steps: a function of parameters, lr, momentum and weight_decay, and what it is."""

    make: Callable[..., Optimizer]
    summary: str


@frozen
class Perturbing:
    """An optimizer that perturbs: how it wraps a base (base, parameters, rho), its passes a step, and what it is.

    `radius` is the factor on a recipe's or default rho, which is SAM's. A `local` one perturbs by each process's part
    of a batch, so that the number of processes is part of the method.
    """

    wrap: Callable[[Optimizer, Parameters, float], PerturbedOptimizer]
    passes: int
    summary: str
    radius: float = 1.0
    local: bool = False


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


BASES = {
    "sgd": Base(_sgd, "stochastic gradient descent with momentum"),
    "adam": Base(partial(_adam, torch.optim.Adam), "Adam: steps scaled by moving averages of the gradient's squares"),
    "adamw": Base(partial(_adam, torch.optim.AdamW), "Adam with decoupled weight decay"),
}
ADAPTIVE = 10.0
"""The factor on SAM's rho for a radius in units of the weights (Kwon et al. 2021 use 0.5 and 1 where SAM has 0.05 and
0.1)."""
PERTURBED = {
    "sam": Perturbing(lambda base, _, rho: SAM(base, rho), 2, "sharpness-aware minimization, two passes a step"),
    "asam": Perturbing(
        lambda base, _, rho: ASAM(base, rho), 2, "SAM with the radius in units of the weights", ADAPTIVE
    ),
    "lsam": Perturbing(_lsam, 2, "SAM that perturbs the last layer only"),
    "local_sam": Perturbing(
        partial(_local, SAM), 2, "SAM that perturbs each process's network by its own part of a batch", local=True
    ),
    "local_asam": Perturbing(
        partial(_local, ASAM),
        2,
        "ASAM that perturbs each process's network by its own part of a batch",
        ADAPTIVE,
        local=True,
    ),
    "random_perturbation": Perturbing(
        _random_perturbation, 1, "the gradient at weights with noise of length rho, one pass a step"
    ),
}
OPTIMIZERS = (*BASES, *(f"{name}:{base}".removesuffix(":sgd") for name in PERTURBED for base in BASES))
"""Evenly's own, each with each base."""


def _accepted(name: str, given: Any) -> Base | Perturbing:
    """An optimizer of another package."""
    if isinstance(given, type) and issubclass(given, PerturbedOptimizer):
        make: Callable[..., PerturbedOptimizer] = given
        passes = 2 if issubclass(given, SharpnessAware) else 1
        return Perturbing(lambda base, _, rho: make(base, rho=rho), passes, first_line_of(given))
    if not callable(given) or isinstance(given, type):
        raise EvenlyError(
            "it is neither a function of (params, lr, momentum, weight_decay) that returns a torch optimizer nor a "
            "subclass of evenly.optim.perturbed.PerturbedOptimizer"
        )
    return Base(given, first_line_of(given))


REGISTRY = Registry[Base | Perturbing]("optimizer", {**BASES, **PERTURBED}, _accepted)
"""Bases and what wraps them, by name; "sam:adamw" is two of these."""


def known_name(name: str) -> str:
    """The name under which an optimizer is known: "sam" for "sam:sgd". An unknown one is refused."""
    wrapper, colon, base = name.partition(":") if isinstance(name, str) else ("", "", "")
    if wrapper in REGISTRY and (not colon or base in REGISTRY):
        outer = REGISTRY[wrapper]
        if not colon:
            return name
        if isinstance(outer, Perturbing) and isinstance(REGISTRY[base], Base):
            return name.removesuffix(":sgd")
    raise unknown("optimizer", name, {*OPTIMIZERS, *REGISTRY})


def base_of(name: str) -> str | None:
    """The base of an optimizer that perturbs; the two are compared at equal cost. None of any other."""
    return _parts(name)[1] if isinstance(REGISTRY.usable(_parts(name)[0]), Perturbing) else None


def around(wrapper: str, base: str) -> str | None:
    """The optimizer that wraps a base; None where that perturbs already."""
    return f"{wrapper}:{base}".removesuffix(":sgd") if isinstance(REGISTRY.usable(base), Base) else None


def passes(name: str) -> int:
    """Passes over a batch in a step of the named optimizer."""
    outer = REGISTRY.usable(_parts(name)[0])
    return outer.passes if isinstance(outer, Perturbing) else 1


def rho_factor(name: str) -> float:
    """The factor on a recipe's or default rho, which is SAM's."""
    outer = REGISTRY.usable(_parts(name)[0])
    return outer.radius if isinstance(outer, Perturbing) else 1.0


def is_local(name: str) -> bool:
    """Whether an optimizer perturbs by each process's part of a batch."""
    outer = REGISTRY.usable(_parts(name)[0])
    return isinstance(outer, Perturbing) and outer.local


def packages_of(name: str) -> str | None:
    """The packages and versions that an optimizer and its base come from; None of evenly's own."""
    return ", ".join(filter(None, map(REGISTRY.package, dict.fromkeys(_parts(name))))) or None


def _parts(name: str) -> tuple[str, str]:
    wrapper, _, base = name.partition(":")
    return wrapper, base or "sgd"


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
    outer, base = REGISTRY[_parts(name)[0]], base_of(name) or name
    if isinstance(outer, Perturbing) and not rho:
        raise SettingError("rho", rho, f"above 0 with {name}")
    inner = REGISTRY[base]
    assert isinstance(inner, Base)

    def build(parameters: Iterable[Parameter]) -> Optimizer:
        params = list(parameters)
        optimizer = inner.make(params, lr=lr, momentum=momentum, weight_decay=weight_decay)
        if not isinstance(optimizer, Optimizer):
            raise EvenlyError(
                f"the optimizer {base} of {packages_of(base)} is a {type(optimizer).__name__}, no torch.optim.Optimizer"
            )
        return outer.wrap(optimizer, params, rho) if isinstance(outer, Perturbing) else optimizer

    return build
