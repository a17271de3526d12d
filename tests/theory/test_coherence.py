"""Coherence of given Hessians, gradients and factors against the definition by matrix square roots, in float64."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from evenly.errors import EvenlyError
from evenly.theory import coherence as theory
from evenly.theory.coherence import Coherence, of_factors, of_gradients, of_hessians
from evenly.theory.factors import InMemory, projected


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.T


def by_definition(hessians: Tensor, c: float = 0.0) -> Coherence:
    """Every quantity from dense matrices, one pair at a time, with square roots; c > 0 as eqs 65-66, 79 have it."""
    n, p, _ = hessians.shape
    mean = sum(hessians) / n
    amplifier = torch.eye(p, dtype=torch.float64) + c * mean
    s = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            if c == 0:
                s[i, j] = torch.linalg.matrix_norm(root(hessians[i]) @ root(hessians[j]))
            else:
                s[i, j] = torch.trace(amplifier @ hessians[i] @ amplifier @ hessians[j]).clamp(min=0).sqrt()
    own = torch.tensor([torch.linalg.eigvals(amplifier @ h).real.max() for h in hessians], dtype=torch.float64)
    spectrum = torch.linalg.eigvals(amplifier @ mean).real
    return Coherence(
        n=n,
        largest_eigenvalue=float(torch.linalg.eigvalsh(s).max()),
        sample_eigenvalues=own,
        largest_hessian_eigenvalue=float(spectrum.max()),
        smallest_hessian_eigenvalue=float(spectrum.min()),
        ascent=c,
        matrix=s,
    )


def assert_same(result: Coherence, expected: Coherence, tolerance: float = 1e-10, *, smallest: bool = True) -> None:
    """All quantities to within the tolerance times the largest of their kind."""
    assert (result.n, result.ascent) == (expected.n, expected.ascent)
    near = {"rtol": 0.0, "atol": tolerance * max(1.0, float(expected.matrix.max()))}
    torch.testing.assert_close(result.matrix, expected.matrix, **near)
    torch.testing.assert_close(result.sample_eigenvalues, expected.sample_eigenvalues, **near)
    for name in ("largest_eigenvalue", "largest_sample_eigenvalue", "largest_hessian_eigenvalue", "measure"):
        assert getattr(result, name) == pytest.approx(getattr(expected, name), rel=tolerance), name
    if smallest:
        scale = max(1.0, expected.largest_hessian_eigenvalue)
        assert abs(result.smallest_hessian_eigenvalue - expected.smallest_hessian_eigenvalue) <= tolerance * scale


SHAPES = [
    (1, 1, 1),
    (1, 4, 6),
    (6, 2, 1),
    (5, 1, 7),
    (7, 3, 4),
    (4, 9, 6),
    (8, 2, 30),
    (12, 5, 5),
    (3, 1, 2),
    (9, 4, 12),
]


@pytest.mark.parametrize("case", range(50))
def test_hessians_and_factors_against_the_definition(case):
    """50 sets: n = 1, p = 1, rank-deficient, full rank, scales from 0.1 to 10, SGD and SAM."""
    n, k, p = SHAPES[case % len(SHAPES)]
    c = (0.0, 0.3, 0.0, 2.0, 0.05)[case // len(SHAPES)]
    factors = draw(case, n, k, p) * 10.0 ** (2 * torch.rand(n, 1, 1, generator=torch.Generator().manual_seed(case)) - 1)
    hessians = factors.mT @ factors
    expected = by_definition(hessians, c)
    result = of_hessians(hessians, ascent=c)
    assert_same(result, expected)
    assert_same(of_factors(factors, ascent=c), expected)
    assert result.measure >= 1 - 1e-12
    if k == 1:
        assert_same(of_gradients(factors[:, 0], ascent=c), expected)
        assert result.measure <= n + 1e-9
    if k == 1 and c == 0:
        torch.testing.assert_close(result.matrix, (factors[:, 0] @ factors[:, 0].T).abs())


@pytest.mark.parametrize("c", [0.0, 0.4])
@pytest.mark.parametrize("way", [theory._through_hessian, theory._through_gram, theory._through_blocks])
@pytest.mark.parametrize("memory", [2**30, 3000, 1])
def test_every_way_and_every_block_size(way, memory, c):
    factors = draw(3, 23, 3, 19)
    result = way(InMemory(factors), c, memory)
    assert_same(result, by_definition(factors.mT @ factors, c), smallest=way is theory._through_hessian)


@pytest.mark.parametrize(("n", "k", "p", "taken"), [(9, 2, 5, "hessian"), (9, 1, 50, "gram"), (9, 2, 50, "gram")])
def test_the_smaller_side_is_taken(monkeypatch, n, k, p, taken):
    ways = []
    for name in ("hessian", "gram", "blocks"):
        true = getattr(theory, f"_through_{name}")
        monkeypatch.setattr(theory, f"_through_{name}", lambda *a, n=name, t=true: (ways.append(n), t(*a))[1])
    of_factors(draw(0, n, k, p))
    of_factors(draw(0, n, k, p), memory=1)
    assert ways == [taken, "blocks" if taken == "gram" and k > 1 else taken]


def test_factors_that_fit_are_asked_for_once():
    class Counted(InMemory):
        asked = 0

        def rows(self, start, stop):
            Counted.asked += stop - start
            return super().rows(start, stop)

    factors = draw(0, 40, 1, 300)
    theory.of_stream(Counted(factors))
    assert Counted.asked == 40
    Counted.asked = 0
    theory.of_stream(Counted(factors[:, :, :20]), ascent=0.1)
    assert Counted.asked == 40
    expected = of_gradients(factors[:, 0])
    Counted.asked, memory = 0, 40 * 300 * 8 // 2
    assert_same(theory.of_stream(Counted(factors), memory=memory), expected)
    assert Counted.asked == 10 + 30 + 10 + 20 + 10 + 10 + 10  # quarters: kept one after the other, the later pass by


def test_large_matrices_by_lanczos(monkeypatch):
    hessians = draw(5, 30, 2, 40)
    expected = of_factors(hessians)
    monkeypatch.setattr(theory, "DENSE", 4)
    result = of_factors(hessians)
    assert result.largest_eigenvalue == pytest.approx(expected.largest_eigenvalue, rel=1e-12)
    assert result.largest_hessian_eigenvalue == pytest.approx(expected.largest_hessian_eigenvalue, rel=1e-12)


def test_lanczos_on_a_flat_spectrum_and_on_zero():
    assert theory.largest_of_operator(lambda v: v * torch.linspace(0, 1, 400, dtype=torch.float64), draw(0, 400)) == (
        pytest.approx(1.0, rel=1e-9)
    )
    assert theory.largest_of_operator(torch.zeros_like, draw(0, 10)) == 0.0
    assert theory.largest_of_operator(lambda v: 3 * v, draw(0, 10)) == pytest.approx(3.0, rel=1e-12)


def test_without_convergence_the_whole_spectrum_is_computed(monkeypatch):
    matrix = draw(1, 6, 6)
    matrix = matrix @ matrix.T
    monkeypatch.setattr(theory, "DENSE", 2)
    monkeypatch.setattr(theory, "_lanczos", lambda *_: (0.0, False))
    assert theory.largest_eigenvalue(matrix) == pytest.approx(float(torch.linalg.eigvalsh(matrix)[-1]), rel=1e-12)


def test_orthogonal_and_alike_samples():
    assert of_gradients(torch.eye(5, dtype=torch.float64)).measure == pytest.approx(1.0, abs=1e-12)
    assert of_gradients(torch.ones(5, 3, dtype=torch.float64)).measure == pytest.approx(5.0, abs=1e-12)
    zero = of_gradients(torch.zeros(3, 4, dtype=torch.float64))
    assert math.isnan(zero.measure)
    assert zero.largest_eigenvalue == 0.0


def test_float32_is_summed_in_float64():
    """300,000 columns: products all in float32 would be off by more."""
    factors = (draw(1, 32, 1, 300_000) + 1).float()
    result, exact = of_factors(factors), of_factors(factors.double())
    torch.testing.assert_close(result.matrix, exact.matrix, rtol=2e-7, atol=0)
    assert result.matrix.dtype == torch.float64
    assert result.largest_hessian_eigenvalue == pytest.approx(exact.largest_hessian_eigenvalue, rel=1e-6)


def test_result_is_short_to_read_and_frozen():
    result = of_gradients(draw(0, 4, 3))
    assert repr(result).startswith("Coherence(n=4, measure=")
    assert len(repr(result)) < 200
    assert "±" in repr(of_gradients(draw(0, 4, 30), sketch=8))
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.n = 3


# ---- sketches


def coherent(seed: int, n: int, k: int, p: int) -> Tensor:
    """Factors that share directions, as a trained network's do: a quarter of each row is common."""
    return draw(seed, n, k, p) * 0.5 + draw(seed + 1000, 1, k, p) + draw(seed + 2000, n, 1, 1)


