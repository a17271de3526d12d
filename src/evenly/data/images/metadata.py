"""A folder of images with a metadata.csv: a row per image, columns file and label, perhaps split, and attributes."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evenly.data.images.listing import SPLIT_NAMES, Listing, inside
from evenly.data.images.parts import Integers
from evenly.errors import EvenlyError

METADATA = "metadata.csv"


def read_metadata(root: Path) -> Listing:
    """The listing in `root`/metadata.csv (UTF-8), examples in the order of its rows.

    `file` is a path from `root` and may not leave it; `label` any text; `split` train, validation (val, valid) or
    test. Every other column is an attribute. Values are numbered in order: as numbers if all are whole, else as text.
    """
    path = root / METADATA
    header, rows = _rows(path)
    columns = {name: [row[i] for _, row in rows] for i, name in enumerate(header)}
    lines = [line for line, _ in rows]
    files = _files(root, path, columns.pop("file"), lines)
    for name, values in columns.items():
        if "" in values:
            line = lines[values.index("")]
            raise EvenlyError(f"line {line} of {path} has no {name}; fill it in or remove the row")
    class_names, labels = _numbered(columns.pop("label"))
    splits = None
    if (given := columns.pop("split", None)) is not None:
        for value, line in zip(given, lines, strict=True):
            if value.lower() not in SPLIT_NAMES:
                raise EvenlyError(f"split {value!r} in line {line} of {path} is not known; use train, validation, test")
        splits = np.array([SPLIT_NAMES[value.lower()] for value in given])
    numbered = {name: _numbered(values) for name, values in columns.items()}
    return Listing(
        root,
        files,
        labels,
        class_names,
        splits,
        {name: values for name, (_, values) in numbered.items()},
        {name: names for name, (names, _) in numbered.items()},
    )


def _rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header, and every row with its line number, all cells stripped."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise EvenlyError(f"{path} cannot be read as a table ({error}); save it as CSV in UTF-8") from None
    header = rows[0][1] if rows else []
    if missing := [name for name in ("file", "label") if name not in header]:
        raise EvenlyError(
            f"{path} has no column {missing[0]!r} (found: {', '.join(map(repr, header)) or 'nothing'}); "
            "give a header with file and label"
        )
    for name in header:
        if not name or header.count(name) > 1:
            raise EvenlyError(f"{path} has {header.count(name)} columns called {name!r}; give each a name of its own")
    if len(rows) == 1:
        raise EvenlyError(f"{path} has a header and no rows; add a row for each image")
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise EvenlyError(f"line {line} of {path} has {len(row)} cells for {len(header)} columns; mend it")
    return header, rows[1:]


def _files(root: Path, path: Path, names: Sequence[str], lines: Sequence[int]) -> list[str]:
    seen: dict[str, int] = {}
    for name, line in zip(names, lines, strict=True):
        plain = Path(os.path.normpath(name)).as_posix()
        if not name or "\0" in name or Path(plain).is_absolute() or not inside(root, root / plain):
            raise EvenlyError(f"file {name!r} in line {line} of {path} lies outside {root}; give a path inside it")
        if plain in seen:
            raise EvenlyError(f"file {name!r} is in lines {seen[plain]} and {line} of {path}; keep one of them")
        seen[plain] = line
    return list(seen)


def _numbered(values: Sequence[str]) -> tuple[list[str], Integers]:
    """Names in order and, for each value, its place among them."""
    names = sorted(set(values))
    if all(_whole(name) for name in names):
        names.sort(key=int)
    number = {name: k for k, name in enumerate(names)}
    return names, np.array([number[value] for value in values], dtype=np.int64)


def _whole(text: str) -> bool:
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 100
