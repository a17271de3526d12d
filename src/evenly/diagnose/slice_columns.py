"""The columns that slices are made of: attributes, the input columns of a table, clusters of a model's own features."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Any

import numpy as np
from attrs import field, frozen
from torch import Tensor

from evenly.data.contract import Data, Split
from evenly.data.mapped import MappedRows, pieces
from evenly.data.preprocessing import TablePreprocessing
from evenly.randomness import derive

MOST_COLUMNS = 200
"""Columns that are searched at most: the attributes, then the inputs in their order."""
MOST_BINS = 4
"""Parts that a column of numbers is cut into, at the quantiles of the training split."""
KEPT_VALUES = 8
"""A column with up to so many different numbers in training keeps them as they are."""
ROWS_FOR_QUANTILES = 100_000
"""Training rows that the quantiles are computed on at most, at equal distances."""
CLUSTERS, FEWEST_IN_CLUSTER = 4, 20
"""Clusters of a predicted class at most, and how many examples there are for each of them at least."""
CLUSTER = "cluster"

Integers = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float32]]


def _codes(values: Any) -> Integers:
    return np.asarray(values.cpu() if isinstance(values, Tensor) else values).astype(np.int64)


@frozen(eq=False)
class Column:
    """A property of examples with few values.

    Args:
        name: of the column.
        values: (N,) integers: value k is called ``names[k]``; -1 where it is missing.
        names: of the values.
    """

    name: str
    values: Integers = field(converter=_codes)
    names: tuple[str, ...]


def columns_of(split: Split, data: Data) -> tuple[Column, ...]:
    """The columns of a split's N examples, at most `MOST_COLUMNS`; the label is none of them.

    These are all attributes. Of a table of numbers, or any inputs float (N, F), they are also the input columns.
    Numbers are cut into up to `MOST_BINS` parts at the quantiles of the training split, so that a slice of one split is
    the same slice of another. A column with few different numbers keeps them; one-hot inputs become the category that
    they stand for.
    """
    attributes = list(islice(attribute_columns(split, data), MOST_COLUMNS))
    return (*attributes, *_inputs(split, data, MOST_COLUMNS - len(attributes)))


def columns_left_out(split: Split, data: Data) -> int:
    """How many columns there are beyond those that `columns_of` gives."""
    preprocessing = data.preprocessing
    width = _width(split)
    if isinstance(preprocessing, TablePreprocessing) and width:
        width = len(preprocessing.columns)
    return max(0, len(split.attributes) + width - MOST_COLUMNS)


def cluster_column(features: Any, predicted: Any, class_names: Sequence[str], seed: int = 0) -> Column:
    """Clusters of the examples that a model takes for the same class, in its own features.

    The model decides from these features, so some clusters are expected to be right less often than others, whatever it
    learned. Clusters say where to look; their test proves nothing, and they are not mixed with slices of columns.

    Args:
        features: (N, D).
        predicted: (N,) the predicted classes, in 0..K-1.
        class_names: of the K classes.
    """
    rows = np.asarray(features.cpu() if isinstance(features, Tensor) else features).reshape(len(predicted), -1)
    classes = _codes(predicted)
    values = np.full(len(rows), -1)
    names: list[str] = []
    for k, name in enumerate(class_names):
        members = np.flatnonzero(classes == k)
        sides = k_means(rows[members], min(CLUSTERS, len(members) // FEWEST_IN_CLUSTER), derive(seed, "cluster", k))
        if sides is None:
            continue
        values[members] = len(names) + sides
        names += [f"{side + 1} of those predicted {name}" for side in range(int(sides.max()) + 1)]
    return Column(CLUSTER, values, tuple(names))


def k_means(rows: Any, count: int, seed: int) -> Integers | None:
    """The cluster (N,) of each of `rows` (N, D), in 0..count-1, the largest cluster first; None where there are fewer
    than two clusters."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    if count < 2 or len(rows) < 2 * count or bool((rows == rows[0]).all()):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # points so close together that they are one cluster
        clusters = KMeans(count, n_init=4, random_state=seed % 2**32).fit_predict(rows)
    order = np.argsort(-np.bincount(clusters, minlength=count), kind="stable")
    rank: Integers = np.argsort(order, kind="stable")[clusters]
    return rank


