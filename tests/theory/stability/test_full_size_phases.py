"""Phase diagrams at C.3's full size: the speed of the closed form, its cells against the steps, the sharp predictor.

Grid B {1,2,3,5,8,12,18,27,40,60} x sigma {1,2,3,4,6,9,13,20,40,80}; eta .3, .5, .8; rho/alpha 0, .1.
"""

import time

import numpy as np
import pytest

from evenly.theory.stability import Axes, Runs, phase_diagram, quadratic, quadratic_growth, simulate

pytestmark = pytest.mark.full_size


def test_the_sharp_predictor_is_right_on_95_percent_of_the_cells():
    right = [
        phase_diagram(lr=lr, ascent=ascent, runs=Runs(seed=seed)).sharp_right
        for seed in range(6)
        for lr in (0.3, 0.5, 0.8)
        for ascent in (0.0, 0.1)
    ]
    print(f"\n3600 cells: right on {np.mean(right):.1%}, {min(right):.0%} in the worst panel")
    assert min(right) >= 0.95


def test_the_closed_form_gives_the_cells_of_the_steps():
    """Thirty cells by the step-by-step simulator with 10 repeats of 1000 steps, eta .5."""
    batch_sizes, sigmas = (2, 5, 12, 27, 60), (1, 3, 6, 13, 40, 80)
    cells = [(B, sigma) for B in batch_sizes for sigma in sigmas]
    run = simulate([quadratic(100, sigma) for _, sigma in cells], lr=0.5, batch_size=[B for B, _ in cells])
    steps = (run.log_growth > np.log(1000)).mean(1)
    closed = np.array([
        np.mean(quadratic_growth(100, sigma, 2.0, lr=0.5, batch_size=B) > np.log(1000)) for B, sigma in cells
    ])  # fmt: skip
    print(f"\nshares differ by at most {np.abs(steps - closed).max():.1f}")
    assert ((steps > 0.5) == (closed > 0.5)).all()


def test_speed():
    """100 cells x 10 repeats x 1000 steps under 2 s, a 100 x 100 grid within 30 s, on one core."""
    times = {}
    for name, options in {
        "SGD, 100 cells": {},
        "SAM, 100 cells": {"ascent": 0.1},
        "random perturbation, 100 cells": {"optimizer": "random_perturbation"},
        "SGD, 100 x 100": {"axes": Axes(x_values=range(1, 101), y_values=range(1, 101))},
    }.items():
        started = time.perf_counter()
        phase_diagram(lr=0.5, **options)
        times[name] = time.perf_counter() - started
        print(f"\n{name}: {times[name]:.2f} s", end="")
    assert max(seconds for name, seconds in times.items() if "100 cells" in name) < 2
    assert times["SGD, 100 x 100"] < 30
