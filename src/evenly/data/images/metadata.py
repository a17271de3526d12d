"""A folder of images with a metadata.csv or metadata.jsonl: a row per image, columns file (file_name of Hugging Face)
and label, perhaps split, and attributes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from evenly.data.images.listing import Listing, inside
from evenly.data.metadata import numbered, splits_in, with_missing
from evenly.data.rows import Rows, read_rows
from evenly.errors import EvenlyError


def read_metadata(root: Path, path: Path) -> Listing:
    """The listing that a table in `root` has, in the format of `evenly.data.metadata`, in the order of its rows.

    `file` is a path from `root` and may not leave it. Every column but file, label and split is an attribute.
    """
    rows = read_rows(path)
    files = _files(root, rows, rows.take(rows.file_column or "file", "file"))
    class_names, labels = numbered(rows.take("label"))
    splits = splits_in(rows)
    attributes = {name: numbered(with_missing(values)) for name, values in rows.columns.items()}
    return Listing(
        root,
        files,
        labels,
        class_names,
        splits,
        {name: values for name, (_, values) in attributes.items()},
        {name: names for name, (names, _) in attributes.items()},
    )


def _files(root: Path, rows: Rows, names: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    for i, name in enumerate(names):
        plain = Path(os.path.normpath(name)).as_posix()
        if "\0" in name or Path(plain).is_absolute() or not inside(root, root / plain):
            where = f"line {rows.line(i)} of {rows.path}"
            raise EvenlyError(f"file {name!r} in {where} lies outside {root}; give a path inside it")
        if plain in seen:
            lines = f"lines {rows.line(seen[plain])} and {rows.line(i)}"
            raise EvenlyError(f"file {name!r} is in {lines} of {rows.path}; keep one of them")
        seen[plain] = i
    return list(seen)
