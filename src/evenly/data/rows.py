"""The rows of a table: a CSV file (UTF-8, also gzipped), a JSON Lines file, or rows in memory.

Cells are stripped texts. Where a caller asks for numbers, a column that holds nothing else is float64, NaN where a
number is missing. CSV files are read by pyarrow block by block, so that the text of a large file is never in memory;
nor are its numbers where they do not fit, which then are in a file of the cache.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from evenly.data.images.cache import Scratch
from evenly.data.mapped import fits_memory
from evenly.data.preprocessing import MISSING
from evenly.errors import EvenlyError

GIVEN = Path("the rows given")
"""What stands for the name of a file in messages about rows that came in memory."""
FILE_COLUMNS = ("file", "file_name")
"""What a column of image files is called; the second is Hugging Face's name."""
BLOCK = 1 << 25
"""Bytes that are read at a time; a row may not be longer."""

TABLE_COPIES = 2
"""How often the numbers of a table are in memory at once: as they are read, and by columns or encoded."""

Floats = np.ndarray[Any, np.dtype[np.float64]]
Texts = dict[str, list[str]]


@dataclass
class Rows:
    """The rows of a table by the names of their columns.

    Args:
        columns: stripped texts.
        numbers: (N, F) by `number_names`.
        header: all names, in order.
        unnamed: how many columns had no name and were left out.
        first_line: of the file, that holds the first row; None where rows may have several lines.
        taken: each column that was taken, with its role.
    """

    path: Path
    columns: Texts
    header: list[str]
    numbers: Floats = field(default_factory=lambda: np.empty((0, 0)))
    number_names: list[str] = field(default_factory=list)
    unnamed: int = 0
    first_line: int | None = None
    taken: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), self.numbers))

    @property
    def names(self) -> list[str]:
        """The columns that were not taken."""
        return [name for name in self.header if name not in self.taken]

    def called(self, name: str) -> str | None:
        """The column of this name; failing that, the only one that differs from it in capitals."""
        return called(name, self.names)

    @property
    def file_column(self) -> str | None:
        """The column of image files."""
        return next(filter(None, map(self.called, FILE_COLUMNS)), None)

    def take(self, name: str, role: str | None = None) -> list[str]:
        """The values of a column that has to be there, which is then no longer among the columns."""
        role = role or name
        if (column := self.called(name)) is None:
            self.refuse_taken(name, role)
            there = ", ".join(map(repr, self.names)) or "nothing"
            raise EvenlyError(f"{self.path} has no column {name!r} (found: {there}); {self._way_out(role)}")
        self.taken[column] = role
        return self.full(column, self.columns.pop(column))

    def _way_out(self, role: str) -> str:
        if role != "label" or not self.names:
            return "add it, or name the right one"
        few = [name for name in self.names if 1 < len(set(self._values(name))) <= min(20, max(2, len(self) // 2))]
        few.sort(key=lambda name: name in self.columns)  # rather texts than numbers
        return f"name the right one, e.g. label={[*self.names, *few][-1]}"

    def _values(self, name: str) -> Sequence[Any]:
        numbers: Sequence[Any] = self.columns.get(name) or self.numbers[:, self.number_names.index(name)].tolist()
        return numbers

    def refuse_taken(self, name: str, role: str) -> None:
        """Refuse a column for a role if it has another role already."""
        for column, other in self.taken.items():
            if column.lower() == name.lower() and name not in self.names:
                hint = f"name another with {role}=COLUMN, or add a copy of it under another name"
                if (other, role) == ("label", "groups"):
                    hint = "call it label there, e.g. groups=label,place"
                raise EvenlyError(
                    f"column {name!r} of {self.path} is the {other} and cannot serve as {role} as well; {hint}"
                )

    def full(self, name: str, values: list[str]) -> list[str]:
        """The values of a column, refused if one is empty."""
        if "" in values:
            line = self.line(values.index(""))
            raise EvenlyError(f"line {line} of {self.path} has no {name}; fill it in or remove the row")
        return values

    def line(self, row: int) -> int:
        """The line of the file that a row ends in."""
        if self.first_line is not None:
            return self.first_line + row
        with _reader(self.path) as lines:
            numbers = (lines.line_num for _ in _full_rows(lines))
            return int(next(islice(numbers, row + 1, None)))


def called(name: str, names: Collection[str]) -> str | None:
    """The one of some names that is this one; failing that, the only one that differs from it in capitals."""
    if name in names:
        return name
    near = [other for other in names if other.lower() == name.lower()]
    return near[0] if len(near) == 1 else None


def read_header(path: Path) -> list[str]:
    """The names of a file's columns, in order; one without a name is ""."""
    if path.suffix == ".jsonl":
        return list(dict.fromkeys(name for row in _objects(path) for name in row))
    return _header(path)[0]


def read_rows(
    path: Path, texts: Collection[str] | None = None, leave_out: Collection[str] = (), blank_rows: bool = False
) -> Rows:
    """Read a CSV file, `.gz` or plain, or a `.jsonl` file with an object for each row.

    Args:
        texts: columns that are texts whatever they hold; without it all are.
        leave_out: columns that are not read.
        blank_rows: whether a row of several blank cells counts; without it such rows are left out.
    """
    if path.suffix == ".jsonl":
        objects = _objects(path)
        names = [name for name in dict.fromkeys(name for row in objects for name in row) if name not in leave_out]
        rows = rows_of({name: [row.get(name) for row in objects] for name in names}, names if texts is None else texts)
        rows.path = path
        return rows
    header, skip = _header(path)
    for name, count in Counter(header).items():
        if name and count > 1:
            raise EvenlyError(f"{path} has {count} columns called {name!r}; give each a name of its own")
    if not header:
        return Rows(path, {}, [])
    kept = {name: i for i, name in enumerate(header) if name and name not in leave_out}
    as_text = set(kept if texts is None else kept.keys() & set(texts))
    while True:
        try:
            columns, numbers = _read(path, len(header), skip, kept, as_text, blank_rows)
            break
        except _NotNumbersError as found:  # a text below many numbers: the column is read again as texts
            as_text.update(found.names)
    number_names = [name for name in kept if name not in as_text]
    rows = Rows(path, columns, list(kept), numbers, number_names, header.count(""))
    if not len(rows):
        raise _without_rows(path)
    return rows


def rows_of(columns: Mapping[str, Sequence[Any]], texts: Collection[str] = ()) -> Rows:
    """Rows that are in memory, by column; those of numbers stay numbers but for `texts`."""
    cells: Texts = {}
    numbers: dict[str, Floats] = {}
    for name, values in columns.items():
        array = np.array(values, float) if _are_plain_numbers(values) else np.asarray(values)
        if name not in texts and array.dtype.kind in "fiu" and not np.isinf(array).any():
            numbers[name] = array.astype(np.float64)
        else:
            cells[name] = [_cell(value) for value in values]
    stacked = np.stack(list(numbers.values()), axis=1) if numbers else np.empty((0, 0))
    return Rows(GIVEN, cells, list(columns), stacked, list(numbers), first_line=1)


def _are_plain_numbers(values: Sequence[Any]) -> bool:
    return all(type(value) in (int, float) or value is None for value in values) and any(v is not None for v in values)


def _cell(value: Any) -> str:
    """A value as a csv file has it; pandas makes whole numbers beside a blank 1.0, which is 1 there."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None or str(value) in ("nan", "NaT", "<NA>") else str(value).strip()


def _objects(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    try:
        for line in path.read_text(encoding="utf-8-sig").splitlines():
            rows += [json.loads(line)] if line.strip() else []
        if strange := [row for row in rows if not isinstance(row, dict)]:
            raise ValueError(f"{strange[0]!r} is not an object")
    except (OSError, ValueError, RecursionError) as error:
        raise EvenlyError(
            f"{path} cannot be read after {len(rows)} rows ({error}); give a JSON object in each line"
        ) from None
    return rows


class _NotNumbersError(Exception):
    """Some columns hold something other than numbers."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


@contextmanager
def _reader(path: Path) -> Iterator[Any]:
    """Python's reader of a CSV file, which knows its lines; what it cannot read is refused."""
    limit = csv.field_size_limit(BLOCK)
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield csv.reader(file, strict=True)
    except FileNotFoundError:
        raise EvenlyError(f"there is no file {str(path)!r}; give a CSV file with a header") from None
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise _unreadable(path, error) from None
    finally:
        csv.field_size_limit(limit)


def _full_rows(lines: Any) -> Iterator[list[str]]:
    """The rows that are not empty."""
    return (cells for cells in lines if any(map(str.strip, cells)))


def _unreadable(path: Path, error: Exception) -> EvenlyError:
    said = next(iter(str(error).splitlines()), "") or type(error).__name__
    return EvenlyError(f"{path} cannot be read as a table ({said[:200]}); save it as CSV in UTF-8")


def _header(path: Path) -> tuple[list[str], int]:
    """The names in the first row that is not empty, and how many rows there are up to it."""
    with _reader(path) as lines:
        for i, cells in enumerate(lines, 1):
            if any(map(str.strip, cells)):
                return [cell.strip() for cell in cells], i
    return [], 0


def _read(
    path: Path, width: int, skip: int, kept: Mapping[str, int], as_text: Collection[str], blank_rows: bool
) -> tuple[Texts, Floats]:
    """The texts of a CSV file by column, and its numbers (N, F).

    Args:
        width: the number of columns in the file.
        skip: the number of rows up to the header.
        kept: the place of each column that is wanted.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow

    names = [str(i) for i in range(width)]
    texts: Texts = {name: [] for name in kept if name in as_text}
    numbers = _Numbers(len(kept) - len(texts))
    # on one thread, since blocks that are read ahead would take memory
    read = arrow.ReadOptions(column_names=names, skip_rows_after_names=skip, block_size=BLOCK, use_threads=False)
    parse = arrow.ParseOptions(
        newlines_in_values=True, invalid_row_handler=lambda row: "error" if row.text.strip(", \t\r\n") else "skip"
    )
    convert = arrow.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    last = ""
    try:
        with pa.input_stream(path, compression="gzip" if path.suffix == ".gz" else None) as stream:
            for whole in arrow.open_csv(stream, read, parse, convert):
                batch = whole if blank_rows and width > 1 else _without_empty_rows(whole)
                last = batch.column(width - 1)[-1].as_py() if len(batch) else last
                for name in texts:
                    texts[name] += _stripped(batch.column(kept[name]))
                if len(texts) < len(kept):
                    columns = {name: batch.column(place) for name, place in kept.items() if name not in as_text}
                    numbers.add(_as_numbers(columns))
    except (pa.ArrowException, ValueError, OSError) as error:
        _refuse_fault(path, width)
        raise _unreadable(path, error) from None
    if "\n" in last:  # perhaps a quote that is not closed, which pyarrow closes at the end of the file
        _refuse_fault(path, width)
    return texts, numbers.joined()


def _refuse_fault(path: Path, width: int) -> None:
    """Refuse a file that pyarrow cannot read by the line at fault, as far as Python's reader finds it."""
    with _reader(path) as lines:
        widths = [(len(cells), lines.line_num) for cells in _full_rows(lines)]
    for count, line in widths:
        if count != width:
            raise EvenlyError(f"line {line} of {path} has {count} cells for {width} columns; correct it")
    if len(widths) < 2:
        raise _without_rows(path)


def _without_rows(path: Path) -> EvenlyError:
    return EvenlyError(f"{path} has a header and no rows; add a row for each example")


def _without_empty_rows(batch: Any) -> Any:
    from pyarrow import compute

    empty = None
    for column in batch.columns:
        here = compute.equal(compute.utf8_trim_whitespace(column), "")
        empty = here if empty is None else compute.and_(empty, here)
        if not compute.any(empty).as_py():
            return batch
    return batch.filter(compute.invert(empty))


def _stripped(column: Any) -> list[str]:
    """The texts of a column, equal ones the same object."""
    encoded = column.dictionary_encode()
    names = np.array([text.strip() for text in encoded.dictionary.to_pylist()], dtype=object)
    texts: list[str] = names[encoded.indices.to_numpy()].tolist()
    return texts


def _as_numbers(columns: Mapping[str, Any]) -> Floats:
    """(n, F) the numbers in some columns; all columns at once, since there may be many and few rows."""
    import pyarrow as pa

    try:
        return _floats(pa.concat_arrays(list(columns.values()))).reshape(len(columns), -1).T
    except pa.ArrowInvalid:
        strange = []
        for name, column in columns.items():
            try:
                _floats(column)
            except pa.ArrowInvalid:
                strange.append(name)
        raise _NotNumbersError(strange) from None


def _floats(column: Any) -> Floats:
    """(n,) the numbers in a column, NaN where one is missing."""
    import pyarrow as pa
    from pyarrow import compute

    try:
        numbers = column.cast(pa.float64())
    except pa.ArrowInvalid:
        cells = compute.utf8_trim_whitespace(column)
        missing = compute.is_in(compute.utf8_lower(cells), value_set=pa.array(sorted(MISSING)))
        numbers = compute.if_else(missing, pa.scalar(None, pa.string()), cells).cast(pa.float64())
    floats: Floats = numbers.to_numpy(zero_copy_only=False)
    if np.isinf(floats).any():
        raise pa.ArrowInvalid("a number is not finite")
    return floats


class _Numbers:
    """Blocks of rows (n, F) that come one after the other: kept in memory as far as they fit, else in a file."""

    def __init__(self, width: int) -> None:
        self.width, self.count = width, 0
        self.blocks: list[Floats] = []
        self.scratch: Scratch | None = None

    def add(self, block: Floats) -> None:
        self.count += len(block)
        self.blocks.append(block)
        if self.scratch is None and not fits_memory(TABLE_COPIES * 8 * self.count * self.width):
            self.scratch = Scratch()
        while self.scratch is not None and self.blocks:
            self.scratch.write(self.blocks.pop(0))

    def joined(self) -> Floats:
        """(N, F) all of them; blocks are let go one by one."""
        if self.scratch is not None:
            return self.scratch.array(np.float64, (self.count, self.width))
        whole, end = np.empty((self.count, self.width)), self.count
        while self.blocks:
            block = self.blocks.pop()
            whole[end - len(block) : end] = block
            end -= len(block)
        return whole
