"""Lanczos' method on matrices of known spectrum, in float64: copies, signs, biased starts, the spectral measure."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from evenly.theory import lanczos


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrix_of(spectrum: list[float], seed: int = 0) -> Tensor:
    q = torch.linalg.qr(draw(seed, len(spectrum), len(spectrum)))[0]
    return (q * torch.tensor(spectrum, dtype=torch.float64)) @ q.T


def extremes_of(h: Tensor, top: int = 5, *, draws: int = 0, **options) -> lanczos.Extremes:
    options = {"tolerance": 1e-8, **options}
    return lanczos.extremes(h.mv, lambda number: draw(100 * draws + number, len(h)), top, **options)


SPECTRA = {
    "three ones": [1.0] * 3 + [0.0] * 97,
    "nothing": [0.0] * 20,
    "negative": [-1.0, -1.0, -2.0, -2.0, -3.0] * 4,
    "ninefold": [7.0] * 9 + [6.0] * 9 + np.linspace(-0.1, 0.1, 60).tolist(),
    "double": [5.0, 5.0, 3.0, 3.0, 2.0, *np.linspace(-8, 1, 55)],
    "below zero": [-1e-3, *np.linspace(-50, -1, 40)],
    "zero on top": [0.0, *np.linspace(-50, -1, 40)],
    "tiny": np.linspace(1e-12, 1e-10, 30).tolist(),
    "huge": np.linspace(-1e12, 1e12, 30).tolist(),
    "five": [3.0, 1.0, 0.0, -1.0, -4.0],
}


@pytest.mark.parametrize("magnitude", [False, True])
@pytest.mark.parametrize("name", SPECTRA)
def test_known_spectra_with_repeated_and_negative_eigenvalues(name, magnitude):
    exact = np.array(sorted(SPECTRA[name], key=(lambda v: -abs(v)) if magnitude else (lambda v: -v)))
    h = matrix_of(SPECTRA[name])
    result = extremes_of(h, magnitude=magnitude, runs=2)
    rank, expected = (np.abs(v) if magnitude else v for v in (result.values, exact[:5]))
    np.testing.assert_allclose(rank, expected, rtol=1e-7, atol=1e-9 * np.abs(exact).max())
    assert (np.diff(rank) <= 1e-12 * np.abs(exact).max()).all()
    assert result.converged.all()
    assert result.weights.sum() == pytest.approx(1)


def test_one_run_may_miss_copies_and_two_do_not():
    spectrum = [7.0, 7.0, 7.0, 7.0, 5.0, 4.0, 3.0, 2.0, *np.linspace(-1, 1, 300)]
    once, twice = (extremes_of(matrix_of(spectrum), tolerance=1e-3, runs=runs) for runs in (1, 2))
    np.testing.assert_allclose(once.values, [7, 5, 4, 3, 2], atol=1e-3)
    np.testing.assert_allclose(twice.values, [7, 7, 7, 7, 5], atol=1e-3)
    assert once.runs == 1
    assert twice.runs == 5  # four that find a seven, and one that finds no more
    assert twice.converged.all()


def test_copies_beyond_the_top_start_no_further_run():
    h = matrix_of([7.0] * 40 + np.linspace(-1, 1, 200).tolist())
    for seed in range(4):
        result = extremes_of(h, draws=seed, tolerance=1e-2, runs=2)
        np.testing.assert_allclose(result.values, 7, atol=1e-2)
        assert result.runs == 5


def test_residuals_of_later_runs_count_what_earlier_vectors_leave():
    h = matrix_of([9.0, 9.0, 8.0, 7.0, 6.0, *np.linspace(-3, 3, 100)])
    result = extremes_of(h, tolerance=3e-2, runs=2)
    exact = (h @ result.vectors.T - result.vectors.T * torch.from_numpy(result.values)).norm(dim=0).numpy()
    assert exact.max() > 1e-4
    np.testing.assert_allclose(result.residuals, exact, rtol=1e-6, atol=1e-12)


def test_an_invariant_subspace_starts_another_run():
    result = extremes_of(matrix_of([4.0] * 3 + [1.0] * 37))
    np.testing.assert_allclose(result.values, [4, 4, 4, 1, 1], atol=1e-9)
    assert result.runs == 4
    assert result.products <= 8


def test_the_density_is_right_in_the_mean():
    """Gauss' quadrature is exact for the moments v^T H^k v; their mean over runs is Tr H^k / p."""
    h = matrix_of([5.0, 5.0, 2.0, *np.linspace(-1, 1, 60)])
    moments = []
    for seed in range(100):
        result = extremes_of(h, 3, draws=seed, tolerance=1e-4)
        moments.append([(result.weights * result.nodes**k).sum() for k in (1, 2)])
    exact = [float(torch.linalg.matrix_power(h, k).trace()) / len(h) for k in (1, 2)]
    error = np.std(moments, axis=0) / np.sqrt(len(moments))
    assert (np.abs(np.mean(moments, axis=0) - exact) < 4 * error).all()


