"""The examples that a diagnosis is about, in any form that data comes in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, Subset

from evenly.data.contract import Data, Split
from evenly.engine.evaluation import item_of
from evenly.errors import EvenlyError
from evenly.randomness import generator, isolated


def samples_of(data: Any) -> tuple[Tensor, Tensor]:
    """Inputs (N, ...) and targets (N, ...) of a pair of tensors or arrays, a Split, the training split of a Data, a
    DataLoader (in the order it gives) or a Dataset of ``(x, y)``. uint8 inputs become floats in [0, 1].

    The global random states are left as they were, whatever a loader or a Dataset draws.
    """
    if isinstance(data, Data):
        data = data.train
    if isinstance(data, Split):
        if isinstance(data.inputs, Tensor):
            return _pair(data.inputs, data.labels)
        return _pair(_pair(*_read(data.inputs))[0], data.labels)
    if isinstance(data, tuple | list) and len(data) == 2:
        return _pair(*data)
    if isinstance(data, DataLoader):
        with isolated():
            batches = [_two(batch, "a batch") for batch in data]
        if not batches:
            raise EvenlyError("the data is empty; give at least one sample")
        return _pair(*(torch.cat([torch.as_tensor(part) for part in parts]) for parts in zip(*batches, strict=True)))
    if (
        hasattr(data, "__getitem__")
        and hasattr(data, "__len__")
        and not isinstance(data, str | tuple | list | dict | Tensor)
    ):
        return _pair(*_read(data))
    raise EvenlyError(
        f"data is a {type(data).__name__}; give (x, y) tensors, a Data or Split, a DataLoader or a Dataset of (x, y)"
    )


def _read(dataset: Any) -> tuple[Tensor, Tensor]:
    with isolated():
        pairs = [_two(item_of(dataset, i), f"item {i}") for i in range(len(dataset))]
    if not pairs:
        raise EvenlyError("the data is empty; give at least one sample")
    x, y = (torch.stack([torch.as_tensor(part) for part in parts]) for parts in zip(*pairs, strict=True))
    return x, y


def _two(item: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise EvenlyError(f"{what} of the data is a {type(item).__name__}, not (x, y); give inputs with their targets")
    return item[0], item[1]


def _pair(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    try:
        x, y = (torch.as_tensor(np.asarray(part) if isinstance(part, list) else part).detach() for part in (x, y))
    except (TypeError, ValueError, RuntimeError):
        raise EvenlyError("the data cannot be read as numbers; give (x, y) as tensors or arrays") from None
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise EvenlyError(
            f"inputs have shape {tuple(x.shape)}, targets {tuple(y.shape)}; give one target for each input"
        )
    if len(x) == 0:
        raise EvenlyError("the data is empty; give at least one sample")
    return (x.float() / 255 if x.dtype == torch.uint8 else x), y


def tensor_of(values: Any, name: str, give: str) -> Tensor:
    """Values as a tensor outside of any graph; refused by name, with what to `give`, where they are no numbers."""
    try:
        tensor: Tensor = torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError):
        raise EvenlyError(f"{name} cannot be read as numbers; give {give}") from None
    return tensor


def check_order(data: Any) -> None:
    """Refuse a DataLoader whose order is not that of its Dataset, where a result has a value for each example."""
    if not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset):
        return
    plain = data.batch_sampler is None or type(data.batch_sampler) is BatchSampler
    if not plain or not isinstance(data.sampler, SequentialSampler):
        drawn = data.sampler if plain else data.batch_sampler
        raise EvenlyError(
            f"the DataLoader draws its order ({type(drawn).__name__}), so a value for each example could not be "
            "matched to it; give its .dataset, or a loader with shuffle=False"
        )


def check_real(model: nn.Module, names: Iterable[str]) -> None:
    """Refuse complex parameters among these."""
    for name, weight in model.named_parameters():
        if name in set(names) and weight.is_complex():
            raise EvenlyError(
                f"parameter {name} of {type(model).__name__} is complex, and curvature and ascent are of real ones; "
                "keep its real and imaginary part as two parameters, or set requires_grad_(False)"
            )


def split_of(data: Any) -> Split:
    """Data of any form as a Split: the training split of a Data, a Split, ``(x, y)``, a DataLoader (one that draws its
    order is refused) or a Dataset of ``(x, y)``. A Dataset is read one example after the other, at every pass."""
    check_order(data)
    if isinstance(data, Data):
        split: Split = data.train
        return split
    if isinstance(data, Split):
        return data
    readable = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if readable and not isinstance(data, DataLoader | str | tuple | list | dict | Tensor) and len(data):
        with isolated():
            first = item_of(data, 0)
            if isinstance(first, tuple | list) and len(first) >= 2:
                return Split(data)
    x, y = samples_of(data)
    return Split(x, y)


def part_of(split: Split, most: int, seed: int, *, stratified: bool = False) -> Split:
    """A random part of a split of `most` examples, in order; all of it where there are no more.

    Args:
        stratified: as many examples of each class, as far as it has them. What is left over after equal numbers goes to
            classes in random order.
    """
    if len(split) <= most:
        return split
    order = torch.randperm(len(split), generator=generator(seed, "audit", "part"))
    if stratified:
        labels = split.labels.cpu()[order]
        rank = torch.empty(len(order), dtype=torch.long)
        for label in labels.unique():
            members = labels == label
            rank[members] = torch.arange(int(members.sum()))
        order = order[rank.argsort(stable=True)]
    index = order[:most].sort().values
    if isinstance(split.inputs, Tensor):
        return Split(split.inputs[index], split.labels[index], name=split.name)
    return Split(Subset(split.inputs, index.tolist()), split.labels[index], name=split.name)
