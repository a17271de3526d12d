"""The difference between two methods, with two uncertainties.

Over test examples, for these very models: would other examples of the same kind show it too? `example_intervals` has
it.

Over repetitions: would other seeds show it too? The t-interval of the differences, paired by seed, from three seeds on.
Where a table has several methods, their p-values are corrected by Holm (1979): if no method differs from its control,
any is called clear in at most 5% of tables. That holds for a number of seeds fixed beforehand: who adds seeds as
advised until a difference is clear, from 3 up to 20, finds one in about 13% of cases where there is none.

A difference is *clear* where both exclude 0, *clear for these models only* where the first does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from attrs import frozen

from evenly.values import Value

EQUAL = 1e-9
"""Differences between shares that are closer than this are the same but for rounding."""
FEWEST = 3
"""Seeds that a t-interval is given from."""
MOST = 100
"""Seeds that are counted up to, where it is said how many might settle it."""
ALPHA = 0.05
"""The largest p-value of a difference that is clear over seeds."""

Outcome = Literal["raised", "lowered", "raised-for-these", "lowered-for-these", "unclear", "unknown"]
CLEAR: dict[int, Outcome] = {1: "raised", -1: "lowered", 0: "unclear"}
FOR_THESE: dict[int, Outcome] = {1: "raised-for-these", -1: "lowered-for-these", 0: "unclear"}


@frozen
class Difference(Value):
    """The mean of paired differences, its 95% t-interval over seeds, and its 95% interval over test examples.

    There is no t-interval from fewer than three pairs, nor from pairs that all differ by the same: on a few seeds that
    is chance, and their spread of 0 would make it certainty. `sd` is over pairs; None of one.

    `p` is that of the paired t-test. `adjusted_p` is Holm's, for the `family` of methods that one table judges by this
    metric; None outside of it. The interval over seeds is not corrected.
    """

    mean: float
    low: float | None
    high: float | None
    pairs: int
    sd: float | None = None
    examples_low: float | None = None
    examples_high: float | None = None
    p: float | None = None
    adjusted_p: float | None = None
    family: int = 1

    @property
    def outcome(self) -> Outcome:
        """What examples and seeds say, these after correction; where no test examples are known, the seeds alone."""
        seeds, examples = _side(self.low, self.high), _side(self.examples_low, self.examples_high)
        if self.adjusted_p is not None and self.adjusted_p >= ALPHA:
            seeds = 0
        if not math.isfinite(self.mean) or (seeds is None and examples is None):
            return "unclear" if self.is_zero else "unknown"
        if examples is None or seeds == examples:
            return CLEAR[seeds or 0]
        return FOR_THESE[0 if seeds == -examples else examples]

    @property
    def is_corrected_away(self) -> bool:
        """Whether the interval over seeds excludes 0, but not after correction for several methods."""
        return self.p is not None and self.adjusted_p is not None and self.p < ALPHA <= self.adjusted_p

    @property
    def is_zero(self) -> bool:
        """Whether several seeds all have the value of their control."""
        return self.pairs > 1 and self.mean == 0 and self.sd == 0

    @property
    def points(self) -> str:
        """The difference alone, signed, with as many digits as its intervals need: "−0.4"."""
        return signed(self.mean, self._digits) if math.isfinite(self.mean) else "–"

    @property
    def over_examples(self) -> str:
        """The interval over test examples, in points: "[−1.9, 1.1]"; nothing where there is none."""
        return self._interval(self.examples_low, self.examples_high)

    @property
    def over_seeds(self) -> str:
        """The interval over seeds in points, or why there is none: "3 or more needed"."""
        if self.low is not None:
            return self._interval(self.low, self.high)
        return "all the same" if self.pairs >= FEWEST else f"{FEWEST} or more needed"

    @property
    def seeds_needed(self) -> int | None:
        """How many seeds would exclude 0 if they varied as these do; None where that is not known, or over `MOST`.

        None also where the interval over examples includes 0: more seeds would not make the difference clear. In a
        family of m methods at level 5% / m, which is the strictest that Holm's correction may ask for.
        """
        if not self.sd or not self.mean or self._is_open_over_examples:
            return None
        from scipy.special import stdtrit

        n = np.arange(FEWEST, MOST + 1)
        settled = stdtrit(n - 1, 1 - ALPHA / (2 * self.family)) * self.sd / np.sqrt(n) < abs(self.mean)
        return int(n[settled.argmax()]) if settled.any() else None

    @property
    def to_settle(self) -> str:
        """What might settle an open question: "about 4 more seeds might settle it"; nothing where that is not known."""
        if not self.sd or self.outcome in ("raised", "lowered"):
            return ""
        if self._is_open_over_examples:
            return "a larger test set is needed: the interval over test examples includes 0"
        if (needed := self.seeds_needed) is None:
            return f"more than {MOST} seeds would be needed to settle it: the difference is small"
        more = needed - self.pairs
        return f"about {more} more seed{'s' * (more > 1)} might settle it" if more > 0 else ""

    @property
    def _is_open_over_examples(self) -> bool:
        return _side(self.examples_low, self.examples_high) == 0

    @property
    def _digits(self) -> int:
        """One digit, or two where one would print a number as 0.0 that is not."""
        values = (self.mean, self.low, self.high, self.examples_low, self.examples_high)
        return 2 if any(value is not None and 1e-5 < abs(value) < 5e-4 for value in values) else 1

    def _interval(self, low: float | None, high: float | None) -> str:
        if low is None or high is None:
            return ""
        return f"[{signed(low, self._digits).lstrip('+')}, {signed(high, self._digits).lstrip('+')}]"


def paired(differences: Sequence[float], level: float = 0.95) -> Difference:
    """Mean of paired differences with its t-interval."""
    n, centre, spread = len(differences), mean(differences), sd(differences)
    if spread < EQUAL:
        return Difference(0.0 if abs(centre) < EQUAL else centre, None, None, n, None if n < 2 else 0.0)
    if n < FEWEST:
        return Difference(centre, None, None, n, spread)
    from scipy.special import stdtr, stdtrit

    error = spread / math.sqrt(n)
    half, p = float(stdtrit(n - 1, 0.5 + level / 2)) * error, 2 * float(stdtr(n - 1, -abs(centre) / error))
    return Difference(centre, centre - half, centre + half, n, spread, p=p)


def holm(p: Sequence[float]) -> list[float]:
    """P-values corrected for as many tests as there are, by Holm's step-down method."""
    values = np.asarray(p, dtype=float)
    order = values.argsort(kind="stable")
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(each) for each in adjusted]


def _side(low: float | None, high: float | None) -> int | None:
    """Which side of 0 an interval is on: 1 above, -1 below, 0 around it; None of no interval."""
    if low is None or high is None:
        return None
    return 1 if low > 0 else -1 if high < 0 else 0


def signed(share: float, digits: int = 1) -> str:
    """A difference in points with its sign: "+2.3", "−0.4", "0.0"."""
    text = f"{100 * share:+.{digits}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", "−")


def mean(values: Iterable[float | None]) -> float:
    """The mean of the values there are; NaN of none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def sd(values: Iterable[float]) -> float:
    """The standard deviation over repetitions; 0 of a single one."""
    known = list(values)
    centre = mean(known)
    return math.sqrt(sum((value - centre) ** 2 for value in known) / (len(known) - 1)) if len(known) > 1 else 0.0
