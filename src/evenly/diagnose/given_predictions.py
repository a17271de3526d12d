"""Predictions of a model that is not here: arrays of any common form, or a csv file like that of `evenly predict`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from evenly.data.contract import Data, Split, as_tensor
from evenly.data.rows import Rows, read_rows
from evenly.diagnose.findings import class_names_of
from evenly.errors import EvenlyError, shortened
from evenly.runs.predictions import Predictions

TOLERANCE = 1e-3
"""Up to this distance from 1, the sum of an example's probabilities is taken for rounding."""
FORMS = "give probabilities (N, K), or (N,) predicted classes, or (N,) probabilities of class 1 of two"


@frozen(eq=False)
class Given:
    """What a model said of N examples: predicted classes (N,), and probabilities (N, K) where they are known."""

    predicted: Tensor
    probabilities: Tensor | None = None


def given_predictions(predictions: Any, split: Split, data: Data) -> Given:
    """Predictions of a split in any of these forms, as tensors, arrays or lists.

    - (N, K) probabilities.
    - (N,) or (N, 1) floats, of two classes: the probability of class 1.
    - (N,) predicted classes, by number or by name.
    - `Given`, or what ``run.predict(x)`` returned.
    """
    if isinstance(predictions, Predictions):
        predictions = Given(torch.as_tensor(predictions.labels), torch.as_tensor(predictions.probabilities))
    if isinstance(predictions, Given):
        shares = predictions.probabilities
        _check_count(len(predictions.predicted), split)
        return Given(predictions.predicted, None if shares is None else _probabilities(shares.double(), data))
    array = predictions if isinstance(predictions, Tensor) else _array(predictions)
    if isinstance(array, np.ndarray) and array.dtype.kind in "OUS":
        _check_count(len(array), split)
        return Given(_numbered([str(name) for name in array.reshape(-1).tolist()], data, "prediction"))
    numbers = array if isinstance(array, Tensor) else as_tensor(array, "predictions")
    numbers = numbers.detach().cpu()
    if numbers.ndim not in (1, 2) or not len(numbers):
        raise EvenlyError(f"predictions have shape {tuple(numbers.shape)}; {FORMS}")
    _check_count(len(numbers), split)
    if numbers.ndim == 2 and numbers.shape[1] > 1:
        shares = _probabilities(numbers.double(), data)
        return Given(shares.argmax(1), shares)
    flat = numbers.reshape(-1).double()
    if bool((flat == flat.round()).all()):
        if bool((odd := (flat < 0) | (flat >= data.classes)).any()):
            raise EvenlyError(
                f"prediction {flat[odd][0]:g} is no class; there are 0 to {data.classes - 1}: number predictions as "
                "the labels are, or give names"
            )
        return Given(flat.long())
    if data.classes != 2:
        raise EvenlyError(f"predictions (N,) of fractions are for two classes, and there are {data.classes}; {FORMS}")
    shares = _probabilities(torch.stack([1 - flat, flat], 1), data)
    return Given((flat > 0.5).long(), shares)


def read_predictions(path: Path, split: Split, data: Data) -> Given:
    """Predictions of a split from a csv file with a column `prediction`, and ``probability of NAME`` for every class.

    A row is that of the same place in the split. Where the file has a column `file` and the examples are files, rows
    are matched by it; other rows are left out. Where it has a row for every row of the data's table, those of the split
    are taken. A column `label` must agree with the labels of the split.
    """
    rows = read_rows(path)
    if "prediction" not in rows.columns:
        found = ", ".join(rows.header[:12]) or "none"
        raise EvenlyError(
            f"{path} has no column 'prediction' (found: {found}); give a csv file like that of `evenly predict`"
        )
    index = _matched(rows, split, data)
    names = class_names_of(data)
    cells = {name: [column[i] for i in index] for name, column in rows.columns.items()}
    if "label" in cells:
        _check_labels(path, _numbered(cells["label"], data, "label"), split, names)
    predicted = _numbered(cells["prediction"], data, "prediction")
    columns = [f"probability of {name}" for name in names]
    lacking = [name for name in columns if name not in cells]
    if len(lacking) == len(columns):
        return Given(predicted)
    if lacking:
        raise EvenlyError(f"{path} has no column {lacking[0]!r}; give the probability of every class, or of none")
    try:
        shares = torch.tensor([[float(cell) for cell in cells[name]] for name in columns], dtype=torch.float64).T
    except ValueError as error:
        raise EvenlyError(f"{path} holds a probability that is no number ({error}); correct it") from None
    return Given(predicted, _probabilities(shares, data))


