"""One table for images, texts and numbers: a CSV file (UTF-8, also gzipped) with a header and a row per example.

It has a column of files, of texts, or columns of numbers; `label`, any text; perhaps `split` (train, validation, test);
and attributes. Values are numbered in order: as numbers if all are whole, else as text. Groups are made of any columns:

    place               a group for each value
    label,place         a group for each combination
    label,male+female   columns of yes and no, where an example may be in several groups: accuracy is measured on
                        (label, male) and (label, female), while methods balance the combinations of all of them
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from evenly.data.contract import MOST_GROUPS, SPLITS, Places, Split
from evenly.data.images.parts import Integers, held_out, ranks, share_of
from evenly.data.preprocessing import BLANK
from evenly.data.rows import Rows
from evenly.errors import EvenlyError
from evenly.randomness import derive

METADATA = ("metadata.csv", "metadata.jsonl")
SHARES = (0.2, 0.2)  # of validation and test, where no splits are given
UNDIVIDED = 4  # a stratum of fewer examples cannot give each of three splits its share
SPLIT_NAMES = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}
FEW = 20
"""A lone attribute of up to so many values makes groups by itself; one of more may be a name or a number."""
YES = {"1", "true", "yes"}
NO = {"0", "false", "no"}

Names = np.ndarray[Any, Any]


def metadata_in(folder: Path) -> Path | None:
    """The table in a folder, if there is one."""
    return next((folder / name for name in METADATA if (folder / name).is_file()), None)


def numbered(values: Sequence[str]) -> tuple[list[str], Integers]:
    """Names in order and, for each value, its place among them."""
    names = sorted(set(values))
    if all(_whole(name) for name in names):
        names.sort(key=int)
    number = {name: k for k, name in enumerate(names)}
    return names, np.array([number[value] for value in values], dtype=np.int64)


def splits_in(rows: Rows, name: str = "split") -> Names | None:
    """Takes the column of splits: (N,) names in `SPLITS`, or None where there is no column called split."""
    if name == "split" and rows.called(name) is None and name not in rows.taken:
        return None
    values = rows.take(name, "split")
    if strange := [value for value in set(values) if value.lower() not in SPLIT_NAMES]:
        row = min(map(values.index, strange))
        raise EvenlyError(
            f"split {values[row]!r} in line {rows.line(row)} of {rows.path} is not known; use train, validation, test"
        )
    return np.array([SPLIT_NAMES[value.lower()] for value in values])


@dataclass
class Groups:
    """What a choice of columns makes of N examples.

    Args:
        groups: (N,) in 0..G-1, by `names`.
        evaluation: (N, E) booleans, by `evaluation_names`, where groups overlap.
    """

    groups: Integers
    names: list[str]
    evaluation: np.ndarray[Any, np.dtype[np.bool_]] | None = None
    evaluation_names: list[str] | None = None


def with_missing(values: Sequence[str]) -> list[str]:
    """The values of a column; an empty cell is a value too."""
    return [value or BLANK for value in values]


def usual_groups(attribute_names: Mapping[str, Sequence[str]]) -> str | None:
    """The groups where the user names none: label and attribute, if there is one attribute, of few values."""
    if len(attribute_names) != 1:
        return None
    (name, values), *_ = attribute_names.items()
    return f"label,{name}" if 1 < len(values) <= FEW else None


def grouped(
    grouping: str,
    labels: Integers,
    class_names: Sequence[str],
    attributes: Mapping[str, Integers],
    attribute_names: Mapping[str, Sequence[str]],
) -> Groups:
    """The groups that `grouping` names, in the form described at the top of this file.

    Args:
        labels: (N,) in 0..K-1, by `class_names`.
        attributes: (N,) each in 0..V-1, by `attribute_names`.
    """
    columns = {"label": labels} | dict(attributes)
    value_names = {"label": list(class_names)} | {
        name: [f"{name} {value}" for value in attribute_names[name]] for name in attributes
    }
    crossed, overlapping = columns_of(grouping, columns)
    for name in (*crossed, *overlapping):
        if name not in columns:
            raise EvenlyError(f"no attribute to group by is called {name!r}; there are: {', '.join(columns)}")
    is_yes = {name: _is_yes(name, columns[name], attribute_names.get(name, class_names)) for name in overlapping}
    used = [*crossed, *overlapping]
    count = reduce(lambda total, name: total * len(value_names[name]), used, 1)
    if count > MOST_GROUPS:
        raise EvenlyError(f"groups {grouping!r} make {count} combinations, more than {MOST_GROUPS}; name fewer columns")

    def combined(used: Sequence[str]) -> tuple[Integers, list[str]]:
        """(N,) the number of each example's combination, the last column running fastest, and their names."""
        number = reduce(lambda total, name: total * len(value_names[name]) + columns[name], used, np.zeros_like(labels))
        return number, [", ".join(parts) for parts in product(*(value_names[name] for name in used))]

    groups, names = combined(used)
    if not overlapping:
        return Groups(groups, names)
    cells, tops = combined(crossed)
    members = [(cells == k) & is_yes[name] for name in overlapping for k in range(len(tops))]
    overlapping_names = [f"{top}, {name}" if top else name for name in overlapping for top in tops]
    return Groups(groups, names, np.stack(members, axis=1), overlapping_names)


def strata(labels: Integers, groups: Groups | None) -> Integers:
    """(N,) the combination of class and group, within which splits are drawn."""
    return labels if groups is None else labels * len(groups.names) + groups.groups


