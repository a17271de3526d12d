"""The bounds against their sums written out, in float64: all batches, all y_1 ... y_k."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from evenly.analyses import Runs
from evenly.errors import EvenlyError
from evenly.theory.stability import Hessians, mean_square_growth, quadratic, simulate
from evenly.theory.stability.bounds import (
    Step,
    dense,
    epsilon,
    equation_21,
    equation_39,
    equation_64,
    equation_67,
    expected_product,
    growth_bound,
    lemma_4_1,
    noise_growth,
    noise_product,
    random_perturbation_mean_squares,
    stationary_mean_square,
    theorem_c_7_2,
    theorem_c_7_3,
    theorem_c_8_1,
    theorem_c_8_2,
    theorem_c_8_3,
    theorem_c_9_1,
    theorem_c_9_2,
    theorem_c_9_3,
)

N, D, B, C = 3, 2, 2, 0.4


def hessians(seed: int = 0, n: int = N, d: int = D) -> Hessians:
    factors = np.random.default_rng(seed).standard_normal((n, 2, d))
    return Hessians.dense(factors.transpose(0, 2, 1) @ factors)


def step(seed: int = 0, lr: float = 0.2, ascent: float = C) -> Step:
    return Step(hessians(seed), lr, B, ascent)


def batches(each: Step):
    """(probability, I - eta H_t A) of every batch."""
    H, n = dense(each.hessians), each.hessians.n
    for chosen in itertools.product((0, 1), repeat=n):
        share = each.batch_size / n
        probability = math.prod(share if x else 1 - share for x in chosen)
        H_t = np.tensordot(chosen, H, 1) / each.batch_size
        yield probability, np.eye(each.d) - each.lr * H_t @ each.amplifier, H_t


def summed(each: Step, k: int, ascent: bool = True):
    """eta^2k v^k sum over all y of the product in eq. 47."""
    H, total = dense(each.hessians), np.zeros((each.d, each.d))
    A = each.amplifier if ascent else np.eye(each.d)
    for order in itertools.product(range(each.hessians.n), repeat=k):
        product = np.eye(each.d)
        for y in order:
            product = product @ A @ H[y]
        total += product @ product.T
    return each.lr ** (2 * k) * (1 / (each.batch_size * N) - 1 / N**2) ** k * total


@pytest.mark.parametrize("k", [1, 2])
def test_the_expected_product_is_over_all_batches(k: int) -> None:
    each, total = step(), np.zeros((D, D))
    for combination in itertools.product(list(batches(each)), repeat=k):
        product = np.eye(D)
        for _, jacobian, _ in combination:
            product = jacobian @ product
        total += math.prod(probability for probability, _, _ in combination) * product.T @ product
    np.testing.assert_allclose(expected_product(each, k), total, rtol=1e-12)


def test_the_mean_of_the_squared_batch_hessian() -> None:
    each = step()
    total = sum(probability * H_t @ H_t for probability, _, H_t in batches(each))
    np.testing.assert_allclose(each.squared, total, rtol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_products_and_bounds_are_their_sums(k: int) -> None:
    each = step()
    n_k = summed(each, k)
    np.testing.assert_allclose(noise_product(each, k), n_k, rtol=1e-12)
    np.testing.assert_allclose(
        theorem_c_8_1(each, k), np.linalg.matrix_power(each.jacobian, 2 * k) + n_k, rtol=1e-12, atol=1e-15
    )
    low, top = np.linalg.eigvalsh(each.mean)
    assert theorem_c_8_2(each, k) == pytest.approx((1 + C * low) ** (2 * k) * np.trace(summed(each, k, False)))
    S = np.array([[math.sqrt(np.trace(a @ b)) for b in dense(each.hessians)] for a in dense(each.hessians)])
    sigma = np.linalg.eigvalsh(S)[-1] / np.linalg.eigvalsh(dense(each.hessians)).max()
    expected = 0.2 ** (2 * k) * 0.5**k * (1 + C * low) ** (2 * k) * top ** (2 * k) / (sigma ** (2 * k) * N * D**5)
    assert theorem_c_8_3(each, k) == pytest.approx(expected, rel=1e-12)
    eps = epsilon(each)
    upper = sum((1 - eps) ** (2 * (k - r)) * math.comb(k, r) * summed(each, r) for r in range(1, k + 1))
    np.testing.assert_allclose(theorem_c_9_1(each, k), upper + (1 - eps) ** (2 * k) * np.eye(D), rtol=1e-12)


def test_epsilon_bounds_the_jacobian() -> None:
    for seed in range(20):
        each = step(seed, lr=0.1)
        eps = epsilon(each)
        assert np.abs(np.linalg.eigvalsh(each.jacobian)).max() == pytest.approx(1 - eps, rel=1e-12)
    flat = Step(Hessians.dense(np.array([[[1.0, 0.0], [0.0, 0.0]]] * 3)), 0.1, 2)
    with pytest.raises(EvenlyError, match="no eps above 0"):
        theorem_c_9_1(flat, 2)


def test_one_term_of_equation_39() -> None:
    each, H = step(), dense(hessians())
    order, A = [0, 2, 1], np.eye(D) + C * hessians().mean()
    left = np.trace(A @ H[1] @ A @ H[2] @ A @ H[0] @ H[0] @ A @ H[2] @ A @ H[1] @ A)
    low = 1 + C * np.linalg.eigvalsh(hessians().mean())[0]
    assert equation_39(each, order)[0] == pytest.approx(left, rel=1e-12)
    assert equation_39(each, order)[1] == pytest.approx(
        low**6 * np.trace(H[1] @ H[2] @ H[0] @ H[0] @ H[2] @ H[1]), rel=1e-12
    )


def test_coherence_under_sam_by_its_definition() -> None:
    each, H = step(), dense(hessians())
    A = each.amplifier
    S = np.array([[math.sqrt(np.trace(A @ a @ A @ b)) for b in H] for a in H])
    top, sample = each.coherence
    assert top == pytest.approx(np.linalg.eigvalsh(S)[-1], rel=1e-12)
    assert sample == pytest.approx(max(np.linalg.eigvals(A @ h).real.max() for h in H), rel=1e-12)


def test_theorem_c_9_2_and_the_chain_of_its_proof() -> None:
    each, k = step(), 2
    H, A, top = dense(each.hessians), each.amplifier, each.eigenvalues[-1]
    sam, unit = top * (1 + C * top), 0.2**2 * (1 / B - 1 / N)
    assert theorem_c_9_2(each, k, "printed") == pytest.approx(
        unit**k * D ** (3 * k + 2) * N ** (4 * k) * sam ** (4 * k) / each.sigma ** (2 * k), rel=1e-12
    )
    condition = (1 + C * top) / (1 + C * each.eigenvalues[0])
    assert theorem_c_9_2(each, k) == pytest.approx(
        unit**k * D ** (k + 1) * N ** (2 * k) * sam ** (2 * k) / each.sigma ** (2 * k) * condition, rel=1e-12
    )
    norms = [np.linalg.norm(A @ h) for h in H]
    largest = max(np.linalg.eigvals(A @ h).real.max() for h in H)
    chain = equation_67(each, k)
    assert chain[0] == pytest.approx(np.trace(summed(each, k)), rel=1e-12)
    pairs = sum(a**2 * b**2 for a in norms for b in norms)
    assert chain[1] == pytest.approx(D**2 * (unit / N) ** k * pairs, rel=1e-12)
    assert chain[2] == pytest.approx(D**2 * unit**k * max(norms) ** (2 * k), rel=1e-12)
    assert chain[3] == pytest.approx(D ** (k + 2) * unit**k * largest ** (2 * k), rel=1e-12)
    assert chain[4] == theorem_c_9_2(each, k, "printed")


def test_the_growth_of_noise_and_the_bound_of_the_whole() -> None:
    each = step()
    k = 60
    ratio = np.trace(noise_product(each, k + 1)) / np.trace(noise_product(each, k))
    assert noise_growth(each) == pytest.approx(ratio, rel=1e-9)
    assert mean_square_growth(each.hessians, each.lr, B, ascent=C) <= growth_bound(each)


def test_theorem_c_9_3_and_lemma_4_1_decide_as_their_limits_do() -> None:
    answers = set()
    for lr in (0.02, 0.1, 0.5, 2.0):
        plain = step(lr=lr, ascent=0.0)
        answer = lemma_4_1(plain)
        answers.add(answer)
        growth = mean_square_growth(plain.hessians, lr, B)
        assert theorem_c_9_3(plain) == (answer == "converges")
        assert (growth < 1) if answer == "converges" else (growth > 1 or answer == "undecided")
    assert {"converges", "diverges"} <= answers


def test_equation_64_by_hand() -> None:
    each, k = hessians(), 3
    S = np.array([[math.sqrt(np.trace(a @ b)) for b in each.values] for a in each.values])
    top = np.linalg.eigvalsh(each.mean())[-1]
    left = np.linalg.eigvalsh(S)[-1] ** k
    assert equation_64(each, k, "printed") == pytest.approx((left, N ** (2 * k) * D**k * top ** (2 * k)), rel=1e-12)
    assert equation_64(each, k) == pytest.approx((left, N**k * D ** (k / 2) * top**k), rel=1e-12)
    assert left <= equation_64(each, k)[1]


def test_random_perturbation_against_its_runs_and_its_limit() -> None:
    plain, runs = step(lr=0.1, ascent=0.0), Runs(steps=6, repeats=100_000, noise=0.7, seed=3)
    run = simulate(plain.hessians, lr=0.1, batch_size=B, optimizer="random_perturbation", record=range(7), runs=runs)
    measured = np.exp(2 * run.log_norms).mean((1, 2))
    np.testing.assert_allclose(random_perturbation_mean_squares(plain, 6, 0.7), measured, rtol=0.02)
    np.testing.assert_allclose(
        random_perturbation_mean_squares(plain, 4, 0.0),
        [np.trace(expected_product(plain, k)) for k in range(5)],
        rtol=1e-12,
    )
    assert stationary_mean_square(plain, 0.7) == pytest.approx(
        random_perturbation_mean_squares(plain, 3000, 0.7)[-1], rel=1e-9
    )
    assert math.isinf(stationary_mean_square(step(lr=5.0)))


def test_equation_21_in_one_dimension_is_exact_and_as_printed_too_large() -> None:
    one = Step(Hessians.dense(np.array([[[3.0]]])), 0.8, 1)  # no batch noise: w <- -1.4 w - 2.4 delta
    exact = random_perturbation_mean_squares(one, 5)[-1]
    growth, added = 1.4**2, 2.4**2
    assert exact == pytest.approx(growth**5 + added * sum(growth**t for t in range(5)), rel=1e-12)
    assert equation_21(one, 5) == pytest.approx(exact, rel=1e-12)
    printed = growth**5 + added * sum(growth**t for t in range(1, 6))
    assert equation_21(one, 5, form="printed") == pytest.approx(printed, rel=1e-12)
    assert equation_21(one, 5, noise=0.0) == pytest.approx(growth**5, rel=1e-12)
    for form, factor in (("printed", growth / (growth - 1)), ("corrected", 1 / (growth - 1))):
        limit = equation_21(one, 60, form=form) / equation_21(one, 60, noise=0.0)  # type: ignore[arg-type]
        assert theorem_c_7_2(one, form=form) == pytest.approx(1 + added * factor, rel=1e-12)  # type: ignore[arg-type]
        assert limit == pytest.approx(1 + added * factor, rel=1e-9)


def test_theorem_c_7_3_by_hand() -> None:
    one = Step(Hessians.dense(np.array([[[3.0]]])), 0.1, 1)
    r = 0.7**2 + 0.3
    assert theorem_c_7_3(one, 2.0) == pytest.approx(0.2**2 * 9 / (1 - r), rel=1e-12)
    assert theorem_c_7_3(one, 2.0, "printed") == pytest.approx(0.2**2 * 3 * r / (1 - r), rel=1e-12)
    assert stationary_mean_square(one, 2.0) <= theorem_c_7_3(one, 2.0)


def test_kinds_of_hessians_give_the_same_and_large_ones_are_refused() -> None:
    diagonal = quadratic(6, 3)
    same = Hessians.dense(dense(diagonal))
    for k in (1, 3):
        np.testing.assert_allclose(
            expected_product(Step(diagonal, 0.3, 2, 0.1), k), expected_product(Step(same, 0.3, 2, 0.1), k), rtol=1e-12
        )
    with pytest.raises(EvenlyError, match="98 dimensions"):
        noise_growth(Step(quadratic(100, 3), 0.1, 5))
    with pytest.raises(EvenlyError, match=r"conditions of Theorem C\.9\.3"):
        theorem_c_7_3(step(lr=3.0))
    with pytest.raises(EvenlyError, match="do not grow"):
        theorem_c_7_2(step(lr=0.01))