def _array(predictions: Any) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(predictions)
    except (TypeError, ValueError):
        raise EvenlyError(f"predictions {shortened(predictions)} are no array; {FORMS}") from None


def _check_count(count: int, split: Split) -> None:
    if count != len(split):
        raise EvenlyError(
            f"there are {count:,} predictions for {len(split):,} {split.name} examples; give one for each, in the "
            "order of the split, or name the split that they are of"
        )


def _probabilities(shares: Tensor, data: Data) -> Tensor:
    """(N, K) as they are, checked."""
    if shares.ndim != 2 or shares.shape[1] != data.classes:
        raise EvenlyError(f"predictions have shape {tuple(shares.shape)} for {data.classes} classes; {FORMS}")
    outside = ~((shares >= 0) & (shares <= 1))
    if bool(outside.any()):
        row = int(outside.any(1).nonzero()[0])
        raise EvenlyError(
            f"prediction {row} has the probability {float(shares[row][outside[row]][0]):g}, which is not between 0 and "
            "1; give probabilities, e.g. torch.softmax(logits, 1)"
        )
    total = shares.sum(1)
    if bool((off := (total - 1).abs() > TOLERANCE).any()):
        row = int(off.nonzero()[0])
        raise EvenlyError(
            f"the probabilities of prediction {row} sum to {float(total[row]):.6g}, not 1; give the probability of "
            "every class"
        )
    return shares


def _numbered(names: Sequence[str], data: Data, what: str) -> Tensor:
    """Class names, or classes by their numbers, as numbers (N,)."""
    known = {name: k for k, name in enumerate(class_names_of(data))}
    if not known.keys() >= set(names):
        numbers = {str(k): k for k in range(data.classes)}
        if numbers.keys() >= set(names):
            known = numbers
    for row, name in enumerate(names):
        if name not in known:
            there = ", ".join(list(known)[:12]) + (", ..." if len(known) > 12 else "")
            raise EvenlyError(f"{what} {row} is {shortened(name)}, which is no class of the data; there are: {there}")
    return torch.tensor([known[name] for name in names])


def _matched(rows: Rows, split: Split, data: Data) -> list[int]:
    """Which row of the file each example of the split has (N,)."""
    places = split.places
    if "file" in rows.columns and places is not None and not places.word:
        at = {name: i for i, name in enumerate(rows.columns["file"])}
        wanted = [str(value) for value in places.values]
        if lacking := [name for name in wanted if name not in at]:
            raise EvenlyError(
                f"{rows.path} has no row for file {lacking[0]!r} of the {split.name} split ({len(lacking):,} of "
                f"{len(wanted):,} are missing); give a prediction for each"
            )
        return [at[name] for name in wanted]
    if places is not None and places.word == "row" and len(rows) == sum(map(len, data.splits.values())) > len(split):
        return [int(value) for value in places.values]
    _check_count(len(rows), split)
    return list(range(len(rows)))


def _check_labels(path: Path, labels: Tensor, split: Split, names: Sequence[str]) -> None:
    differs = labels != split.labels.cpu()
    if bool(differs.any()):
        row = int(differs.nonzero()[0])
        raise EvenlyError(
            f"{path} has label {names[int(labels[row])]!r} for {split.name} example {row}, the data "
            f"{names[int(split.labels[row])]!r} ({int(differs.sum()):,} differ); give the rows in the order of the "
            "split, or name the split that they are of"
        )
