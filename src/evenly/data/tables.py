"""The user's own texts or numbers from one table, in the format of `evenly.data.metadata`.

A table with a column of texts is a set of texts, and every column but label and split is an attribute. In any other
table the columns of numbers are features, standardised by the training rows, and so are columns of few different texts,
one-hot. A column that the user groups by or calls an attribute is no feature, though it hold numbers: a network is not
shown what it is to treat alike. `notes` say which column is used as what.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from evenly.data.columns import NumberColumns
from evenly.data.contract import Data, Places
from evenly.data.images.cache import Scratch
from evenly.data.images.parts import Integers
from evenly.data.mapped import MappedRows, fits_memory
from evenly.data.metadata import (
    FEW,
    METADATA,
    Names,
    check_classes,
    columns_of,
    divided,
    grouped,
    in_splits,
    names_in,
    numbered,
    splits_in,
    strata,
    usual_groups,
    with_missing,
)
from evenly.data.preprocessing import Missing, TablePreprocessing, TextPreprocessing, number
from evenly.data.rows import GIVEN, TABLE_COPIES, Floats, Rows, called, read_header, read_rows, rows_of
from evenly.data.texts import Texts
from evenly.errors import EvenlyError
from evenly.settings import checked, setting, settings_of
from evenly.values import Value

TEXTS = {"model": "bag_of_words"}
"""The recipe of texts; a bag of words brings its own settings."""
Booleans = np.ndarray[Any, np.dtype[np.bool_]]
MOST_VALUES = 50
"""A column of texts with up to so many values is a feature; one of more may be a name or an address."""


@dataclass
class TableData(Data):
    """Texts, or rows of numbers float32 (N, F), with the names of the attributes' values.

    Args:
        attribute_names: for each attribute, how value k is called.
        feature_names: what each number of an input stands for; none of texts.
        mean, std: by which the columns of numbers, which come first, were standardised: (x - mean) / std.
    """

    attribute_names: Mapping[str, list[str]] = field(default_factory=dict)
    feature_names: list[str] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)


@frozen(kw_only=True)
class TableOptions(Value):
    """What the columns of a table are, and how its rows are divided."""

    text: str | None = setting(None, help="the column of texts; without it `text` where there is one")
    label: str = setting("label", help="the column of labels")
    split: str = setting("split", help="the column of splits")
    groups: str | None = setting(
        None, help="columns to group by, as place, label,place or label,male+female; none for no groups"
    )
    attributes: str | None = setting(None, help="columns that are attributes and no features")
    categories: str | None = setting(None, help="columns whose values are features, one-hot, whatever they hold")
    ignore: str | None = setting(None, help="columns that are not used")
    validation: float | None = setting(
        None, help="the share held out for validation: of all rows where splits are drawn, else of the training rows"
    )
    test: float | None = setting(None, help="the share of all rows held out for the test, where splits are drawn")
    missing: Missing = setting("median", help="what is taken where a number is missing: median, mean, or refuse it")

    def named(self, role: str, header: Collection[str]) -> list[str]:
        """The columns that a list of names (`attributes`, `categories`, `ignore`) holds."""
        text = getattr(self, role)
        names = [] if text is None else [name for name in names_in(text, header) if name]
        for name in names:
            if names.count(name) > 1:
                raise EvenlyError(f"{role} {text!r} name {name!r} twice; name each column once")
        return names

    def grouping(self, header: Collection[str]) -> list[str]:
        """The columns to group by, besides the label."""
        if self.groups is None or self.groups == "none":
            return []
        crossed, overlapping = columns_of(self.groups, ("label", *header))
        return [name for name in (*crossed, *overlapping) if name != "label"]

    def texts(self, header: Sequence[str]) -> Collection[str]:
        """The columns that are read as texts, though they hold numbers."""
        if self.text is not None or called("text", header) is not None:
            return header
        roles = [*self.named("attributes", header), *self.named("categories", header), *self.grouping(header)]
        return [name for role in (self.label, self.split, *roles) if (name := called(role, header)) is not None]


def table(path: str | Path, seed: int = 0, **options: Any) -> TableData:
    """Texts or numbers from a CSV file, plain or gzipped; the options are those of `TableOptions`.

    Without a column of splits, 60/20/20 are drawn from the seed, stratified by label and group. Every label is in every
    split there is, and label k is the k-th name in order.
    """
    path, asked = Path(path).resolve(), TableOptions(**options)
    header = read_header(path)
    rows = read_rows(path, asked.texts(header), asked.named("ignore", header))
    return _assembled(rows, asked, seed, {"folder": str(path.parent), "file": path.name})


def from_pandas(frame: Any, seed: int = 0, **options: Any) -> TableData:
    """The rows of a DataFrame, as if they were in a csv file.

    Args:
        seed: of the splits, where there is no column of them.
        options: `label`, `text`, `groups` and the others of `TableOptions`.
    """
    return _from_columns({str(name): frame[name] for name in frame.columns}, seed, options)


def from_datasets(dataset: Any, seed: int = 0, **options: Any) -> TableData:
    """The rows of a Hugging Face `Dataset` of texts or numbers; of a `DatasetDict` with its splits.

    The arguments are those of `from_pandas`. Labels that the data set numbers are known by their names.
    """
    parts = dict(dataset.items()) if hasattr(dataset, "items") else {None: dataset}
    columns: dict[str, list[Any]] = {name: [] for name in next(iter(parts.values())).column_names}
    for part in parts.values():
        for name in columns:
            names = getattr(part.features[name], "names", None)
            columns[name] += [k if names is None else None if k is None or k < 0 else names[k] for k in part[name]]
    if None not in parts:
        columns[options.get("split", "split")] = [name for name, part in parts.items() for _ in range(len(part))]
    return _from_columns(columns, seed, options)


Data.from_pandas, Data.from_datasets = from_pandas, from_datasets


def _from_columns(columns: Mapping[str, Sequence[Any]], seed: int, options: Mapping[str, Any]) -> TableData:
    asked = TableOptions(**checked("option of a table", options, settings_of(TableOptions)))
    ignored = asked.named("ignore", columns)
    kept = {name: values for name, values in columns.items() if name not in ignored}
    return _assembled(rows_of(kept, asked.texts([*columns])), asked, seed, {})


def _assembled(rows: Rows, asked: TableOptions, seed: int, place: Mapping[str, str]) -> TableData:
    text = asked.text or rows.called("text")
    if text is None and rows.file_column is not None and rows.path != GIVEN:
        raise EvenlyError(f"{rows.path} lists files; give its folder, with the table in it as {METADATA[0]}")
    class_names, labels = _labels(rows, asked.label)
    splits = splits_in(rows, asked.split)
    texts = None if text is None else rows.take(text, "text")
    use = _Use.of(rows, asked, texts is not None)
    names, columns = {}, {}
    for name in use.attributes:
        names[name], columns[name] = numbered(with_missing(rows.columns[name]))
    grouping = usual_groups(names) if asked.groups is None else None if asked.groups == "none" else asked.groups
    by_group = None if grouping is None else grouped(grouping, labels, class_names, columns, names)
    parts = divided(strata(labels, by_group), splits, asked.validation, asked.test, seed, labels)
    ways = "add rows, remove the class, or name the splits in a column" if splits is None else "add rows, or remove it"
    check_classes(rows.path, class_names, labels, parts, ways)
    if texts is None:
        inputs, scaling = _inputs(rows, use, parts, asked, labels)
    else:
        inputs, scaling = text_rows(texts), TablePreprocessing((), (), ())
    return TableData(
        **in_splits(inputs, labels, columns, by_group, parts, Places(np.arange(len(labels)), "row")),
        name=rows.path.name.partition(".")[0] if place else "table",
        about=_about(rows, use, len(labels), texts is not None),
        notes=use.notes(rows, asked, text, grouping),
        class_names=class_names,
        group_names=None if by_group is None else by_group.names,
        evaluation_group_names=None if by_group is None else by_group.evaluation_names,
        attribute_names=names,
        feature_names=scaling.input_names,
        mean=list(scaling.mean),
        std=list(scaling.std),
        recipe={} if texts is None else TEXTS,
        options={**place, **asked.to_dict(), "groups": grouping or "none", "seed": seed, "class_names": class_names},
        preprocessing=scaling if texts is None else TextPreprocessing(text or "text", asked.label),
    )


def _about(rows: Rows, use: _Use, count: int, is_text: bool) -> str:
    about = f"{count:,} {'texts' if is_text else 'rows of numbers'} from {rows.path.name}."
    if is_text or not use.attributes:
        return about
    unseen = " and ".join(filter(None, [", ".join(map(_quoted, use.attributes[:-1])), _quoted(use.attributes[-1])]))
    return f"{about} The network is not shown {unseen}: what makes groups or is called an attribute is no feature."


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


@dataclass
class _Use:
    """Which column is used as what.

    Args:
        parsed: numbers that are spelled in ways which only Python reads.
        ignored: the columns that are not used, and why.
    """

    attributes: list[str]
    numbers: list[str] = field(default_factory=list)
    categories: list[str] = field(default_factory=list)
    parsed: dict[str, Floats] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Rows, asked: TableOptions, is_text: bool) -> _Use:
        listed = {role: asked.named(role, rows.names) for role in ("attributes", "categories")}
        for role, names in ({"groups": asked.grouping(rows.names)} | listed).items():
            for name in names:
                rows.refuse_taken(name, role)
                if name not in rows.names:
                    there = ", ".join((*(["label"] if role == "groups" else []), *map(_quoted, rows.names)))
                    raise EvenlyError(f"no column for {role} is called {name!r} in {rows.path}; there are: {there}")
        described = list(dict.fromkeys([*listed["attributes"], *asked.grouping(rows.names)]))
        if is_text:
            left = [name for name in rows.names if name not in described]
            return cls(described, ignored=dict.fromkeys(left, "")) if asked.attributes is not None else cls(rows.names)
        use = cls(described, categories=[name for name in listed["categories"] if name not in described])
        use._divide([name for name in rows.names if name not in (*described, *use.categories)], rows, asked)
        if not use.numbers and not use.categories:
            images = ", or call that of image files 'file'" if rows.path.name in METADATA else ""
            raise EvenlyError(
                f"{rows.path} has neither a column of texts nor one of numbers "
                f"(found: {', '.join(map(repr, rows.names))}); name the texts with text=COLUMN{images}"
            )
        return use

    def _divide(self, names: list[str], rows: Rows, asked: TableOptions) -> None:
        """Divide the columns that the user did not name into numbers, categories and what is not used."""
        texts: dict[str, set[str]] = {}
        for name in names:
            if name in rows.columns:
                if (parsed := _parsed(rows, name)) is None:
                    texts[name] = set(with_missing(rows.columns[name]))
                    continue
                self.parsed[name] = parsed
            self.numbers.append(name)
        unsaid = asked.groups is None and asked.attributes is None
        if unsaid and self.numbers and usual_groups({name: sorted(values) for name, values in texts.items()}):
            self.attributes += texts
            return
        for name, values in texts.items():
            if 1 < len(values) <= min(MOST_VALUES, len(rows) // 2):
                self.categories.append(name)
            else:
                self.ignored[name] = f"{len(values):,} different texts" if len(values) > 1 else "one value"

    def notes(self, rows: Rows, asked: TableOptions, text: str | None, grouping: str | None) -> list[str]:
        """What is used as what, a line for each."""
        used = {
            "label": [_quoted(asked.label)],
            "text": [] if text is None else [_quoted(text)],
            "groups": [] if grouping is None else [grouping],
            "attributes": list(map(_quoted, self.attributes)),
            "numbers": list(map(_quoted, self.numbers)),
            "categories": [f"{_quoted(name)} ({len(set(rows.columns[name]))} values)" for name in self.categories],
            "ignored": [_quoted(name) + (f" ({why})" if why else "") for name, why in self.ignored.items()],
        }
        if rows.unnamed:
            used["ignored"] += [f"{rows.unnamed} without a name, such as the index that pandas writes"]
        notes = [f"{role}: {_shortened(names)}" for role, names in used.items() if names]
        candidates = [n for n in (*self.attributes, *self.categories) if 1 < len(set(rows.columns[n])) <= FEW]
        if grouping is None and asked.groups is None and candidates:
            example = f"e.g. groups='label,{candidates[0]}'; the network is then not shown that column"
            notes.append(f"no groups: they can be made of {_shortened(list(map(_quoted, candidates)))}, {example}")
        return notes


def _quoted(name: str) -> str:
    """A name among others that have commas between them."""
    return repr(name) if "," in name else name


def _shortened(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _parsed(rows: Rows, name: str) -> Floats | None:
    """A column of texts as numbers, NaN where one is missing; None if most of it are none."""
    values = rows.columns[name]
    numbers: dict[str, float] = {}
    for value in dict.fromkeys(values):
        with suppress(ValueError):
            numbers[value] = number(value)
    parsed = np.array([numbers.get(value, np.inf) for value in values])
    strange = np.isinf(parsed)
    if strange.sum() > np.isfinite(parsed).sum():
        return None
    if strange.any():
        row = int(strange.argmax())
        raise EvenlyError(
            f"column {name!r} of {rows.path} holds numbers, but {values[row]!r} in line {rows.line(row)}; correct it, "
            f"or give categories={name} or attributes={name}"
        )
    return parsed


def _inputs(
    rows: Rows, use: _Use, parts: Names, asked: TableOptions, labels: Integers
) -> tuple[Callable[[Integers], Any], TablePreprocessing]:
    """The function that gives the inputs at some indices, and how they are made."""
    numbers, train = NumberColumns(rows, use.numbers, use.parsed), np.flatnonzero(parts == "train")
    total, count = numbers.sums(train)
    if (empty := count == 0).any():
        use.ignored |= {use.numbers[i]: "no number in the training rows" for i in np.flatnonzero(empty)}
        numbers.names = use.numbers = [name for name in use.numbers if name not in use.ignored]
        total, count = numbers.sums(train)
    if asked.missing == "refuse":
        numbers.refuse_gaps()
    preprocessing = _fitted(rows, use, numbers, train, total / np.maximum(count, 1), count, asked)
    width = len(preprocessing.input_names)

    def inputs(index: Integers) -> Any:
        shape, held = (len(index), width), fits_memory(TABLE_COPIES * 4 * len(rows) * width)
        encoded: Any = np.empty(shape, np.float32) if held else Scratch().array(np.float32, shape)
        for start, x in numbers.parts(index):
            chosen = index[start : start + len(x)]
            cells = {name: [rows.columns[name][i] for i in chosen] for name in use.categories}
            encoded[start : start + len(x)] = preprocessing.encoded(x, cells)
        return encoded if held else MappedRows(encoded, np.arange(len(index)), labels[index])

    return inputs, preprocessing


def _fitted(
    rows: Rows, use: _Use, numbers: NumberColumns, train: Integers, mean: Floats, count: Integers, asked: TableOptions
) -> TablePreprocessing:
    """What gives the training rows mean 0 and standard deviation 1; a constant column becomes 0.

    Args:
        train: which rows of the table those are.
        mean, count: (F,) of them, without those that are missing.
    """
    std = np.sqrt(numbers.sums(train, mean)[0] / np.maximum(count, 1))
    std[std <= 1e-12 * np.abs(mean)] = 1.0  # constant but for rounding
    by_median = asked.missing == "median"
    medians = numbers.medians(train) if by_median else np.empty(0)
    values = {name: numbered(_cells(rows, name, train))[0] for name in use.categories}
    return TablePreprocessing(
        tuple(use.numbers),
        tuple(mean.tolist()),
        tuple(std.tolist()),
        asked.missing,
        asked.label,
        tuple(medians.tolist()),
        tuple(name for name, n in zip(use.numbers, count, strict=True) if n < len(train) and by_median),
        {name: tuple(each) for name, each in values.items()},
    )


def _cells(rows: Rows, name: str, chosen: Integers) -> list[str]:
    return with_missing([rows.columns[name][i] for i in chosen])
