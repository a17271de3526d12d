"""A sweep: values to run every arm at, and which arms they vary."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from evenly.errors import EvenlyError, unknown
from evenly.experiment.request import SETTINGS
from evenly.methods import find
from evenly.runs.arms import value_text, varies
from evenly.settings import Option
from evenly.values import name_of

Pair = tuple[str, str]
"""A method and an optimizer."""
DONE = {"sweep": "swept", "search": "searched"}


def settings_and_options(method: str) -> dict[str, Option]:
    """Everything that can be set for a method."""
    return SETTINGS | find(method).options


def checked_sweep(
    sweep: Mapping[str, Iterable[Any]],
    pairs: Sequence[Pair],
    options: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any],
) -> dict[str, tuple[Any, ...]]:
    """Refuse a sweep that varies nothing or contradicts what is fixed; its values, with plain numbers."""
    checked: dict[str, tuple[Any, ...]] = {}
    for name, values in sweep.items():
        method = name.rpartition(".")[0]
        option = varied_option(name, sweep, pairs, options, settings)
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
            raise EvenlyError(f"sweep of {name} is {values!r}, not a list of values; give e.g. [{values!r}, ...]")
        checked[name] = tuple(option.checked(value, f"option of {method}" if method else "setting") for value in values)
        check_values(name, checked[name])
    return checked


def varied_option(
    name: str,
    names: Collection[str],
    pairs: Sequence[Pair],
    options: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any],
    verb: str = "sweep",
) -> Option:
    """The setting or option that a name in a sweep or a search means; refused where it varies no arm or is fixed.

    Args:
        names: all names of the sweep or search.
        verb: "sweep" or "search", for the message.
    """
    method, _, setting = name.rpartition(".")
    option, done = _option(name, pairs, verb), DONE[verb]
    if setting == "select":
        raise EvenlyError(f"{name} cannot be {done}, one table has one selection rule; compare once for each rule")
    if not any(varies(name, *pair) for pair in pairs):
        missing = f"method {method}" if method and method not in dict(pairs) else "an optimizer with it, e.g. sam"
        raise EvenlyError(f"{verb} {name!r} varies no arm, none has {missing}; add one that has it")
    fixed = [options.get(method, {})] if method else [settings, *options.values()]
    if fixed := [own[setting] for own in fixed if setting in own]:
        raise EvenlyError(f"{name} is {done} and also fixed at {fixed[0]!r}; give it once")
    if method and setting in names:
        raise EvenlyError(f"{name} and {setting} are both {done}; {verb} one of them")
    return option


def _option(name: str, pairs: Sequence[Pair], verb: str) -> Option:
    method, _, setting = name.rpartition(".")
    known = settings_and_options(method) if method else SETTINGS
    if setting in known:
        return known[setting]
    if not method and (owners := [owner for owner, _ in pairs if setting in find(owner).options]):
        raise EvenlyError(f"{verb} {name!r} does not say whose option it is; write {owners[0]}.{name}")
    raise unknown(f"option of {method}" if method else "setting", setting, known)


def check_values(name: str, values: Sequence[Any], verb: str = "sweep") -> None:
    """Refuse a list of values that is empty or names one twice."""
    if not values:
        raise EvenlyError(f"{verb} of {name} has no values; give at least one")
    texts = [value_text(name_of(value)) for value in values]
    keys = [value if isinstance(value, int | float) else text for value, text in zip(values, texts, strict=True)]
    for k, text in enumerate(texts):
        if keys[k] in keys[:k] or text in texts[:k]:
            raise EvenlyError(f"{text} stands twice in the {verb} of {name}; give every value once")


def points(sweep: Mapping[str, Sequence[Any]], pairs: Sequence[Pair]) -> list[tuple[Pair, dict[str, Any]]]:
    """Every arm with the swept values that vary it, none twice."""
    arms: list[tuple[Pair, dict[str, Any]]] = []
    for values in product(*sweep.values()):
        for pair in pairs:
            swept = {name: value for name, value in zip(sweep, values, strict=True) if varies(name, *pair)}
            if (pair, swept) not in arms:
                arms.append((pair, swept))
    return arms


def values_for_all(swept: Mapping[str, Any]) -> dict[str, Any]:
    """The swept values that are settings of all arms."""
    return {name: value for name, value in swept.items() if "." not in name}


def values_of(swept: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The swept values that are a method's own, under its names for them."""
    return {name.removeprefix(f"{method}."): value for name, value in swept.items() if name.startswith(f"{method}.")}
