"""Schedules, and how they stretch with the length of a run."""

from __future__ import annotations

import math

import pytest

from evenly.engine.schedules import SCHEDULES, schedule
from evenly.settings import SCHEDULES as NAMES


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", [1, 1, 1, 1, 1]),
        ("step", [1, 1, 0.1, 0.01, 0.01]),
        ("cosine", [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0]),
    ],
)
def test_formulas(name, expected):
    assert [schedule(name)(p) for p in (0, 0.25, 0.5, 0.75, 1.0)] == pytest.approx(expected)


def test_every_schedule_starts_at_one():
    assert {name: rule(0.0) for name, rule in SCHEDULES.items()} == dict.fromkeys(NAMES, 1.0)


@pytest.mark.parametrize("epochs", [4, 8, 20])
def test_rescaled_to_the_epochs(fit, net, problem, epochs):
    run = fit(epochs=epochs, schedule="step", batch_size=None)(net, problem())
    rates = [row["lr"] for row in run.history]
    half, quarter = epochs // 2, epochs // 4
    assert rates == pytest.approx([0.3] * half + [0.03] * quarter + [0.003] * quarter)


def test_rescaled_to_the_budget(fit, net, problem):
    """20 examples, a budget of 100: progress is cost / budget at the start of each epoch, whatever `epochs` says."""
    run = fit(epochs=2, budget=100, schedule=lambda progress: 1 + progress, batch_size=8)(net, problem())
    assert [row["lr"] / 0.3 for row in run.history] == pytest.approx([1, 1.2, 1.4, 1.6, 1.8])


def test_the_rate_of_every_parameter_group_is_scaled_from_its_own(fit, net, problem):
    import torch

    made = []

    def optimizer(params):
        first, *rest = params
        made.append(torch.optim.SGD([{"params": [first], "lr": 1.0}, {"params": rest}], lr=0.1))
        return made[-1]

    fit(epochs=4, optimizer=optimizer, schedule="step")(net, problem())
    assert [group["lr"] for group in made[0].param_groups] == pytest.approx([0.01, 0.001])
