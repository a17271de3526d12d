"""Lyapunov exponents against enumeration of all batches, the deterministic rate and long runs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from evenly.errors import EvenlyError
from evenly.theory.stability import Hessians, lyapunov_exponent, lyapunov_exponents, mean_square_growth, quadratic


def test_exponents_of_diagonals_over_all_batches():
    d = np.array([[1.0, 0.0], [1.0, 0.7], [2.5, 0.7], [0.3, 3.0]])
    n, lr, B, c = 4, 0.6, 2, 0.25
    expected = np.zeros(2)
    for x in itertools.product((0, 1), repeat=n):
        chance = (B / n) ** sum(x) * (1 - B / n) ** (n - sum(x))
        expected += chance * np.log(np.abs(1 - lr / B * (np.array(x) @ d) * (1 + c * d.mean(0))))
    exponents = lyapunov_exponents(Hessians.diagonal(d), lr, B, ascent=c)
    np.testing.assert_allclose(exponents, expected, rtol=1e-12)
    top = lyapunov_exponent(Hessians.diagonal(d), lr, B, ascent=c)
    assert (top.value, top.error) == (exponents.max(), 0.0)


def test_an_exponent_of_minus_infinity_if_a_step_can_end_at_0():
    assert lyapunov_exponents(Hessians.diagonal([[2.0], [2.0]]), 0.5, 1).tolist() == [-math.inf]  # 1 - .5 * 2
    assert lyapunov_exponent(Hessians.dense(np.zeros((3, 2, 2))), 1.0, 1).value == -math.inf


def test_the_full_batch_exponent_is_the_deterministic_rate():
    hessians = quadratic(10, 3, 1.0)
    h = hessians.values.mean(0)
    np.testing.assert_allclose(lyapunov_exponents(hessians, 0.4, 10), np.log(np.abs(1 - 0.4 * h)), rtol=1e-12)


def test_the_estimated_exponent_agrees_with_the_closed_form():
    diagonal = np.random.default_rng(0).random((6, 3)) * 3
    exact = lyapunov_exponent(Hessians.diagonal(diagonal), 0.9, 2, ascent=0.2)
    dense = Hessians.dense(np.stack([np.diag(d) for d in diagonal]))
    estimate = lyapunov_exponent(dense, 0.9, 2, ascent=0.2, steps=2000, repeats=32)
    assert 0 < estimate.error < 0.02
    assert abs(estimate.value - exact.value) < 4 * estimate.error


def test_runs_never_grow_faster_than_their_mean_square():
    for seed in range(3):
        hessians = Hessians.rank_one(np.random.default_rng(seed).standard_normal((6, 4)))
        exponent = lyapunov_exponent(hessians, 0.5, 1, steps=800, repeats=16)
        assert exponent.value - 4 * exponent.error < math.log(mean_square_growth(hessians, 0.5, 1)) / 2


@pytest.mark.parametrize(
    ("hessians", "message"),
    [
        (Hessians.rank_one(np.ones((3, 1))), "'factors' have no closed form"),
        (
            Hessians.diagonal(np.random.default_rng(0).random((30, 1))),
            r"takes 1\.07e\+09 values, more than 1000000; pass .* dense",
        ),
    ],
)
def test_exponents_without_a_closed_form_are_refused(hessians, message):
    with pytest.raises(EvenlyError, match=message):
        lyapunov_exponents(hessians, 0.1, 3)
