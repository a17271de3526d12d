"""A sweep: which values of which settings, the arms that they vary, and what an arm is called at its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from evenly.errors import EvenlyError, unknown
from evenly.experiment import KINDS, name_of
from evenly.methods import find
from evenly.optim.registry import PLAIN
from evenly.options import checked, kinds_of


def setting_kinds(method: str) -> dict[str, Any]:
    """Of what kind is each of a method's options and settings."""
    own = find(method)
    kinds = kinds_of(own.run)
    return KINDS | {name: kinds[name] for name in own.options}


def checked_sweep(
    sweep: Mapping[str, Iterable[Any]],
    arms: list[tuple[str, str]],
    options: dict[str, dict[str, Any]],
    settings: dict[str, Any],
) -> dict[str, list[Any]]:
    """Refuse a sweep that varies nothing or contradicts what is fixed; its values, with plain numbers."""
    found: dict[str, list[Any]] = {}
    for name, values in sweep.items():
        method, _, setting = name.rpartition(".")
        if not method and setting not in KINDS:
            if whose := [owner for owner, _ in arms if setting in find(owner).options]:
                raise EvenlyError(f"sweep {name!r} does not say whose option it is; write {whose[0]}.{name}")
            raise unknown("setting", name, KINDS)
        kinds = setting_kinds(method) if method else KINDS
        if setting not in kinds:
            raise unknown(f"option of {method}", setting, kinds)
        if setting == "select":
            raise EvenlyError(f"{name} cannot be swept, one table has one selection rule; compare once for each rule")
        if not any(varies(name, *arm) for arm in arms):
            missing = f"method {method}" if method and method not in dict(arms) else f"optimizer {' or '.join(PLAIN)}"
            raise EvenlyError(f"sweep {name!r} varies no arm, none has {missing}; add one that has it")
        fixed = [options.get(method, {})] if method else [settings, *options.values()]
        if fixed := [own[setting] for own in fixed if setting in own]:
            raise EvenlyError(f"{name} is swept and also fixed at {fixed[0]!r}; give it once")
        if method and setting in sweep:
            raise EvenlyError(f"{name} and {setting} are both swept; sweep one of them")
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
            raise EvenlyError(f"sweep of {name} is {values!r}, not a list of values; give e.g. [{values!r}, ...]")
        owner = f"option of {method}" if method else "setting"
        found[name] = [checked(owner, {setting: value}, kinds)[setting] for value in values]
        if not found[name]:
            raise EvenlyError(f"sweep of {name} has no values; give at least one")
        texts = [_text(name_of(value)) for value in found[name]]
        if twice := [text for text, before in zip(texts, _before(found[name], texts), strict=True) if before]:
            raise EvenlyError(f"{twice[0]} stands twice in the sweep of {name}; give every value once")
    return found


def _before(values: list[Any], texts: list[str]) -> list[bool]:
    """For each value whether an earlier one is equal to it (1 and 1.0) or is called the same."""
    numbers = [value if isinstance(value, int | float) else text for value, text in zip(values, texts, strict=True)]
    return [numbers[k] in numbers[:k] or texts[k] in texts[:k] for k in range(len(values))]


def varies(name: str, method: str, optimizer: str) -> bool:
    """Whether a swept name has to do with an arm."""
    owner, _, setting = name.rpartition(".")
    return owner in ("", method) and (setting != "rho" or optimizer in PLAIN)


def values_for_all(at: Mapping[str, Any]) -> dict[str, Any]:
    """The swept values that are settings of all arms."""
    return {name: value for name, value in at.items() if "." not in name}


def values_of(at: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The swept values that are a method's own, under its names for them."""
    return {name.removeprefix(f"{method}."): value for name, value in at.items() if name.startswith(f"{method}.")}


def arm_name(method: str, optimizer: str, at: Mapping[str, Any]) -> str:
    values = [f"{name.rpartition('.')[2]} {_text(name_of(value), name)}" for name, value in at.items()]
    return ", ".join([f"{method}+{optimizer}", *values])


def point_name(sweep: Mapping[str, Any]) -> str:
    """A row's swept values as a heading: "batch_size 256, useful.factor 3"."""
    return ", ".join(f"{name} {_text(value, name)}" for name, value in sweep.items())


def _text(value: Any, name: str = "") -> str:
    """A swept value as it stands in an arm's name."""
    if value is None:
        return "full" if name.rpartition(".")[2] == "batch_size" else "none"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_text(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return "/".join(_text(inner) for inner in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
