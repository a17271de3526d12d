"""Whether a quantity differs from 0 over seeds, and how that is said."""

from __future__ import annotations

from collections.abc import Sequence

from evenly.runs.differences import paired


def clearly_positive(values: Sequence[float]) -> bool:
    """Whether the 95% t-interval of the values, one per seed, lies above 0; values that are all the same have none."""
    low = paired(list(values)).low
    return low is not None and low > 0


def with_interval(values: Sequence[float], unit: str = "") -> str:
    """The mean and its 95% interval: "+0.31 [0.1, 0.53] points"."""
    difference = paired(list(values))
    interval = "" if difference.low is None else f" [{difference.low:.3g}, {difference.high:.3g}]"
    return f"{difference.mean:+.3g}{interval}{f' {unit}' if unit else ''}"
