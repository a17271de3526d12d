"""Frozen attrs classes that go to JSON and come back, and whether a value is of a type as annotations spell it."""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache
from html import escape
from numbers import Integral, Real
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

import attrs

from evenly.errors import EvenlyError, shortened

SIMPLE = frozenset((int, float, str, bool, type(None)))
"""What JSON has as it is. Of a long list of these, only the set of types is looked at."""
LARGEST = 2**63 - 1
"""The largest whole number: those of a tensor have 64 bits."""


class Value:
    """Gives an attrs class `to_dict` and `from_dict`; every field is a plain value, another such class, or a container
    of these. A field marked ``metadata={"live": True}`` holds an object of this process and is left out."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return {name: plain(getattr(self, name)) for name in _stored(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Made again from `to_dict`; anything else is refused."""
        if not isinstance(values, Mapping):
            raise EvenlyError(f"a {cls.__name__} cannot be read from {type(values).__name__}; it may be damaged")
        known = _stored(cls)
        missing = [name for name, (default, _) in known.items() if default is attrs.NOTHING and name not in values]
        if missing or (strangers := [name for name in values if name not in known]):
            what = f"lacks {missing[0]!r}" if missing else f"has an unknown field {strangers[0]!r}"
            raise EvenlyError(f"a {cls.__name__} {what}; it may be damaged, or written by another version of evenly")
        return cls(**{name: _built(known[name][1], value, name) for name, value in values.items()})


def _stored(value: Any) -> dict[str, tuple[Any, Any]]:
    """Default and annotation of every field that is written, by name."""
    return _stored_of(value if isinstance(value, type) else type(value))


@cache
def _stored_of(cls: Any) -> dict[str, tuple[Any, Any]]:
    hints = typing.get_type_hints(cls)
    return {each.name: (each.default, hints[each.name]) for each in attrs.fields(cls) if not each.metadata.get("live")}


def plain(value: Any) -> Any:
    """A value as JSON has it; a function by its name."""
    if type(value) in SIMPLE:
        return value
    if callable(own := getattr(value, "to_dict", None)):
        return own()
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple) and SIMPLE.issuperset(map(type, value)):
        return list(value)
    if isinstance(value, Sequence | Set) and not isinstance(value, str):
        return [plain(inner) for inner in (sorted(value) if isinstance(value, Set) else value)]
    if isinstance(value, PurePath):
        value = str(value)
    return plain(value.tolist()) if hasattr(value, "tolist") else name_of(value)


def name_of(value: Any) -> Any:
    """A function by its name; anything else as it is."""
    return getattr(value, "__qualname__", type(value).__name__) if callable(value) else value


def live() -> Any:
    """A field that holds an object of this process: no part of what is compared, printed or written."""
    return attrs.field(default=None, eq=False, repr=False, metadata={"live": True})


@cache
def _anatomy(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(kind), typing.get_args(kind)


def _built(kind: Any, value: Any, name: str) -> Any:
    """A plain value as an annotation has it; refused, by the name of its field, where it cannot be."""
    origin, parts = _anatomy(kind)
    if kind is Any or origin is Literal or (kind is type(value) and kind in SIMPLE):
        return value
    if origin in (typing.Union, types.UnionType):
        inner = [part for part in parts if part is not type(None)]
        return _built(inner[0], value, name) if len(inner) == 1 and value is not None else value
    if isinstance(kind, type) and issubclass(kind, Value):
        return value if isinstance(value, kind) else kind.from_dict(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    wanted = {tuple: list | tuple, Sequence: list | tuple}.get(origin, Mapping if _is_mapping(origin) else kind)
    if origin is None and kind not in (int, float, str, bool):
        return value
    if not isinstance(value, wanted) or (kind is int and isinstance(value, bool)):
        words: dict[Any, str] = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        required = words.get(wanted, "names and values" if wanted is Mapping else "a list")
        raise EvenlyError(f"{name} must be {required}, got {shortened(value)}")
    return value if origin is None else _built_parts(origin, parts, value, name)


def _built_parts(origin: Any, parts: tuple[Any, ...], value: Any, name: str) -> Any:
    if _is_mapping(origin):
        return {key: _built(parts[1], inner, name) for key, inner in value.items()}
    kinds = parts[:1] * len(value) if origin is Sequence or parts[-1] is Ellipsis else parts
    allowed = set(typing.get_args(parts[0]) or parts[:1])
    if len({*kinds}) == 1 and len(kinds) == len(value) and SIMPLE >= allowed >= set(map(type, value)):
        return tuple(value)
    return tuple(_built(kind, each, name) for kind, each in zip(kinds, value, strict=True))


@cache
def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def html_table(lines: Sequence[Sequence[str]]) -> str:
    """A table for a notebook: a heading, then rows. Everything is escaped."""
    rows = []
    for k, line in enumerate(lines):
        tag = "td" if k else "th"
        rows.append("".join(f"<{tag}>{escape(text)}</{tag}>" for text in line))
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def is_plain(hint: Any) -> bool:
    """Whether an annotation names everything that is allowed: numbers, names, true or false, lists of these."""
    if typing.get_origin(hint) is Annotated:
        return is_plain(typing.get_args(hint)[0])
    if typing.get_origin(hint) is Literal:
        return True
    if parts := typing.get_args(hint):
        return all(map(is_plain, parts))
    return hint in (int, float, bool, str, type(None))


def is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, as annotations spell it; types that are not named here pass."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return is_of(value, parts[0])
    if origin in (typing.Union, types.UnionType):
        return any(is_of(value, part) for part in parts)
    if origin is not None:
        return _is_of_parts(value, origin, parts)
    if kind is int or kind is float:
        number = isinstance(value, Real if kind is float else Integral) and not isinstance(value, bool)
        return number and abs(value) <= (LARGEST if kind is int else sys.float_info.max)
    return isinstance(value, kind) if kind in (bool, str, type(None)) else True


def _is_of_parts(value: Any, origin: Any, parts: tuple[Any, ...]) -> bool:
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is Callable:
        return callable(value)
    if issubclass(origin, Sequence):
        return hasattr(value, "__len__") and not isinstance(value, str) and all(is_of(each, parts[0]) for each in value)
    if not isinstance(value, origin):
        return False
    return not issubclass(origin, Mapping) or parts[0] is not str or all(isinstance(name, str) for name in value)


def kind_in_words(kind: Any) -> str:
    """What a value must be to be of a type."""
    origin = typing.get_origin(kind)
    if origin is Annotated:
        return kind_in_words(typing.get_args(kind)[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(kind_in_words(k) for k in typing.get_args(kind) if k is not type(None)))
    if origin is Literal:
        return f"one of {', '.join(typing.get_args(kind))}"
    if isinstance(origin, type) and issubclass(origin, Sequence | Mapping):
        numbers = " of numbers, e.g. 1,2,5" if typing.get_args(kind)[0] is float else ""
        return f"a list{numbers}" if issubclass(origin, Sequence) else "a dict of names and values"
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "a name"}
    return words.get(kind, "a function" if origin is Callable else "another value")


def duration(seconds: float) -> str:
    """Seconds as people write them: "48 s", "2 min 5 s", "1 h 3 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if seconds >= 10 else f"{seconds:.1f} s" if seconds >= 0.05 else "less than 0.1 s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def cut(text: str, width: int) -> str:
    """A text in so many columns; what is too long loses its middle."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"
