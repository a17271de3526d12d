"""Tables that come with published data sets: text files with a row for each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from evenly.data.images.listing import inside
from evenly.data.rows import Rows
from evenly.errors import EvenlyError

SPLITS = {"0": "train", "1": "validation", "2": "test"}
YES_OR_NO = {"0": 0, "1": 1}

Meaning = TypeVar("Meaning")


def read_spaced(path: Path, header: Sequence[str] | None = None) -> Rows:
    """A table whose cells are separated by blanks.

    Args:
        header: the names of the columns; without it the first line has the number of rows, and the second the names of
            all columns but the first, "image_id".
    """
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise EvenlyError(f"{path} cannot be read as a table ({error}); unpack its archive again") from None
    above = 0 if header is not None else 2
    names = header if header is not None else ["image_id", *(lines[1] if len(lines) > 1 else [])]
    rows = lines[above:]
    if not rows:
        raise EvenlyError(f"{path} has no rows; unpack its archive again")
    for line, row in enumerate(rows, above + 1):
        if len(row) != len(names):
            raise EvenlyError(
                f"line {line} of {path} has {len(row)} cells for {len(names)} columns; unpack its archive again"
            )
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    return Rows(path, columns, list(names), first_line=above + 1)


def translated(table: Rows, name: str, values: Mapping[str, Meaning]) -> np.ndarray[Any, Any]:
    """(N,) what each cell of a column stands for."""
    cells = table.take(name)
    for i, cell in enumerate(cells):
        if cell not in values:
            raise EvenlyError(
                f"{name} {cell!r} in line {table.line(i)} of {table.path} is none of {', '.join(values)}; "
                "unpack its archive again"
            )
    return np.array([values[cell] for cell in cells])


def files_in(table: Rows, name: str, root: Path, folder: str = "") -> list[str]:
    """Paths from the root to the files that a column names, all in a folder; none may leave the root."""
    paths = [f"{folder}{cell}" for cell in table.take(name)]
    for i, path in enumerate(paths):
        if "\0" in path or not inside(root, root / path):
            raise EvenlyError(
                f"line {table.line(i)} of {table.path} names {path!r}, which lies outside {root}; correct it"
            )
    return paths
