"""What a host's loop needs around the passes of a step of SAM and its kin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from evenly.optim.perturbed import PerturbedOptimizer


@contextmanager
def before_descent(optimizer: PerturbedOptimizer, action: Callable[[], None]) -> Iterator[None]:
    """Run ``action`` when a step inside is about to change the weights, once per step whatever its passes.

    The gradients are those of the last pass, unscaled, and the weights are back in place: clipping belongs here.
    A step that a GradScaler skips does not run it.
    """

    def hook(*_: object) -> None:
        with torch.enable_grad():
            action()

    handle = optimizer.base.register_step_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """``owner.name`` is ``value`` inside, for this one object."""
    own = vars(owner)
    absent = object()
    before = own.get(name, absent)
    own[name] = value
    try:
        yield
    finally:
        if before is absent:
            del own[name]
        else:
            own[name] = before
