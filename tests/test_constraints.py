"""Every declared constraint of every function is enforced: refusals are generated from the annotations."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

import pytest

import evenly.data
import evenly.diagnose
import evenly.models
import evenly.optim
import evenly.theory
from evenly.data import PatchDistribution, SpiralDistribution
from evenly.diagnose.spectrum import Lanczos
from evenly.errors import SettingError
from evenly.settings import Constraint, settings_of
from evenly.theory.spiral import Intervention
from evenly.theory.stability import Runs

PACKAGES = (evenly.theory, evenly.diagnose, evenly.data, evenly.optim, evenly.models)
CLASSES = (Lanczos, Runs, Intervention, PatchDistribution, SpiralDistribution)
PROBES = (0, 1, 2, 0.2, 0.7, 0.0, 1.0, -1, -1.0, 21, 201, 20_000, 1e200)
"""Values of which at least one satisfies and one violates each constraint."""
WRONG_TYPES = {int: 1.5, float: "1", bool: 3, str: 3}


def parts_of(hint: Any) -> tuple[set[Any], list[Constraint]]:
    """The types that an annotation names, and the constraints."""
    if typing.get_origin(hint) is Annotated:
        inner, *constraints = typing.get_args(hint)
        return parts_of(inner)[0], constraints
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        both = [parts_of(part) for part in typing.get_args(hint)]
        return set().union(*(kinds for kinds, _ in both)), [each for _, constraints in both for each in constraints]
    return {hint}, []


def allowed(hint: Any) -> Any:
    """A value that the annotation allows; None where nothing is checked."""
    kinds, constraints = parts_of(hint)
    kind = next((each for each in (int, float, bool) if each in kinds), None)
    if constraints and kind:
        return next(kind(p) for p in PROBES if p == kind(p) and all(c.holds(kind(p)) for c in constraints))
    literal = next((each for each in kinds if typing.get_origin(each) is Literal), None)
    if literal:
        return typing.get_args(literal)[0]
    return [] if typing.get_origin(hint) is Sequence else {int: 1, float: 0.5, bool: False}.get(hint)


def refused(hint: Any) -> Iterator[tuple[Any, str]]:
    """Values that the annotation excludes, and what the message says that they must be."""
    kinds, constraints = parts_of(hint)
    kinds -= {type(None)}
    for kind in kinds & WRONG_TYPES.keys():
        if len(kinds) == 1:
            yield WRONG_TYPES[kind], ""
        for constraint in constraints:
            yield next(kind(p) for p in PROBES if p == kind(p) and not constraint.holds(kind(p))), ""
    if all(typing.get_origin(kind) is Literal for kind in kinds):
        yield "?", "one of"


def members() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public functions of the packages' modules, and the constructors and methods of their classes."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            content = importlib.import_module(module.name)
            for owner in (content, *(cls for _, cls in inspect.getmembers(content, inspect.isclass))):
                for name, function in inspect.getmembers(owner, inspect.isroutine):
                    if getattr(function, "__module__", "") == module.name and (
                        name == "__init__" or not name.startswith("_")
                    ):
                        yield f"{getattr(owner, '__qualname__', '')} {name}".strip(), function


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    return ((name, function) for name, function in members() if hasattr(function, "__wrapped__"))


def cases() -> Iterator[Any]:
    for name, function in functions():
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
        required = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
        arguments = {parameter: allowed(hints.get(parameter, Any)) for parameter in required}
        plain = {p.name: hints[p.name] for p in parameters if p.name in hints and p.kind is not p.VAR_KEYWORD}
        for parameter, hint in plain.items():
            for value, words in refused(hint):
                arguments_with = {**arguments, parameter: value}
                yield pytest.param(function, arguments_with, parameter, words, id=f"{name} {parameter} {value}")
    for owner, option in ((cls, option) for cls in CLASSES for option in settings_of(cls).values()):
        for value, words in refused(Annotated[option.kind, *option.constraints] if option.constraints else option.kind):
            yield pytest.param(owner, {option.name: value}, option.name, words, id=f"{option.name} {value}")


@pytest.mark.parametrize(("function", "arguments", "parameter", "requirement"), list(cases()))
def test_a_value_outside_its_constraint_is_refused_by_name(function, arguments, parameter, requirement):
    with pytest.raises(SettingError, match=f"^{parameter} must be {requirement}"):
        function(**arguments)


def test_there_are_cases_of_every_package():
    modules = [case.values[0].__module__ for case in cases()]
    for package, least in zip(PACKAGES, (60, 60, 60, 5, 5), strict=True):
        assert sum(name.startswith(package.__name__) for name in modules) > least


def has_constraints(function: Callable[..., Any]) -> bool:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError:  # of a type that only the type checker imports
        return False
    return any(parts_of(hint)[1] for hint in hints.values())


def test_a_function_that_declares_a_constraint_checks_it():
    declared = [(name, hasattr(function, "__wrapped__")) for name, function in members() if has_constraints(function)]
    assert len(declared) > 40
    assert [name for name, is_checked in declared if not is_checked] == []
