"""Simulation of the linear dynamics at a minimum: any Hessians, all cells and repeats at once; C.3's in closed form.

    sgd                  w <- w - eta H_t w
    random_perturbation  w <- w - eta H_t (w + delta_t),     delta_t ~ N(0, noise^2 I), a new draw each step
    sam                  w <- w - eta H_t (w + c H w),       c = rho/alpha; with ascent_on="batch"  w + c H_t w
    normalized_sam       w <- w - eta H_t (w + rho H w/||H w||); with ascent_on="batch" by H_t w

H_t = (1/B) sum_i x_i H_i, x_i ~ Bernoulli(B/n). Norms are stored as logarithms and w is rescaled on the way, so nothing
overflows. The last form never reaches the minimum: :func:`normalized_sam_radius`. Neither does random perturbation. The
paper does not give its scale; the default of `noise` is that of :class:`evenly.RandomPerturbation`, 0.01.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from evenly.analyses import Runs
from evenly.errors import EvenlyError, unknown
from evenly.theory.arguments import OPTIMIZERS, ascent_of, batch_size_of, not_negative, positive, whole
from evenly.theory.stability.hessians import Array, Hessians

SIMULATED = (*OPTIMIZERS, "normalized_sam")
_EXTREME = 2.0**300


RUNS = Runs()
"""The runs of C.3."""


@dataclass(frozen=True, eq=False)
class Simulation:
    """log||w_t|| of every run, (recorded steps, cells, repeats), and at the start, (cells, repeats).

    -inf stands for a norm of exactly 0.
    """

    log_norms: Array
    log_start: Array

    @property
    def log_growth(self) -> Array:
        """log(||w_T||/||w_0||) at the last recorded step, (cells, repeats)."""
        return np.asarray(self.log_norms[-1] - self.log_start, dtype=np.float64)


def simulate(
    hessians: Hessians | Sequence[Hessians],
    *,
    lr: float | Sequence[float],
    batch_size: int | Sequence[int],
    ascent: float | Sequence[float] = 0.0,
    rho: float | Sequence[float] = 0.0,
    optimizer: str | None = None,
    ascent_on: Literal["all", "batch"] = "all",
    record: Sequence[int] | None = None,
    start: Any = None,
    runs: Runs = RUNS,
) -> Simulation:
    """Run the linear dynamics, `runs.repeats` times in each cell.

    Args:
        hessians: one set for all cells, or one per cell (of one n and one kind; p may differ).
        lr, batch_size, ascent, rho: one for all cells, or one per cell. `ascent` is c of "sam", `rho` the radius of
            "normalized_sam".
        optimizer: see the module. The default is "sam" with an ascent, "normalized_sam" with a rho, else "sgd".
        ascent_on: whether SAM's ascent uses the Hessian of all samples, as in the theorems, or of the batch.
        record: steps at which log||w|| is recorded, ascending, up to `runs.steps`; by default the last.
        start: w_0, (p,) or (cells, repeats, p); by default N(0, I).
        runs: cells of one call, and optimizers in two calls of one seed, see the same batches if B is the same.
    """
    sets = [hessians] if isinstance(hessians, Hessians) else list(hessians)
    if not sets:
        raise EvenlyError("hessians is empty; give at least one set")
    cells = max(len(sets), *(np.size(setting) for setting in (lr, batch_size, ascent, rho)))
    sets = _per_cell("hessians", sets, cells)
    n, kind = sets[0].n, sets[0].kind
    if any(item.n != n or item.kind != kind for item in sets) or (
        kind == "factors" and len({item.values.shape[1] for item in sets}) > 1
    ):
        raise EvenlyError(f"cells with {n} {kind} Hessians and with others cannot run at once; give one n and one kind")
    eta, c, radius = (
        np.array([check(name, value) for value in _per_cell(name, np.ravel(values).tolist(), cells)])[:, None, None]
        for name, values, check in (("lr", lr, positive), ("ascent", ascent, not_negative), ("rho", rho, not_negative))
    )
    B = np.array([batch_size_of(size, n) for size in _per_cell("batch_size", np.ravel(batch_size).tolist(), cells)])
    optimizer = _optimizer_name(optimizer, bool(c.any()), bool(radius.any()))
    if ascent_on not in ("all", "batch"):
        raise unknown("ascent", str(ascent_on), ("all", "batch"))
    steps, repeats = runs.steps, runs.repeats
    recorded = [steps] if record is None else [whole("record", t, 0, steps, ", the number of steps") for t in record]
    draws, noises, starts = (np.random.default_rng([runs.seed, purpose]) for purpose in range(3))
    curvature = _Curvature(sets)
    w = curvature.start(start, cells, repeats, starts)
    log_scale = np.zeros((cells, repeats, 1))
    log_start = _log_norm(w, log_scale)
    norms = [log_start] if 0 in recorded else []
    for t in range(1, steps + 1):
        # one uniform per repeat and sample, shared by all cells
        x = (draws.random((1, repeats, n)) < (B / n)[:, None, None]) / B[:, None, None]
        if optimizer == "random_perturbation":
            delta = noises.standard_normal((1, repeats, w.shape[2]))
            point = w + runs.noise * np.exp(-log_scale) * delta
        elif optimizer == "sgd":
            point = w
        else:
            uphill = curvature.mean(w) if ascent_on == "all" else curvature.batch(x, w)
            point = w + (c * uphill if optimizer == "sam" else radius * np.exp(-log_scale) * _direction(uphill))
        w = w - eta * curvature.batch(x, point)
        _rescale(w, log_scale, shrunk=optimizer in ("sgd", "sam"))
        if t in recorded:
            norms.append(_log_norm(w, log_scale))
    return Simulation(np.stack(norms), log_start)


def quadratic_growth(
    n: int,
    sigma: int,
    largest: float,
    *,
    lr: float,
    batch_size: int,
    ascent: float = 0.0,
    optimizer: str | None = None,
    runs: Runs = RUNS,
) -> Array:
    """log(||w_T||/||w_0||) on C.3's set (:func:`quadratic`), (repeats,): distributed as `simulate`, without its steps.

    A coordinate j > 1 is moved in N_j ~ Bin(T, B/n) steps, each by the factor r = 1 - (eta m/B)(1 + c m/n); the first
    by 1 - (eta m K/B)(1 + c lambda_1) with K ~ Bin(sigma, B/n), so that its logarithm is a sum over the counts of each
    K, a multinomial. Random perturbation: given the batches, w_T is Gaussian. A coordinate j > 1 has
    mean r^N w_0 and variance (noise eta m/B)^2 (1 + r^2 + ... + r^{2N-2}); for the first the K are put in random order.
    Start, batches and their order are drawn from (seed, n, B, sigma) alone: the same for every lr, ascent, optimizer.
    """
    n = whole("n", n, 1)
    sigma, B = whole("sigma", sigma, 1, n, ", which is n"), batch_size_of(batch_size, n)
    eta, c, top = positive("lr", lr), ascent_of(optimizer, ascent), positive("largest", largest)
    m = n * top / sigma
    draw = np.random.default_rng([runs.seed, n, B, sigma])
    log_start = np.log(np.abs(draw.standard_normal((runs.repeats, n - sigma + 1))))
    moves = draw.binomial(runs.steps, B / n, (runs.repeats, n - sigma))
    counts = draw.multinomial(runs.steps, binomial(sigma, B / n), runs.repeats)
    first = log_factor(eta * m / B * (1 + c * top) * np.arange(sigma + 1))
    other = float(log_factor(eta * m / B * (1 + c * m / n)))
    log_w = log_start + np.concatenate([_times(counts, first).sum(1, keepdims=True), _times(moves, other)], 1)
    if optimizer == "random_perturbation":
        scale = runs.noise * eta * m / B
        log_w = _with_noise(log_w, _log_variance(scale, first, counts, draw), _log_geometric(other, moves), scale, draw)
    return _log_sum_squares(log_w) - _log_sum_squares(log_start)


def normalized_sam_radius(rho: float, lr: float, eigenvalue: float) -> float:
    """The distance at which full-batch normalised SAM ends along an eigenvector of H, jumping between both sides.

    rho eta lambda/(2 - eta lambda); infinite for eta lambda >= 2.
    """
    pull = positive("lr", lr) * not_negative("eigenvalue", eigenvalue)
    return not_negative("rho", rho) * pull / (2 - pull) if pull < 2 else math.inf


def log_factor(x: Any) -> Array:
    """log|1 - x|, and -inf if 1 - x is 0 up to rounding."""
    distance = np.abs(1 - x)
    with np.errstate(divide="ignore"):
        logs = np.where(distance <= 8 * np.finfo(float).eps * np.maximum(1, x), -np.inf, np.log(distance))
    return np.asarray(logs, dtype=np.float64)


def binomial(trials: int, probability: float) -> Array:
    """P(K = k), k = 0..trials, for K ~ Bin(trials, probability), (trials + 1,)."""
    if probability >= 1:
        return np.asarray(np.eye(trials + 1)[trials], dtype=np.float64)
    k = np.arange(trials + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))])
    ways = log_factorial[trials] - log_factorial - log_factorial[::-1]
    mass = np.exp(ways + k * math.log(probability) + (trials - k) * math.log1p(-probability))
    return np.asarray(mass / mass.sum(), dtype=np.float64)


class _Curvature:
    """Products with H and H_t for all cells and repeats: w and the products are (cells, repeats, p)."""

    def __init__(self, sets: list[Hessians]) -> None:
        self.kind = sets[0].kind
        self.sizes = [item.dimension for item in sets]
        p = max(self.sizes)
        sets = sets[:1] if all(item is sets[0] for item in sets) else sets
        self.values = np.stack([_padded(item, p) for item in sets])  # (1 or cells, n, p), (..., p, p) or (..., k, p)
        self.means = np.stack([np.pad(item.mean(), (0, p - item.dimension)) for item in sets])

    def mean(self, w: Array) -> Array:
        """H w."""
        return np.asarray(w @ self.means, dtype=np.float64)

    def batch(self, x: Array, w: Array) -> Array:
        """H_t w, for x (cells, repeats, n), which is 1/B for the samples in the batch and 0 for others."""
        if self.kind == "factors":
            rows = self.values.reshape(len(self.values), -1, w.shape[2])
            weights = np.repeat(x, self.values.shape[2], axis=2)
            return np.asarray((weights * (w @ rows.transpose(0, 2, 1))) @ rows, dtype=np.float64)
        if self.kind == "diagonal":
            return np.asarray((x @ self.values) * w, dtype=np.float64)
        p = w.shape[2]
        H_t = (x @ self.values.reshape(*self.values.shape[:2], -1)).reshape(*x.shape[:2], p, p)
        return np.asarray((H_t @ w[..., None])[..., 0], dtype=np.float64)

    def start(self, start: Any, cells: int, repeats: int, draw: np.random.Generator) -> Array:
        p = max(self.sizes)
        if start is None:
            w = np.broadcast_to(draw.standard_normal((1, repeats, p)), (cells, repeats, p)).copy()
            for cell, size in enumerate(self.sizes):
                w[cell, :, size:] = 0
            return w
        w = np.asarray(start, dtype=np.float64)
        if w.shape not in ((p,), (cells, repeats, p)) or not np.isfinite(w).all():
            raise EvenlyError(f"start must be finite and have shape ({p},) or {(cells, repeats, p)}, got {w.shape}")
        return np.broadcast_to(w, (cells, repeats, p)).copy()


def _padded(hessians: Hessians, p: int) -> Array:
    extra = (0, p - hessians.dimension)
    inner = {"dense": [extra, extra], "factors": [(0, 0), extra], "diagonal": [extra]}[hessians.kind]
    return np.pad(hessians.values, [(0, 0), *inner])


def _per_cell(name: str, values: list[Any], cells: int) -> list[Any]:
    if len(values) not in (1, cells):
        raise EvenlyError(f"{name} has {len(values)} values for {cells} cells; give one, or one per cell")
    return values * cells if len(values) == 1 else values


def _optimizer_name(optimizer: str | None, ascends: bool, normalized: bool) -> str:
    name = optimizer or ("sam" if ascends else "normalized_sam" if normalized else "sgd")
    if name not in SIMULATED:
        raise unknown("optimizer with linear dynamics", name, SIMULATED)
    if ascends and name != "sam":
        raise EvenlyError(f"ascent has no meaning for {name!r}; give 'sam', or ascent 0")
    if normalized and name != "normalized_sam":
        raise EvenlyError(f"rho has no meaning for {name!r}; give 'normalized_sam', or ascent = rho/alpha with 'sam'")
    return name


def _direction(vectors: Array) -> Array:
    """Each vector divided by its norm; 0 if it is 0."""
    norm = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(np.divide(vectors, norm, out=np.zeros_like(vectors), where=norm > 0), dtype=np.float64)


def _rescale(w: Array, log_scale: Array, *, shrunk: bool) -> None:
    """Move very large norms (and, if nothing is added to w, very small ones) from w into log_scale, in place."""
    norm = np.abs(w).max(-1, keepdims=True)
    extreme = (norm > _EXTREME) | ((norm < 1 / _EXTREME) & (norm > 0) & shrunk)
    if extreme.any():
        factor = np.where(extreme, norm, 1.0)
        w /= factor
        log_scale += np.log(factor)


def _log_norm(w: Array, log_scale: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.linalg.norm(w, axis=-1)) + log_scale[..., 0], dtype=np.float64)


def _times(counts: Any, logs: Any) -> Array:
    """counts * logs with 0 * -inf = 0, for a factor that never occurred."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(counts > 0, counts * logs, 0.0), dtype=np.float64)


