"""Every option of every method refuses what its annotation excludes, in one line, before a network is built."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from evenly.errors import SettingError
from evenly.methods import METHODS
from evenly.settings import Constraint

CANDIDATES = (0, -1, 0.0, -0.5, 1.0, 1.5, 10**9, 1e10, "nobody")
DECLARED = {
    "C": "a number: at least 0, at most 1e+06",
    "above": "a number: above 0, below 1",
    "add": "a whole number or a list or one of all: at least 1, or all",
    "average": "a number: at least 0, below 1",
    "by": "one of sampling, loss: ",
    "cap": "a whole number: at least 1",
    "count": "a whole number: at least 0",
    "decay": "a number: above 0, at most 1",
    "draw": "one of even, random: ",
    "draws": "a whole number: at least 1, at most 10000",
    "every": "a whole number: at least 1",
    "factor": "a whole number: at least 1, at most 10000",
    "dfr.on": "one of train, validation: ",
    "useful.on": "one of probabilities, logits, features: ",
    "q": "a number: at least 0.0001, at most 1",
    "reset_momentum": "true or false: ",
    "separating_epoch": "a whole number: at least 1",
    "step_size": "a number: above 0, at most 1e+06",
    "upweight.factor": "a number: at least 1, at most 10000",
    "warmup_epochs": "a whole number: at least 1",
}
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
    message = refused(method, name, "nobody", tiny(), engine())
    assert message.startswith(f"{name} (option of {method}) must be ")
    assert message.endswith(", got 'nobody'")
    if (declared := DECLARED.get(f"{method}.{name}", DECLARED.get(name))) is not None:  # a new option has no entry
        kind, _, constraints = declared.partition(": ")
        assert f"must be {kind}, got" in message
        assert ", ".join(each.words for each in METHODS[method].options[name].constraints) == constraints


@pytest.mark.parametrize("name", ["warmup_epochs", "factor", "draws"])
def test_half_a_number_is_no_whole_one(tiny: Any, engine: Any, name: str) -> None:
    method = next(method for method, option in EACH if option == name)
    assert refused(method, name, 1.5, tiny(), engine()).endswith("must be a whole number, got 1.5")
