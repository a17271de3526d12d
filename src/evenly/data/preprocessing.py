"""How the inputs of a data set were made of what a user has: columns of a table, texts, images or arrays.

These values are stored with a run, so that `evenly.data.examples` can make inputs of new files, rows or images alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from attrs import frozen

from evenly.errors import EvenlyError
from evenly.values import Value

MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
"""Cells, in lower case, that stand for a missing number."""

Missing = Literal["refuse", "mean"]


class _Stored(Value):
    kind: ClassVar[str]
    inputs: ClassVar[str]
    """What a network is given, in words."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; `preprocessing_from_dict` reads it back."""
        return {"kind": self.kind, **super().to_dict()}


@frozen
class TablePreprocessing(_Stored):
    """Columns of numbers, in this order, standardised by the training rows: (x - mean) / std.

    Args:
        missing: what is done where a number is missing: the row is refused, or the training mean taken.
        label: the column of labels, which new rows need not have.
    """

    kind: ClassVar[str] = "table"
    inputs: ClassVar[str] = "float32 (N, F): the features in order, each (x - mean) / std"
    features: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    missing: Missing = "refuse"
    label: str = "label"

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.features),)

    def standardised(self, x: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Rows (N, F) as the network takes them; NaN, a missing number, becomes 0, which is the mean."""
        return np.where(np.isnan(x), 0.0, (x - np.array(self.mean)) / np.array(self.std)).astype(np.float32)


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
