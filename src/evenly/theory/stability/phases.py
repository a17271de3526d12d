"""Phase diagrams: which settings diverge on C.3's quadratic, by simulation, by the theorems and by the sharp predictor.

C.3: n = 100 samples, the set of :func:`~evenly.theory.stability.hessians.quadratic` with lambda_max(H) = 2, 1000 steps
from N(0, I), 10 repeats; a run diverged if its norm grew more than 1000 times, a cell if more than half its runs did.

On this set the condition of Theorem 3.3 is exactly mean-square convergence, so the mean square diverges wherever no
theorem decides. Whether runs diverge is decided by the sharp predictor, the Lyapunov exponent

    max( E log|1 - (eta m K/B)(1 + c lambda_1)|,  (B/n) log|1 - (eta m/B)(1 + c m/n)| ) > 0,    K ~ Bin(sigma, B/n)

with m = n lambda_1/sigma. It describes infinitely many steps; near 0, 1000 steps may be too few to show it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from attrs import asdict

from evenly.analyses import Axes, Quadratic, Runs
from evenly.errors import EvenlyError
from evenly.settings import checked, settings_of
from evenly.theory.arguments import ascent_of, batch_size_of, positive, whole
from evenly.theory.stability.criteria import Minimum, verdict
from evenly.theory.stability.dynamics import RUNS, binomial, log_factor, quadratic_growth
from evenly.theory.stability.hessians import Array
from evenly.theory.stability.lyapunov import expected_log

BATCH_SIZES = (1, 2, 3, 5, 8, 12, 18, 27, 40, 60)
SIGMAS = (1, 2, 3, 4, 6, 9, 13, 20, 40, 80)
LRS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
ASCENTS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5)
AXES: dict[str, tuple[float, ...]] = {"batch_size": BATCH_SIZES, "sigma": SIGMAS, "lr": LRS, "ascent": ASCENTS}
"""The possible axes and their default values."""


C3 = Axes()
"""The axes of C.3's diagrams."""


