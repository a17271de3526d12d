"""Extreme eigenvalues and spectral measure of a symmetric matrix that is known by its products with vectors.

One run of Lanczos' method from a random vector q_1 gives an orthonormal basis Q (m, p) and the tridiagonal
T = Q H Q^T with eigenpairs (theta_j, s_j). Then u_j = Q^T s_j has, without another product,

    || H u_j - theta_j u_j || = beta_m |s_mj|

and sum_j s_1j^2 delta(theta_j) is Gauss' quadrature of the spectral measure of q_1, whose mean over random q_1 is the
density of the eigenvalues (Ghorbani et al. 2019; Papyan 2018).

The start may be biased towards a vector a with large components along the leading eigenvectors,
q_1 ~ g / ||g|| + a / ||a|| with g random. Eigenvectors with a large component in a then converge first, and the run may
stop before one that a lacks has grown out of g. The measure is computed from g alone, sum_j (u_j . g)^2 delta(theta_j),
which equals the above for q_1 ~ g; otherwise it is biased to the top, as the run's space does not contain all of g.

A run finds a repeated eigenvalue once. Further runs start orthogonal to the eigenvectors found so far, so they find the
other copies and see only the rest of the spectrum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from evenly.errors import EvenlyError

Times = Callable[[Tensor], Tensor]
Array = np.ndarray


@dataclass(frozen=True)
class Run:
    """One run of m steps: Ritz values (m,), residuals (m,), and squared components (m,) of g along each, with sum 1.

    A residual of `rounding` counts as 0. `exhausted`: the run ended in an invariant subspace.
    """

    values: Array
    residuals: Array
    shares: Array
    rounding: float
    exhausted: bool
    settled: bool
    directions: Array
    basis: Tensor

    def vectors(self, indices: Array) -> Tensor:
        """The Ritz vectors (k, p) of k indices."""
        coordinates = torch.from_numpy(np.ascontiguousarray(self.directions[:, indices].T))
        return coordinates.to(self.basis) @ self.basis


@dataclass(frozen=True)
class Extremes:
    """Eigenpairs, leading first, and nodes with weights (sum 1) of the spectral measure, averaged over the runs."""

    values: Array
    residuals: Array
    converged: Array
    vectors: Tensor
    nodes: Array
    weights: Array
    products: int
    runs: int


def run(
    times: Times,
    start: Tensor,
    locked: Tensor,
    settled: Callable[[Array, Array, float], bool],
    least: int,
    most: int,
    towards: Tensor | None = None,
) -> Run:
    """Lanczos steps from `start` (p,), orthogonal to the rows of `locked` (k, p), with full reorthogonalisation.

    Args:
        settled: a function of (values, residuals, rounding), whether to stop; called from `least` steps on.
        towards: the vector a that biases the start (p,).
    """
    known, size = locked.shape
    most = min(most, size - known)
    rows = start.new_empty(known + min(most, 24), size)
    rows[:known] = locked
    start, _ = _orthogonal(start, rows[:known])
    q = start / start.norm()
    if towards is not None:
        q, _ = _orthogonal(q + towards / towards.norm(), rows[:known])
        q = q / q.norm()
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    locked_products = np.zeros((known, 0))
    for step in range(1, most + 1):
        if known + step > len(rows):
            rows = torch.cat([rows, rows.new_empty(min(len(rows), most - step + 1), size)])
        rows[known + step - 1] = q
        w, coordinates = _orthogonal(times(q), rows[: known + step])
        numbers = torch.cat([coordinates, w.norm()[None]]).cpu().double().numpy()
        if not np.isfinite(numbers).all():
            raise EvenlyError(
                f"matrix-vector product {step} holds NaN or infinity; for a Hessian, look for a square root, a norm "
                "or a logarithm at 0 in the model and the loss"
            )
        diagonal.append(float(numbers[-2]))
        locked_products = np.column_stack([locked_products, numbers[:known]])
        values, directions = np.linalg.eigh(np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1))
        rounding = torch.finfo(start.dtype).eps ** 0.75 * float(np.abs(values).max())
        last = 0.0 if known + step == size else float(numbers[-1])
        residuals = np.hypot(last * np.abs(directions[-1]), np.linalg.norm(locked_products @ directions, axis=0))
        exhausted = last <= rounding
        enough = step >= least and settled(values, residuals, rounding)
        if exhausted or enough or step == most:
            break
        off_diagonal.append(last)
        q = w / last
    basis = rows[known : known + step]
    shares = ((basis @ start).cpu().double().numpy() @ directions) ** 2
    shares /= shares.sum()
    return Run(values, residuals, shares, rounding, exhausted, exhausted or enough, directions, basis)


def extremes(
    times: Times,
    draw: Callable[[int], Tensor],
    top: int,
    *,
    tolerance: float = 1e-3,
    magnitude: bool = False,
    runs: int = 1,
    least: int = 1,
    most: int = 200,
    towards: Tensor | None = None,
) -> Extremes:
    """The `top` largest eigenvalues, each to a residual of `tolerance` times the first, from one run if that suffices.

    After a run that ended in an invariant subspace, and always if `runs` exceeds 1, runs go on until one adds
    nothing to the top.

    Args:
        draw: the start (p,) of a run, by its number: Gaussian, so that the measure is right in the mean.
        magnitude: the largest by absolute value.
        least, most: bounds on the steps of a run.
        towards: the vector that biases the first start (p,).
    """
    rank = np.abs if magnitude else np.asarray
    first = draw(0)
    size = len(first)
    values, residuals = np.zeros(0), np.zeros(0)
    vectors = first.new_empty(0, size)
    nodes: list[Array] = []
    weights: list[Array] = []
    products = done = 0
    rounding = 0.0
    repeat = runs > 1

    def limit(all_values: Array, rounding: float) -> float:
        return max(tolerance * float(np.abs(all_values[np.argmax(rank(all_values))])), rounding)

    def entering(new: Array, rounding: float) -> Array:
        """The indices of a run's values that are among the top of all; in a tie the known ones win."""
        everything = np.concatenate([values, new])
        threshold = -np.inf
        if len(values) >= top:
            threshold = float(np.sort(rank(values))[-top]) + limit(everything, rounding)
        order = np.argsort(-rank(everything), kind="stable")[:top] - len(values)
        chosen = order[order >= 0]
        return chosen[rank(new)[chosen] > threshold]

    def settled(new: Array, new_residuals: Array, rounding: float) -> bool:
        if len(values) + len(new) < top:
            return False
        needed = np.append(entering(new, rounding), np.argmax(rank(new)))
        return bool((new_residuals[needed] <= limit(np.concatenate([values, new]), rounding)).all())

    while True:
        if done:
            first, towards = draw(done), None
        result = run(times, first, vectors, settled, least, most, towards)
        done += 1
        products += len(result.values)
        rounding = max(rounding, result.rounding)
        nodes.append(np.concatenate([values, result.values]))
        rest = (size - len(values)) / size
        weights.append(np.concatenate([np.full(len(values), 1 / size), rest * result.shares]))
        complete = len(values) + len(result.values) == size
        chosen = entering(result.values, result.rounding)
        values = np.concatenate([values, result.values[chosen]])
        residuals = np.concatenate([residuals, result.residuals[chosen]])
        vectors = torch.cat([vectors, result.vectors(chosen)])
        repeat |= result.exhausted
        if complete or not result.settled:
            break
        if len(values) >= top and done >= runs and not (repeat and len(chosen)):
            break
    order = np.argsort(-rank(values), kind="stable")[:top]
    values, residuals = values[order], residuals[order]
    return Extremes(
        values, residuals, residuals <= limit(values, rounding), vectors[torch.from_numpy(order).to(vectors.device)],
        np.concatenate(nodes), np.concatenate(weights) / done, products, done,
    )  # fmt: skip


def _orthogonal(w: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """w minus its projection on orthonormal rows (k, p), and the coordinates (k,) of that; twice, against rounding."""
    once = rows @ w
    w = torch.addmv(w, rows.T, once, alpha=-1)
    again = rows @ w
    return torch.addmv(w, rows.T, again, alpha=-1), once + again