@pytest.mark.parametrize(("k", "p"), [(1, 500), (3, 403)])
def test_a_sketch_is_unbiased_for_the_traces_and_its_variance_is_within_the_formula(k, p):
    n, m, repeats = 3, 20, 3000
    factors = coherent(0, n, k, p) / p**0.5
    hessians, (i, j) = factors.mT @ factors, torch.triu_indices(n, n, 1)
    traces = (hessians[i] * hessians[j]).sum((1, 2))
    estimates = torch.stack([_trace_estimates(InMemory(factors), m, seed)[i, j] for seed in range(repeats)])
    error = estimates.std(0) / repeats**0.5
    assert bool(((estimates.mean(0) - traces).abs() < 4 * error).all())
    top = torch.linalg.eigvalsh(hessians)[:, -1]
    norm = torch.linalg.matrix_norm(hessians)
    bound = 4 / m * top[i] * top[j] * traces + ((norm[i] * norm[j] + traces) / m) ** 2
    assert bool(((0.02 * bound < estimates.var(0)) & (estimates.var(0) < 1.1 * bound)).all())


def _trace_estimates(factors: InMemory, m: int, seed: int) -> Tensor:
    """T_ij, which may be negative, from the two projections."""
    sketches, _ = projected(factors, m, seed=seed)
    a, b = (torch.einsum("iap,jbp->iajb", sketch, sketch) for sketch in sketches)
    return (a * b).sum((1, 3))


