"""The theorems: their formulas by hand, and against the exact answer on random sets of Hessians."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenly.errors import EvenlyError
from evenly.theory.coherence import Coherence, of_gradients
from evenly.theory.stability import (
    Hessians,
    Minimum,
    converges,
    diverges,
    largest_stable_lr,
    largest_stable_rho,
    mean_square_ascent,
    mean_square_batch_size,
    mean_square_growth,
    mean_square_lr,
    quadratic,
    smallest_stable_batch_size,
    verdict,
)

MINIMUM = Minimum(n=100, sigma=9.0, largest=2.0, smallest=0.5)


def sgd_divergence(minimum, B):
    """The smaller of sigma/(lambda sqrt(n/B - 1)) and 2/lambda."""
    noise = minimum.sigma / (minimum.largest * math.sqrt(minimum.n / B - 1)) if minimum.n > B else math.inf
    return min(noise, 2 / minimum.largest)


@pytest.mark.parametrize("B", [1, 7, 20, 99, 100])
@pytest.mark.parametrize("lr", [0.01, 0.3, 1.2])
def test_sgd_by_hand(B, lr):
    result = diverges(MINIMUM, lr, B)
    assert result.margin == pytest.approx(lr / sgd_divergence(MINIMUM, B), rel=1e-12)
    assert result.answer == ("diverges" if result.margin > 1 else "undecided")
    assert (result.theorem, result.about) == ("Dexter et al. 2024, Theorem 1", "every set")
    result = converges(MINIMUM, lr, B)
    assert result.margin == pytest.approx(2 * 9 / (lr * 2 * (100 / B - 1 + 9)), rel=1e-12)
    assert result.answer == ("converges" if result.margin > 1 else "undecided")
    assert (result.theorem, result.about) == ("Theorem 3.3", "some set")


def test_sam_by_hand():
    result = diverges(MINIMUM, 0.5, 1, ascent=0.1)
    assert result.margin == pytest.approx(0.5 * 2 * math.sqrt(99) * (1 + 0.1 * 0.5) / 9, rel=1e-12)
    assert result.theorem == "Theorem C.8"
    result = diverges(MINIMUM, 0.9, 100, ascent=0.1)  # no noise: I - eta H (I + c H) alone
    assert result.margin == pytest.approx(0.9 * 2 * 1.2 / 2, rel=1e-12)
    assert (result.answer, result.theorem) == ("diverges", "evenly: 2/eta for SAM")
    assert converges(MINIMUM, 0.3, 5, ascent=0.1).margin == pytest.approx(18 / (0.3 * 2 * 1.2 * 28), rel=1e-12)


def test_largest_sample_by_hand():
    known = dataclasses.replace(MINIMUM, largest_sample=60.0)
    result = diverges(known, 0.5, 20, ascent=0.1)
    assert result.margin == pytest.approx(0.5 * 60 * math.sqrt(4) * (1 + 0.1 * 0.6) / 100, rel=1e-12)
    assert (result.theorem, result.about) == ("evenly: largest sample eigenvalue", "every set")
    result = converges(known, 0.2, 20, ascent=0.1)
    assert result.margin == pytest.approx(2 / (0.2 * (1 + 0.1 * 2) * (2 + 4 * 60 / 100)), rel=1e-12)
    assert (result.theorem, result.about) == ("evenly: largest sample eigenvalue", "every set")


def test_random_perturbation_is_judged_as_sgd():
    for lr in (0.05, 0.3, 0.8):
        sgd, noisy = (verdict(MINIMUM, lr, 3, optimizer=name) for name in ("sgd", "random_perturbation"))
        assert (sgd.answer, sgd.margin) == (noisy.answer, noisy.margin)
    assert diverges(MINIMUM, 0.8, 3, optimizer="random_perturbation").theorem == "Theorem C.7"


def test_both_questions_at_once():
    assert verdict(MINIMUM, 1.5, 1) == diverges(MINIMUM, 1.5, 1)
    assert verdict(MINIMUM, 0.01, 1) == converges(MINIMUM, 0.01, 1)
    between = verdict(MINIMUM, 0.3, 1)
    assert between.answer == "undecided"
    assert between.margin == max(diverges(MINIMUM, 0.3, 1).margin, converges(MINIMUM, 0.3, 1).margin) < 1


def test_equality_decides_nothing():
    """As printed it would: C.3's set with n = 100, B = 50, sigma = 1, eta = 1/2 meets the bound and keeps its norm."""
    result = diverges(Minimum(100, 1.0, 2.0, 2.0), 0.5, 50)
    assert (result.answer, result.margin) == ("undecided", 1.0)
    assert mean_square_growth(quadratic(100, 1, 2.0), 0.5, 50) == pytest.approx(1, abs=1e-12)
    assert diverges(Minimum(4, 1.0, 2.0), 1.0, 4).answer == "undecided"
    assert verdict(quadratic(100, 1, 2.0), 0.5, 50).answer == "undecided"


