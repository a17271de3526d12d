"""Runs on the spiral that several claims share, and how differences between them are judged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

from evenly.data.spiral import SpiralDistribution, draw
from evenly.papers.claims import Scale
from evenly.papers.nodes import Computation, computed
from evenly.runs.differences import Difference
from evenly.theory import spiral

RHOS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
EPOCHS = "15 epochs: the paper gives no number"
START = "v starts at (1, 1): the paper does not give it"
COMPLEXITY = "a spiral of 315 degrees: the paper does not say which one this figure has"
OPEN = (EPOCHS, START)


def errors(
    rhos: Sequence[float], seeds: Sequence[int], batch_size: int = 5, sam: bool = False, **distribution: Any
) -> dict[str, list[list[float]]]:
    """What LSAM (or SAM) of each rho comes to, (rhos, seeds) each: held-out errors, ratios v_hard / v_easy over time.

    Args:
        sam: perturb all weights instead of the last layer.
        distribution: settings of `SpiralDistribution`.
    """
    each_seed = [*seeds] * len(rhos)
    path = spiral.train(
        *draw(SpiralDistribution(**distribution), each_seed), seeds=each_seed, batch_size=batch_size, every=15,
        rho=[rho for rho in rhos for _ in seeds], perturb="all" if sam else "last layer",
    )  # fmt: skip

    def table(values: Tensor) -> list[list[float]]:
        rows: list[list[float]] = values.view(len(rhos), len(seeds)).tolist()
        return [[round(value, 6) for value in row] for row in rows]

    return {
        "hard": table(path.hard_error[-1]), "easy": table(path.easy_error[-1]), "label": table(path.test_error[-1]),
        "phantom": table(path.phantom_ratio), "real": table(path.real_ratio),
    }  # fmt: skip


def errors_of(
    scale: Scale,
    count: int = 16,
    first: int = 0,
    *,
    rhos: Sequence[float] = RHOS,
    complexity: float = 315.0,
    **setting: Any,
) -> Computation:
    """The node of `errors`; claims that ask for the same setting share it."""
    return computed(errors, rhos=[*rhos], seeds=scale.seeds(count, first), complexity=complexity, **setting)


def is_clear_drop(drops: Sequence[Difference]) -> bool:
    """Whether one of several drops is clear at the 5% level, corrected for their number."""
    return any(drop.mean > 0 and drop.p is not None and drop.p < 0.05 / len(drops) for drop in drops)


def clearest(drops: Sequence[Difference]) -> Difference:
    """The drop with the smallest p-value; where none is one, the largest."""
    return min(drops, key=lambda drop: (drop.p or 0.0) if drop.mean > 0 else 2 - drop.mean)


def falls(values: Sequence[float]) -> bool:
    """Whether each value is below the one before."""
    return all(later < earlier for earlier, later in pairwise(values))