@pytest.mark.parametrize(("n", "k", "p", "m"), [(30, 1, 4000, 800), (20, 9, 3000, 800)])
def test_a_sketch_errs_less_than_it_says(n, k, p, m):
    factors = coherent(7, n, k, p)
    exact = of_factors(factors)
    errors, bounds = [], []
    for seed in range(20):
        result = of_factors(factors, sketch=m, seed=seed)
        errors.append(abs(result.largest_eigenvalue - exact.largest_eigenvalue))
        bounds.append(result.error_bound)
        torch.testing.assert_close(result.matrix.diagonal(), exact.matrix.diagonal())
        torch.testing.assert_close(result.sample_eigenvalues, exact.sample_eigenvalues)
        assert result.largest_hessian_eigenvalue == pytest.approx(exact.largest_hessian_eigenvalue, rel=1e-9)
    assert sum(error > bound for error, bound in zip(errors, bounds, strict=True)) <= 1
    assert max(errors) > 0
    assert max(bounds) < 0.75 * exact.largest_eigenvalue, "the bound says something"
    piecewise = of_factors(factors, sketch=m, seed=19, memory=2000).largest_eigenvalue
    assert piecewise == pytest.approx(result.largest_eigenvalue, rel=1e-12)


def test_a_sketch_is_the_root_of_the_estimates_with_an_exact_diagonal():
    factors = coherent(3, 6, 2, 90)
    expected = _trace_estimates(InMemory(factors), 16, seed=5).clamp(min=0).sqrt()
    expected.diagonal().copy_(torch.linalg.matrix_norm(factors @ factors.mT))
    torch.testing.assert_close(of_factors(factors, sketch=16, seed=5).matrix, expected)


