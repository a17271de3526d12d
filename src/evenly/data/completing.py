"""Splits that a data set lacks, drawn from its training set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evenly.data.arrays import inputs_at
from evenly.data.contract import Data, Split
from evenly.data.images.parts import Integers, held_out
from evenly.errors import EvenlyError
from evenly.randomness import derive

SHARES = {"test": 0.2, "validation": 0.2}
"""Of all examples; a split is drawn from what training has."""


def completed(data: Data, seed: int) -> tuple[Data, tuple[str, ...]]:
    """The data with validation and test, and the names of those that were drawn: a fifth of all examples each."""
    missing = tuple(name for name in SHARES if name not in data.splits)
    total = sum(map(len, data.splits.values()))
    for name in missing:
        train = data.train
        strata = train.labels.numpy()
        if train.groups is not None and train.groups.ndim == 1:
            strata = strata * data.group_count + train.groups.numpy()
        late = held_out(strata, min(SHARES[name] * total / len(train), 0.5), derive(seed, "split of", name))
        parts = [part_of_split(train, np.flatnonzero(chosen)) for chosen in (~late, late)]
        if len({len(part.labels.unique()) for part in parts}) > 1:
            raise EvenlyError(
                f"there is no {name} split, and the {len(train)} training examples are too few to draw one with every "
                f"class; give more, or a {name} split of your own"
            )
        parts[1].name = name
        given = {**data.splits, "train": parts[0], name: parts[1]}
        data = replace(data, train=given["train"], validation=given.get("validation"), test=given.get("test"))
    return data, tuple(name for name in ("validation", "test") if name in missing)


def part_of_split(split: Split, index: Integers) -> Split:
    """The examples of a split at `index` (M,)."""
    return Split(
        inputs_at(split.inputs, index),
        split.labels[index],
        None if split.groups is None else split.groups[index],
        {name: column[index] for name, column in split.attributes.items()},
        name=split.name,
        evaluation_groups=None if split.evaluation_groups is None else split.evaluation_groups[index],
        texts=None if split.texts is None else [split.texts[i] for i in index],
        places=None if split.places is None else split.places.at(index),
    )