def test_no_curvature_always_converges():
    flat = Minimum(10, 1.0, 0.0)
    assert (verdict(flat, 5.0, 1).answer, verdict(flat, 5.0, 1).margin) == ("converges", math.inf)
    assert diverges(flat, 5.0, 1).margin == 0
    assert largest_stable_lr(flat, 1).stable == math.inf
    assert Minimum.of(Hessians.diagonal(np.zeros((3, 2)))).largest == 0


def random_hessians(draw, kind):
    n, p = int(draw.integers(2, 8)), int(draw.integers(1, 7))
    scale = 10 ** draw.uniform(-1, 1, (n, 1))
    if kind == "rank_one":
        return Hessians.rank_one(scale * draw.standard_normal((n, p)))
    factors = scale[..., None] * draw.standard_normal((n, p, int(draw.integers(1, p + 1))))
    return Hessians.dense(factors @ factors.transpose(0, 2, 1))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, 10**9), st.sampled_from(["dense", "rank_one"]), st.sampled_from([0.0, 0.01, 0.3, 3.0]))
def test_the_theorems_hold_on_random_sets(seed, kind, c):
    """What they call divergent is so in mean square, and what they call convergent about every set too."""
    draw = np.random.default_rng(seed)
    hessians = random_hessians(draw, kind)
    minimum = Minimum.of(hessians)
    paper = dataclasses.replace(minimum, largest_sample=None)
    assert minimum.largest * minimum.n <= minimum.sigma * minimum.largest_sample * (1 + 1e-9)
    for B in range(1, hessians.n + 1):
        exact = mean_square_lr(hessians, B, ascent=c)
        known = largest_stable_lr(minimum, B, ascent=c)
        assert known.stable <= exact * (1 + 1e-8)
        assert exact <= known.unstable * (1 + 1e-8)
        printed = largest_stable_lr(paper, B, ascent=c)
        assert exact <= printed.unstable * (1 + 1e-8)


@pytest.mark.parametrize("sigma", [1.0, 2.0, 3.7, 9.0])
@pytest.mark.parametrize(("B", "c"), [(1, 0.0), (4, 0.3), (9, 0.0)])
def test_theorem_3_3_has_its_set(sigma, B, c):
    """floor(sigma) equal rank ones and one scaled by the fraction: just inside the bound it converges."""
    n, top = 9, 1.5
    m = n * top / sigma
    diagonals = np.zeros((n, 1))
    diagonals[: int(sigma)] = m
    if sigma % 1:
        diagonals[int(sigma)] = m * (sigma % 1)
    hessians = Hessians.diagonal(diagonals)
    result = Minimum.of(hessians)
    assert (result.sigma, result.largest) == pytest.approx((sigma, top), rel=1e-12)
    limit = largest_stable_lr(Minimum(n, sigma, top), B, ascent=c).stable
    assert mean_square_lr(hessians, B, ascent=c) >= limit * (1 - 1e-10)
    if sigma % 1 == 0:
        assert mean_square_lr(hessians, B, ascent=c) == pytest.approx(limit, rel=1e-10)


