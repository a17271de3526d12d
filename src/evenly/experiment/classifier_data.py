"""What `Classifier.fit` is given, as a `Data`: labels and groups by number, columns of a table standardised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import frozen
from sklearn.utils.validation import check_array, check_consistent_length

from evenly.data import Data, Split
from evenly.data.images.parts import ranks
from evenly.data.preprocessing import TablePreprocessing
from evenly.errors import EvenlyError

Array = np.ndarray[Any, Any]


class InputError(EvenlyError, ValueError):
    """An input that cannot be learned from; a ValueError as well, which scikit-learn expects."""


@frozen(eq=False)
class Part:
    """Training or validation: inputs (N, ...), labels (N,) and groups (N,), or boolean (N, G), of the user's kinds."""

    X: Array
    y: Array
    groups: Array | None

    def at(self, chosen: Array) -> Part:
        """The examples where `chosen` (N,) is True."""
        return Part(self.X[chosen], self.y[chosen], None if self.groups is None else self.groups[chosen])


def as_part(X: Array, y: Array, groups: Any) -> Part:
    """A part of inputs and labels that are checked already, and groups that are not."""
    if groups is None:
        return Part(X, y, None)
    groups = check_array(groups, ensure_2d=False, allow_nd=True, dtype=None, input_name="groups")
    check_consistent_length(X, groups)
    if groups.dtype == object:
        if None in (values := groups.tolist()):
            raise InputError(f"groups hold None at index {values.index(None)}; name a group for each example")
        groups = np.asarray(values)
    if groups.ndim != 1 and (groups.ndim != 2 or groups.dtype != np.bool_):
        raise InputError(f"groups have shape {groups.shape}; give (N,), or boolean (N, G) where groups overlap")
    return Part(X, y, groups)


def held_out(part: Part, share: float, seed: int) -> list[Part]:
    """Training and validation: that share of each class and group to within one example is validation."""
    strata = np.unique(part.y, return_inverse=True)[1]
    if part.groups is not None and part.groups.ndim == 1:
        numbers = np.unique(part.groups, return_inverse=True)[1]
        strata = strata * (numbers.max() + 1) + numbers
    chosen = ranks(strata, seed, "validation") >= 1 - share
    for label in np.unique(part.y).tolist():
        members = chosen[part.y == label]
        if members.all() or not members.any():
            raise InputError(
                f"validation_fraction {share} leaves class {label!r}, of {len(members)} examples, none for "
                f"{'training' if members.all() else 'validation'}; give another fraction, or validation_data"
            )
    return [part.at(~chosen), part.at(chosen)]


def scale_of(X: Array, names: Sequence[str] | None) -> TablePreprocessing:
    """What gives the columns of X (N, F) mean 0 and standard deviation 1; a constant column becomes 0."""
    columns = [f"x{j}" for j in range(X.shape[1])] if names is None else [str(name) for name in names]
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = X.mean(0, dtype=np.float64), X.std(0, dtype=np.float64)
    if not np.isfinite(std).all():
        j = int(np.flatnonzero(~np.isfinite(std))[0])
        raise InputError(f"column {columns[j]!r} holds {np.abs(X[:, j]).max():g}, too much to standardise; scale it")
    std[std <= 1e-12 * np.abs(mean)] = 1.0  # constant but for rounding
    label = next(name for k in range(len(columns) + 1) if (name := f"label{k or ''}") not in columns)
    return TablePreprocessing(tuple(columns), tuple(mean.tolist()), tuple(std.tolist()), label=label)


def network_inputs(X: Array, scale: TablePreprocessing | None) -> Array:
    """X (N, ...) as the network takes it: float32, and uint8 where images are. The array is a copy."""
    if scale is not None:
        return scale.encoded(X, {})
    with np.errstate(over="ignore"):  # `Split` refuses what becomes infinite
        return X.astype(np.uint8 if X.dtype == np.uint8 and X.ndim > 2 else np.float32)


def check_alike(X: Array, shape: Sequence[int], is_bytes: bool) -> None:
    """Refuse X of another shape than training had, and images as bytes, which stand for 0 to 1, where it had numbers.

    Args:
        shape: of one example in training.
        is_bytes: whether training had uint8.
    """
    if X.shape[1:] != tuple(shape):
        raise InputError(f"X has shape {X.shape} and the network takes (N, {', '.join(map(str, shape))}); give that")
    if X.ndim > 2 and (X.dtype == np.uint8) != is_bytes:
        trained_on = "uint8" if is_bytes else "floating-point numbers"
        raise InputError(f"X is {X.dtype} and the network was trained on {trained_on}; convert it")


def as_data(parts: Sequence[Part], scale: TablePreprocessing | None) -> tuple[Data, Array]:
    """Training and perhaps validation as a `Data`, and the classes (K,), whose order is that of the numbers."""
    classes = np.unique(parts[0].y)
    if len(classes) < 2:
        raise InputError(f"y has one class only, {classes.item()!r}; there is nothing to tell apart")
    if len({part.groups is None or part.groups.shape[1:] for part in parts}) > 1:
        raise InputError("groups of training and of validation_data are not alike; give both as (N,), or neither")
    group_names, groups = _numbered([part.groups for part in parts])
    splits: dict[str, Any] = {}
    for name, part, numbers in zip(("train", "validation"), parts, groups, strict=False):
        if strangers := sorted(set(part.y.tolist()) - set(classes.tolist())):
            raise InputError(f"label {strangers[0]!r} of the validation data never occurs in y; remove these examples")
        labels = np.searchsorted(classes, part.y)
        splits[name] = Split(network_inputs(part.X, scale), labels, numbers, name=name)
    class_names = [str(label) for label in classes.tolist()]
    return Data(**splits, class_names=class_names, group_names=group_names, preprocessing=scale), classes


def _numbered(parts: list[Array | None]) -> tuple[list[str] | None, Sequence[Array | None]]:
    """The groups' names, and the groups of each part as numbers from 0; overlapping ones stay as they are."""
    columns = [groups for groups in parts if groups is not None and groups.ndim == 1]
    if len(columns) < len(parts):
        return None, parts
    values, numbers = np.unique(np.concatenate(columns), return_inverse=True)
    names = [value if isinstance(value, str) else f"group {value}" for value in values.tolist()]
    return names, np.split(numbers, np.cumsum([len(column) for column in columns])[:-1])
