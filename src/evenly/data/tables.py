"""The user's own texts or numbers from one CSV file, in the format of `evenly.data.metadata`.

A file with a column of texts is a set of texts, and every column but label and split is an attribute. In any other file
the columns of numbers are features, standardised by the training rows, and the others are attributes. A column that the
user groups by or calls an attribute is no feature, though it hold numbers: a network is not shown what it is to treat
alike. `about` says which columns these are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evenly.data.contract import Data, Places
from evenly.data.images.parts import Integers
from evenly.data.metadata import (
    METADATA,
    Names,
    Rows,
    check_classes,
    columns_of,
    divided,
    grouped,
    in_splits,
    numbered,
    read_rows,
    splits_in,
    strata,
    usual_groups,
)
from evenly.data.preprocessing import Missing, TablePreprocessing, TextPreprocessing, number
from evenly.data.texts import Texts
from evenly.errors import EvenlyError

TEXTS = {"model": "bag_of_words"}
"""The recipe of texts; a bag of words brings its own settings."""

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass
class TableData(Data):
    """Texts, or rows of numbers float32 (N, F), with the names of the attributes' values.

    Args:
        attribute_names: for each attribute, how value k is called.
        feature_names: of columns, in the order of the inputs; none of texts.
        mean, std: (F,) by which the features were standardised: (x - mean) / std.
    """

    attribute_names: Mapping[str, list[str]] = field(default_factory=dict)
    feature_names: list[str] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)


def table(
    path: str | Path,
    text: str | None = None,
    label: str = "label",
    split: str = "split",
    groups: str | None = None,
    attributes: str | None = None,
    validation: float | None = None,
    test: float | None = None,
    missing: Missing = "refuse",
    seed: int = 0,
) -> TableData:
    """Texts or numbers from a CSV file, plain or gzipped.

    Without a column of splits, 60/20/20 are drawn from the seed, stratified by label and group. Every label is in every
    split there is, and label k is the k-th name in order.

    Args:
        text: the column of texts; without it `text` where there is one, else the file is one of numbers.
        label, split: the columns of labels and of splits.
        groups: columns to group by, as "place", "label,place" or "label,male+female"; without it label and attribute
            where there is one attribute of few values, and "none" for no groups.
        attributes: which columns are attributes, separated by commas; without it all that are nothing else.
        validation: the share held out for validation: of all rows where splits are drawn (else 0.2), of the training
            rows where the file has train and test only (else none).
        test: the share of all rows held out for the test, where splits are drawn (else 0.2).
        missing: what to do where a number is missing: refuse the file, or take the mean of the training rows.
    """
    path = Path(path).resolve()
    rows = read_rows(path)
    if text is None and rows.called("text") is None and rows.called("file") is not None:
        raise EvenlyError(f"{path} lists files; give its folder, with the table in it as metadata.csv")
    class_names, labels = _labels(rows, label)
    splits = splits_in(rows, split)
    texts = rows.take(text or "text", "text") if text is not None or rows.called("text") is not None else None
    called = _called_attributes(rows, attributes, groups)
    numbers = {} if texts is not None else _features(rows, called)
    if texts is None and not numbers:
        images = ", or call that of image files 'file'" if path.name == METADATA else ""
        raise EvenlyError(
            f"{path} has neither a column of texts nor one of numbers (found: {', '.join(map(repr, rows.columns))}); "
            f"name the texts with text=COLUMN{images}"
        )
    names, columns = {}, {}
    for name, values in rows.columns.items():
        if name in called if attributes is not None else name not in numbers:
            names[name], columns[name] = numbered(rows.full(name, values))
    grouping = usual_groups(names) if groups is None else None if groups == "none" else groups
    by_group = None if grouping is None else grouped(grouping, labels, class_names, columns, names)
    parts = divided(strata(labels, by_group), splits, validation, test, seed, labels)
    ways = "add rows, remove the class, or name the splits in a column" if splits is None else "add rows, or remove it"
    check_classes(path, class_names, labels, parts, ways)
    x = np.stack(list(numbers.values()), axis=1) if numbers else np.empty((0, 0))
    scaling = None if texts is not None else _scaling(rows, x, list(numbers), parts, missing, label)
    unseen = [name for name in called if texts is None and _are_numbers(rows.columns[name])]
    about = f"{len(labels):,} {'texts' if texts is not None else 'rows of numbers'} from {path.name}."
    if unseen:
        about += (
            f" The network is not shown {_listed(unseen)}: what makes groups or is called an attribute is no feature."
        )
    inputs = text_rows(texts or []) if scaling is None else scaling.standardised(x).__getitem__
    return TableData(
        **in_splits(inputs, labels, columns, by_group, parts, Places(rows.lines, "line")),
        name=path.name.partition(".")[0],
        about=about,
        class_names=class_names,
        group_names=None if by_group is None else by_group.names,
        evaluation_group_names=None if by_group is None else by_group.evaluation_names,
        attribute_names=names,
        feature_names=list(numbers),
        mean=[] if scaling is None else list(scaling.mean),
        std=[] if scaling is None else list(scaling.std),
        recipe={} if texts is None else TEXTS,
        options={
            "folder": str(path.parent), "file": path.name, "text": text, "label": label, "split": split,
            "groups": grouping or "none", "attributes": attributes, "validation": validation, "test": test,
            "missing": missing, "seed": seed, "class_names": class_names,
            **({} if scaling is None else {"features": [*numbers], "mean": [*scaling.mean], "std": [*scaling.std]}),
        },
        preprocessing=TextPreprocessing(text or "text", label) if scaling is None else scaling,
    )  # fmt: skip


def _labels(rows: Rows, label: str) -> tuple[list[str], Integers]:
    class_names, labels = numbered(rows.take(label, "label"))
    if len(class_names) == 1:
        raise EvenlyError(
            f"{label} is {class_names[0]!r} in every row of {rows.path}; there is nothing to tell apart: "
            "name another column with label=COLUMN"
        )
    if len(class_names) > max(2, len(labels) // 2):
        raise EvenlyError(
            f"{label} has {len(class_names)} values in {len(labels)} rows of {rows.path}, too many for classes; "
            "name another column with label=COLUMN, or make a few classes of it"
        )
    return class_names, labels


def text_rows(texts: Sequence[str]) -> Callable[[Integers], Texts]:
    """The function that gives the texts at some indices."""
    return lambda index: Texts([texts[i] for i in index])


def _called_attributes(rows: Rows, attributes: str | None, groups: str | None) -> list[str]:
    """The columns that the user calls attributes, or groups by."""
    called = [] if attributes is None else [name.strip() for name in attributes.split(",") if name.strip()]
    for name in called:
        rows.refuse_taken(name, "attributes")
        if called.count(name) > 1:
            raise EvenlyError(f"attributes {attributes!r} name {name!r} twice; name each column once")
        if name not in rows.columns:
            raise EvenlyError(f"no attribute of {rows.path} is called {name!r}; there are: {', '.join(rows.columns)}")
    grouping = [] if groups in (None, "none") else [name for part in columns_of(str(groups)) for name in part]
    for name in grouping:
        if name != "label":
            rows.refuse_taken(name, "groups")
        if name not in ("label", *rows.columns):
            there = ", ".join(("label", *rows.columns))
            raise EvenlyError(f"no attribute to group by is called {name!r} in {rows.path}; there are: {there}")
    return list(dict.fromkeys([*called, *(name for name in grouping if name != "label")]))


def _features(rows: Rows, called: list[str]) -> dict[str, Floats]:
    """The columns of numbers that are no attributes."""
    read = {name: _numbers(rows, name, values) for name, values in rows.columns.items() if name not in called}
    return {name: numbers for name, numbers in read.items() if numbers is not None}


def _are_numbers(values: list[str]) -> bool:
    """Whether a column would be a feature."""
    try:
        for value in values:
            number(value)
    except ValueError:
        return False
    return True


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _numbers(rows: Rows, name: str, values: list[str]) -> Floats | None:
    """A column as numbers, NaN where one is missing; None if most of it are none."""
    numbers = np.full(len(values), np.nan)
    strange: list[int] = []
    for i, value in enumerate(values):
        try:
            numbers[i] = number(value)
        except ValueError:
            strange.append(i)
    if len(strange) > int(np.isfinite(numbers).sum()):
        return None
    if strange:
        raise EvenlyError(
            f"column {name!r} of {rows.path} holds numbers, but {values[strange[0]]!r} in line "
            f"{rows.lines[strange[0]]}; correct it, or call it an attribute with attributes={name}"
        )
    return numbers


def _scaling(
    rows: Rows, x: Floats, features: list[str], parts: Names, missing: Missing, label: str
) -> TablePreprocessing:
    """What gives x (N, F) mean 0 and standard deviation 1 over the training rows; a constant column becomes 0."""
    gaps = np.isnan(x)
    train = x[parts == "train"]
    if missing == "refuse" and gaps.any():
        lacking = np.flatnonzero(gaps.any(1))
        lines = ", ".join(str(rows.lines[i]) for i in lacking[:5]) + (", ..." if len(lacking) > 5 else "")
        column = features[int(np.flatnonzero(gaps[lacking[0]])[0])]
        raise EvenlyError(
            f"numbers are missing in {rows.path} (line {lines}; first {column!r}); fill them in, remove the rows, or "
            "take the training mean with missing=mean"
        )
    if (empty := np.isnan(train).all(0)).any():
        column = features[int(np.flatnonzero(empty)[0])]
        raise EvenlyError(f"column {column!r} of {rows.path} has no number in the training rows; remove it")
    mean, std = np.nanmean(train, axis=0), np.nanstd(train, axis=0)
    std[std <= 1e-12 * np.abs(mean)] = 1.0  # constant but for rounding
    return TablePreprocessing(tuple(features), tuple(mean.tolist()), tuple(std.tolist()), missing, label)
