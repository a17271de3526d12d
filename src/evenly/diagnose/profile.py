"""What the data alone shows: columns that give the label away."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from evenly.data.contract import Data, Split
from evenly.data.preprocessing import TablePreprocessing
from evenly.runs.improvement import GiveAway

GIVEN_AWAY = 0.99
"""A column that alone is right so often gives the label away."""
MOST = 500
"""Columns looked at."""
LEAVES = 16


def give_aways(data: Data) -> tuple[GiveAway, ...]:
    """Columns that alone give the label of nearly all validation examples, the surest first.

    A small tree on one column is fitted on training and measured on validation. Where guessing the most frequent class
    is right nearly as often, the column is not named.
    """
    from sklearn.tree import DecisionTreeClassifier

    split = data.validation
    if split is None:
        return ()
    labels, truth = data.train.labels.numpy(), split.labels.numpy()
    chance = float((truth == np.bincount(labels).argmax()).mean())
    found = []
    for (name, train), (_, held_out) in zip(_columns(data, data.train), _columns(data, split), strict=True):
        tree = DecisionTreeClassifier(max_leaf_nodes=LEAVES, random_state=0).fit(train, labels)
        accuracy = float((tree.predict(held_out) == truth).mean())
        if accuracy >= GIVEN_AWAY and 1 - accuracy < 0.5 * (1 - chance):
            found.append(GiveAway(name, accuracy, chance))
    return tuple(sorted(found, key=lambda each: -each.accuracy))


def _columns(data: Data, split: Split) -> Iterator[tuple[str, np.ndarray]]:
    """Attributes, and columns of a table of numbers, as (N, 1)."""
    for name, column in list(split.attributes.items())[:MOST]:
        yield name, column.numpy()[:, None]
    if isinstance(data.preprocessing, TablePreprocessing) and isinstance(split.inputs, Tensor):
        for k, name in enumerate(data.preprocessing.input_names[:MOST]):
            yield name, split.inputs[:, k : k + 1].numpy()
