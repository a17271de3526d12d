"""Spaces of a search from what a user wrote: "log:1e-4:1e-1", "uniform:0.01:0.2", "int:16:256", "2,3,4"."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from evenly.errors import EvenlyError
from evenly.experiment.sweep import Pair, check_values, varied_option
from evenly.runs.search import Space
from evenly.settings import Option, above

FORM = "write e.g. log:1e-4:1e-1, uniform:0.01:0.2, int:16:256 or 2,3,4"
FIXED = {
    **dict.fromkeys(("model", "model_options"), "one table has one model; sweep it instead"),
    **dict.fromkeys(("groups", "infer"), "trials are scored by the same groups; sweep it instead"),
    **dict.fromkeys(("threads", "precision"), "it decides speed and rounding, not what is learned; set it"),
    "evaluate_every": "it decides how often trials are scored, not what is learned; set it",
}
"""Why a setting cannot be searched."""
RANGE = re.compile(r"(log|uniform|int):([^:]*):([^:]*)")


def checked_spaces(
    search: Mapping[str, Any],
    pairs: Sequence[Pair],
    options: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any],
    sweep: Mapping[str, Any],
) -> tuple[Space, ...]:
    """The spaces of a search; refused where one varies nothing, contradicts what is fixed or swept, or is no space."""
    spaces = []
    for name, written in search.items():
        option = varied_option(name, search, pairs, options, settings, "search")
        setting = name.rpartition(".")[2]
        if setting in FIXED:
            raise EvenlyError(f"{name} cannot be searched, {FIXED[setting]}")
        if swept := [other for other in sweep if _overlap(other, name)]:
            raise EvenlyError(f"{name} is searched and {swept[0]} is swept; do one of the two")
        spaces.append(space_of(name, written, option))
    return tuple(spaces)


def space_of(name: str, written: Any, option: Option) -> Space:
    """A space from a text, or from a list of values."""
    option = evolve(option, name=f"search {name}")  # what is refused is the search, not the setting
    if isinstance(written, str) and ":" in written:
        if (found := RANGE.fullmatch(written)) is None:
            raise EvenlyError(f"search {name}={written} is no space; {FORM}")
        return _range(name, found[1], [Option(name, Any).parsed(end) for end in (found[2], found[3])], option)
    values = option.parsed_list(written) if isinstance(written, str) else written
    if isinstance(values, Mapping | str) or not isinstance(values, Sequence):
        raise EvenlyError(f"search {name}={written!r} is no space; {FORM}")
    choices = tuple(option.checked(value) for value in values)
    check_values(name, choices, "search")
    if len(choices) == 1:
        raise EvenlyError(f"search of {name} has one value, {choices[0]!r}; give two or more, or set it")
    return Space(name, "choice", choices=choices)


def _range(name: str, kind: Any, ends: Sequence[Any], option: Option) -> Space:
    whole = kind == "int" or float not in {option.kind, *typing.get_args(option.kind)}
    number = int if whole else float
    positive = (above(0),) if kind == "log" else ()
    low = Option(f"{option.name}: the low end", number, positive).checked(option.checked(ends[0]))
    high = Option(f"{option.name}: the high end", number, (above(low),)).checked(option.checked(ends[1]))
    return Space(name, kind, low, high, whole=whole)


def _overlap(one: str, other: str) -> bool:
    """Whether two names mean the same setting of some arm."""
    (method, _, setting), (its_method, _, its_setting) = one.rpartition("."), other.rpartition(".")
    return setting == its_setting and ("" in (method, its_method) or method == its_method)
