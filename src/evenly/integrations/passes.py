"""Hooks around the passes of a perturbed step, for the loops of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from evenly.optim.perturbed import PerturbedOptimizer


@contextmanager
def before_descent(optimizer: PerturbedOptimizer, action: Callable[[], None]) -> Iterator[None]:
    """Run ``action`` just before a step inside changes the weights, once per step.

    The gradients are those of the last pass, unscaled, and the weights are restored: the point to clip. A step that a
    GradScaler skips does not run it.
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
    attributes = vars(owner)
    absent = object()
    before = attributes.get(name, absent)
    attributes[name] = value
    try:
        yield
    finally:
        if before is absent:
            del attributes[name]
        else:
            attributes[name] = before
