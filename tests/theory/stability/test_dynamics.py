"""The simulators against dense steps written out, and the closed form against the simulators."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attrs import evolve
from scipy.stats import ks_2samp

from evenly.errors import EvenlyError
from evenly.theory.stability import Hessians, Runs, normalized_sam_radius, quadratic, quadratic_growth, simulate
from evenly.theory.stability.dynamics import _log_geometric

GRADIENTS = np.random.default_rng(0).standard_normal((5, 3))
FACTORS = np.random.default_rng(1).standard_normal((5, 2, 3)) / 2
SETS = {
    "dense": Hessians.dense(np.einsum("ia,ib->iab", GRADIENTS, GRADIENTS)),
    "rank_one": Hessians.rank_one(GRADIENTS),
    "factors": Hessians.factors(FACTORS),
    "diagonal": Hessians.diagonal(GRADIENTS**2),
}
STACKS = {
    "dense": SETS["dense"].values,
    "rank_one": SETS["dense"].values,
    "factors": np.einsum("ika,ikb->iab", FACTORS, FACTORS),
    "diagonal": np.stack([np.diag(g**2) for g in GRADIENTS]),
}


def written_out(stack, w, lr, B, steps, seed, point):
    """log||w|| by dense matrices, on the simulator's own batches; `point` is where the gradient is taken."""
    draws, noises = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    n = len(stack)
    for _ in range(steps):
        x = draws.random((1, 1, n))[0, 0] < B / n
        H_t = stack[x].sum(0) / B
        w = w - lr * H_t @ point(w, stack.mean(0), H_t, noises)
    return math.log(np.linalg.norm(w))


POINTS = {
    "sgd": ({}, lambda w, H, H_t, noises: w),
    "random_perturbation": (
        {"optimizer": "random_perturbation"},
        lambda w, H, H_t, noises: w + 0.3 * noises.standard_normal((1, 1, 3))[0, 0],
    ),
    "sam": ({"ascent": 0.4}, lambda w, H, H_t, noises: w + 0.4 * H @ w),
    "sam, batch": ({"ascent": 0.4, "ascent_on": "batch"}, lambda w, H, H_t, noises: w + 0.4 * H_t @ w),
    "normalized": ({"rho": 0.2}, lambda w, H, H_t, noises: w + 0.2 * H @ w / np.linalg.norm(H @ w)),
    "normalized, batch": (
        {"rho": 0.2, "ascent_on": "batch"},
        lambda w, H, H_t, noises: w + 0.2 * H_t @ w / max(np.linalg.norm(H_t @ w), 1e-300),
    ),
}


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("name", POINTS)
def test_each_optimizer_takes_its_steps(kind, name):
    options, point = POINTS[name]
    start = np.array([0.5, -1.0, 2.0])
    runs = Runs(steps=25, repeats=1, seed=4, noise=0.3)
    run = simulate(SETS[kind], lr=0.3, batch_size=2, start=start, runs=runs, **options)
    expected = written_out(STACKS[kind], start, 0.3, 2, 25, 4, point)
    assert run.log_norms[-1, 0, 0] == pytest.approx(expected, rel=1e-9)
    assert run.log_growth[0, 0] == pytest.approx(expected - math.log(np.linalg.norm(start)), rel=1e-9)


@pytest.mark.parametrize("kind", SETS)
def test_cells_at_once_are_cells_one_by_one(kind):
    """Different lr, batch size, ascent and Hessians, of different dimension."""
    small = {
        "dense": Hessians.dense(SETS["dense"].values[:, :2, :2]),
        "rank_one": Hessians.rank_one(GRADIENTS[:, :2]),
        "factors": Hessians.factors(FACTORS[:, :, :2]),
        "diagonal": Hessians.diagonal(GRADIENTS[:, :2] ** 2),
    }[kind]
    sets, lr, B, c = [SETS[kind], SETS[kind], small], [0.1, 0.5, 0.3], [1, 4, 2], [0.0, 0.2, 0.1]
    options = {"optimizer": "sam", "runs": Runs(steps=30, repeats=4)}
    together = simulate(sets, lr=lr, batch_size=B, ascent=c, **options)
    assert together.log_growth.shape == (3, 4)
    for cell in range(2):
        alone = simulate(sets[cell], lr=lr[cell], batch_size=B[cell], ascent=c[cell], **options)
        np.testing.assert_allclose(together.log_growth[cell], alone.log_growth[0], rtol=1e-9)
    start = np.zeros((3, 4, 3))
    start[:, :, :2] = 1
    padded = simulate(sets, lr=lr, batch_size=B, ascent=c, start=start, **options)
    alone = simulate(small, lr=0.3, batch_size=2, ascent=0.1, start=np.ones(2), **options)
    np.testing.assert_allclose(padded.log_growth[2], alone.log_growth[0], rtol=1e-9)


