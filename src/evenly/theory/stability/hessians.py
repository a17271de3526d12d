"""The samples' Hessians at a minimum: dense, of low rank (as factors) or diagonal, checked when they are built.

    H_i is the Hessian of sample i's loss, symmetric and positive semidefinite;  H = (1/n) sum_i H_i

The dynamics near the minimum happen in the range of H, because each H_i vanishes on the null space of H. So exact
answers are computed there, in the eigenbasis of H: :meth:`Hessians.on_range`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from evenly.errors import EvenlyError
from evenly.theory.arguments import positive, whole

Array = np.ndarray[Any, np.dtype[np.float64]]
Kind = Literal["dense", "factors", "diagonal"]

_RANGE = 1e-12
"""Eigenvalues of H below this share of the largest count as 0."""
SMALLEST, LARGEST = 1e-60, 1e60
"""The bounds of the largest entry, so that products of a few entries stay finite."""
_COLUMNS = 8192
"""Factors are converted to float64 this many columns at a time."""


@dataclass(frozen=True, eq=False)
class Hessians:
    """A set of n Hessians in p dimensions, float64; build it by `dense`, `rank_one`, `factors` or `diagonal`.

    values: (n, p, p) if dense, (n, k, p) factors F_i with H_i = F_i^T F_i, (n, p) diagonals if diagonal.
    """

    kind: Kind
    values: Array

    @classmethod
    def dense(cls, hessians: Any) -> Hessians:
        """From (n, p, p) matrices, each symmetric and positive semidefinite up to rounding of the given precision."""
        values, slack = _array("Hessians", hessians, 3, "(n, p, p)")
        if values.shape[1] != values.shape[2]:
            raise EvenlyError(f"Hessians must have shape (n, p, p), got {values.shape}")
        scale = np.abs(values).max(axis=(1, 2))
        skew = np.abs(values - values.transpose(0, 2, 1)).max(axis=(1, 2))
        if (skew > slack * scale).any():
            i = int((skew - slack * scale).argmax())
            raise EvenlyError(
                f"Hessian {i} is not symmetric: entries differ from their mirror image by up to {skew[i]:.3g}; "
                "give (H + H^T)/2 if the difference is rounding"
            )
        values = (values + values.transpose(0, 2, 1)) / 2
        smallest = np.linalg.eigvalsh(values)[:, 0]
        if (smallest < -slack * scale).any():
            i = int((smallest + slack * scale).argmin())
            raise EvenlyError(_not_psd(i, float(smallest[i])))
        return cls("dense", values)

    @classmethod
    def rank_one(cls, gradients: Any) -> Hessians:
        """From (n, p) gradients: H_i = g_i g_i^T, as for squared loss at zero loss (scale g_i by the loss's factor)."""
        return cls.factors(_checked("gradients", gradients, 2, "(n, p)")[:, None])

    @classmethod
    def factors(cls, factors: Any) -> Hessians:
        """From (n, k, p) factors: H_i = F_i^T F_i, as the Gauss-Newton matrices of a network with k outputs.

        Only the Gram matrix of their n k rows matters, so the p columns are reduced to at most n k by a rotation.
        """
        rows = _checked("factors", factors, 3, "(n, k, p)")
        n, k, p = rows.shape
        return cls("factors", _reduced(rows.reshape(n * k, p)).reshape(n, k, -1))

    @classmethod
    def diagonal(cls, diagonals: Any) -> Hessians:
        """From (n, p) diagonals, none negative."""
        values, _ = _array("diagonals", diagonals, 2, "(n, p)")
        if values.min() < 0:
            i = int(values.min(axis=1).argmin())
            raise EvenlyError(_not_psd(i, float(values[i].min())))
        return cls("diagonal", values)

    @property
    def n(self) -> int:
        """The number of samples."""
        return len(self.values)

    @property
    def dimension(self) -> int:
        """p; for factors the dimension after the reduction, at most n k."""
        return int(self.values.shape[-1])

    @property
    def rows(self) -> Array:
        """All factors as one matrix, (n k, p)."""
        return self.values.reshape(-1, self.dimension)

    def mean(self) -> Array:
        """H = (1/n) sum_i H_i as a (p, p) matrix."""
        if self.kind == "dense":
            return _float64(self.values.mean(0))
        if self.kind == "factors":
            return _float64(self.rows.T @ self.rows / self.n)
        return np.diag(self.values.mean(0))

    def sample_eigenvalues(self) -> Array:
        """lambda_max(H_i), (n,)."""
        if self.kind == "dense":
            return _float64(np.linalg.eigvalsh(self.values)[:, -1])
        if self.kind == "factors":
            return _float64(np.linalg.eigvalsh(self.values @ self.values.transpose(0, 2, 1))[:, -1])
        return _float64(self.values.max(1))

    def coherence(self) -> Array:
        """S_ij = sqrt(Tr H_i H_j), (n, n)."""
        if self.kind == "factors":
            squares = (self.rows @ self.rows.T) ** 2
            return _float64(np.sqrt(squares.reshape(self.n, -1, self.n, self.values.shape[1]).sum((1, 3))))
        flat = self.values.reshape(self.n, -1)
        return _float64(np.sqrt(np.maximum(flat @ flat.T, 0)))

    def on_range(self) -> tuple[Array, Hessians]:
        """The positive eigenvalues h (r,) of H, and the same set written in their eigenvectors, so that H = diag(h)."""
        if self.kind == "diagonal":
            h = self.values.mean(0)
            positive_h = h > _RANGE * h.max()
            return _float64(h[positive_h]), Hessians("diagonal", self.values[:, positive_h])
        h, vectors = np.linalg.eigh(self.mean())
        positive_h = h > _RANGE * h[-1]
        basis = vectors[:, positive_h]
        values = basis.T @ self.values @ basis if self.kind == "dense" else self.values @ basis
        return _float64(h[positive_h]), Hessians(self.kind, values)

    def sandwich(self, middle: Array) -> Array:
        """sum_i H_i M H_i for a symmetric M (p, p)."""
        if self.kind == "dense":
            return _float64((self.values @ middle @ self.values).sum(0))
        if self.kind == "factors":
            half = (self.rows @ middle).reshape(self.values.shape)  # one product of matrices, not n small ones
            inner = half @ self.values.transpose(0, 2, 1)
            return _float64(self.rows.T @ (inner @ self.values).reshape(self.rows.shape))
        return _float64((self.values.T @ self.values) * middle)


def quadratic(n: int, sigma: int, largest: float = 2.0) -> Hessians:
    """The set of C.3, with coherence measure sigma and lambda_max(H) = `largest`: (n, n - sigma + 1) diagonals.

    H_i = m e_1 e_1^T for i <= sigma, m e_{i-sigma+1} e_{i-sigma+1}^T otherwise. The text says m = 2 "so that
    lambda_max(H) is controlled to be 2", but lambda_max(H) = sigma m / n: the m that does so is n largest / sigma.
    """
    n = whole("n", n, 1)
    sigma = whole("sigma", sigma, 1, n, ", which is n")
    m = n * positive("largest", largest) / sigma
    first, others = np.zeros((sigma, n - sigma + 1)), np.eye(n - sigma, n - sigma + 1, k=1)
    first[:, 0] = 1
    return Hessians.diagonal(m * np.concatenate([first, others]))


def _not_psd(i: int, smallest: float) -> str:
    return (
        f"Hessian {i} is not positive semidefinite: its smallest eigenvalue is {smallest:.3g}, so this is no minimum "
        "of that sample's loss; give the Gauss-Newton matrices instead"
    )


def _float64(values: Any) -> Array:
    return np.asarray(values, dtype=np.float64)


def _numbers(name: str, values: Any) -> np.ndarray[Any, Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "fiub":
        raise EvenlyError(f"{name} must be an array of real numbers, got {array.dtype}")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def _array(name: str, values: Any, dimensions: int, shape: str) -> tuple[Array, float]:
    """The values in float64, and the size of rounding errors in the precision they came in."""
    array = _checked(name, values, dimensions, shape)
    return _float64(array), float(np.finfo(array.dtype).eps) ** 0.5


def _checked(name: str, values: Any, dimensions: int, shape: str) -> np.ndarray[Any, Any]:
    """The values in the precision they came in."""
    array = _numbers(name, values)
    if array.ndim != dimensions or 0 in array.shape:
        raise EvenlyError(f"{name} must have shape {shape}, got {array.shape}")
    if not np.isfinite(array).all():
        raise EvenlyError(
            f"{name}: sample {_first_bad(array)} has entries that are not finite; leave it out or correct it"
        )
    largest = float(np.abs(array).max())
    if largest and not SMALLEST < largest < LARGEST:
        raise EvenlyError(
            f"{name}: powers of the largest entry, {largest:.3g}, leave the range of float64; use other units"
        )
    return array


def _first_bad(array: np.ndarray[Any, Any]) -> int:
    return int(np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(1))[0])


def _reduced(rows: np.ndarray[Any, Any]) -> Array:
    """Rows (N, p) as they are if p <= N, otherwise rows (N, r) with the same Gram matrix."""
    N, p = rows.shape
    if p <= N:
        return _float64(rows)
    gram = np.zeros((N, N))
    for start in range(0, p, _COLUMNS):
        part = rows[:, start : start + _COLUMNS].astype(np.float64)
        gram += part @ part.T
    squares, vectors = np.linalg.eigh(gram)
    nonzero = squares > _RANGE * squares[-1]
    if not nonzero.any():
        return np.zeros((N, 1))
    return _float64(vectors[:, nonzero] * np.sqrt(squares[nonzero]))
