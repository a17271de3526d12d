"""A plan and a result made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from evenly.runs.plan import DataSpec, MethodSpec, ModelSpec, OptimizerSpec, Plan
from evenly.runs.results import DataSummary, Measured, RunResult
from evenly.settings import Settings


@pytest.fixture
def plan() -> Callable[..., Plan]:
    """A plan: ``plan(seed=3)``."""
    data, model = DataSpec("toy", {"n": 3}, "/here", "ab"), ModelSpec("mlp", {"hidden": [4]})
    base = Plan(data, model, MethodSpec("erm"), OptimizerSpec("sgd"), Settings(epochs=2, select="average"))
    return lambda **changes: evolve(base, **changes)


@pytest.fixture
def result() -> Callable[..., RunResult]:
    """What a run reached on test: ``result(0.9, groups=(1.0, 0.8), cost=48.0)``."""

    def build(accuracy: float = 0.8, groups: tuple[float | None, ...] = (), **changes: Any) -> RunResult:
        worst = min((each for each in groups if each is not None), default=None)
        measured = Measured(accuracy, 0.5, accuracy, worst, None, groups, tuple(10 for _ in groups))
        data = DataSummary("toy", "", {"train": 24, "test": 40}, ("a", "b"))
        spent = {"cost": 48.0, "unit": 48.0, "evaluation_cost": 8.0, "seconds": 0.1, "device": "cpu", "step": "plain"}
        base = RunResult(data, "erm", "sgd", 0, "mlp", "last", 2, 2.0, 2, **spent, splits={"test": measured})
        return evolve(base, **changes)

    return build
