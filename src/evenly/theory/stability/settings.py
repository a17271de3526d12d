"""The numbers of a step, checked: batch size, learning rate, ascent, and the optimizers by name."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from evenly.errors import EvenlyError, unknown

SMALLEST, LARGEST = 1e-100, 1e100
"""Numbers that are given lie between these, or are 0."""
OPTIMIZERS = ("sgd", "random_perturbation", "sam")
"""Those whose linear dynamics the theorems speak of."""


def finite(name: str, value: Any) -> float:
    """A real number that is neither infinite nor missing."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise EvenlyError(f"{name} {value!r} is not a finite number; give one")
    number = float(value)
    if number and not SMALLEST <= abs(number) <= LARGEST:
        raise EvenlyError(f"{name} {number:g} leaves no room in float64 to compute with; give one of a usual size")
    return number


def positive(name: str, value: Any) -> float:
    """A finite number above 0."""
    number = finite(name, value)
    if number <= 0:
        raise EvenlyError(
            f"{name} {number:g} is not above 0, so nothing would move towards the minimum; give a larger one"
        )
    return number


def not_negative(name: str, value: Any) -> float:
    """A finite number from 0."""
    number = finite(name, value)
    if number < 0:
        raise EvenlyError(f"{name} {number:g} is negative; give a number from 0")
    return number


def whole(name: str, value: Any, lowest: int, highest: int | None = None, what: str = "") -> int:
    """A whole number from `lowest` to `highest`; `what` says what the highest is."""
    number = finite(name, value)
    upper = f" to {highest}{what and f' ({what})'}" if highest is not None else " up"
    if not (isinstance(value, Integral) or number.is_integer()):
        raise EvenlyError(f"{name} {number:g} is not a whole number; give one from {lowest}{upper}")
    if number < lowest or (highest is not None and number > highest):
        raise EvenlyError(f"{name} {int(number)} is outside {lowest}..{highest if highest is not None else ''}; give a "
                          f"whole number from {lowest}{upper}")  # fmt: skip
    return int(number)


def batch_of(batch_size: Any, n: int) -> int:
    """B, a whole number in 1..n."""
    return whole("batch size", batch_size, 1, n, "the number of examples")


def ascent_of(optimizer: str | None, ascent: Any) -> float:
    """c = rho/alpha: 0 for SGD and random perturbation. Without a name an ascent means SAM."""
    c = not_negative("ascent", ascent)
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise unknown("optimizer with a stability theorem", str(optimizer), OPTIMIZERS)
    if c > 0 and optimizer not in (None, "sam"):
        raise EvenlyError(
            f"ascent {c:g} has no meaning for {optimizer!r}, which takes no ascent step; give 'sam' or ascent 0"
        )
    return c