@dataclass(frozen=True, eq=False)
class PhaseDiagram:
    """The result in every cell; arrays are (values of y, values of x).

    Args:
        x, y: the names of the axes.
        x_values, y_values: their values.
        settings: everything else that decides the result.
        diverged: the share of runs that diverged.
        theorems: "diverges", "converges" or "undecided" by :func:`~evenly.theory.stability.criteria.verdict`.
        exponents: the Lyapunov exponent per step.
    """

    x: str
    y: str
    x_values: tuple[float, ...]
    y_values: tuple[float, ...]
    settings: dict[str, Any]
    diverged: Array
    theorems: np.ndarray[Any, np.dtype[np.str_]]
    exponents: Array

    @property
    def majority(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether more than half of a cell's runs diverged."""
        return self.diverged > 0.5

    @property
    def sharp(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether the exponent is above 0."""
        return self.exponents > 0

    @property
    def theorem_wrong(self) -> int:
        """The number of cells where a theorem and the simulation disagree."""
        return int(np.sum(np.where(self.majority, self.theorems == "converges", self.theorems == "diverges")))

    @property
    def sharp_right(self) -> float:
        """The share of cells where the sharp predictor agrees with the simulation."""
        return float(np.mean(self.sharp == self.majority))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PhaseDiagram:
        """Made again from `to_dict`; anything else is refused."""
        names = ("x", "y", "settings", "x_values", "y_values", "diverged", "theorems", "exponents")
        try:
            x, y, settings, across, upwards, diverged, theorems, exponents = (values[name] for name in names)
            shape = (len(upwards), len(across))
            arrays = np.array(diverged, float), np.array(theorems, "<U9"), np.array(exponents, float)
            if any(array.shape != shape for array in arrays):
                raise ValueError(f"the arrays are not of shape {shape}")
        except (KeyError, TypeError, ValueError) as error:
            raise EvenlyError(f"a phase diagram cannot be read ({error!r}); it may be damaged") from None
        exponents = np.where(np.isnan(arrays[2]), -math.inf, arrays[2])
        return cls(x, y, tuple(across), tuple(upwards), dict(settings), arrays[0], arrays[1], exponents)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON; an exponent of -inf is None."""
        return {
            "x": self.x,
            "y": self.y,
            "x_values": list(self.x_values),
            "y_values": list(self.y_values),
            "settings": dict(self.settings),
            "diverged": self.diverged.tolist(),
            "majority": self.majority.tolist(),
            "theorems": self.theorems.tolist(),
            "exponents": [
                [value if math.isfinite(value) else None for value in row] for row in self.exponents.tolist()
            ],
            "theorem_wrong": self.theorem_wrong,
            "sharp_right": self.sharp_right,
        }


def phase_diagram(
    axes: Axes = C3,
    *,
    runs: Runs = RUNS,
    progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> PhaseDiagram:
    """Simulate every cell of a grid over two of batch_size, sigma, lr, ascent, and compare with the theory.

    Args:
        runs: a cell depends on its seed and on its own settings, not on the grid around it. Cells of one batch size
            and sigma see the same batches under every lr, ascent and optimizer.
        progress: called after each row with the number of cells done and the number of all cells.
        settings: of `evenly.analyses.Quadratic`: batch_size, sigma, lr and ascent, which is c = rho/alpha of SAM (the
            two of the axes are not used); optimizer; n; largest, lambda_max(H) for every sigma.
    """
    loss = Quadratic(**checked("setting", settings, settings_of(Quadratic)))
    n, largest, optimizer, x, y = loss.n, loss.largest, loss.optimizer, axes.x, axes.y
    checks: dict[str, Callable[[Any], Any]] = {
        "batch_size": lambda value: batch_size_of(value, n),
        "sigma": lambda value: whole("sigma", value, 1, n, ", which is n"),
        "lr": lambda value: positive("lr", value),
        "ascent": lambda value: ascent_of(optimizer, value),
    }
    columns, rows = _values(x, n, axes.x_values, checks[x]), _values(y, n, axes.y_values, checks[y])
    fixed = {name: check(getattr(loss, name)) for name, check in checks.items() if name not in (x, y)}
    optimizer = optimizer or ("sam" if "ascent" in (x, y) or fixed["ascent"] > 0 else "sgd")
    shape = (len(rows), len(columns))
    diverged, exponents, theorems = np.empty(shape), np.empty(shape), np.empty(shape, dtype="<U9")
    for row, y_value in enumerate(rows):
        for column, x_value in enumerate(columns):
            cell = {**fixed, x: x_value, y: y_value}
            step = {name: cell[name] for name in ("lr", "batch_size", "ascent")}
            growth = quadratic_growth(n, cell["sigma"], largest, **step, optimizer=optimizer, runs=runs)
            diverged[row, column] = np.mean(growth > math.log(runs.threshold))
            theorems[row, column] = verdict(_minimum(n, cell["sigma"], largest), **step, optimizer=optimizer).answer
            exponents[row, column] = sharp_exponent(n, cell["sigma"], largest, **step)
        if progress is not None:
            progress((row + 1) * len(columns), len(rows) * len(columns))
    everything = {**fixed, "optimizer": optimizer, **asdict(runs), "n": n, "largest": largest}
    return PhaseDiagram(x, y, columns, rows, everything, diverged, theorems, exponents)


def sharp_exponent(n: int, sigma: int, largest: float, *, lr: float, batch_size: int, ascent: float = 0.0) -> float:
    """The Lyapunov exponent on C.3's set; -inf if both kinds of coordinate can be set to 0 in a step."""
    n = whole("n", n, 1)
    sigma, B = whole("sigma", sigma, 1, n, ", which is n"), batch_size_of(batch_size, n)
    eta, c, top = positive("lr", lr), ascent_of(None, ascent), positive("largest", largest)
    m = n * top / sigma
    first = expected_log(log_factor(eta * m / B * (1 + c * top) * np.arange(sigma + 1)), binomial(sigma, B / n))
    if sigma == n:
        return first
    return max(first, B / n * float(log_factor(eta * m / B * (1 + c * m / n))))


def _minimum(n: int, sigma: int, largest: float) -> Minimum:
    """The numbers of C.3's set: coordinate j > 1 of H has the eigenvalue m/n = largest/sigma."""
    return Minimum(n, float(sigma), largest, largest if sigma == n else largest / sigma)


def _values(axis: str, n: int, values: Sequence[float] | None, check: Callable[[Any], float]) -> tuple[float, ...]:
    if values is None:
        bounded = axis in ("batch_size", "sigma")
        values = [value for value in AXES[axis] if not bounded or value <= n]
    if np.size(values) == 0:
        raise EvenlyError(f"the axis {axis!r} has no values; give at least one")
    return tuple(check(value) for value in np.ravel(values).tolist())
