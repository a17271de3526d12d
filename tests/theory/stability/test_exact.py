"""Exact answers for given Hessians against dense p^2 x p^2 matrices, enumeration of all batches, and long runs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from evenly.errors import EvenlyError
from evenly.theory.stability import (
    Hessians,
    lyapunov_exponent,
    lyapunov_exponents,
    mean_square_ascent,
    mean_square_batch_size,
    mean_square_growth,
    mean_square_lr,
    quadratic,
    simulate,
)


def dense_set(n, p, seed, rank=None):
    """n random PSD matrices of the given rank."""
    factors = np.random.default_rng(seed).standard_normal((n, p, rank or p))
    return factors @ factors.transpose(0, 2, 1) / p


def matrices(hessians):
    if hessians.kind == "dense":
        return hessians.values
    if hessians.kind == "factors":
        return np.einsum("ika,ikb->iab", hessians.values, hessians.values)
    return np.stack([np.diag(d) for d in hessians.values])


def brute_force_growth(stack, lr, B, c):
    """The spectral radius of E[J (x) J] over all 2^n batches, each with its probability."""
    n, p, _ = stack.shape
    H, total = stack.mean(0), np.zeros((p * p, p * p))
    for x in itertools.product((0, 1), repeat=n):
        J = np.eye(p) - lr / B * np.einsum("i,iab->ab", np.array(x, float), stack) @ (np.eye(p) + c * H)
        total += (B / n) ** sum(x) * (1 - B / n) ** (n - sum(x)) * np.kron(J, J)
    return np.abs(np.linalg.eigvals(total)).max()


CASES = {
    "dense": lambda seed: Hessians.dense(dense_set(5, 3, seed)),
    "dense, low rank": lambda seed: Hessians.dense(dense_set(4, 3, seed, rank=1)),
    "rank one, wide": lambda seed: Hessians.rank_one(np.random.default_rng(seed).standard_normal((4, 30)) / 5),
    "rank one, narrow": lambda seed: Hessians.rank_one(np.random.default_rng(seed).standard_normal((6, 2))),
    "factors": lambda seed: Hessians.factors(np.random.default_rng(seed).standard_normal((4, 2, 3)) / 2),
    "diagonal": lambda seed: Hessians.diagonal(np.random.default_rng(seed).random((5, 3))),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("lr", "B", "c"), [(0.3, 1, 0.0), (0.3, 2, 0.5), (1.1, 3, 0.2), (0.05, 4, 0.0)])
def test_growth_is_the_spectral_radius_over_all_batches(case, lr, B, c):
    hessians = CASES[case](3)
    growth = mean_square_growth(hessians, lr, B, ascent=c)
    assert growth == pytest.approx(brute_force_growth(matrices(hessians), lr, B, c), rel=1e-9)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("c", [0.0, 0.7])
def test_the_largest_lr_is_where_the_growth_passes_1(case, c):
    for seed in range(3):
        hessians = CASES[case](seed)
        for B in (1, hessians.n):
            lr = mean_square_lr(hessians, B, ascent=c)
            assert brute_force_growth(matrices(hessians), lr, B, c) == pytest.approx(1, abs=1e-8)
            assert mean_square_growth(hessians, 1.01 * lr, B, ascent=c) > 1
            assert mean_square_growth(hessians, 0.99 * lr, B, ascent=c) < 1


def test_one_dimension_by_hand():
    """eta (1 + c h)(h + (n/B - 1) (mean of h_i^2)/(n h)) = 2."""
    h_i = np.array([0.5, 1.0, 3.0])
    h, square = h_i.mean(), (h_i**2).mean()
    for B, c in ((1, 0.0), (2, 0.3), (3, 0.3)):
        by_hand = 2 / ((1 + c * h) * (h + (3 / B - 1) * square / (3 * h)))
        assert mean_square_lr(Hessians.diagonal(h_i[:, None]), B, ascent=c) == pytest.approx(by_hand, rel=1e-10)
        assert mean_square_lr(Hessians.dense(h_i[:, None, None]), B, ascent=c) == pytest.approx(by_hand, rel=1e-10)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("c", [0.0, 0.4])
def test_the_smallest_batch_size_is_the_first_stable_one(case, c):
    found = set()
    for seed, share in itertools.product(range(4), (0.2, 0.5, 0.8, 0.97, 1.2)):
        hessians = CASES[case](seed)
        lr = share * mean_square_lr(hessians, hessians.n, ascent=c)
        stable = [B for B in range(1, hessians.n + 1) if brute_force_growth(matrices(hessians), lr, B, c) < 1 - 1e-12]
        smallest = mean_square_batch_size(hessians, lr, ascent=c)
        assert smallest == (min(stable) if share < 1 else None)
        found.add(smallest)
    assert len(found) > 2


@pytest.mark.parametrize("case", CASES)
def test_the_largest_ascent_is_where_the_growth_passes_1(case):
    hessians = CASES[case](1)
    lr = 0.6 * mean_square_lr(hessians, 2)
    c = mean_square_ascent(hessians, lr, 2)
    assert c > 0
    assert brute_force_growth(matrices(hessians), lr, 2, c) == pytest.approx(1, abs=1e-8)
    assert mean_square_ascent(hessians, 1.01 * mean_square_lr(hessians, 2), 2) is None


def test_gradients_count_only_through_their_gram_matrix():
    gradients = torch.randn(6, 20_000, generator=torch.Generator().manual_seed(0)) / 100
    wide = Hessians.rank_one(gradients)
    assert wide.values.shape == (6, 1, 6)
    np.testing.assert_allclose(wide.rows @ wide.rows.T, (gradients.double() @ gradients.double().T).numpy(), rtol=1e-12)
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 8)))[0]
    narrow = np.random.default_rng(1).standard_normal((10, 8))
    assert mean_square_lr(Hessians.rank_one(narrow @ rotation), 3) == pytest.approx(
        mean_square_lr(Hessians.rank_one(narrow), 3), rel=1e-10
    )


def test_factors_are_sums_of_rank_ones():
    """Everything that is read off factors against the same matrices given densely, p above and below n k."""
    for p in (4, 40):
        factors = np.random.default_rng(p).standard_normal((5, 3, p)) / math.sqrt(p)
        dense = Hessians.dense(np.einsum("ika,ikb->iab", factors, factors))
        low = Hessians.factors(torch.from_numpy(factors))
        np.testing.assert_allclose(low.sample_eigenvalues(), dense.sample_eigenvalues(), rtol=1e-10)
        np.testing.assert_allclose(low.coherence(), dense.coherence(), rtol=1e-10)
        np.testing.assert_allclose(np.sort(low.on_range()[0]), np.sort(dense.on_range()[0]), rtol=1e-9)
        assert mean_square_lr(low, 2, ascent=0.3) == pytest.approx(mean_square_lr(dense, 2, ascent=0.3), rel=1e-9)


def test_flat_directions_do_not_matter():
    stack = dense_set(4, 3, 0)
    padded = np.zeros((4, 5, 5))
    padded[:, 1:4, 1:4] = stack
    for function in (mean_square_lr, lambda h, B: mean_square_growth(h, 0.3, B, ascent=0.2)):
        assert function(Hessians.dense(padded), 2) == pytest.approx(function(Hessians.dense(stack), 2), rel=1e-10)


def test_no_curvature_is_always_stable():
    flat = Hessians.dense(np.zeros((3, 2, 2)))
    assert mean_square_growth(flat, 1.0, 1) == 1
    assert mean_square_lr(flat, 1) == math.inf
    assert mean_square_batch_size(flat, 1.0) == 1
    assert mean_square_ascent(flat, 1.0, 1) == math.inf
    assert lyapunov_exponent(flat, 1.0, 1).value == -math.inf
    assert Hessians.rank_one(np.zeros((2, 5))).values.shape == (2, 1, 1)


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


def test_an_exponent_of_minus_infinity_where_a_step_can_end_at_0():
    assert lyapunov_exponents(Hessians.diagonal([[2.0], [2.0]]), 0.5, 1).tolist() == [-math.inf]  # 1 - .5 * 2


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


def test_the_mean_square_of_runs_grows_as_said():
    """Few steps and many repeats: the mean of ||w||^2 over runs against E[J (x) J] applied to I."""
    hessians, lr, B, c, steps = Hessians.dense(dense_set(4, 2, 5)), 0.7, 2, 0.3, 3
    run = simulate(hessians, lr=lr, batch_size=B, ascent=c, steps=steps, repeats=200_000)
    H, M = hessians.mean(), np.eye(2)
    A, noise = np.eye(2) + c * H, lr**2 * (1 / B - 1 / 4) / 4
    for _ in range(steps):
        J = np.eye(2) - lr * H @ A
        M = J @ M @ J.T + noise * sum(h @ A @ M @ A @ h for h in hessians.values)
    assert np.exp(2 * run.log_norms[-1, 0]).mean() == pytest.approx(np.trace(M), rel=0.03)


def bad_stack(change):
    stack = dense_set(3, 2, 0)
    change(stack)
    return stack


def asymmetric(stack):
    stack[1, 0, 1] += 0.1


def indefinite(stack):
    stack[2] = [[1.0, 2.0], [2.0, 1.0]]


def infinite(stack):
    stack[1, 0, 0] = math.inf


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Hessians.dense(bad_stack(asymmetric)), r"Hessian 1 is not symmetric: .* 0\.1; give \(H \+ H\^T\)/2"),
        (lambda: Hessians.dense(bad_stack(indefinite)), "Hessian 2 is not positive .*: its smallest eigenvalue is -1,"),
        (lambda: Hessians.dense(bad_stack(infinite)), "Hessians: sample 1 has entries that are not finite"),
        (lambda: Hessians.dense(np.ones((2, 2))), r"Hessians of shape \(2, 2\) cannot be used; give \(n, p, p\)"),
        (lambda: Hessians.dense(np.ones((2, 2, 3))), r"Hessians of shape \(2, 2, 3\) are not square"),
        (lambda: Hessians.diagonal([[1.0, 0.0], [0.5, -0.25]]), "Hessian 1 is not positive semidefinite: .* -0.25,"),
        (lambda: Hessians.diagonal(np.ones((0, 2))), r"diagonals of shape \(0, 2\) cannot be used"),
        (lambda: Hessians.rank_one([1.0]), r"gradients of shape \(1,\) cannot be used; give \(n, p\)"),
        (lambda: Hessians.factors(np.ones((2, 3))), r"factors of shape \(2, 3\) cannot be used; give \(n, k, p\)"),
        (lambda: Hessians.rank_one([[1.0], [math.nan]]), "gradients: sample 1 has entries that are not finite"),
        (lambda: quadratic(5, 6), r"sigma 6 is outside 1\.\.5; give a whole number from 1 to 5 \(n\)"),
        (lambda: quadratic(5, 2, -1.0), "largest -1 is not above 0"),
        (lambda: mean_square_lr(quadratic(5, 2), 6), r"batch size 6 is outside 1\.\.5; .* \(the number of examples\)"),
        (lambda: mean_square_growth(quadratic(5, 2), 0.0, 1), "lr 0 is not above 0"),
        (lambda: mean_square_growth(quadratic(5, 2), 0.1, 1, ascent=-1.0), "ascent -1 is negative"),
        (lambda: lyapunov_exponents(Hessians.rank_one([[1.0]]), 0.1, 1), "'factors' have no closed form"),
        (
            lambda: lyapunov_exponents(Hessians.diagonal(np.random.default_rng(0).random((30, 1))), 0.1, 3),
            r"takes 1\.07e\+09 values, more than 1000000; pass .* dense",
        ),
    ],
)  # fmt: skip
def test_refusals(build, message):
    with pytest.raises(EvenlyError, match=message) as refused:
        build()
    assert "\n" not in str(refused.value)


def test_single_precision_is_forgiven_its_rounding():
    stack = torch.from_numpy(dense_set(3, 4, 0, rank=1)).float()
    stack[0, 0, 1] += 1e-6
    assert Hessians.dense(stack).values.dtype == np.float64
    with pytest.raises(EvenlyError, match="not symmetric"):
        Hessians.dense(stack.double())


@pytest.mark.parametrize("spread", [2, 4])
@pytest.mark.parametrize("share", [0.5, 0.9, 1.1])
def test_growth_where_curvatures_lie_far_apart(spread: int, share: float) -> None:
    gradients = np.random.default_rng(0).standard_normal((12, 8)) * np.logspace(0, -spread, 8)
    hessians = Hessians.rank_one(gradients)
    lr = share * mean_square_lr(hessians, 3)
    dense = np.stack([np.outer(g, g) for g in gradients])
    J = np.eye(8) - lr * dense.mean(0)
    step = np.kron(J, J) + lr**2 * (1 / 3 - 1 / 12) / 12 * sum(np.kron(h, h) for h in dense)
    assert mean_square_growth(hessians, lr, 3) == pytest.approx(np.linalg.eigvalsh(step)[-1], abs=1e-12)
    assert (mean_square_growth(hessians, lr, 3) < 1) == (share < 1)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (1j * np.ones((2, 2)), "are not real numbers"),
        (np.array([["a", "b"]]), "are not real numbers"),
        (1e90 * np.ones((2, 2)), "measure in other units"),
        (1e-90 * np.ones((2, 2)), "measure in other units"),
    ],
)
def test_arrays_that_cannot_be_computed_with(values: np.ndarray, said: str) -> None:
    with pytest.raises(EvenlyError, match=said):
        Hessians.rank_one(values)


def test_each_hessian_is_judged_by_its_own_size() -> None:
    with pytest.raises(EvenlyError, match="Hessian 1 is not positive semidefinite"):
        Hessians.dense(np.stack([1e10 * np.eye(2), -np.eye(2)]))


def enumerated(gradients: np.ndarray, lr: float, B: int, c: float) -> float:
    """The spectral radius of E[J (x) J] over all batches of exactly B, each as likely."""
    dense = np.stack([np.outer(g, g) for g in gradients])
    n, p = gradients.shape
    ascent = np.eye(p) + c * dense.mean(0)
    batches = list(itertools.combinations(range(n), B))
    steps = [np.eye(p) - lr * dense[list(batch)].mean(0) @ ascent for batch in batches]
    return float(np.abs(np.linalg.eigvals(sum(np.kron(J, J) for J in steps) / len(batches))).max())


@pytest.mark.parametrize("c", [0.0, 0.3])
@pytest.mark.parametrize("B", [1, 2, 4, 5])
def test_batches_of_exactly_b_against_all_of_them(B: int, c: float) -> None:
    gradients = np.random.default_rng(1).standard_normal((5, 3))
    hessians = Hessians.rank_one(gradients)
    for lr in (0.1, 0.4, 0.9):
        growth = mean_square_growth(hessians, lr, B, ascent=c, sampling="fixed")
        assert growth == pytest.approx(enumerated(gradients, lr, B, c), abs=1e-10)
    limit = mean_square_lr(hessians, B, ascent=c, sampling="fixed")
    assert enumerated(gradients, limit, B, c) == pytest.approx(1.0, abs=1e-8)
    ascent = mean_square_ascent(hessians, 0.5 * limit, B, sampling="fixed")
    assert ascent is not None
    assert enumerated(gradients, 0.5 * limit, B, ascent) == pytest.approx(1.0, abs=1e-7)


@pytest.mark.parametrize("share", [0.1, 0.4, 0.7, 0.95])
def test_the_smallest_batch_of_exactly_b(share: float) -> None:
    gradients = np.random.default_rng(2).standard_normal((6, 3))
    hessians = Hessians.rank_one(gradients)
    lr = share * mean_square_lr(hessians, 6, sampling="fixed")
    stable = [B for B in range(1, 7) if enumerated(gradients, lr, B, 0.0) < 1]
    assert mean_square_batch_size(hessians, lr, sampling="fixed") == stable[0]


def test_samples_that_are_the_same_make_no_noise_in_batches_of_one_size() -> None:
    hessians = Hessians.rank_one(np.ones((20, 1)))
    assert mean_square_lr(hessians, 1, sampling="fixed") == pytest.approx(2.0)
    assert mean_square_lr(hessians, 1) < 1.1
    assert mean_square_batch_size(hessians, 1.9, sampling="fixed") == 1
    with pytest.raises(EvenlyError, match="no sampling of batches is called 'shuffled'"):
        mean_square_lr(hessians, 1, sampling="shuffled")