def test_later_runs_see_the_rest_of_the_spectrum_alone():
    h = matrix_of([50.0, 40.0, 30.0, *np.linspace(-1, 1, 60)])
    spread = {}
    for runs in (1, 2):
        traces = []
        for seed in range(40):
            result = extremes_of(h, 3, draws=seed, tolerance=1e-6, runs=runs)
            traces.append((result.weights * result.nodes).sum())
        spread[runs] = float(np.std(traces))
    assert spread[2] == pytest.approx(spread[1] / 2, rel=0.1)  # the second run's share of the error is next to none


OUTLIERS = torch.cat([torch.tensor([50.0, 20, 9, 8, 7, 5, 4.5, 4, 3.5, 3]), torch.linspace(-1, 1, 9990)]).double()
"""A diagonal (10000,): five leading eigenvalues, five close below, and a bulk."""


def biased(towards: Tensor | None, seed: int = 0, tolerance: float = 1e-3) -> lanczos.Extremes:
    return lanczos.extremes(
        OUTLIERS.mul, lambda number: draw(100 * seed + number, len(OUTLIERS)), 5, tolerance=tolerance, towards=towards
    )


def near_the_top(seed: int) -> Tensor:
    towards = torch.zeros_like(OUTLIERS)
    towards[:5] = 1
    towards[5:10] = 0.2 * draw(seed + 1000, 5)
    return towards


def test_a_start_biased_towards_the_top_needs_fewer_products():
    products = {"plain": 0, "biased": 0}
    for seed in range(6):
        for name, towards in (("plain", None), ("biased", near_the_top(seed))):
            result = biased(towards, seed)
            products[name] += result.products
            np.testing.assert_allclose(result.values, OUTLIERS[:5], atol=0.05)
            exact = (result.vectors * OUTLIERS - result.vectors * torch.from_numpy(result.values)[:, None]).norm(dim=1)
            np.testing.assert_allclose(result.residuals, exact.numpy(), rtol=1e-6, atol=1e-10)
    assert products["biased"] <= 0.88 * products["plain"]


@pytest.mark.parametrize("components", [slice(5000, None), slice(0, 1), slice(5, 6)])
def test_a_start_biased_elsewhere_misses_nothing(components):
    towards = torch.zeros_like(OUTLIERS)
    towards[components] = 1
    np.testing.assert_allclose(biased(towards, tolerance=1e-7).values, OUTLIERS[:5], rtol=1e-9)


def test_the_measure_is_computed_from_the_random_part_of_a_biased_start():
    """Moments of the measure are Tr H^k / p in the mean; read from the whole start they would be far above."""
    moments = []
    for seed in range(60):
        result = biased(near_the_top(seed), seed)
        assert result.weights.sum() == pytest.approx(1)
        moments.append([(result.weights * result.nodes**k).sum() for k in (1, 2)])
    exact = [float((OUTLIERS**k).mean()) for k in (1, 2)]
    error = np.std(moments, axis=0) / np.sqrt(len(moments))
    assert (np.abs(np.mean(moments, axis=0) - exact) < 4 * error).all()
    g = draw(0, len(OUTLIERS))
    for towards in (None, near_the_top(0)):
        result = biased(towards)
        assert result.weights[result.nodes > 49] == pytest.approx(float(g[0] / g.norm()) ** 2, rel=1e-2)