def test_theorem_3_3_says_nothing_about_other_sets():
    """Gradients spread evenly over the plane, B = 1: E||w||^2 grows by 1 - eta + eta^2 (1/4 + (1 - 1/n)/2)."""
    n = 16
    angles = math.pi * np.arange(n) / n
    hessians = Hessians.rank_one(np.stack([np.cos(angles), np.sin(angles)], 1))
    numbers = dataclasses.replace(Minimum.of(hessians), largest_sample=None)
    lr = 0.99 * largest_stable_lr(numbers, 1).stable
    result = converges(numbers, lr, 1)
    assert (result.answer, result.about) == ("converges", "some set")
    growth = mean_square_growth(hessians, lr, 1)
    assert growth == pytest.approx(1 - lr + lr**2 * (0.25 + (1 - 1 / n) / 2), rel=1e-10)
    assert growth > 1
    assert converges(Minimum.of(hessians), lr, 1).answer == "undecided"


def test_the_exact_verdict_for_given_hessians():
    hessians = Hessians.rank_one(np.random.default_rng(0).standard_normal((6, 4)))
    limit = mean_square_lr(hessians, 2, ascent=0.1)
    for ask in (diverges, converges, verdict):
        low, high = ask(hessians, limit / 1.7, 2, ascent=0.1), ask(hessians, 1.3 * limit, 2, ascent=0.1)
        assert (low.answer, low.about, high.answer) == ("converges", "this set", "diverges")
        assert (low.margin, high.margin) == pytest.approx((1.7, 1.3), rel=1e-9)


def test_exact_thresholds_for_given_hessians():
    hessians = Hessians.rank_one(np.random.default_rng(0).standard_normal((6, 4)))
    limit = mean_square_lr(hessians, 2)
    result = largest_stable_lr(hessians, 2)
    assert (result.stable, result.unstable, result.exact) == (limit, limit, True)
    smallest = mean_square_batch_size(hessians, limit)
    result = smallest_stable_batch_size(hessians, limit)
    assert (result.stable, result.unstable) == (smallest, smallest - 1)
    assert smallest == 3  # at the limit for 2 itself it is not stable
    assert smallest_stable_batch_size(hessians, 100.0) == dataclasses.replace(result, stable=None, unstable=6)
    ascent = mean_square_ascent(hessians, 0.5 * limit, 2)
    result = largest_stable_rho(hessians, 0.5 * limit, 2, gradient_norm=3.0)
    assert (result.stable, result.unstable) == (3 * ascent, 3 * ascent)
    result = largest_stable_rho(hessians, 2 * limit, 2)
    assert (result.stable, result.unstable) == (None, 0.0)


@pytest.mark.parametrize(
    "minimum", [MINIMUM, dataclasses.replace(MINIMUM, largest_sample=40.0), Minimum(100, 9.0, 2.0)]
)
@pytest.mark.parametrize("lr", [0.003, 0.05, 0.2, 0.5, 0.99, 1.1])
def test_thresholds_are_where_the_verdicts_change(minimum, lr):
    sizes = range(1, 101)
    result = smallest_stable_batch_size(minimum, lr, ascent=0.05)
    stable = [B for B in sizes if converges(minimum, lr, B, ascent=0.05).answer == "converges"]
    unstable = [B for B in sizes if diverges(minimum, lr, B, ascent=0.05).answer == "diverges"]
    assert result.stable == min(stable, default=None)
    assert result.unstable == max(unstable, default=0)
    assert (result.about == "some set") == (minimum.largest_sample is None)
    for B in (3, 40, 100):
        result = largest_stable_rho(minimum, lr, B)
        if result.stable is None:
            assert converges(minimum, lr, B).answer == "undecided"
        else:
            inside, outside = (converges(minimum, lr, B, ascent=f * result.stable) for f in (0.999, 1.001))
            assert (inside.answer, outside.answer) == ("converges", "undecided")
        if result.unstable == 0:
            assert diverges(minimum, lr, B).answer == "diverges"
        else:
            inside, outside = (diverges(minimum, lr, B, ascent=f * result.unstable) for f in (0.999, 1.001))
            assert (inside.answer, outside.answer) == ("undecided", "diverges")


