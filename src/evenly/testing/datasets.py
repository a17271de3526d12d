"""What every data set by name owes its user."""

from __future__ import annotations

import json
from typing import Any

from evenly.data import DATASETS, Data, load
from evenly.errors import EvenlyError
from evenly.experiment.execute import prepare
from evenly.experiment.request import Request, plan_for, source
from evenly.settings import options_of
from evenly.testing.problem import global_states, keep


def check_dataset(name: str, **options: Any) -> None:
    """Hold a data set to all that evenly's own keep. It is loaded three times; nothing is trained.

    Args:
        options: of the data set, e.g. fewer examples.
    """
    make = DATASETS.find(name)
    keep(f"{name} has a summary of one line", bool((make.__doc__ or "").strip()), "begin its docstring with one")
    data = load(name, seed=3, **options)  # which may import what draws a number once
    states = global_states()
    again = load(name, seed=3, **options)
    way = "draw by evenly.randomness.generator(seed, ...)"
    keep(f"{name} leaves the global random states as they were", global_states() == states, way)
    keep(f"{name} is the same for the same seed", again.fingerprint() == data.fingerprint(), way)
    load(name, seed=4, **options)
    _check_parts(name, data)
    _check_options(name)
    place, _ = source(name, options, {})
    try:
        plan = plan_for(Request("erm", "sgd", None, {}), data, place.spec(data), 3)
        prepare(plan, data)
    except EvenlyError as error:
        keep(f"{name} goes with the model and settings of its recipe ({error})", False, "correct its recipe")


def _check_parts(name: str, data: Data) -> None:
    keep(f"{name} is called so, not {data.name!r}", data.name == name, "return Data(..., name=...)")
    keep(f"{name} says what it is", bool(data.about), "return Data(..., about=...)")
    held_out = data.validation is not None or data.test is not None
    keep(f"{name} has examples to measure by", held_out, "return Data with validation and test")
    if data.train.groups is not None:
        named = data.group_names is not None and len(data.group_names) == data.group_count
        keep(f"{name} names its groups", named, "return Data(..., group_names=...)")
    try:
        json.dumps(dict(data.options))
    except TypeError as error:
        keep(f"{name} has options as JSON has them ({error})", False, "use numbers, names and lists")


def _check_options(name: str) -> None:
    for option in options_of(DATASETS[name], leave_out=("seed",)).values():
        try:
            option.checked(option.default)
        except EvenlyError as error:
            keep(f"{name} takes its own defaults ({error})", False, "change the default or its annotation")
    try:
        load(name, no_such_option=1)
    except EvenlyError as error:
        keep(f"{name} names what it refuses, not: {error}", "no_such_option" in str(error), "leave **kwargs out")
    else:
        keep(f"{name} refuses an option that it does not have", False, "leave **kwargs out of its function")
