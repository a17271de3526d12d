"""Every declared constraint of every function is enforced: refusals are generated from the annotations."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import typing
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pytest

import evenly.theory
from evenly.errors import SettingError
from evenly.settings import Constraint

PROBES = (0, 1, 2, 0.2, 0.7, 0.0, 1.0, -1, -1.0, 21, 1e200)
"""Values of which at least one satisfies and one violates each constraint."""


def constraints_of(hint: Any) -> tuple[type, list[Constraint]]:
    kind, *constraints = typing.get_args(hint)
    return (int if int in (kind, *typing.get_args(kind)) else float), constraints


def allowed(hint: Any) -> Any:
    """A value that the annotation allows; None where nothing is checked."""
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)[0]
    if typing.get_origin(hint) is Annotated:
        kind, constraints = constraints_of(hint)
        return next(kind(p) for p in PROBES if p == kind(p) and all(c.holds(kind(p)) for c in constraints))
    return [] if typing.get_origin(hint) is Sequence else {int: 1, float: 0.5, bool: False}.get(hint)


def functions():
    """(name, function, annotations) of every function that checks its arguments."""
    for module in pkgutil.iter_modules(evenly.theory.__path__, "evenly.theory."):
        for name, function in inspect.getmembers(importlib.import_module(module.name)):
            if hasattr(function, "__wrapped__") and function.__module__ == module.name:
                hints = typing.get_type_hints(function, include_extras=True)
                hints.pop("return")
                yield name, function, hints


def cases():
    for name, function, hints in functions():
        required = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        arguments = {parameter: allowed(hints[parameter]) for parameter in required}
        for parameter, hint in hints.items():
            if typing.get_origin(hint) is Literal:
                yield pytest.param(function, {**arguments, parameter: "?"}, parameter, id=f"{name} {parameter}")
            if typing.get_origin(hint) is Annotated:
                kind, constraints = constraints_of(hint)
                for constraint in constraints:
                    bad = next(kind(p) for p in PROBES if p == kind(p) and not constraint.holds(kind(p)))
                    case = f"{name} {parameter} {constraint.words}"
                    yield pytest.param(function, {**arguments, parameter: bad}, parameter, id=case)


@pytest.mark.parametrize(("function", "arguments", "parameter"), list(cases()))
def test_a_value_outside_its_constraint_is_refused_by_name(function, arguments, parameter):
    with pytest.raises(SettingError, match=f"^{parameter} must be "):
        function(**arguments)


def test_numbers_of_these_names_always_have_a_constraint():
    names = (
        "lr alpha beta beta_e beta_d beta_s beta_c beta_strong beta_weak ascent r d C n delta memory every epochs rho_t"
    )
    named = [(name, hints[each]) for name, _, hints in functions() for each in names.split() if each in hints]
    assert len(named) > 60
    assert [name for name, hint in named if hint in (int, float)] == []
