"""What a run leaves, as loggers take it: points (tag, step, value), and the settings of the run.

All loggers, during a run and afterwards, get their points from here, so that a point has one tag and one step however
it was logged. A tag is STAGE/NAME, or STAGE/NAME/NAME of a nested value; the step is the epoch within the stage:

    final/train_loss                      the loss of the last stage's epochs
    early/train_loss                      the same of the stage that a method calls early
    final/validation/accuracy             a nested value
    final/validation/groups/0 cow grass   a value in a list, with its place there and, of groups, the group's name
    results/test/accuracy                 the finished run; its step is the epoch whose weights are used
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from evenly.runs.folder import Config
from evenly.runs.results import RunResult
from evenly.settings import Settings, settings_of

RESULTS = "results"
BY_GROUP = ("groups", "group_counts", "group_intervals")
"""Lists with a number for each group of the data."""
LONGEST = 60
"""Characters of a part of a tag: MLflow takes 250 in all."""


@frozen
class Point:
    """One number of a run."""

    tag: str
    step: int
    value: float


def points_of_row(row: Mapping[str, Any], group_names: Sequence[str] = ()) -> list[Point]:
    """Every number in a row of `metrics.jsonl`, except the epoch, which is the step."""
    values = {name: value for name, value in row.items() if name not in ("stage", "epoch")}
    tags = _numbers(values, part(row["stage"]), group_names)
    return [Point(tag, int(row["epoch"]), value) for tag, value in tags]


def points_of_results(results: RunResult) -> list[Point]:
    """What a finished run reached on every split, and what it cost."""
    cost = {
        name: getattr(results, name)
        for name in ("cost", "cost_multiple", "evaluation_cost_multiple", "seconds", "epochs", "selected_epoch")
    }
    splits = {name: measured.to_dict() for name, measured in results.splits.items()}
    tags = _numbers({**splits, **cost}, RESULTS, results.data.group_names)
    return [Point(tag, results.selected_epoch, value) for tag, value in tags]


def _numbers(value: Any, tag: str, group_names: Sequence[str], name: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in a value, each with its tag. What is None, as a group without examples, has none."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(inner, f"{tag}/{part(key)}", group_names, str(key))
    elif isinstance(value, list | tuple):
        named = name in BY_GROUP and len(value) == len(group_names)
        for place, inner in enumerate(value):
            # the place makes it unique, so that the name need not be
            label = f"{place} {_allowed(group_names[place])[:LONGEST]}".rstrip() if named else str(place)
            yield from _numbers(inner, f"{tag}/{label}", group_names)
    elif isinstance(value, int | float):
        yield tag, float(value)


def part(name: object) -> str:
    """A name as a part of a tag that every logger takes; other names stay apart from it."""
    text = str(name)
    allowed = _allowed(text)[:LONGEST]
    if allowed == text and text.strip(". "):
        return text
    return f"{allowed}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:6]}"


def _allowed(text: str) -> str:
    """MLflow takes letters of any script, digits, and few signs; a slash would begin another part."""
    return re.sub(r"[^\w. -]", "_", text)


def settings_of_run(config: Config) -> dict[str, Any]:
    """What the run was asked for, by name: texts, numbers, true or false; options under the name of their owner."""
    plan = config.plan
    settings = plan.settings.to_dict()
    values = {
        "data": plan.data.name,
        "model": plan.model.name,
        "method": plan.method.name,
        "optimizer": plan.optimizer.name,
        "seed": plan.seed,
        **{name: option.none if settings[name] is None else settings[name] for name, option in _SETTINGS.items()},
        "threads": config.threads,
        "evenly": config.evenly,
    }
    if plan.budget is not None:
        values["budget"] = plan.budget
    if config.control_of:
        values["control_of"] = config.control_of
    values = {name: _simple(value) for name, value in values.items()}
    options = {"method": plan.method.options, "model": plan.model.options, "data": plan.data.options}
    named = {owner: {name: _simple(each) for name, each in given.items()} for owner, given in options.items()}
    return values | {f"{owner}_options": given for owner, given in named.items() if given}


_SETTINGS = settings_of(Settings)


def _simple(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    return (
        "none" if value is None else str(value).encode(errors="replace").decode()
    )  # a file's name need not be valid text
