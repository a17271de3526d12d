"""The columns of numbers in a table: their sums and medians, some rows at a time, since they may lie in a file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from evenly.data.images.cache import Scratch
from evenly.data.images.parts import Integers
from evenly.data.mapped import PIECE, fits_memory
from evenly.data.rows import Floats, Rows
from evenly.errors import EvenlyError


@dataclass
class NumberColumns:
    """The columns of numbers that are used, (N, F) float64, NaN where one is missing; read some rows at a time."""

    rows: Rows
    names: list[str]
    parsed: Mapping[str, Floats]

    def at(self, index: Integers) -> Floats:
        """(n, F) the rows at `index` (n,)."""
        stored = np.take(self.rows.numbers, index, axis=0) if self.rows.number_names else np.empty((len(index), 0))
        if self.names == self.rows.number_names:
            return np.asarray(stored)
        place = {name: i for i, name in enumerate(self.rows.number_names)}
        columns = [self.parsed[name][index] if name in self.parsed else stored[:, place[name]] for name in self.names]
        return np.stack(columns, axis=1) if columns else np.empty((len(index), 0))

    def parts(self, index: Integers) -> Iterator[tuple[int, Floats]]:
        """The rows at `index`, some at a time, each with the place of its first.

        A lone column comes whole: numpy adds its numbers in pairs, and rows of several one after the other, which is
        then the same in parts.
        """
        size = len(index) if len(self.names) == 1 else max(1, PIECE // (8 * max(1, len(self.names))))
        for start in range(0, len(index), size):
            yield start, self.at(index[start : start + size])

    def sums(self, index: Integers, mean: Floats | None = None) -> tuple[Floats, Integers]:
        """(F,) the sum over the rows at `index`, of squared differences where a mean is given, and how many there are;
        without those that are missing."""
        total, count = np.zeros((0, len(self.names))), np.zeros(len(self.names), np.int64)
        for _, x in self.parts(index):
            there = ~np.isnan(x)
            terms = np.where(there, x if mean is None else np.square(x - mean), 0.0)
            total, count = np.add.reduce(np.concatenate([total, terms]), axis=0, keepdims=True), count + there.sum(0)
        return total[0], count

    def medians(self, index: Integers) -> Floats:
        """(F,) of the rows at `index`, without those that are missing."""
        shape = len(self.names), len(index)
        by_column = np.empty(shape) if fits_memory(8 * math.prod(shape)) else Scratch().array(np.float64, shape)
        for start, x in self.parts(index):
            by_column[:, start : start + len(x)] = x.T
        return np.array([np.nanmedian(column) for column in by_column])

    def refuse_gaps(self) -> None:
        """Refuse a table in which a number is missing."""
        lacking: list[int] = []
        first = ""
        for start, x in self.parts(np.arange(len(self.rows))):
            gaps = np.isnan(x)
            here = np.flatnonzero(gaps.any(1))
            first = first or (self.names[int(gaps[here[0]].argmax())] if len(here) else "")
            lacking += (start + here).tolist()[: 6 - len(lacking)]
        if lacking:
            lines = ", ".join(str(self.rows.line(i)) for i in lacking[:5]) + (", ..." if len(lacking) > 5 else "")
            raise EvenlyError(
                f"numbers are missing in {self.rows.path} (line {lines}; first {first!r}); fill them in, remove the "
                "rows, or leave missing=refuse out, which takes the training median"
            )
