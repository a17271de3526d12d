"""Extreme eigenvalues of a symmetric matrix that is known by its products with vectors, and its spectral measure.

One run of Lanczos' method from a random vector q_1 gives an orthonormal basis Q (m, p) and the tridiagonal
T = Q H Q^T with eigenpairs (theta_j, s_j). Then u_j = Q^T s_j has, without another product,

    || H u_j - theta_j u_j || = beta_m |s_mj|

and sum_j s_1j^2 delta(theta_j) is Gauss' quadrature of the spectral measure seen from q_1, whose mean over random q_1
is the eigenvalues' density (Ghorbani et al. 2019; Papyan 2018).

The start may lean towards a vector a that is rich in the leading eigenvectors, q_1 ~ g / ||g|| + a / ||a|| with g
random: one product takes from g what lies near 0. What a holds then converges first, and the run may stop before a
leading eigenvector that a lacks has grown out of g. The measure is read from g alone, sum_j (u_j . g)^2 delta(theta_j),
which is the above where q_1 ~ g; else it leans to the top, since g is not all in the space that q_1 spans.

A run sees an eigenvalue that occurs several times once. Further runs start orthogonal to the eigenvectors found so far,
so that they come upon the other copies, and look at the rest of the spectrum alone.
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
    """One run of m steps: Ritz values (m,), their residuals (m,), and the squares (m,) of what g holds of each, sum 1.

    `rounding` is the residual that counts as none; `exhausted` says that no further direction could be reached.
    """

    values: Array
    residuals: Array
    shares: Array
    rounding: float
    exhausted: bool
    settled: bool
    directions: Array
    basis: Tensor

    def vectors(self, which: Array) -> Tensor:
        """The Ritz vectors (k, p) of so many indices."""
        mixed = torch.from_numpy(np.ascontiguousarray(self.directions[:, which].T))
        return mixed.to(self.basis) @ self.basis


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
    """Lanczos steps from `start` (p,), orthogonal to the rows of `locked` (k, p), every vector to all before it.

    Args:
        settled: of (values, residuals, rounding), whether to stop; asked from `least` steps on.
        towards: what the start leans towards (p,).
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
    beside: list[float] = []
    across = np.zeros((known, 0))
    for step in range(1, most + 1):
        if known + step > len(rows):
            rows = torch.cat([rows, rows.new_empty(min(len(rows), most - step + 1), size)])
        rows[known + step - 1] = q
        w, along = _orthogonal(times(q), rows[: known + step])
        read = torch.cat([along, w.norm()[None]]).cpu().double().numpy()
        if not np.isfinite(read).all():
            raise EvenlyError(
                f"matrix-vector product {step} holds NaN or infinity; for a Hessian look for a root, a norm or a "
                "logarithm at 0 in the model and the loss"
            )
        diagonal.append(float(read[-2]))
        across = np.column_stack([across, read[:known]])
        values, directions = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
        rounding = torch.finfo(start.dtype).eps ** 0.75 * float(np.abs(values).max())
        last = 0.0 if known + step == size else float(read[-1])
        residuals = np.hypot(last * np.abs(directions[-1]), np.linalg.norm(across @ directions, axis=0))
        exhausted = last <= rounding
        enough = step >= least and settled(values, residuals, rounding)
        if exhausted or enough or step == most:
            break
        beside.append(last)
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
    """The `top` largest eigenvalues, each to a residual of `tolerance` times the first, from one run where that does.

    After a run that ended in an invariant subspace, and always where `runs` exceeds 1, runs go on until one finds
    nothing that belongs among the top.

    Args:
        draw: the start (p,) of a run, by its number: Gaussian, so that the measure is right in the mean.
        magnitude: the largest by absolute value.
        least, most: steps of a run.
        towards: what the first start leans towards (p,).
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

    def entering(found: Array, rounding: float) -> Array:
        """Which of a run's values are among the top of all; of those that tie, the ones known before."""
        everything = np.concatenate([values, found])
        bar = -np.inf
        if len(values) >= top:
            bar = float(np.sort(rank(values))[-top]) + limit(everything, rounding)
        order = np.argsort(-rank(everything), kind="stable")[:top] - len(values)
        chosen = order[order >= 0]
        return chosen[rank(found)[chosen] > bar]

    def settled(found: Array, residuals_now: Array, rounding: float) -> bool:
        if len(values) + len(found) < top:
            return False
        asked = np.append(entering(found, rounding), np.argmax(rank(found)))
        return bool((residuals_now[asked] <= limit(np.concatenate([values, found]), rounding)).all())

    while True:
        if done:
            first, towards = draw(done), None
        found = run(times, first, vectors, settled, least, most, towards)
        done += 1
        products += len(found.values)
        rounding = max(rounding, found.rounding)
        nodes.append(np.concatenate([values, found.values]))
        rest = (size - len(values)) / size
        weights.append(np.concatenate([np.full(len(values), 1 / size), rest * found.shares]))
        complete = len(values) + len(found.values) == size
        chosen = entering(found.values, found.rounding)
        values = np.concatenate([values, found.values[chosen]])
        residuals = np.concatenate([residuals, found.residuals[chosen]])
        vectors = torch.cat([vectors, found.vectors(chosen)])
        repeat |= found.exhausted
        if complete or not found.settled:
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
    """w less its part along orthonormal rows (k, p), and that part's coordinates (k,); twice, against rounding."""
    once = rows @ w
    w = torch.addmv(w, rows.T, once, alpha=-1)
    again = rows @ w
    return torch.addmv(w, rows.T, again, alpha=-1), once + again
