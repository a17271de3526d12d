"""Frozen attrs classes that go to JSON and come back."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence, Set
from html import escape
from pathlib import PurePath
from typing import Any, Literal, Self

import attrs

from evenly.errors import EvenlyError, shortened

SIMPLE = frozenset((int, float, str, bool, type(None)))
"""What JSON has as it is. Of a long list of these, only the set of types is looked at."""


class Value:
    """Gives an attrs class `to_dict` and `from_dict`; every field is a plain value, another such class, or a container
    of these. A field marked ``metadata={"live": True}`` holds an object of this process and is left out."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return {each.name: plain(getattr(self, each.name)) for each in _stored(type(self))}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Made again from `to_dict`; anything else is refused."""
        if not isinstance(values, Mapping):
            raise EvenlyError(f"a {cls.__name__} cannot be read from {type(values).__name__}; it may be damaged")
        hints = typing.get_type_hints(cls)
        known = {each.name: each for each in _stored(cls)}
        missing = [name for name, each in known.items() if each.default is attrs.NOTHING and name not in values]
        if missing or (strangers := [name for name in values if name not in known]):
            what = f"lacks {missing[0]!r}" if missing else f"has an unknown field {strangers[0]!r}"
            raise EvenlyError(f"a {cls.__name__} {what}; it may be damaged, or written by another version of evenly")
        return cls(**{name: _built(hints[name], value, name) for name, value in values.items()})


def _stored(cls: type[Any]) -> list[Any]:
    return [each for each in attrs.fields(cls) if not each.metadata.get("live")]


def plain(value: Any) -> Any:
    """A value as JSON has it; a function by its name."""
    if callable(own := getattr(value, "to_dict", None)):
        return own()
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple) and SIMPLE.issuperset(map(type, value)):
        return list(value)
    if isinstance(value, Sequence | Set) and not isinstance(value, str):
        return [plain(inner) for inner in (sorted(value) if isinstance(value, Set) else value)]
    if isinstance(value, PurePath):
        return str(value)
    return plain(value.tolist()) if hasattr(value, "tolist") else name_of(value)


def name_of(value: Any) -> Any:
    """A function by its name; anything else as it is."""
    return getattr(value, "__qualname__", type(value).__name__) if callable(value) else value


def live() -> Any:
    """A field that holds an object of this process: no part of what is compared, printed or written."""
    return attrs.field(default=None, eq=False, repr=False, metadata={"live": True})


def _built(kind: Any, value: Any, name: str) -> Any:
    """A plain value as an annotation has it; refused, by the name of its field, where it cannot be."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or origin is Literal:
        return value
    if origin in (typing.Union, types.UnionType):
        inner = [part for part in parts if part is not type(None)]
        return _built(inner[0], value, name) if len(inner) == 1 and value is not None else value
    if isinstance(kind, type) and issubclass(kind, Value):
        return kind.from_dict(value)
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


def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def html_table(lines: Sequence[Sequence[str]]) -> str:
    """A table for a notebook: a heading, then rows. Everything is escaped."""
    rows = []
    for k, line in enumerate(lines):
        tag = "td" if k else "th"
        rows.append("".join(f"<{tag}>{escape(text)}</{tag}>" for text in line))
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
