"""Exact answers for a given set of Hessians: is E||w||^2 stable under w <- (I - eta H_t (I + c H)) w?

With H_t = (1/B) sum_i x_i H_i and x_i ~ Bernoulli(B/n), in the eigenbasis of H = diag(h), E[w w^T] grows by

    M -> J M J + eta^2 (1/B - 1/n) (1/n) sum_i H_i A M A H_i,      A = I + c H,  J = I - eta H A.

In the coordinates A^{1/2} w this map is self-adjoint, and it is positive, so its spectral radius is its largest
eigenvalue. It is below 1 if and only if, as quadratic forms on symmetric matrices N,

    eta [ H N H + (1/B - 1/n) (1/n) sum_i H_i N H_i ]  <  C N,     (C N)_ab = (h_a/(1 + c h_b) + h_b/(1 + c h_a)) N_ab.

So the largest stable learning rate and the smallest stable batch size are one eigenvalue each, found by Lanczos steps
without a p^2 x p^2 matrix. C falls in c, so a minimum that is stable for some ascent is stable for any smaller one. All
this is about the mean square: single runs may converge although their mean square diverges
(:mod:`~evenly.theory.stability.lyapunov`).

Above, each sample joins a batch independently with probability B/n: `sampling` "bernoulli", as in the theorems. Data
loaders make batches of exactly B, `sampling` "fixed". Then E[H_t N H_t] = (1 - p) H N H + (p/n) sum_i H_i N H_i with
p = (n - B)/(B (n - 1)), which for c = 0 is the condition of Mulayoff and Michaeli (2024). The noise is smaller if
samples are similar, and 0 if they are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from evenly.errors import EvenlyError, unknown
from evenly.theory.arguments import ascent_of, batch_size_of, positive
from evenly.theory.stability.hessians import Array, Hessians

_RESIDUAL = 1e-11
_ITERATIONS = 1000
SMALL = 45
"""Dimensions up to which the growth is computed from the whole matrix of its map, about a thousand wide."""
Sampling = Literal["bernoulli", "fixed"]


class Moments(NamedTuple):
    """E[H_t N H_t] = mean H N H + noise sum_i H_i N H_i."""

    mean: float
    noise: float

    @classmethod
    def of(cls, B: int, n: int, sampling: Sampling) -> Moments:
        if sampling == "bernoulli":
            return cls(1.0, (1 / B - 1 / n) / n)
        if sampling != "fixed":
            raise unknown("sampling", str(sampling), ("bernoulli", "fixed"))
        p = (n - B) / (B * (n - 1)) if n > 1 else 0.0
        return cls(1 - p, p / n)


def mean_square_growth(
    hessians: Hessians, lr: float, batch_size: int, *, ascent: float = 0.0, sampling: Sampling = "bernoulli"
) -> float:
    """The factor by which E||w||^2 grows per step in the long run: the spectral radius of M -> E[J_t M J_t^T].

    On the range of H; elsewhere nothing moves. Below 1: the mean square goes to 0. Above 1: it diverges.
    """
    eta, B, c = positive("lr", lr), batch_size_of(batch_size, hessians.n), ascent_of(None, ascent)
    h, on_range = hessians.on_range()
    if len(h) == 0:
        return 1.0
    root = np.sqrt(1 + c * h)
    inside = np.multiply.outer(root, root)
    moments = Moments.of(B, hessians.n, sampling)
    step = eta * h * (1 + c * h)
    deterministic = np.multiply.outer(1 - step, 1 - step) - (1 - moments.mean) * np.multiply.outer(step, step)
    noise = eta**2 * moments.noise

    def step_of(M: Array) -> Array:
        return deterministic * M + noise * inside * on_range.sandwich(inside * M)

    if len(h) <= SMALL:
        return _largest_of_all(step_of, len(h))
    # below the threshold the eigenvalues cluster under 1, and the last digits would take very many steps
    return _largest_eigenvalue(step_of, np.eye(len(h)), residual=1e-7)


def mean_square_lr(
    hessians: Hessians, batch_size: int, *, ascent: float = 0.0, sampling: Sampling = "bernoulli"
) -> float:
    """The learning rate below which the mean square converges and above which it diverges; inf if H = 0."""
    B, c = batch_size_of(batch_size, hessians.n), ascent_of(None, ascent)
    h, on_range = hessians.on_range()
    if len(h) == 0:
        return math.inf
    return _critical_lr(h, on_range, Moments.of(B, hessians.n, sampling), c)


def mean_square_batch_size(
    hessians: Hessians, lr: float, *, ascent: float = 0.0, sampling: Sampling = "bernoulli"
) -> int | None:
    """The smallest batch size at which the mean square converges; None if it does not even with the full batch."""
    eta, c, n = positive("lr", lr), ascent_of(None, ascent), hessians.n
    h, on_range = hessians.on_range()
    if len(h) == 0:
        return 1
    margin = _curvature(h, c) - eta * np.multiply.outer(h, h)
    if eta * h.max() * (1 + c * h.max()) >= 2 or np.any(margin <= 0):
        return None
    root = np.sqrt(margin)
    fixed = sampling == "fixed"
    reduction = np.multiply.outer(h, h) / margin if fixed else np.zeros_like(margin)
    noise = eta * _largest_eigenvalue(
        lambda N: on_range.sandwich(N / root) / (n * root) - reduction * N, np.diag(np.diag(root))
    )
    if noise <= _RESIDUAL:
        return 1
    critical = n / (1 + (n - 1) / noise) if fixed else 1 / (1 / n + 1 / noise)  # where p, or 1/B - 1/n, is 1/noise
    return min(max(math.floor(critical * (1 + 1e-12)) + 1, 1), n)


def mean_square_ascent(
    hessians: Hessians, lr: float, batch_size: int, *, sampling: Sampling = "bernoulli"
) -> float | None:
    """The ascent c = rho/alpha above which the mean square diverges; None if it already does without ascent.

    A root in c, to ten digits, with one eigenvalue per evaluation; inf if H = 0.
    """
    eta, B = positive("lr", lr), batch_size_of(batch_size, hessians.n)
    h, on_range = hessians.on_range()
    if len(h) == 0:
        return math.inf
    moments = Moments.of(B, hessians.n, sampling)

    def log_margin(c: float) -> float:
        """Above 0 if stable; falls in c."""
        return math.log(_critical_lr(h, on_range, moments, c) / eta)

    low, margin_low = 0.0, log_margin(0.0)
    if margin_low <= 0:
        return None
    top = float(h.max())
    high = (2 / (eta * top) - 1) / top  # where eta h (1 + c h) = 2 and even the full batch diverges
    margin_high = min(log_margin(high), 0.0)
    if margin_high == 0:
        return high
    side = 0
    for _ in range(_ITERATIONS):  # regula falsi, Illinois variant: an end that is retained twice counts half
        c = float((low * margin_high - high * margin_low) / (margin_high - margin_low))
        margin_c = log_margin(c)
        if abs(margin_c) < 10 * _RESIDUAL or high - low <= _RESIDUAL * high:
            break
        if margin_c > 0:
            margin_high = margin_high / 2 if side > 0 else margin_high
            low, margin_low, side = c, margin_c, 1
        else:
            margin_low = margin_low / 2 if side < 0 else margin_low
            high, margin_high, side = c, margin_c, -1
    return c


def _curvature(h: Array, c: float) -> Array:
    """h_a/(1 + c h_b) + h_b/(1 + c h_a), (r, r)."""
    ratio = np.divide.outer(h, 1 + c * h)
    return np.asarray(ratio + ratio.T, dtype=np.float64)


def _critical_lr(h: Array, on_range: Hessians, moments: Moments, c: float) -> float:
    curvature = _curvature(h, c)
    root = np.sqrt(curvature)
    deterministic = moments.mean * np.multiply.outer(h, h) / curvature
    spread = _largest_eigenvalue(
        lambda N: deterministic * N + moments.noise * on_range.sandwich(N / root) / root, np.diag(np.diag(root))
    )
    return 1 / spread


def _largest_eigenvalue(operator: Callable[[Array], Any], start: Array, residual: float = _RESIDUAL) -> float:
    """The largest eigenvalue of a self-adjoint positive map on symmetric matrices, by Lanczos steps.

    `start` must not be orthogonal to the eigenvector; any positive definite matrix will do where that is semidefinite.
    """
    previous, vector = np.zeros_like(start), start / np.linalg.norm(start)
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    for iteration in range(1, _ITERATIONS + 1):
        image = operator(vector)
        diagonal.append(float(np.vdot(vector, image)))
        image = image - diagonal[-1] * vector - (off_diagonal[-1] if off_diagonal else 0.0) * previous
        off_diagonal.append(float(np.linalg.norm(image)))
        if iteration < 30 or iteration % 10 == 0 or off_diagonal[-1] == 0:
            tridiagonal = np.diag(diagonal) + np.diag(off_diagonal[:-1], 1) + np.diag(off_diagonal[:-1], -1)
            values, vectors = np.linalg.eigh(tridiagonal)
            if off_diagonal[-1] * abs(vectors[-1, -1]) <= residual * abs(values[-1]):
                return float(values[-1])
        previous, vector = vector, image / off_diagonal[-1]
    raise EvenlyError(
        f"the eigenvalue did not converge in {_ITERATIONS} Lanczos steps, because the curvatures differ too much; use "
        "verdict or largest_stable_lr instead of the growth, or leave out directions of very small curvature"
    )


def _largest_of_all(operator: Callable[[Array], Any], size: int) -> float:
    """The same from the whole matrix of the map, on an orthonormal basis of the symmetric (size, size) matrices."""
    rows, columns = np.triu_indices(size)
    weight = np.where(rows == columns, 1.0, math.sqrt(2.0))
    images = np.empty((len(rows), len(rows)))
    for index, (a, b) in enumerate(zip(rows, columns, strict=True)):
        basis = np.zeros((size, size))
        basis[a, b] = basis[b, a] = 1 / weight[index]
        images[index] = operator(basis)[rows, columns] * weight
    return float(np.linalg.eigvalsh((images + images.T) / 2)[-1])