def attribute_columns(split: Split, data: Data) -> Iterator[Column]:
    """The attributes of a split, with the names of their values where the data has them; the label is none."""
    value_names = getattr(data, "attribute_names", {})
    for name, column in split.attributes.items():
        own = _codes(column)
        if np.array_equal(own, _codes(split.labels)):
            continue  # the label under another name
        names = value_names.get(name)
        if names is not None:
            yield Column(name, np.where((own >= 0) & (own < len(names)), own, -1), tuple(map(str, names)))
            continue
        present = np.unique(own)
        yield Column(name, np.searchsorted(present, own), tuple(map(str, present.tolist())))


def _width(split: Split) -> int:
    """The number of input columns; 0 where the inputs are no table of numbers."""
    inputs = split.inputs
    if not isinstance(inputs, Tensor | MappedRows) or len(inputs.shape) != 2 or not inputs.dtype.is_floating_point:
        return 0
    return int(inputs.shape[1])


def _inputs(split: Split, data: Data, most: int) -> Iterator[Column]:
    """The input columns of a table of numbers; none of other inputs."""
    width = _width(split)
    if not width or most <= 0:
        return
    table = data.preprocessing
    if not isinstance(table, TablePreprocessing) or len(table.input_names) != width:
        own, train = (_read(part, [*range(min(width, most))]) for part in (split, data.train))
        for k in range(own.shape[1]):
            yield from _cut(f"input {k}", own[:, k], train[:, k], None, None, 1.0, 0.0)
        return
    numbers, categories = table.features[:most], list(table.categories.items())[: max(0, most - len(table.features))]
    place = {name: k for k, name in enumerate(table.input_names)}
    gaps = [place[f"{name} is missing"] if name in table.indicators else None for name in numbers]
    own, train = (_read(part, [*range(len(numbers))]) for part in (split, data.train))
    for k, (name, gap) in enumerate(zip(numbers, gaps, strict=True)):
        here, in_train = (None if gap is None else _read(part, [gap])[:, 0] > 0.5 for part in (split, data.train))
        yield from _cut(name, own[:, k], train[:, k], here, in_train, table.std[k], table.mean[k])
    for name, values in categories:
        hot = _read(split, [place[f"{name}={value}"] for value in values])
        yield Column(name, np.where(hot.max(1) > 0.5, hot.argmax(1), -1), tuple(values))


def _read(split: Split, columns: Sequence[int]) -> Floats:
    """Some input columns of a split, (N, C)."""
    parts = [part[:, columns].float().cpu().numpy() for part in pieces(split.inputs)]  # type: ignore[arg-type]
    rows: Floats = np.concatenate(parts)
    return rows


def _cut(
    name: str, own: Floats, train: Floats, own_missing: Any, train_missing: Any, scale: float, shift: float
) -> Iterator[Column]:
    """A column of numbers (N,) cut by those of training (M,); none where these are all the same.

    Args:
        own_missing, train_missing: booleans (N,) and (M,), where a number is missing; None where none is.
        scale, shift: the number that the user knows is ``scale * number + shift``.
    """
    known = train if train_missing is None else train[~train_missing]
    known = known[:: max(1, len(known) // ROWS_FOR_QUANTILES)]
    present = np.unique(known)
    if len(present) < 2:
        return
    if len(present) <= KEPT_VALUES:
        codes = np.searchsorted(present, own).clip(0, len(present) - 1)
        codes = np.where(present[codes] == own, codes, -1)
        names = spelled(_unscaled(present, scale, shift))
    else:
        edges = np.unique(np.quantile(known, np.linspace(0, 1, MOST_BINS + 1)[1:-1], method="inverted_cdf"))
        edges = edges[edges > present[0]]
        codes = np.searchsorted(edges, own, side="right")
        cuts = spelled(_unscaled(edges, scale, shift))
        names = [f"below {cuts[0]}", *(f"{a} to {b}" for a, b in pairwise(cuts))]
        names.append(f"{cuts[-1]} or more")
    if own_missing is not None:
        codes, names = np.where(own_missing, len(names), codes), [*names, "missing"]
    yield Column(name, codes, tuple(names))


def _unscaled(numbers: Floats, scale: float, shift: float) -> Any:
    """Standardised numbers as the user knows them; 0 where float32 has lost all of their digits."""
    known = numbers.astype(float) * scale + shift
    return np.where(np.abs(known) < 1e-6 * (abs(scale) + abs(shift)) * (shift != 0), 0.0, known)


def spelled(numbers: Any) -> list[str]:
    """Different numbers as people write them, to as few digits from four on as keep them apart."""
    texts: list[str] = []
    for digits in range(4, 18):
        texts = [f"{float(f'{number:.{digits}g}') + 0.0:.12g}" for number in numbers]
        if len(set(texts)) == len(texts):
            break
    return texts