def test_the_stated_bound_written_out():
    factors, m = coherent(2, 5, 2, 60), 16
    spectra = torch.linalg.eigvalsh(factors.mT @ factors)
    spread = 4 * spectra[:, -1].sum() ** 2 + spectra.square().sum(1).sqrt().sum() ** 2
    expected = float((spread * (1 + 4 / m) / (0.05 * m)).sqrt())
    assert of_factors(factors, sketch=m).error_bound == pytest.approx(expected, rel=1e-9)


def test_a_sketch_as_wide_as_the_parameters_is_exact():
    factors = draw(0, 6, 2, 30)
    result = of_factors(factors, sketch=30)
    assert result.error_bound == 0.0
    torch.testing.assert_close(result.matrix, of_factors(factors).matrix)


def test_no_global_randomness():
    before = torch.random.get_rng_state()
    of_gradients(draw(0, 4, 30), sketch=8)
    assert torch.equal(before, torch.random.get_rng_state())


# ---- refusals

GOOD = torch.eye(3, dtype=torch.float64).repeat(4, 1, 1)


def spoiled(index: int, value: Tensor) -> Tensor:
    hessians = GOOD.clone()
    hessians[index] = value
    return hessians


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: of_hessians(spoiled(2, torch.diag(torch.tensor([1.0, 2.0, -0.25])))),
            "Hessian 2 is not positive semi-definite: its smallest eigenvalue is -0.25",
        ),
        (
            lambda: of_hessians(spoiled(1, torch.tensor([[1.0, 0.5, 0], [0, 1, 0], [0, 0, 1]]))),
            r"Hessian 1 is not symmetric: .* by 0.5 \(smallest eigenvalue of its symmetric part 0.75\)",
        ),
        (lambda: of_hessians(spoiled(3, GOOD[0] * math.nan)), "Hessian 3 holds NaN"),
        (lambda: of_hessians(GOOD[:, :2]), r"Hessians must have shape \(n, p, p\), each at least 1, got \(4, 2, 3\)"),
        (lambda: of_hessians(GOOD[:0]), r"Hessians must have shape .* got \(0, 3, 3\)"),
        (lambda: of_hessians(GOOD.long()), "Hessians must be floating-point numbers, got torch.int64"),
        (lambda: of_gradients(GOOD), r"gradients must have shape \(n, p\), a row for each sample, got \(4, 3, 3\)"),
        (lambda: of_factors(GOOD[0]), r"factors must have shape \(n, k, p\), each at least 1, got \(3, 3\)"),
        (lambda: of_factors(GOOD.long()), "factors must be floating-point numbers, got torch.int64"),
        (lambda: of_factors(spoiled(3, GOOD[0] * math.inf)), "gradient of sample 3 holds NaN or infinity"),
        (lambda: of_factors(GOOD, sketch=2, ascent=0.1), "sketch 2 has no error bound with ascent 0.1"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(call, words):
    with pytest.raises(EvenlyError, match=words) as refused:
        call()
    assert "\n" not in str(refused.value)


def test_the_tolerance_of_the_refusals():
    """Negative or uneven by less than 1.5e-8 of the matrix is rounding; by more it is refused."""
    assert of_hessians(spoiled(0, torch.diag(torch.tensor([1.0, 1.0, -1e-8])))).n == 4
    with pytest.raises(EvenlyError, match="Hessian 0 is not positive"):
        of_hessians(spoiled(0, torch.diag(torch.tensor([1.0, 1.0, -2e-8]))))
    uneven = torch.eye(3, dtype=torch.float64)
    uneven[0, 1] = 1e-8
    assert of_hessians(spoiled(0, uneven)).n == 4
    uneven[0, 1] = 2e-8
    with pytest.raises(EvenlyError, match="Hessian 0 is not symmetric"):
        of_hessians(spoiled(0, uneven))
