"""Exact answers for given Hessians against dense p^2 x p^2 matrices and enumeration of all batches."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from evenly.errors import EvenlyError
from evenly.theory.stability import (
    Hessians,
    Runs,
    mean_square_ascent,
    mean_square_batch_size,
    mean_square_growth,
    mean_square_lr,
    quadratic,
    simulate,
)

CASES = {
    "dense": lambda draw: Hessians.dense(psd(draw.standard_normal((5, 3, 3)) / 3**0.5)),
    "dense, low rank": lambda draw: Hessians.dense(psd(draw.standard_normal((4, 3, 1)) / 3**0.5)),
    "rank one, wide": lambda draw: Hessians.rank_one(draw.standard_normal((4, 30)) / 5),
    "rank one, narrow": lambda draw: Hessians.rank_one(draw.standard_normal((6, 2))),
    "factors": lambda draw: Hessians.factors(draw.standard_normal((4, 2, 3)) / 2),
    "diagonal": lambda draw: Hessians.diagonal(draw.random((5, 3))),
}
cases = pytest.mark.parametrize("case", CASES)
samplings = pytest.mark.parametrize("sampling", ["bernoulli", "fixed"])


def psd(factors):
    return factors @ factors.transpose(0, 2, 1)


def drawn(case, seed):
    return CASES[case](np.random.default_rng(seed))


def brute_force_growth(hessians, lr, B, c, sampling="bernoulli"):
    """The spectral radius of E[J (x) J] over all 2^n batches, each with its probability."""
    values = hessians.values
    stack = {
        "dense": lambda: values,
        "factors": lambda: np.einsum("ika,ikb->iab", values, values),
        "diagonal": lambda: np.stack([np.diag(d) for d in values]),
    }[hessians.kind]()
    n, p, _ = stack.shape
    total = np.zeros((p * p, p * p))
    for x in itertools.product((0, 1), repeat=n):
        size = sum(x)
        chance = (B / n) ** size * (1 - B / n) ** (n - size)
        if sampling == "fixed":
            chance = (size == B) / math.comb(n, B)
        J = np.eye(p) - lr / B * np.einsum("i,iab->ab", np.array(x, float), stack) @ (np.eye(p) + c * stack.mean(0))
        total += chance * np.kron(J, J)
    return np.abs(np.linalg.eigvals(total)).max()


@cases
@samplings
@pytest.mark.parametrize(("lr", "B", "c"), [(0.3, 1, 0.0), (0.3, 2, 0.5), (1.1, 3, 0.2), (0.05, 4, 0.0)])
def test_growth_is_the_spectral_radius_over_all_batches(case, lr, B, c, sampling):
    hessians = drawn(case, 3)
    growth = mean_square_growth(hessians, lr, B, ascent=c, sampling=sampling)
    assert growth == pytest.approx(brute_force_growth(hessians, lr, B, c, sampling), rel=1e-9)


@cases
@samplings
@pytest.mark.parametrize("c", [0.0, 0.7])
def test_the_largest_lr_is_where_the_growth_passes_1(case, c, sampling):
    for seed in range(3):
        hessians = drawn(case, seed)
        for B in (1, hessians.n):
            lr = mean_square_lr(hessians, B, ascent=c, sampling=sampling)
            assert brute_force_growth(hessians, lr, B, c, sampling) == pytest.approx(1, abs=1e-8)
            assert mean_square_growth(hessians, 1.01 * lr, B, ascent=c, sampling=sampling) > 1
            assert mean_square_growth(hessians, 0.99 * lr, B, ascent=c, sampling=sampling) < 1


@cases
@samplings
@pytest.mark.parametrize("c", [0.0, 0.4])
def test_the_smallest_batch_size_is_the_first_stable_one(case, c, sampling):
    sizes = set()
    for seed, share in itertools.product(range(4), (0.2, 0.5, 0.8, 0.97, 1.2)):
        hessians = drawn(case, seed)
        lr = share * mean_square_lr(hessians, hessians.n, ascent=c, sampling=sampling)
        growths = [brute_force_growth(hessians, lr, B, c, sampling) for B in range(1, hessians.n + 1)]
        stable = [B for B, growth in enumerate(growths, 1) if growth < 1 - 1e-12]
        smallest = mean_square_batch_size(hessians, lr, ascent=c, sampling=sampling)
        assert smallest == (min(stable) if share < 1 else None)
        sizes.add(smallest)
    assert len(sizes) > 2


@cases
@samplings
def test_the_largest_ascent_is_where_the_growth_passes_1(case, sampling):
    hessians = drawn(case, 1)
    limit = mean_square_lr(hessians, 2, sampling=sampling)
    c = mean_square_ascent(hessians, 0.6 * limit, 2, sampling=sampling)
    assert c > 0
    assert brute_force_growth(hessians, 0.6 * limit, 2, c, sampling) == pytest.approx(1, abs=1e-8)
    assert mean_square_ascent(hessians, 1.01 * limit, 2, sampling=sampling) is None


def test_equal_samples_make_no_noise_in_batches_of_one_size():
    hessians = Hessians.rank_one(np.ones((20, 1)))
    assert mean_square_lr(hessians, 1, sampling="fixed") == pytest.approx(2.0)
    assert mean_square_lr(hessians, 1) < 1.1
    assert mean_square_batch_size(hessians, 1.9, sampling="fixed") == 1


def test_one_dimension_by_hand():
    """eta (1 + c h)(h + (n/B - 1) (mean of h_i^2)/(n h)) = 2."""
    h_i = np.array([0.5, 1.0, 3.0])
    h, square = h_i.mean(), (h_i**2).mean()
    for B, c in ((1, 0.0), (2, 0.3), (3, 0.3)):
        by_hand = 2 / ((1 + c * h) * (h + (3 / B - 1) * square / (3 * h)))
        assert mean_square_lr(Hessians.diagonal(h_i[:, None]), B, ascent=c) == pytest.approx(by_hand, rel=1e-10)
        assert mean_square_lr(Hessians.dense(h_i[:, None, None]), B, ascent=c) == pytest.approx(by_hand, rel=1e-10)


def test_flat_directions_do_not_matter():
    stack = drawn("dense", 0).values
    padded = np.zeros((5, 5, 5))
    padded[:, 1:4, 1:4] = stack
    for function in (mean_square_lr, lambda h, B: mean_square_growth(h, 0.3, B, ascent=0.2)):
        assert function(Hessians.dense(padded), 2) == pytest.approx(function(Hessians.dense(stack), 2), rel=1e-10)


def test_no_curvature_is_always_stable():
    flat = Hessians.dense(np.zeros((3, 2, 2)))
    assert mean_square_growth(flat, 1.0, 1) == 1
    assert mean_square_lr(flat, 1) == math.inf
    assert mean_square_batch_size(flat, 1.0) == 1
    assert mean_square_ascent(flat, 1.0, 1) == math.inf


def test_the_mean_square_of_runs_grows_as_predicted():
    """Few steps and many repeats: the mean of ||w||^2 over runs against E[J (x) J] applied to I."""
    draw = np.random.default_rng(5)
    hessians, lr, B, c, steps = Hessians.dense(psd(draw.standard_normal((4, 2, 2)) / 2**0.5)), 0.7, 2, 0.3, 3
    run = simulate(hessians, lr=lr, batch_size=B, ascent=c, runs=Runs(steps=steps, repeats=200_000))
    H, M = hessians.mean(), np.eye(2)
    A, noise = np.eye(2) + c * H, lr**2 * (1 / B - 1 / 4) / 4
    for _ in range(steps):
        J = np.eye(2) - lr * H @ A
        M = J @ M @ J.T + noise * sum(h @ A @ M @ A @ h for h in hessians.values)
    assert np.exp(2 * run.log_norms[-1, 0]).mean() == pytest.approx(np.trace(M), rel=0.03)


@pytest.mark.parametrize("spread", [2, 4])
@pytest.mark.parametrize("share", [0.5, 0.9, 1.1])
def test_growth_if_curvatures_differ_by_orders_of_magnitude(spread, share):
    gradients = np.random.default_rng(0).standard_normal((12, 8)) * np.logspace(0, -spread, 8)
    hessians = Hessians.rank_one(gradients)
    lr = share * mean_square_lr(hessians, 3)
    dense = np.stack([np.outer(g, g) for g in gradients])
    J = np.eye(8) - lr * dense.mean(0)
    step = np.kron(J, J) + lr**2 * (1 / 3 - 1 / 12) / 12 * sum(np.kron(h, h) for h in dense)
    assert mean_square_growth(hessians, lr, 3) == pytest.approx(np.linalg.eigvalsh(step)[-1], abs=1e-12)
    assert (mean_square_growth(hessians, lr, 3) < 1) == (share < 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda h: mean_square_lr(h, 6), "batch_size must be at most 5, the number of examples, got 6"),
        (lambda h: mean_square_growth(h, 0.0, 1), "lr must be above 0, got 0.0"),
        (lambda h: mean_square_growth(h, 0.1, 1, ascent=-1.0), "ascent must be at least 0, got -1.0"),
        (lambda h: mean_square_lr(h, 1, sampling="shuffled"), "no sampling is called 'shuffled'"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(EvenlyError, match=message):
        call(quadratic(5, 2))
