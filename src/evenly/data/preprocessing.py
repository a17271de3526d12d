"""How the inputs of a data set were made of what a user has: columns of a table, texts, images or arrays.

These values are stored with a run, so that `evenly.data.examples` can make inputs of new files, rows or images alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from attrs import field, frozen

from evenly.errors import EvenlyError
from evenly.values import Value

MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
"""Cells, in lower case, that stand for a missing number."""

BLANK = "(missing)"
"""The value of a category, or an attribute, where its cell is empty."""

Missing = Literal["median", "mean", "refuse"]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Inputs = np.ndarray[Any, np.dtype[np.float32]]
CHUNK = 1 << 16
"""Rows that are scaled at a time."""


class _Stored(Value):
    kind: ClassVar[str]
    inputs: ClassVar[str]
    """What a network is given, in words."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; `preprocessing_from_dict` reads it back."""
        return {"kind": self.kind, **super().to_dict()}


@frozen
class TablePreprocessing(_Stored):
    """Columns of numbers, in this order, standardised by the training rows: (x - mean) / std; then columns of 0 and 1.

    Args:
        missing: what is done where a number is missing: the training median or mean is taken, or the row is refused.
        label: the column of labels, which new rows need not have.
        medians: of the features, where `missing` is "median".
        indicators: the features with missing numbers in training; each has a column that is 1 where one is missing.
        categories: columns of texts with their values in training; each value has a column that is 1 where it stands.
            A value that training did not have is 0 in all of them.
    """

    kind: ClassVar[str] = "table"
    inputs: ClassVar[str] = (
        "float32 (N, F): the features in order, each (x - mean) / std; then 1 where one of `indicators` is missing, in "
        "order; then 1 for the value of each of `categories`, in order"
    )
    features: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    missing: Missing = "refuse"
    label: str = "label"
    medians: tuple[float, ...] = ()
    indicators: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a row needs: the features, then the categories."""
        return (*self.features, *self.categories)

    @property
    def input_names(self) -> list[str]:
        """What each number of an input stands for."""
        values = [f"{name}={value}" for name, values in self.categories.items() for value in values]
        return [*self.features, *(f"{name} is missing" for name in self.indicators), *values]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.input_names),)

    def encoded(self, x: Floats, categories: Mapping[str, Sequence[str]]) -> Inputs:
        """Rows as the network takes them.

        Args:
            x: (N, F) the features, NaN where a number is missing.
            categories: (N,) the cells of each column of texts.
        """
        rows = len(next(iter(categories.values()), x))
        inputs = np.zeros((rows, len(self.input_names)), np.float32)
        end = len(self.features)
        for start in range(0, rows, CHUNK):
            inputs[start : start + CHUNK, :end] = self._standardised(x[start : start + CHUNK])
        has_indicator = np.isin(self.features, self.indicators)
        inputs[:, end : end + len(self.indicators)] = np.isnan(x[:, has_indicator])
        end += len(self.indicators)
        for name, values in self.categories.items():
            place = {value: end + k for k, value in enumerate(values)}
            at = np.array([place.get(cell or BLANK, -1) for cell in categories[name]])
            inputs[np.flatnonzero(at >= 0), at[at >= 0]] = 1
            end += len(values)
        return inputs

    def _standardised(self, x: Floats) -> Floats:
        mean, std = np.array(self.mean), np.array(self.std)
        scaled = (x - mean) / std
        gaps = (np.array(self.medians) - mean) / std if self.medians else np.zeros_like(mean)
        return np.where(np.isnan(x), gaps, scaled)


@frozen
class TextPreprocessing(_Stored):
    """Texts, which the network encodes itself.

    Args:
        text, label: the columns of a table that holds texts; None where labels are not one column.
        length: of the token ids that the network was trained on. New ids are padded to it, since the length decides in
            which order a network adds up, and so the last bits of its outputs.
    """

    kind: ClassVar[str] = "texts"
    inputs: ClassVar[str] = (
        "int64 (N, L): token ids; a bag of words counts the words of its vocabulary from 1, 0 is padding"
    )
    text: str = "text"
    label: str | None = "label"
    length: int | None = None


@frozen
class ImagePreprocessing(_Stored):
    """Images uint8 (C, H, W).

    Args:
        whole: the side that a whole image is brought to before its middle H x W is cut out; None where the largest
            middle part with the proportions of H x W is brought to that size.
    """

    kind: ClassVar[str] = "images"
    inputs: ClassVar[str] = (
        "float32 (N, C, H, W): pixels in [0, 1], that is bytes / 255; the network scales them further"
    )
    shape: tuple[int, int, int]
    whole: int | None = None


@frozen
class ArrayPreprocessing(_Stored):
    """Arrays, taken as they are.

    Args:
        shape: of one example.
        dtype: as torch calls it, "float32".
    """

    kind: ClassVar[str] = "arrays"
    inputs: ClassVar[str] = "(N, ...) of this shape and type; bytes as float32 in [0, 1], that is bytes / 255"
    shape: tuple[int, ...]
    dtype: str = "float32"


Preprocessing = TablePreprocessing | TextPreprocessing | ImagePreprocessing | ArrayPreprocessing
KINDS: dict[str, type[Preprocessing]] = {
    kind.kind: kind for kind in (TablePreprocessing, TextPreprocessing, ImagePreprocessing, ArrayPreprocessing)
}


def preprocessing_from_dict(stored: Mapping[str, Any]) -> Preprocessing:
    """What `to_dict` wrote."""
    if not isinstance(stored, Mapping) or stored.get("kind") not in KINDS:
        raise EvenlyError(
            f"preprocessing {stored!r} is of no known kind; it may be damaged: copy the run's folder again"
        )
    return KINDS[stored["kind"]].from_dict({name: value for name, value in stored.items() if name != "kind"})


def number(cell: str) -> float:
    """A cell of a table as a number, NaN where it is missing; a ValueError if it is none."""
    if cell.lower() in MISSING:
        return math.nan
    if not math.isfinite(value := float(cell)):
        raise ValueError(f"{cell!r} is not finite")
    return value
