"""Examples that stand in two splits."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from torch import Tensor

from evenly.data.contract import Data, Split
from evenly.data.mapped import MappedRows, pieces
from evenly.data.texts import Texts


def keys_of(split: Split) -> Iterator[Hashable]:
    """What tells an input from others: its bytes, or its text; nothing of a Dataset."""
    if isinstance(split.inputs, Texts):
        yield from split.texts or ()
    elif isinstance(split.inputs, Tensor | MappedRows):
        for part in pieces(split.inputs):
            yield from (row.tobytes() for row in part.cpu().numpy())


def in_training(data: Data) -> dict[str, int]:
    """How many examples of validation and of test have the input of a training example, where that can be told."""
    keys = set(map(hash, keys_of(data.train)))
    counts = {name: sum(hash(key) in keys for key in keys_of(split)) for name, split in data.splits.items()}
    return {name: counts[name] for name in ("validation", "test") if keys and name in counts}
