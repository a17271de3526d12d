"""What judges share: differences over seeds, whether they are clear, and how they are written."""

from __future__ import annotations

from collections.abc import Sequence

from evenly.runs.differences import FEWEST, Difference, paired


def differences(first: Sequence[float], second: Sequence[float]) -> Difference:
    """First minus second, paired by seed."""
    return paired([a - b for a, b in zip(first, second, strict=True)])


def is_above(difference: Difference) -> bool:
    """Whether the 95% interval over seeds is above 0; of seeds that all differ by the same, whether that is.

    Fewer than three seeds have no interval and decide nothing.
    """
    if difference.low is None:
        return difference.pairs >= FEWEST and difference.mean > 0
    return difference.low > 0


def is_below(difference: Difference) -> bool:
    """Whether the 95% interval over seeds is below 0."""
    if difference.high is None:
        return difference.pairs >= FEWEST and difference.mean < 0
    return difference.high < 0


def clearly_above(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether the 95% interval of first minus second, paired by seed, is above 0."""
    return is_above(differences(first, second))


def in_words(difference: Difference, digits: int = 3, unit: str = "") -> str:
    """The mean and the interval: "-0.105 [-0.131, -0.079]"."""
    mean, low, high = difference.mean, difference.low, difference.high
    interval = "" if low is None or high is None else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{mean:.{digits}f}{interval}{f' {unit}' if unit else ''}"