def _log_sum_squares(log_w: Array) -> Array:
    """log of the norm of each row, from the logarithms of its entries' sizes."""
    return np.asarray(np.logaddexp.reduce(2 * log_w, axis=-1) / 2, dtype=np.float64)


def _log_geometric(log_r: float, moves: Any) -> Array:
    """log(1 + r^2 + ... + r^{2N-2}) for each N; -inf for N = 0."""
    with np.errstate(divide="ignore"):
        if log_r == 0:
            return np.asarray(np.log(moves), dtype=np.float64)
        if math.isinf(log_r):
            return np.where(moves > 0, 0.0, -np.inf)
        # the largest term is factored out of the sum
        largest = np.maximum(2 * log_r * (moves - 1), 0.0)
        size = abs(2 * log_r)
        return np.asarray(largest + np.log(-np.expm1(-size * moves)) - math.log(-math.expm1(-size)), dtype=np.float64)


def _log_variance(scale: float, first: Array, counts: Any, draw: np.random.Generator) -> Array:
    """log of the first coordinate's variance given its batches in random order, (repeats, 1).

    sum_t (scale K_t)^2 prod_{s > t} f_s^2
    """
    support = np.arange(len(first))
    order = draw.permuted(np.stack([np.repeat(support, count) for count in counts]), axis=1)
    later = np.zeros(order.shape)
    later[:, :-1] = np.cumsum(2 * first[order[:, :0:-1]], axis=1)[:, ::-1]
    with np.errstate(divide="ignore"):
        return np.asarray(
            np.logaddexp.reduce(2 * np.log(scale * order) + later, axis=1, keepdims=True), dtype=np.float64
        )


def _with_noise(log_mean: Array, log_first: Array, log_others: Array, scale: float, draw: np.random.Generator) -> Array:
    """log|mean + deviation z|, z ~ N(0, 1), for every coordinate; the sign of the mean does not matter."""
    with np.errstate(divide="ignore"):
        log_deviation = np.concatenate([log_first / 2, np.log(scale) + log_others / 2], 1)
        unit = np.maximum(np.maximum(log_mean, log_deviation), -1e300)
        mixed = np.exp(log_mean - unit) + np.exp(log_deviation - unit) * draw.standard_normal(log_mean.shape)
        return np.asarray(unit + np.log(np.abs(mixed)), dtype=np.float64)
