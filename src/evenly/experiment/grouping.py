"""The groups that `evenly improve` goes by: the data's own, the classes, a failing slice of its columns, or inferred.

Where no groups are given, one plain run is audited on validation. If a slice of the data's columns is clearly worse
than the rest, each class is divided by it. Otherwise an early network divides each class in two (`methods.inferred`).
What was decided is written down, so that a job that goes on has the same groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

from evenly.data import Data
from evenly.diagnose.fisher import fisher
from evenly.diagnose.slices import Column, Slice, columns_of, find_slices, members_of
from evenly.engine import predictions
from evenly.errors import EvenlyError
from evenly.experiment.trial_data import TrialSource
from evenly.files import atomic, make_folder
from evenly.methods import Inferred
from evenly.models import encoded
from evenly.runs.improvement import Goal, Grouping
from evenly.runs.results import DataSummary
from evenly.runs.run import Run, validation_outputs

FOLDER, FILE, TEST_FILE = "groups", "groups.npz", "test.npz"
"""The early network that groups are inferred by, and the groups."""
LABEL, LEVEL = " label", 0.05
"""The name of the column of labels, which no column of the user's has; the level at which a part of a slice fails."""
SLICES_COST, INFER_COST = 1.0, 2.4
"""What it may cost to find groups, in runs of ERM."""
FEWEST = {"train": 5, "validation": 10}
"""Examples that a group made of a slice needs at least."""


@frozen(eq=False)
class Grouped:
    """The data with the groups that were decided on.

    Args:
        cost: example-gradients that it took.
        note: what the user should know of it, in a sentence.
    """

    source: TrialSource
    grouping: Grouping
    cost: float = 0.0
    inferred: Inferred | None = None
    slice: str = ""
    note: str = ""

    def with_test(self, whole: Data, out: Path) -> Data:
        """The data with its test set, for after the choice. Where groups were inferred, the early network divides the
        test set as well, once."""
        if self.inferred is None:
            return self.source.whole()[0]
        file = out / FOLDER / TEST_FILE
        found = {} if file.exists() else {"test": self.inferred.assign(encoded(whole, self.inferred.network).test)}
        groups = {**(self.source.groups or {}), **_kept(file, found)}
        return evolve(self.source, groups=groups).whole()[0]


def grouped_for(
    goal: Goal, source: TrialSource, whole: Data, audited: Callable[[], Run], infer: Callable[[], Inferred], out: Path,
    room: float,
) -> Grouped:  # fmt: skip
    """Decide on the groups. Where there is none to be found, or no room for it, they are the classes.

    Args:
        whole: the data with its test set, of which only labels and columns are used.
        audited: trains plain training once.
        infer: trains an early network and infers groups.
        room: what may be spent on it, in runs of ERM.
    """
    if goal == "worst-class":
        return _by_class(source, whole)
    if whole.train.groups is not None or goal == "average":
        return Grouped(source, "none" if whole.train.groups is None else "given")
    sliced = None if source.no_groups or room < SLICES_COST else _sliced(source, whole, audited)
    if sliced is not None and sliced.grouping == "slice":
        return sliced
    spent, room = (0.0, room) if sliced is None else (sliced.cost, room - SLICES_COST)
    if room < INFER_COST:
        return _by_class(
            source, whole, spent, "The budget has no room to infer groups, so the goal is the worst class."
        )
    try:
        inferred = infer()
    except EvenlyError as error:
        reason = f"Groups could not be inferred ({error}), so the goal is the worst class."
        return _by_class(source, whole, spent, reason)
    groups = {name: split.groups for name, split in inferred.data.splits.items() if split.groups is not None}
    names = tuple(map(str, inferred.data.group_names or ()))
    found = evolve(source, groups=_kept(out / FOLDER / FILE, groups), group_names=names, no_groups=False)
    return Grouped(found, "inferred", spent + inferred.cost, inferred)


def _by_class(source: TrialSource, whole: Data, cost: float = 0.0, note: str = "") -> Grouped:
    groups = {name: split.labels for name, split in whole.splits.items()}
    names = DataSummary.of(whole).class_names
    return Grouped(evolve(source, groups=groups, group_names=names, no_groups=False), "classes", cost, note=note)


def _sliced(source: TrialSource, whole: Data, audited: Callable[[], Run]) -> Grouped | None:
    """Groups from the slice with the strongest evidence, of one column or of two, or of a class and a column; with no
    groups where no slice is clearly worse than the rest, and None where there are no columns.

    A slice of a class and a column is that column's: the classes are divided anyway.
    """
    data = source.data(source.seed)
    columns = columns_of(data.validation, data)
    if not columns:
        return None
    run = audited()
    names = DataSummary.of(data).class_names
    label = Column(LABEL, data.validation.labels, names)
    right = predictions(validation_outputs(run)) == data.validation.labels
    for each in find_slices(right, (label, *columns)).slices:
        for part in _parts(each):
            if not _fails(right, members_of(part, columns)):
                continue
            by_split = {name: columns_of(split, whole) for name, split in whole.splits.items()}
            if any({*part.columns} - {column.name for column in each} for each in by_split.values()):
                continue  # a column that is the label in one split is no column there
            members = {name: members_of(part, each) for name, each in by_split.items()}
            groups = {
                name: 2 * split.labels + torch.from_numpy(members[name]).long() for name, split in whole.splits.items()
            }
            if _can_be_balanced(groups, len(names)):
                words = " and ".join(f"{name} {value}" for name, value in zip(part.columns, part.values, strict=True))
                group_names = tuple(f"{name}, {kind}" for name in names for kind in (f"not {words}", words))
                found = evolve(source, groups=groups, group_names=group_names, no_groups=False)
                return Grouped(found, "slice", run.results.cost, slice=words)
    return Grouped(source, "none", run.results.cost)


def _parts(found: Slice) -> list[Slice]:
    """A slice without the label, and then each of its columns alone: a pair may have too few examples to train on."""
    kept = [k for k, name in enumerate(found.columns) if name != LABEL]
    choices = [kept, *([k] for k in kept if len(kept) > 1)] if kept else []
    return [
        evolve(found, columns=tuple(found.columns[k] for k in each), values=tuple(found.values[k] for k in each))
        for each in choices
    ]


def _fails(right: Tensor, members: np.ndarray[Any, np.dtype[np.bool_]]) -> bool:
    """Whether a part of a failing slice, which is searched for no more, is worse than the rest itself."""
    inside, outside = right.numpy()[members], right.numpy()[~members]
    return bool(fisher(int(inside.sum()), len(inside), int(outside.sum()), len(outside)) < LEVEL)


def _can_be_balanced(groups: Mapping[str, Tensor], classes: int) -> bool:
    """Whether every group has a few examples to train on and to be measured by."""
    return all(
        int(torch.bincount(groups[name], minlength=2 * classes).min()) >= fewest for name, fewest in FEWEST.items()
    )


def _kept(path: Path, groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Groups as they were first decided on: on a GPU, a second inference may round otherwise."""
    if not path.exists():
        make_folder(path.parent)
        arrays: dict[str, Any] = {name: each.numpy() for name, each in groups.items()}
        with atomic(path) as file:
            np.savez(file, **arrays)
    with np.load(path, allow_pickle=False) as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored.files}
