"""A tiny problem on which every method can be watched: inputs carry their own number, networks tell what they see."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import nn

from evenly import Data
from evenly.engine import Checkpoints, Fit, Trained
from evenly.methods import METHODS
from evenly.testing import problem

settings.register_profile("evenly", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("evenly")

OPTIONS: dict[str, dict[str, Any]] = {
    "pde": {"warmup_epochs": 2, "every": 1, "add": 5, "decay": 0.5, "reset_momentum": True},
    "useful": {"separating_epoch": 2},
    "misclassification": {"separating_epoch": 1},
    "quantile": {"separating_epoch": 2, "above": 0.7},
    "upweight": {"separating_epoch": 2, "factor": 3},
    "group_dro": {"step_size": 0.2, "C": 0.5},
    "jtt": {"separating_epoch": 1, "factor": 4},
    "lff": {"average": 0.5},
    "eiil": {"separating_epoch": 2, "step_size": 0.2, "C": 0.5},
    "dfr": {"draws": 3},
}


@pytest.fixture
def tiny() -> Callable[..., Data]:
    """60 training examples in four groups, stored in no order; `groups` gives others."""
    return problem.tiny


@pytest.fixture
def net() -> Callable[[], nn.Module]:
    return problem.network


@pytest.fixture
def linear() -> Callable[[], nn.Module]:
    """A linear network in float64, the same at every call: simple enough to train by hand."""

    def build(draw: int = 0) -> nn.Module:
        model = nn.Linear(5, 2).double()
        with torch.no_grad():
            model.weight.copy_(torch.linspace(-0.5, 0.5, 10, dtype=torch.float64).reshape(2, 5))
            model.bias.copy_(torch.tensor([0.1, -0.1]))
        return model

    return build


@pytest.fixture
def engine() -> Callable[..., Fit]:
    """The engine with SGD or SAM and four epochs of batches of 16, if not told otherwise."""
    return problem.engine


@pytest.fixture
def train() -> Callable[..., Trained]:
    """A method by name on a network with a seed of its own, kept in `out`; settings and options by name."""

    def run(data: Data, method: str, optimizer: str = "sgd", out: Any = None, **given: Any) -> Trained:
        checkpoints = None if out is None else Checkpoints(out)
        options = OPTIONS.get(method, {})
        return problem.train(METHODS[method], data, optimizer, checkpoints=checkpoints, **options | given)

    return run


@pytest.fixture
def asked(engine: Callable[..., Fit]) -> Callable[..., dict[str, Any]]:
    """What a method asks of the engine, nothing being trained: the arguments of its fit by name."""
    arguments: dict[str, Any] = {}

    class Asked(Fit):
        def __call__(self, model: nn.Module, data: Data, **given: Any) -> Any:
            arguments.update(given)
            return SimpleNamespace()

    def ask(method: str, data: Data, batch_size: int | None = 16, **options: Any) -> dict[str, Any]:
        fit = engine(batch_size=batch_size)
        METHODS[method](nn.Identity, data, Asked(fit.settings, fit.optimizer), **options)
        return arguments

    return ask


@pytest.fixture
def watch() -> Callable[..., tuple[Any, problem.Watched, Data]]:
    """Run a method by name under watch: (run, what was seen, data)."""

    def run(name: str, fit: Fit, groups: Any = None, **options: Any) -> tuple[Any, problem.Watched, Data]:
        return problem.watch(METHODS[name], fit, groups, **OPTIONS.get(name, {}) | options)

    return run


@pytest.fixture
def options() -> dict[str, dict[str, Any]]:
    """Options that make every method do what is special about it within four epochs."""
    return OPTIONS
