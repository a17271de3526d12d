"""Numbers as text: shares in percent, differences in points, costs as multiples of ERM's, lists."""

from __future__ import annotations

import math
from collections.abc import Iterable

from evenly.runs.differences import Difference


def percent(share: float | None) -> str:
    """0.938 as "93.8%"."""
    return "–" if share is None or not math.isfinite(share) else f"{number(share)}%"


def number(share: float | None) -> str:
    """0.938 as "93.8"."""
    return "–" if share is None or not math.isfinite(share) else f"{100 * share:.1f}"


def multiple(value: float | None) -> str:
    """A cost as a multiple of ERM's, for a column that names the unit: "1.12"."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.2f}" if value >= 0.01 else f"{value:.2g}"


def times(value: float | None) -> str:
    """A cost as a multiple of ERM's, in a sentence: "1.12x"."""
    return multiple(value) if value is None or not math.isfinite(value) else f"{multiple(value)}x"


def points_and_uncertainty(difference: Difference, examples: str = "test examples") -> str:
    """A difference in a sentence: "−0.4 points; over test examples [−1.9, 1.1], over seeds: 3 or more needed"."""
    return f"{difference.points} points; {uncertainty(difference, examples)}"


def uncertainty(difference: Difference, examples: str = "test examples") -> str:
    """Both uncertainties of a difference: over examples, where these are known, and over seeds."""
    examples = f"over {examples} {difference.over_examples}" if difference.over_examples else ""
    seeds = f"over seeds{':' if difference.low is None else ''} {difference.over_seeds}"
    return ", ".join(filter(None, (examples, seeds)))


def both_intervals(difference: Difference) -> str:
    """Both intervals of a difference on a line each: over examples, where these are known, and over seeds."""
    examples = f"examples {difference.over_examples}" if difference.over_examples else ""
    seeds = f"seeds{':' if difference.low is None else ''} {difference.over_seeds}"
    return "\n".join(filter(None, (examples, seeds)))


def bounds(limits: tuple[float, float] | None) -> str:
    """The interval of a share, in percent: "[80.1, 92.4]"; nothing where there is none."""
    return "" if limits is None else f"[{number(limits[0])}, {number(limits[1])}]"


def counted(n: int, noun: str) -> str:
    """A number of things: "1 epoch", "1,200 epochs"."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def listed(names: Iterable[object]) -> str:
    """Names with commas between them."""
    return ", ".join(str(name) for name in names)


def sentence(text: str) -> str:
    """A remark as a sentence: with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
