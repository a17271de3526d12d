"""Numbers as text: shares in percent, differences in points, costs as multiples of ERM's, lists."""

from __future__ import annotations

import math
from collections.abc import Iterable

from evenly.runs.summary import Difference


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


def signed(share: float, digits: int = 1) -> str:
    """A difference in points with its sign: "+2.3", "−0.4", "0.0"."""
    text = f"{100 * share:+.{digits}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", "−")


def points(difference: Difference) -> str:
    """The difference alone, signed, with as many digits as its interval needs: "−0.4"."""
    return signed(difference.mean, _digits(difference)) if math.isfinite(difference.mean) else "–"


def interval(difference: Difference) -> str:
    """A 95% interval in points: "[−1.9, 1.1]"; nothing where there is none."""
    if difference.low is None or difference.high is None:
        return ""
    digits = _digits(difference)
    return f"[{signed(difference.low, digits).lstrip('+')}, {signed(difference.high, digits).lstrip('+')}]"


def points_and_interval(difference: Difference) -> str:
    """A difference in a sentence: "−0.4 points [−1.9, 1.1]"."""
    return f"{points(difference)} points {interval(difference)}".rstrip()


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


def _digits(difference: Difference) -> int:
    """One digit, or two where one would print a number as 0.0 that is not."""
    values = (difference.mean, difference.low, difference.high)
    return 2 if any(value is not None and 1e-5 < abs(value) < 5e-4 for value in values) else 1