def test_a_smaller_set_starts_only_in_its_own_coordinates():
    runs = Runs(steps=1, repeats=3)
    run = simulate([quadratic(4, 1), quadratic(4, 4)], lr=0.1, batch_size=1, record=[0], runs=runs)
    one_coordinate = simulate(quadratic(4, 4), lr=0.1, batch_size=1, start=np.ones(1), record=[0], runs=runs)
    assert (run.log_start[1] < run.log_start[0]).all()
    assert (one_coordinate.log_start == 0).all()


def test_nothing_overflows_or_underflows():
    hessians = Hessians.diagonal([[1.0]])
    grown = simulate(hessians, lr=12.0, batch_size=1, runs=Runs(repeats=1))
    assert grown.log_growth[0, 0] == pytest.approx(1000 * math.log(11), rel=1e-12)
    shrunk = simulate(hessians, lr=0.9, batch_size=1, runs=Runs(repeats=1))
    assert shrunk.log_growth[0, 0] == pytest.approx(1000 * math.log(0.1), rel=1e-12)
    for options in ({"optimizer": "random_perturbation"}, {"rho": 0.5}):
        far = simulate(hessians, lr=12.0, batch_size=1, record=[80, 1000], runs=Runs(repeats=1, noise=0.5), **options)
        assert (far.log_norms[1] - far.log_norms[0])[0, 0] == pytest.approx(920 * math.log(11), rel=1e-12)
    assert simulate(hessians, lr=1.0, batch_size=1, runs=Runs(steps=2, repeats=1)).log_growth[0, 0] == -math.inf


def test_recorded_steps():
    run = simulate(SETS["dense"], lr=0.1, batch_size=2, record=[0, 7, 20], runs=Runs(steps=20, repeats=2))
    np.testing.assert_array_equal(run.log_norms[0], run.log_start)
    for t, norms in ((7, run.log_norms[1]), (20, run.log_norms[2])):
        shorter = simulate(SETS["dense"], lr=0.1, batch_size=2, runs=Runs(steps=t, repeats=2))
        assert (norms == shorter.log_norms[-1]).all()


@pytest.mark.parametrize("lr", [0.1, 0.6, 1.3])
def test_normalised_sam_settles_at_its_radius(lr):
    """Full batch, along an eigenvector."""
    stack = np.random.default_rng(1).standard_normal((4, 3, 3))
    stack = stack @ stack.transpose(0, 2, 1)
    stack /= np.linalg.eigvalsh(stack.mean(0))[-1]
    eigenvalue, vectors = np.linalg.eigh(stack.mean(0))
    runs, start = Runs(steps=400, repeats=1), 3 * vectors[:, -1]
    run = simulate(Hessians.dense(stack), lr=lr, batch_size=4, rho=0.05, start=start, runs=runs)
    assert math.exp(run.log_norms[-1, 0, 0]) == pytest.approx(0.05 * lr / (2 - lr), rel=1e-6)
    assert normalized_sam_radius(0.05, lr, eigenvalue[-1]) == pytest.approx(0.05 * lr / (2 - lr), rel=1e-12)
    assert normalized_sam_radius(0.05, 2.0, 1.0) == math.inf


@pytest.mark.parametrize(
    ("sigma", "lr", "B", "c", "optimizer"),
    [
        (4, 0.5, 3, 0.0, None),  # a batch with one of the first four ends its coordinate at 0
        (4, 0.45, 3, 0.0, None),
        (4, 0.5, 3, 0.3, "sam"),
        (1, 0.3, 2, 0.1, "sam"),
        (12, 0.45, 4, 0.0, None),
        (4, 0.5, 3, 0.0, "random_perturbation"),
        (2, 0.1, 3, 0.0, "random_perturbation"),
        (6, 0.5, 12, 0.0, "random_perturbation"),
        (12, 1.5, 2, 0.0, "random_perturbation"),
    ],
)
def test_the_closed_form_has_the_distribution_of_the_steps(sigma, lr, B, c, optimizer):
    """Two samples of 1500 runs each, 40 steps, n = 12, by Kolmogorov and Smirnov."""
    common = {"lr": lr, "batch_size": B, "ascent": c, "optimizer": optimizer}
    first, second = (Runs(steps=40, repeats=1500, seed=seed, noise=0.2) for seed in (1, 2))
    closed = quadratic_growth(12, sigma, 2.0, runs=first, **common)
    steps = simulate(quadratic(12, sigma, 2.0), runs=second, **common).log_growth[0]
    assert ks_2samp(np.maximum(closed, -1e9), np.maximum(steps, -1e9)).pvalue > 1e-3


