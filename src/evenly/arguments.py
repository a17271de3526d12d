"""What is typed on the command line, as values: numbers, names, name=value pairs, sweeps, seeds, settings."""

from __future__ import annotations

import json
import re
from typing import Any

from evenly.errors import EvenlyError


def only_given(**settings: Any) -> dict[str, Any]:
    """Those that the user gave."""
    return {name: value for name, value in settings.items() if value is not None}


def numbers(name: str, text: str | None) -> list[float] | None:
    """Numbers with commas between them; the name is for the error."""
    try:
        return None if text is None else [float(value) for value in text.split(",")]
    except ValueError:
        raise EvenlyError(f"{name} {text!r} are not numbers; separate them by commas, e.g. 1,2,5") from None


def settings_of(batch_size: str | None, model_option: list[str] | None, **given: Any) -> dict[str, Any]:
    """Only what the user gave; the rest is a recipe's or the default."""
    settings = only_given(**given)
    if batch_size is not None:
        if batch_size != "full" and not batch_size.isdecimal():
            raise EvenlyError(f"batch-size {batch_size!r} is not a number of examples; give a whole number or 'full'")
        settings["batch_size"] = None if batch_size == "full" else int(batch_size)
    if model_option:
        settings["model_options"] = pairs(model_option)
    return settings


def running(workers: int, no_capture: bool) -> dict[str, Any]:
    """How to run it, where that is not as usual."""
    if workers < 0:
        raise EvenlyError(f"workers {workers} cannot be used; give 0 (none) or more")
    return ({"workers": workers} if workers else {}) | ({"capture": False} if no_capture else {})


def swept(items: list[str] | None) -> dict[str, list[Any]]:
    """name=value,value,... pairs; a whole batch is called 'full' here as in --batch-size."""
    sweep: dict[str, list[Any]] = {}
    for item in items or []:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise EvenlyError(f"sweep {item!r} is not name=value,value; write e.g. batch_size=128,256")
        if name in sweep:
            raise EvenlyError(f"{name} is swept twice; give all its values at once, {name}=value,value")
        try:
            values = json.loads(f"[{text}]")
        except json.JSONDecodeError:
            values = [_value(part.strip()) for part in text.split(",")]
        if name.rpartition(".")[2] == "batch_size":
            values = [None if value == "full" else value for value in values]
        sweep[name] = values
    return sweep


def pairs(items: list[str] | None) -> dict[str, Any]:
    """name=value pairs; values are read as JSON where they are JSON (numbers, lists, true) and as text otherwise."""
    found: dict[str, Any] = {}
    for item in items or []:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise EvenlyError(f"option {item!r} is not name=value; write e.g. factor=3")
        found[name] = _value(value)
    return found


def names(text: str) -> list[str]:
    """Names with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def seeds_of(text: str) -> int | list[int]:
    """How many seeds, or which."""
    try:
        seeds = [int(seed) for seed in text.split(",")]
    except ValueError:
        raise EvenlyError(f"seeds {text!r} are not numbers; give how many (3) or which (100,101,102)") from None
    if "," in text:
        if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
            raise EvenlyError(
                f"seed {twice[0]} stands twice in {text!r}, and a run repeated is no second observation; "
                "give each once, or how many (3)"
            )
        return seeds
    if seeds[0] < 1:
        raise EvenlyError(f"seeds {text} leave nothing to run; give how many (3) or which (100,101,102)")
    return seeds[0]


def _value(text: str) -> Any:
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except json.JSONDecodeError:
        # a number that JSON would have start with 0
        return float(text) if re.fullmatch(r"[+-]?\.\d+(e[+-]?\d+)?", text, re.ASCII) else text
