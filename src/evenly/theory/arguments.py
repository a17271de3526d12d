"""Arguments of the theorems: their constraints as types, and checks that return plain numbers."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from evenly.analyses import MODERATE
from evenly.errors import EvenlyError, unknown
from evenly.settings import Constraint, Option, above, at_least, at_most, below

Positive = Annotated[float, above(0), MODERATE]
NotNegative = Annotated[float, at_least(0), MODERATE]
Share = Annotated[float, above(0), at_most(1)]
Fraction = Annotated[float, above(0), below(1)]
Count = Annotated[int, at_least(1)]
OPTIMIZERS = ("sgd", "random_perturbation", "sam")
"""The optimizers whose linear dynamics the stability theorems cover."""


def checked(name: str, value: Any, kind: Any) -> Any:
    """The value, refused unless it is of the annotated type."""
    base, *constraints = get_args(kind)
    return Option(name, base, tuple(constraints)).checked(value)


def positive(name: str, value: Any) -> float:
    return float(checked(name, value, Positive))


def not_negative(name: str, value: Any) -> float:
    return float(checked(name, value, NotNegative))


def whole(name: str, value: Any, lowest: int, highest: int | None = None, meaning: str = "") -> int:
    """A whole number from `lowest` to `highest`, which `meaning` explains. 5.0 counts as one."""
    constraints = [at_least(lowest)]
    if highest is not None:
        constraints.append(Constraint(f"at most {highest}{meaning}", lambda number: number <= highest))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return int(Option(name, int, tuple(constraints)).checked(value))


def batch_size_of(batch_size: Any, n: int) -> int:
    """B, a whole number in 1..n."""
    return whole("batch_size", batch_size, 1, n, ", the number of examples")


def ascent_of(optimizer: str | None, ascent: Any) -> float:
    """c = rho/alpha: 0 for SGD and random perturbation. Without a named optimizer an ascent means SAM."""
    c = not_negative("ascent", ascent)
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise unknown("optimizer with a stability theorem", str(optimizer), OPTIMIZERS)
    if c > 0 and optimizer not in (None, "sam"):
        raise EvenlyError(
            f"ascent {c:g} has no meaning for {optimizer!r}, which takes no ascent step; give 'sam' or ascent 0"
        )
    return c