def columns_of(grouping: str, known: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """The columns that a choice of groups names: those that are crossed, and those that overlap."""
    parts = [[part] if part in known else part.split("+") for part in names_in(grouping, known)]
    names = [name.strip() for part in parts for name in part]
    if "" in names or len(set(names)) < len(names) or sum(len(part) > 1 for part in parts) > 1:
        raise EvenlyError(
            f"groups {grouping!r} cannot be read; name columns once each, as place, label,place or label,a+b"
        )
    crossed = [part[0].strip() for part in parts if len(part) == 1]
    return crossed, [name.strip() for part in parts if len(part) > 1 for name in part]


def names_in(text: str, known: Collection[str]) -> list[str]:
    """Names with commas between them; a known name may hold commas itself."""
    parts, names = text.split(","), []
    while parts:
        joined = {end: ",".join(parts[:end]).strip() for end in range(len(parts), 0, -1)}
        end = next((end for end, name in joined.items() if name in known), 1)
        names.append(joined[end])
        del parts[:end]
    return names


def divided(
    strata: Integers,
    named_splits: Names | None,
    validation: float | None,
    test: float | None,
    seed: int,
    labels: Integers | None = None,
) -> Names:
    """(N,) names in `SPLITS`: as given, with a share of train held out on request; or drawn from the seed.

    With very few examples and no share asked for, validation or test may be empty.

    Args:
        strata: (N,); every split gets its share of each stratum, as far as the stratum can be divided.
        validation: the share of all examples where splits are drawn (by default 0.2), of train where they are given
            and there is no validation yet (by default none).
        test: the share of all examples where splits are drawn (by default 0.2).
        labels: (N,) where strata are parts of classes.
    """
    for name, share in (("validation", validation), ("test", test)):
        if share is not None:
            share_of(share, name)
    if named_splits is not None:
        return _with_validation(strata, named_splits.astype("<U10"), validation, test, seed)
    held, last = SHARES[0] if validation is None else validation, SHARES[1] if test is None else test
    if held + last >= 1:
        raise EvenlyError(f"validation {held} and test {last} leave nothing to train on; give smaller shares")
    rank = ranks(strata, seed, "split")
    if labels is not None:  # small parts of a class go to a split at random; else all of them would go to the same one
        _, stratum, sizes = np.unique(strata, return_inverse=True, return_counts=True)
        shift = np.random.default_rng(derive(seed, "split of few")).random(len(sizes)) - 0.5
        size, class_size = sizes[stratum], np.bincount(labels)[labels]
        rank += np.where((size < UNDIVIDED) & (size < class_size), (shift / sizes)[stratum], 0.0)
    splits = np.select([rank < 1 - held - last, rank < 1 - last], ["train", "validation"], "test")
    for name, share in (("train", 1 - held - last), ("validation", validation), ("test", test)):
        if share and not (splits == name).any():
            raise EvenlyError(
                f"a share of {share:g} of {len(strata)} examples leaves the {name} split empty; give a larger share, "
                "or name the splits in a column"
            )
    return splits


def _with_validation(strata: Integers, splits: Names, validation: float | None, test: float | None, seed: int) -> Names:
    if test:
        raise EvenlyError(f"test {test} is asked for, but the data names its splits; leave it out")
    if not (splits == "train").any():
        raise EvenlyError("no example is in the train split; name some train in the column of splits")
    if not validation:
        return splits
    if (splits == "validation").any():
        raise EvenlyError(f"validation {validation} is asked for, but the data has a validation split; leave it out")
    train = np.flatnonzero(splits == "train")
    late = held_out(strata[train], validation, seed)
    if late.all() or not late.any():
        raise EvenlyError(
            f"validation {validation} of {len(train)} training examples leaves the "
            f"{'train' if late.all() else 'validation'} split empty; give another share"
        )
    splits[train[late]] = "validation"
    return splits


def check_classes(where: Path, class_names: Sequence[Any], labels: Integers, splits: Names, ways: str) -> None:
    """Refuse a class that is missing from a split: the worst class there would be silently another.

    Args:
        ways: out of it, for the message.
    """
    present = [part for part in SPLITS if (splits == part).any()]
    for k, name in enumerate(class_names):
        counts = {part: int(((labels == k) & (splits == part)).sum()) for part in present}
        if missing := [part for part in present if not counts[part]]:
            there = ", ".join(f"{part} {count}" for part, count in counts.items())
            raise EvenlyError(f"class {name!r} has no example in the {missing[0]} split of {where} ({there}); {ways}")


def in_splits(
    inputs: Callable[[Integers], Any],
    labels: Integers,
    attributes: Mapping[str, Integers],
    groups: Groups | None,
    splits: Names,
    places: Places | None = None,
) -> dict[str, Any]:
    """The splits that `splits` (N,) names, of labels (N,), attributes (N,), places (N,) and `inputs` at given
    indices."""
    parts = {}
    for name in SPLITS:
        index = np.flatnonzero(splits == name)
        if name == "train" or len(index):
            parts[name] = Split(
                inputs(index),
                labels[index],
                None if groups is None else groups.groups[index],
                {key: column[index] for key, column in attributes.items()},
                name=name,
                evaluation_groups=None if groups is None or groups.evaluation is None else groups.evaluation[index],
                places=None if places is None else places.at(index),
            )
    return parts


def _is_yes(name: str, column: Integers, values: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    lower = [value.lower() for value in values]
    if others := [value for value in lower if value not in YES | NO]:
        raise EvenlyError(
            f"column {name!r} holds {others[0]!r} and makes no overlapping groups; give 0 and 1, or join it by a comma"
        )
    return np.isin(column, [k for k, value in enumerate(lower) if value in YES])


def _whole(text: str) -> bool:
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 100
