"""Values: to plain types and back, live objects left out, damage refused in a line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest
from attrs import field, frozen

from evenly.errors import EvenlyError
from evenly.values import Value, cut, live, name_of, plain


@frozen
class Inner(Value):
    share: float
    when: Literal["now", "later"] = "now"


@frozen
class Outer(Value):
    name: str
    count: int = 0
    flag: bool = False
    inner: Inner | None = None
    each: tuple[Inner, ...] = ()
    limits: tuple[tuple[float, float] | None, ...] = ()
    by_name: Mapping[str, Inner] = field(factory=dict)
    epochs: Sequence[int] | None = None
    anything: Any = None
    either: str | int = ""
    given: Any = live()


WHOLE = Outer(
    "a", 2, True, Inner(0.5), (Inner(1.0), Inner(0.25, "later")), ((0.0, 1.0), None), {"x": Inner(0.0)}, (1, 2),
    {"deep": [1]}, 3, given=object(),
)  # fmt: skip


def test_a_value_comes_back_from_json_without_its_live_objects():
    again = Outer.from_dict(json.loads(json.dumps(WHOLE.to_dict())))
    assert again == WHOLE
    assert hash(again.inner) == hash(WHOLE.inner)
    assert again.given is None
    assert "given" not in WHOLE.to_dict()
    assert "given" not in repr(WHOLE)
    assert Outer.from_dict({"name": "b"}) == Outer("b")
    assert type(Inner.from_dict({"share": 1}).share) is float


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "a Outer cannot be read from list"),
        ({}, "a Outer lacks 'name'"),
        ({"name": "a", "speed": 3}, "a Outer has an unknown field 'speed'; it may be damaged, or written by another"),
        ({"name": 3}, "name must be a text, got 3"),
        ({"name": "a", "count": "3"}, "count must be a whole number, got '3'"),
        ({"name": "a", "count": 1.5}, "count must be a whole number, got 1.5"),
        ({"name": "a", "inner": 3}, "a Inner cannot be read from int"),
        ({"name": "a", "inner": {"share": "high"}}, "share must be a number, got 'high'"),
        ({"name": "a", "each": {"share": 1.0}}, "each must be a list, got"),
        ({"name": "a", "by_name": [1]}, "by_name must be names and values, got"),
    ],
    ids=str,
)
def test_what_is_no_such_value_is_refused_in_a_line(values, message):
    with pytest.raises(EvenlyError, match=message) as refused:
        Outer.from_dict(values)
    assert "\n" not in str(refused.value)


def test_plain_names_functions_and_leaves_numbers():
    def build():
        return None

    assert plain({1: (build, Inner(0.5)), "x": range(2)}) == {
        "1": ["test_plain_names_functions_and_leaves_numbers.<locals>.build", {"share": 0.5, "when": "now"}],
        "x": [0, 1],
    }
    assert name_of(Inner) == "Inner"
    assert name_of(0.5) == 0.5


def test_a_long_text_loses_its_middle():
    assert [cut("abcdefgh", width) for width in (8, 7, 4, 1)] == ["abcdefgh", "abc…fgh", "ab…h", "…"]
