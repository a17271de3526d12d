"""The Lyapunov exponent: the limit of (1/t) log||w_t|| of a single run, with probability one.

If it is above 0, almost every run diverges; if it is below 0, almost every run converges. It is never above half the
logarithm of the mean square's growth (:func:`~evenly.theory.stability.mean_square.mean_square_growth`). Between the
two, runs converge although their mean square, dominated by ever fewer of them, diverges. C.3 counts runs; the theorems
are about the mean square. For diagonal Hessians each coordinate is a product of independent factors, and the exponent
is a sum over the distribution of one factor. For others it is estimated from renormalised runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from evenly.analyses import Runs
from evenly.errors import EvenlyError
from evenly.theory.arguments import ascent_of, batch_size_of, positive, whole
from evenly.theory.stability.dynamics import binomial, log_factor, simulate
from evenly.theory.stability.hessians import Array, Hessians

LARGEST_SUPPORT = 1_000_000
"""The most values that one coordinate of H_t may take for the exact sum."""


@dataclass(frozen=True)
class Exponent:
    """The top Lyapunov exponent per step and the standard error of an estimate; 0 if exact."""

    value: float
    error: float = 0.0


def lyapunov_exponents(hessians: Hessians, lr: float, batch_size: int, *, ascent: float = 0.0) -> Array:
    """E log|1 - eta (1 + c h_a) (H_t)_aa| for each coordinate a of diagonal Hessians, (p,); the largest decides.

    -inf if a step sets the coordinate to exactly 0 with positive probability.
    """
    if hessians.kind != "diagonal":
        raise EvenlyError(f"Hessians of kind {hessians.kind!r} have no closed form; estimate by lyapunov_exponent")
    eta, B, c = positive("lr", lr), batch_size_of(batch_size, hessians.n), ascent_of(None, ascent)
    h = hessians.values.mean(0)
    exponents = np.empty(len(h))
    for a, column in enumerate(hessians.values.T):
        curvature, probability = _batch_curvature(column, B / hessians.n)
        exponents[a] = expected_log(log_factor(eta / B * (1 + c * h[a]) * curvature), probability)
    return exponents


def lyapunov_exponent(
    hessians: Hessians,
    lr: float,
    batch_size: int,
    *,
    ascent: float = 0.0,
    steps: int = 4000,
    repeats: int = 32,
    seed: int = 0,
) -> Exponent:
    """The top exponent: exact for diagonal Hessians, else the mean over `repeats` runs of their last three quarters.

    Only over the range of H (elsewhere nothing moves and the exponent is 0); -inf if H = 0.
    """
    if hessians.kind == "diagonal":
        moved = hessians.values.any(0)
        exponents = lyapunov_exponents(hessians, lr, batch_size, ascent=ascent)[moved]
        return Exponent(float(exponents.max(initial=-math.inf)))
    steps, repeats = whole("steps", steps, 4), whole("repeats", repeats, 2)
    h, on_range = hessians.on_range()
    if len(h) == 0:
        return Exponent(-math.inf)
    runs = Runs(steps=steps, repeats=repeats, seed=seed)
    run = simulate(on_range, lr=lr, batch_size=batch_size, ascent=ascent, record=(steps // 4, steps), runs=runs)
    rates = (run.log_norms[1, 0] - run.log_norms[0, 0]) / (steps - steps // 4)
    return Exponent(float(rates.mean()), float(rates.std(ddof=1)) / math.sqrt(repeats))


def expected_log(logs: Array, probability: Array) -> float:
    """sum_k p_k log_k, where log_k may be -inf and p_k may be 0."""
    return float(np.where(probability > 0, probability, 1.0) @ np.where(probability > 0, logs, 0.0))


def _batch_curvature(column: Array, probability: float) -> tuple[Array, Array]:
    """The values of sum_i x_i d_i, x_i ~ Bernoulli(probability), and their probabilities, by groups of equal d_i."""
    distinct, counts = np.unique(column[column > 0], return_counts=True)
    support = math.prod(int(count) + 1 for count in counts)
    if support > LARGEST_SUPPORT:
        raise EvenlyError(
            f"a coordinate's curvature takes {support:.3g} values, more than {LARGEST_SUPPORT}; "
            "pass the Hessians as dense matrices and estimate by lyapunov_exponent"
        )
    values, weights = np.zeros(1), np.ones(1)
    for d, count in zip(distinct, counts, strict=True):
        values = np.add.outer(values, d * np.arange(count + 1)).ravel()
        weights = np.multiply.outer(weights, binomial(int(count), probability)).ravel()
    return values, weights
