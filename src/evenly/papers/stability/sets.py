"""Random sets of Hessians that the theorems are checked on, and how their checks are counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from evenly.runs.verdict import Check
from evenly.theory.stability import Hessians
from evenly.theory.stability.bounds import Step

SETS = 500
EXACT = 1e-9
"""Relative rounding error that a comparison in float64 allows for."""
DRAWS = (
    "random sets: n 2 to 6, 2 to 4 dimensions, any rank; every sample and the whole set have scales that vary by "
    "powers of e, c = rho/alpha too; B below n"
)


def hessian_sets(count: int, seed: int) -> Iterator[tuple[Hessians, np.random.Generator]]:
    """Sets of positive semidefinite matrices, and the generator that goes on drawing for them."""
    for k in range(count):
        draw = np.random.default_rng([seed, k])
        n, d = int(draw.integers(2, 7)), int(draw.integers(2, 5))
        factors = draw.standard_normal((n, int(draw.integers(1, d + 1)), d))
        factors *= np.exp(draw.normal(0, 1, (n, 1, 1)) + draw.normal(0, 2))
        yield Hessians.dense(factors.transpose(0, 2, 1) @ factors), draw


def steps(count: int, seed: int, *, sam: bool = True, full_rank: bool = False) -> Iterator[tuple[Step, Any]]:
    """A step on each set. Its lr is between 0.05 and 1.2 of the largest that is stable with the full batch.

    Args:
        full_rank: only sets where H has full rank, as eqs 59 and 60 need.
    """
    for hessians, draw in hessian_sets(count, seed):
        top = float(np.linalg.eigvalsh(hessians.mean())[-1])
        ascent = float(np.exp(draw.normal(-1, 1.5))) / top if sam else 0.0
        batch_size = int(draw.integers(1, hessians.n))
        lr = float(draw.uniform(0.05, 1.2)) * 2 / (top * (1 + ascent * top))
        step = Step(hessians, lr, batch_size, ascent)
        if not full_rank or step.eigenvalues[0] > 1e-6 * top:
            yield step, draw


def not_below(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    """Whether left - right is positive semidefinite up to rounding."""
    scale = max(float(np.abs(left).max()), float(np.abs(right).max()))
    return bool(np.linalg.eigvalsh(left - right)[0] >= -EXACT * scale)


def at_least(left: float, right: float) -> bool:
    """left >= right up to rounding."""
    return left >= right - EXACT * max(abs(left), abs(right))


def none_broken(text: str, counts: Mapping[str, int], name: str = "broken", *, main: bool = True) -> Check:
    """That no case breaks a statement, and that there are cases."""
    broken, cases = counts[name], counts["cases"]
    return Check(f"{text} ({broken} broken in {cases} cases)", broken == 0 and cases >= 100, main)
