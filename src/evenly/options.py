"""Options by name: which there are, and whether a value is of the kind that was asked for."""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, cast

from evenly.errors import EvenlyError, unknown

Function = TypeVar("Function", bound=Callable[..., Any])


def options_of(function: Callable[..., Any], *, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """The options of a function, its parameters with a default, and what they default to."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty and p.name not in leave_out}


def kinds_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotation of each of a function's parameters."""
    return typing.get_type_hints(function)


def checked(owner: str, given: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The options given, with numpy's numbers as Python's; refused by name or by value if they cannot be used.

    Args:
        owner: whose options they are, for the message: "option of pde".
        kinds: the annotation of every option there is.
    """
    options = {}
    for name, value in given.items():
        if name not in kinds:
            raise unknown(owner, name, kinds)
        plain = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
        if not _is(plain, kinds[name]):
            raise EvenlyError(f"{name} {plain!r} cannot be used; give {_spoken(kinds[name])}")
        options[name] = plain
    return options


def checks_options(function: Function) -> Function:
    """The function, which refuses in a line what its annotations leave out.

    Looked at are the arguments whose annotation names all that can be given: numbers, names, true or false, lists of
    these. Tensors, data and functions are the function's own to look at.
    """
    signature = inspect.signature(function)

    @cache
    def kinds() -> dict[str, Any]:
        return {name: kind for name, kind in kinds_of(function).items() if name != "return" and _is_plain(kind)}

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments.items()
        checked(function.__name__, {name: value for name, value in given if name in kinds()}, kinds())
        return function(*args, **kwargs)

    return cast("Function", call)


def _is_plain(kind: Any) -> bool:
    if typing.get_origin(kind) is Literal:
        return True
    if parts := typing.get_args(kind):
        return all(map(_is_plain, parts))
    return kind in (int, float, bool, str, type(None))


def _is(value: Any, kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_is(value, part) for part in typing.get_args(kind))
    if origin is Literal:
        return isinstance(value, str) and value in typing.get_args(kind)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        (item,) = typing.get_args(kind)
        return hasattr(value, "__len__") and not isinstance(value, str) and all(_is(each, item) for each in value)
    if kind is float or kind is int:
        number = isinstance(value, Real if kind is float else Integral) and not isinstance(value, bool)
        return number and math.isfinite(value)
    if kind in (bool, str):
        return isinstance(value, kind)
    return value is None if kind is type(None) else True


def _spoken(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_spoken(part) for part in typing.get_args(kind) if part is not type(None)))
    if origin is Literal:
        return " or ".join(repr(value) for value in typing.get_args(kind))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return "a list of them"
    return {float: "a number", int: "a whole number", bool: "true or false", str: "a name"}.get(kind, "another value")
