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


def cases():
    for module in pkgutil.iter_modules(evenly.theory.__path__, "evenly.theory."):
        functions = inspect.getmembers(importlib.import_module(module.name), lambda f: hasattr(f, "__wrapped__"))
        for name, function in functions:
            if function.__module__ != module.name:
                continue
            hints = typing.get_type_hints(function, include_extras=True)
            required = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
            arguments = {parameter: allowed(hints[parameter]) for parameter in required}
            hints.pop("return")
            for parameter, hint in hints.items():
                if typing.get_origin(hint) is Literal:
                    yield pytest.param(
                        function, {**arguments, parameter: "?"}, parameter, "one of", id=f"{name} {parameter}"
                    )
                if typing.get_origin(hint) is Annotated:
                    kind, constraints = constraints_of(hint)
                    for constraint in constraints:
                        bad = next(kind(p) for p in PROBES if p == kind(p) and not constraint.holds(kind(p)))
                        bad_arguments = {**arguments, parameter: bad}
                        yield pytest.param(
                            function, bad_arguments, parameter, "", id=f"{name} {parameter} {constraint.words}"
                        )


@pytest.mark.parametrize(("function", "arguments", "parameter", "requirement"), list(cases()))
def test_a_value_outside_its_constraint_is_refused_by_name(function, arguments, parameter, requirement):
    with pytest.raises(SettingError, match=f"^{parameter} must be {requirement}"):
        function(**arguments)


def test_there_are_cases():
    assert len(list(cases())) > 60
