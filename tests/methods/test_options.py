"""Every option of every method refuses what its annotation excludes, in one line, before a network is built."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from evenly.errors import SettingError
from evenly.methods import METHODS
from evenly.settings import Constraint

CANDIDATES = (0, -1, 0.0, -0.5, 1.0, 1.5, 10**9, 1e10, "nobody")
KINDS = {
    "C": "a number", "above": "a number", "add": "a whole number or a list or one of all", "average": "a number",
    "by": "one of sampling, loss", "cap": "a whole number", "count": "a whole number", "decay": "a number",
    "draw": "one of even, random", "draws": "a whole number", "every": "a whole number", "factor": "a whole number",
    "on": "one of ", "q": "a number", "reset_momentum": "true or false", "separating_epoch": "a whole number",
    "step_size": "a number", "warmup_epochs": "a whole number",
}  # fmt: skip
EACH = [(method, option) for method, entry in METHODS.items() for option in entry.options]
CONSTRAINTS = [
    pytest.param(method, name, constraint, id=f"{method}.{name} {constraint.words}")
    for method, name in EACH
    for constraint in METHODS[method].options[name].constraints
]


def breaks(value: Any, constraint: Constraint, others: list[Constraint]) -> bool:
    try:
        return not constraint.holds(value) and all(other.holds(value) for other in others)
    except TypeError:
        return False


def refused(method: str, name: str, value: Any, data: Any, fit: Any) -> str:
    with pytest.raises(SettingError) as refusal:
        METHODS[method](lambda: pytest.fail("built a network before it refused"), data, fit, **{name: value})
    return str(refusal.value)


@pytest.mark.parametrize(("method", "name", "constraint"), CONSTRAINTS)
def test_a_value_that_breaks_a_constraint(tiny: Any, engine: Any, method: str, name: str, constraint: Any) -> None:
    option = METHODS[method].options[name]
    others = [other for other in option.constraints if other.words != constraint.words]
    whole = int in (option.kind, *get_args(option.kind))
    value = next(v for v in CANDIDATES if breaks(v, constraint, others) and not (whole and isinstance(v, float)))
    message = f"{name} (option of {method}) must be {constraint.words}, got {value!r}"
    assert refused(method, name, value, tiny(), engine()) == message


@pytest.mark.parametrize(("method", "name"), EACH)
def test_a_value_of_another_kind(tiny: Any, engine: Any, method: str, name: str) -> None:
    words = "a number" if (method, name) == ("upweight", "factor") else KINDS[name]
    message = refused(method, name, "nobody", tiny(), engine())
    assert message.startswith(f"{name} (option of {method}) must be {words}")
    assert message.endswith(", got 'nobody'")


@pytest.mark.parametrize("name", ["warmup_epochs", "factor", "draws"])
def test_half_a_number_is_no_whole_one(tiny: Any, engine: Any, name: str) -> None:
    method = next(method for method, option in EACH if option == name)
    assert refused(method, name, 1.5, tiny(), engine()).endswith("must be a whole number, got 1.5")


def test_every_number_has_a_constraint() -> None:
    for method, name in EACH:
        option = METHODS[method].options[name]
        assert option.constraints or not {int, float} & {option.kind, *get_args(option.kind)}, (method, name)