def test_the_closed_form_without_chance():
    """B = n: coordinate by coordinate (1 - eta h (1 + c h))^T, from the same start."""
    n, sigma, lr, c, T = 10, 4, 0.3, 0.2, 17
    h = quadratic(n, sigma, 2.0).values.mean(0)
    start = np.random.default_rng([3, n, n, sigma]).standard_normal((5, n - sigma + 1))
    end = start * (1 - lr * h * (1 + c * h)) ** T
    expected = np.log(np.linalg.norm(end, axis=1) / np.linalg.norm(start, axis=1))
    growth = quadratic_growth(n, sigma, 2.0, lr=lr, batch_size=n, ascent=c, runs=Runs(steps=T, repeats=5, seed=3))
    np.testing.assert_allclose(growth, expected, rtol=1e-10)


def test_random_perturbation_without_noise_is_sgd():
    common = {"lr": 0.47, "batch_size": 3}
    quiet = Runs(steps=50, repeats=20, noise=0.0)
    for sigma in (1, 5, 12):
        sgd = quadratic_growth(12, sigma, 2.0, runs=quiet, **common)
        for noise in (0.0, 1e-90):
            runs = evolve(quiet, noise=noise)
            noisy = quadratic_growth(12, sigma, 2.0, optimizer="random_perturbation", runs=runs, **common)
            np.testing.assert_allclose(noisy, sgd, rtol=1e-10)
    killed = quadratic_growth(12, 4, 2.0, lr=0.5, batch_size=3, optimizer="random_perturbation", runs=quiet)
    assert (killed < -1e100).all()


@pytest.mark.parametrize("r", [0.3, 1.0, 1.7, 0.0])
def test_the_variance_of_a_coordinate_is_a_geometric_sum(r):
    moves = np.array([0, 1, 2, 9])
    with np.errstate(divide="ignore"):
        expected = np.log([sum(r ** (2 * k) for k in range(N)) for N in moves])
    log_r = math.log(r) if r else -math.inf
    np.testing.assert_allclose(_log_geometric(log_r, moves), expected, rtol=1e-12, atol=1e-14)


def test_the_global_random_state_is_left_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    quadratic_growth(12, 3, 2.0, lr=0.5, batch_size=3)
    simulate(SETS["dense"], lr=0.1, batch_size=2, runs=Runs(steps=2))
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": [0.1, math.nan]}, "lr must be a finite number, got nan"),
        ({"batch_size": 6}, "batch_size must be at most 5, the number of examples, got 6"),
        (
            {"batch_size": [1, 2], "lr": [0.1, 0.2, 0.3]},
            "batch_size has 2 values for 3 cells; give one, or one per cell",
        ),
        ({"optimizer": "adam"}, "no optimizer with linear dynamics is called 'adam'"),
        ({"optimizer": "sgd", "ascent": 0.1}, "ascent has no meaning for 'sgd'"),
        ({"optimizer": "sam", "rho": 0.1}, "rho has no meaning for 'sam'; give 'normalized_sam'"),
        ({"ascent_on": "half"}, "no ascent is called 'half'"),
        ({"record": [2]}, "record must be at most 1, the number of steps, got 2"),
        ({"start": np.ones(2)}, r"start must be finite and have shape \(3,\) or \(1, 10, 3\), got \(2,\)"),
        ({"hessians": []}, "hessians is empty; give at least one set"),
        ({"hessians": [SETS["rank_one"], SETS["factors"]]}, "cells with 5 factors Hessians and with others cannot run"),
        (
            {"hessians": [SETS["dense"], SETS["diagonal"]]},
            "cells with 5 dense Hessians and with others cannot run at once",
        ),
    ],
)
def test_refusals(change, message):
    options = {"hessians": SETS["dense"], "lr": 0.1, "batch_size": 2, "runs": Runs(steps=1), **change}
    with pytest.raises(EvenlyError, match=message):
        simulate(options.pop("hessians"), **options)
