"""Phase diagrams: every pair of axes, cells that do not depend on the grid, the theory beside them, refusals."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from evenly.errors import EvenlyError
from evenly.theory.stability import (
    Axes,
    Minimum,
    Runs,
    lyapunov_exponents,
    mean_square_growth,
    phase_diagram,
    quadratic,
    quadratic_growth,
    sharp_exponent,
    verdict,
)
from evenly.theory.stability.phases import AXES

SMALL = {"batch_size": [1, 4, 10], "sigma": [1, 5], "lr": [0.2, 0.9], "ascent": [0.0, 0.4, 1.0]}


@pytest.mark.parametrize(("x", "y"), list(itertools.permutations(AXES, 2)))
def test_any_two_axes(x, y):
    fixed = {
        name: value
        for name, value in {"batch_size": 3, "sigma": 4, "lr": 0.5, "ascent": 0.1}.items()
        if name not in (x, y)
    }
    runs = Runs(steps=60, repeats=4)
    diagram = phase_diagram(Axes(x, y, SMALL[x], SMALL[y]), n=20, largest=1.5, runs=runs, **fixed)
    assert diagram.diverged.shape == (len(SMALL[y]), len(SMALL[x]))
    assert diagram.settings["optimizer"] == "sam"
    for (row, y_value), (column, x_value) in itertools.product(enumerate(SMALL[y]), enumerate(SMALL[x])):
        cell = {**fixed, x: x_value, y: y_value}
        sigma = cell.pop("sigma")
        growth = quadratic_growth(20, sigma, 1.5, runs=runs, **cell)
        assert diagram.diverged[row, column] == np.mean(growth > math.log(1000))
        minimum = Minimum.of(quadratic(20, sigma, 1.5))
        theorem = verdict(Minimum(20, sigma, minimum.largest, minimum.smallest), **cell)
        assert diagram.theorems[row, column] == theorem.answer
        exact = lyapunov_exponents(quadratic(20, sigma, 1.5), cell["lr"], cell["batch_size"], ascent=cell["ascent"])
        assert diagram.exponents[row, column] == pytest.approx(exact.max(), rel=1e-10)


def test_the_diagram_of_the_paper():
    diagram = phase_diagram(lr=0.5)
    assert diagram.x_values == (1, 2, 3, 5, 8, 12, 18, 27, 40, 60)
    assert diagram.y_values == (1, 2, 3, 4, 6, 9, 13, 20, 40, 80)
    assert diagram.theorem_wrong == 0
    assert diagram.sharp_right >= 0.95
    assert 15 <= diagram.majority.sum() <= 85
    assert set(np.unique(diagram.theorems)) == {"diverges", "converges", "undecided"}


def test_theorem_3_3_is_the_mean_square_on_this_set():
    for sigma, B, c in itertools.product((1, 4, 20), (1, 5, 19), (0.0, 0.3)):
        minimum = Minimum(20, sigma, 2.0)
        for lr in (0.02, 0.1, 0.4, 0.7):
            stable = mean_square_growth(quadratic(20, sigma, 2.0), lr, B, ascent=c) < 1
            assert stable == (verdict(minimum, lr, B, ascent=c).answer == "converges")


def test_a_cell_does_not_depend_on_its_grid():
    whole = phase_diagram(lr=0.5, n=80, runs=Runs(steps=100))
    part = phase_diagram(Axes(x_values=[18, 3], y_values=[9]), lr=0.5, n=80, runs=Runs(steps=100))
    assert part.diverged[0].tolist() == [whole.diverged[5, 6], whole.diverged[5, 2]]
    assert (whole.diverged == phase_diagram(lr=0.5, n=80, runs=Runs(steps=100)).diverged).all()
    assert (whole.diverged != phase_diagram(lr=0.5, n=80, runs=Runs(steps=100, seed=1)).diverged).any()


def test_settings_matter():
    growth = quadratic_growth(20, 2, 2.0, lr=0.6, batch_size=5, runs=Runs(steps=30))
    middle = math.exp(np.median(growth))

    def cell(threshold, **options):
        runs = Runs(steps=30, threshold=threshold, noise=1e6)
        diagram = phase_diagram(Axes(x_values=[5], y_values=[2]), n=20, lr=0.6, runs=runs, **options)
        return diagram.diverged.item(), diagram.majority.item()

    assert cell(middle) == (0.5, False)  # half is not more than half
    assert cell(math.exp(growth.min()) * 0.99) == (1.0, True)
    assert cell(middle, optimizer="random_perturbation") == (1.0, True)


def test_the_exponent_where_there_is_one_coordinate():
    exact = lyapunov_exponents(quadratic(10, 10, 2.0), 0.7, 3)
    assert sharp_exponent(10, 10, 2.0, lr=0.7, batch_size=3) == pytest.approx(exact[0], rel=1e-12)


def test_agreement_is_counted():
    too_short = Runs(steps=1)  # for anything to diverge
    diagram = phase_diagram(Axes(x_values=[1, 40], y_values=[1, 40]), runs=too_short)
    assert not diagram.majority.any()
    assert diagram.theorem_wrong == (diagram.theorems == "diverges").sum() > 0
    assert diagram.sharp_right == 1 - diagram.sharp.mean()


def test_as_json():
    diagram = phase_diagram(Axes(x_values=[1, 2], y_values=[2]), n=2, lr=0.5, runs=Runs(steps=10))
    assert diagram.exponents[0, 0] == -math.inf  # eta lambda = 1: a batch of both ends at 0
    plain = json.loads(json.dumps(diagram.to_dict(), allow_nan=False))
    assert plain["exponents"][0][0] is None
    assert plain["x_values"] == [1, 2]
    assert plain["theorems"] == diagram.theorems.tolist()
    assert plain["majority"] == [[False, False]]
    assert plain["settings"]["optimizer"] == "sgd"
    assert plain["settings"]["threshold"] == 1000


def test_progress_is_reported_after_each_row():
    reported = []
    phase_diagram(Axes(x_values=[1, 2, 3], y_values=[1, 2]), progress=lambda *done: reported.append(done))
    assert reported == [(3, 6), (6, 6)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": "batch"}, "x must be one of batch_size, sigma, lr, ascent, got 'batch'"),
        ({"y": "batch_size"}, "both axes are 'batch_size'; give two different ones"),
        ({"x_values": []}, "the axis 'batch_size' has no values; give at least one"),
        ({"x_values": [1, 101]}, "batch_size must be at most 100, the number of examples, got 101"),
        ({"y_values": [0]}, "sigma must be at least 1, got 0"),
        ({"y_values": [1.5]}, "sigma must be a whole number, got 1.5"),
        ({"lr": 0.0}, "lr must be above 0, got 0.0"),
        ({"x": "lr", "x_values": [0.1, math.nan]}, "x_values must be a list of numbers, e.g. 1,2,5, got"),
        ({"ascent": 0.1, "optimizer": "random_perturbation"}, "ascent 0.1 has no meaning for 'random_perturbation'"),
        ({"optimizer": "lion"}, "optimizer must be one of sgd, random_perturbation, sam, got 'lion'"),
        ({"largest": 0.0}, "largest must be above 0, got 0.0"),
    ],
)
def test_refusals(change, message):
    names = ("x", "y", "x_values", "y_values")
    axes = {name: value for name, value in change.items() if name in names}
    others = {name: value for name, value in change.items() if name not in names}
    with pytest.raises(EvenlyError, match=message) as refused:
        phase_diagram(Axes(**axes), **others)
    assert "\n" not in str(refused.value)
