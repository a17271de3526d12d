"""A folder of images with a metadata.csv: a row per image, columns file and label, perhaps split, and attributes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from evenly.data.images.listing import Listing, inside
from evenly.data.metadata import METADATA, numbered, read_rows, splits_in
from evenly.errors import EvenlyError


def read_metadata(root: Path) -> Listing:
    """The listing in `root`/metadata.csv, in the format of `evenly.data.metadata`, in the order of its rows.

    `file` is a path from `root` and may not leave it. Every column but file, label and split is an attribute.
    """
    rows = read_rows(root / METADATA)
    files = _files(root, rows.path, rows.take("file"), rows.lines)
    class_names, labels = numbered(rows.take("label"))
    splits = splits_in(rows)
    attributes = {name: numbered(rows.full(name, values)) for name, values in rows.columns.items()}
    return Listing(
        root,
        files,
        labels,
        class_names,
        splits,
        {name: values for name, (_, values) in attributes.items()},
        {name: names for name, (names, _) in attributes.items()},
    )


def _files(root: Path, path: Path, names: Sequence[str], lines: Sequence[int]) -> list[str]:
    seen: dict[str, int] = {}
    for name, line in zip(names, lines, strict=True):
        plain = Path(os.path.normpath(name)).as_posix()
        if "\0" in name or Path(plain).is_absolute() or not inside(root, root / plain):
            raise EvenlyError(f"file {name!r} in line {line} of {path} lies outside {root}; give a path inside it")
        if plain in seen:
            raise EvenlyError(f"file {name!r} is in lines {seen[plain]} and {line} of {path}; keep one of them")
        seen[plain] = line
    return list(seen)
