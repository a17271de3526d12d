"""What a diagnosis looks at: samples in any shape data comes in, and a model in eval mode, left as it was found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from evenly.data.contract import Data, Split
from evenly.errors import EvenlyError
from evenly.randomness import isolated


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
        pairs = [_two(dataset[i], f"item {i}") for i in range(len(dataset))]
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


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode inside, and each in its own mode again after."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
