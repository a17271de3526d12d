"""Sets of Hessians: the same numbers from every kind, and refusals of matrices that are no Hessians at a minimum."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from evenly.errors import EvenlyError
from evenly.theory.stability import Hessians, mean_square_lr, quadratic


def dense_set(rank=2):
    factors = np.random.default_rng(0).standard_normal((3, 2, rank))
    return factors @ factors.transpose(0, 2, 1)


def test_gradients_count_only_through_their_gram_matrix():
    gradients = torch.randn(6, 20_000, generator=torch.Generator().manual_seed(0)) / 100
    wide = Hessians.rank_one(gradients)
    assert wide.values.shape == (6, 1, 6)
    np.testing.assert_allclose(wide.rows @ wide.rows.T, (gradients.double() @ gradients.double().T).numpy(), rtol=1e-12)
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 8)))[0]
    narrow = np.random.default_rng(1).standard_normal((10, 8))
    rotated, plain = (mean_square_lr(Hessians.rank_one(g), 3) for g in (narrow @ rotation, narrow))
    assert rotated == pytest.approx(plain, rel=1e-10)
    assert Hessians.rank_one(np.zeros((2, 5))).values.shape == (2, 1, 1)


def test_factors_are_sums_of_rank_ones():
    """All results for factors against those for the same matrices as dense ones, p above and below n k."""
    for p in (4, 40):
        factors = np.random.default_rng(p).standard_normal((5, 3, p)) / math.sqrt(p)
        dense = Hessians.dense(np.einsum("ika,ikb->iab", factors, factors))
        low = Hessians.factors(torch.from_numpy(factors))
        np.testing.assert_allclose(low.sample_eigenvalues(), dense.sample_eigenvalues(), rtol=1e-10)
        np.testing.assert_allclose(low.coherence(), dense.coherence(), rtol=1e-10)
        np.testing.assert_allclose(np.sort(low.on_range()[0]), np.sort(dense.on_range()[0]), rtol=1e-9)
        assert mean_square_lr(low, 2, ascent=0.3) == pytest.approx(mean_square_lr(dense, 2, ascent=0.3), rel=1e-9)


def test_the_quadratic_set():
    values = quadratic(5, 2, 2.0).values
    assert values.tolist() == [[5, 0, 0, 0], [5, 0, 0, 0], [0, 5, 0, 0], [0, 0, 5, 0], [0, 0, 0, 5]]
    assert values.mean(0).max() == 2


def test_rounding_errors_of_single_precision_are_accepted():
    stack = torch.from_numpy(dense_set(rank=1)).float()
    stack[0, 0, 1] += 1e-6
    assert Hessians.dense(stack).values.dtype == np.float64
    with pytest.raises(EvenlyError, match="not symmetric"):
        Hessians.dense(stack.double())


def changed(index, matrix):
    stack = dense_set()
    stack[index] = matrix
    return stack


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: Hessians.dense(changed(1, [[1, 0.1], [0, 1]])),
            r"Hessian 1 is not symmetric: .* 0\.1; give \(H \+ H\^T\)/2",
        ),
        (
            lambda: Hessians.dense(changed(2, [[1.0, 2.0], [2.0, 1.0]])),
            "Hessian 2 is not positive semidefinite: its smallest eigenvalue is -1,",
        ),
        (lambda: Hessians.dense(np.stack([1e10 * np.eye(2), -np.eye(2)])), "Hessian 1 is not positive semidefinite"),
        (lambda: Hessians.dense(changed(1, math.inf)), "Hessians: sample 1 has entries that are not finite"),
        (lambda: Hessians.dense(np.ones((2, 2))), r"Hessians must have shape \(n, p, p\), got \(2, 2\)"),
        (lambda: Hessians.dense(np.ones((2, 2, 3))), r"Hessians must have shape \(n, p, p\), got \(2, 2, 3\)"),
        (lambda: Hessians.diagonal([[1.0, 0.0], [0.5, -0.25]]), "Hessian 1 is not positive semidefinite: .* -0.25,"),
        (lambda: Hessians.diagonal(np.ones((0, 2))), r"diagonals must have shape \(n, p\), got \(0, 2\)"),
        (lambda: Hessians.rank_one([1.0]), r"gradients must have shape \(n, p\), got \(1,\)"),
        (lambda: Hessians.factors(np.ones((2, 3))), r"factors must have shape \(n, k, p\), got \(2, 3\)"),
        (lambda: Hessians.rank_one([[1.0], [math.nan]]), "gradients: sample 1 has entries that are not finite"),
        (lambda: Hessians.rank_one(1j * np.ones((2, 2))), "gradients must be an array of real numbers"),
        (lambda: Hessians.rank_one(np.array([["a", "b"]])), "gradients must be an array of real numbers"),
        (lambda: Hessians.rank_one(1e90 * np.ones((2, 2))), "use other units"),
        (lambda: Hessians.rank_one(1e-90 * np.ones((2, 2))), "use other units"),
        (lambda: quadratic(5, 6), "sigma must be at most 5, which is n, got 6"),
        (lambda: quadratic(5, 2, -1.0), "largest must be above 0, got -1.0"),
    ],
)
def test_refusals(build, message):
    with pytest.raises(EvenlyError, match=message) as refused:
        build()
    assert "\n" not in str(refused.value)