def test_rho_is_the_ascent_times_the_gradient_norm():
    one, two = (largest_stable_rho(MINIMUM, 0.1, 20, gradient_norm=norm) for norm in (1.0, 2.5))
    assert (two.stable, two.unstable) == pytest.approx((2.5 * one.stable, 2.5 * one.unstable))


def test_a_minimum_from_a_coherence_and_from_hessians():
    stack = np.random.default_rng(0).standard_normal((5, 3, 3))
    stack = stack @ stack.transpose(0, 2, 1)
    S = np.array([[math.sqrt(np.trace(a @ b)) for b in stack] for a in stack])
    m = max(np.linalg.eigvalsh(h)[-1] for h in stack)
    eigenvalues = np.linalg.eigvalsh(stack.mean(0))
    expected = (5, np.linalg.eigvalsh(S)[-1] / m, eigenvalues[-1], eigenvalues[0], m)
    assert dataclasses.astuple(Minimum.of(Hessians.dense(stack))) == pytest.approx(expected, rel=1e-12)
    coherence = Coherence(5, 16.0, torch.tensor([8.0, 1.0]), 3.0, -1e-17)
    assert Minimum.of(coherence) == Minimum(5, 2.0, 3.0, 0.0, 8.0)
    of_quadratic = Minimum.of(quadratic(100, 8, 2.0))
    assert dataclasses.astuple(of_quadratic) == pytest.approx((100, 8, 2, 2 / 8, 25), rel=1e-12)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: diverges(MINIMUM, 0.1, 101), "batch_size must be at most 100, the number of examples, got 101"),
        (lambda: converges(MINIMUM, 0.0, 5), "lr must be above 0, got 0.0"),
        (lambda: verdict(MINIMUM, 0.1, 5, ascent=-0.1), "ascent must be at least 0, got -0.1"),
        (lambda: verdict(MINIMUM, 0.1, 5, ascent=0.1, optimizer="sgd"), "ascent 0.1 has no meaning for 'sgd'"),
        (lambda: verdict(MINIMUM, 0.1, 5, optimizer="smm"), "no optimizer with .* is called 'smm'; did you mean 'sam'"),
        (lambda: largest_stable_rho(MINIMUM, 0.1, 5, gradient_norm=0.0), "gradient_norm must be above 0, got 0.0"),
        (lambda: Minimum(100, 0.5, 2.0), r"sigma must be at least 1, .*, got 0.5"),
        (lambda: Minimum(0, 1.0, 2.0), "n must be at least 1, got 0"),
        (lambda: Minimum(10, 1.0, -2.0), "largest must be at least 0, got -2.0"),
        (lambda: Minimum(10, 1.0, 2.0, 3.0), "smallest must be at most largest, 2, got 3"),
        (lambda: Minimum(10, 1.0, 2.0, 0.0, math.inf), "largest_sample must be a finite number, got inf"),
        (lambda: Minimum.of(of_gradients(torch.eye(3), ascent=0.5)), r"computed with ascent 0\.5"),
    ],
)
def test_refusals(ask, message):
    with pytest.raises(EvenlyError, match=message) as refused:
        ask()
    assert "\n" not in str(refused.value)


def test_hessians_of_higher_rank_may_have_a_measure_above_n() -> None:
    minimum = Minimum.of(Hessians.dense(np.stack([np.eye(3)] * 2)))
    assert minimum.sigma == pytest.approx(2 * 3**0.5)
    assert verdict(minimum, 1.9, 2).answer == "converges"
    assert verdict(minimum, 2.1, 2).answer == "diverges"
