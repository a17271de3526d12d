"""A network looked at batch by batch: inputs in its precision on its device, nothing in it changed by the passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, Subset

from evenly.data.contract import Data, Split
from evenly.diagnose.samples import check_order, item_of, like_of, samples_of
from evenly.engine.losses import single
from evenly.errors import EvenlyError
from evenly.randomness import generator, isolated

CHUNK = 256
"""Examples that pass through a network at once."""


def split_of(data: Any) -> Split:
    """What a diagnosis looks at as a Split: the training split of a Data, a Split, ``(x, y)``, a DataLoader (one that
    draws its order is refused) or a Dataset of ``(x, y)``. Datasets, in a Split or bare, are read as they are passed
    over."""
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


def part_of(split: Split, most: int, seed: int) -> Split:
    """A random part of a split of `most` examples, in order; all of it where there are no more."""
    if len(split) <= most:
        return split
    index = torch.randperm(len(split), generator=generator(seed, "audit", "part"))[:most].sort().values
    if isinstance(split.inputs, Tensor):
        return Split(split.inputs[index], split.labels[index], name=split.name)
    return Split(Subset(split.inputs, index.tolist()), split.labels[index], name=split.name)


def batches(
    model: nn.Module, split: Split, index: Tensor | None = None, size: int = CHUNK
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Inputs, labels and indices of the examples at `index` (M,), all of them where not given, `size` at a time.

    Inputs and labels lie on the model's device, inputs in its precision (uint8 images as numbers in [0, 1]).
    """
    like = like_of(model)
    for part in (torch.arange(len(split)) if index is None else index.cpu()).split(size):
        x = split.inputs[part.to(split.inputs.device)] if isinstance(split.inputs, Tensor) else _read(split, part)
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        x = x.to(like) if x.is_floating_point() else x.to(like.device)
        yield x, split.labels[part.to(split.labels.device)].to(like.device), part


def _read(split: Split, index: Tensor) -> Tensor:
    try:
        with isolated():
            return torch.stack([torch.as_tensor(item_of(split.inputs, i)[0]) for i in index.tolist()])
    except (TypeError, ValueError, RuntimeError) as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise EvenlyError(
            f"the {split.name} inputs cannot be put in a batch ({said}); let the Dataset give tensors of one shape"
        ) from error


def run(model: nn.Module, x: Tensor, weights: Mapping[str, Tensor] | None = None) -> Any:
    """The model's outputs for a batch, by other weights under their names if given; its buffers stay as they are."""
    state = {**{name: b.clone() for name, b in model.named_buffers()}, **(weights or {})}
    try:
        return functional_call(model, state, (x,))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a network of the user's own can raise anything
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise EvenlyError(
            f"{type(model).__name__} cannot take inputs of shape {tuple(x.shape[1:])} and type {x.dtype} ({said}); "
            "give the data that it is made for"
        ) from error


def logits_of(
    model: nn.Module, x: Tensor, labels: Tensor | None = None, weights: Mapping[str, Tensor] | None = None
) -> Tensor:
    """The model's logits for a batch, (B, K), (B, 1) or (B,); refused if not finite or not for these labels (B,)."""
    outputs = run(model, x, weights)
    if not isinstance(outputs, Tensor) or outputs.ndim not in (1, 2) or len(outputs) != len(x):
        got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise EvenlyError(f"{type(model).__name__} gives {got} for {len(x)} examples; it must give logits (N, K)")
    if not bool(outputs.isfinite().all()):
        raise EvenlyError(
            f"{type(model).__name__} gives outputs that are not finite, so neither is its loss; "
            "look at a checkpoint before it diverged, or at its inputs"
        )
    if labels is not None:
        check_labels(outputs, labels)
    return outputs


def check_labels(outputs: Tensor, labels: Tensor) -> None:
    """Refuse labels (N,) that are not among the classes of logits (N, K), (N, 1) or (N,)."""
    classes = 2 if single(outputs) else outputs.shape[1]
    if bool((wrong := (labels < 0) | (labels >= classes)).any()):
        raise EvenlyError(
            f"label {int(labels[wrong][0])} is not among the model's {classes} classes; give labels 0..{classes - 1}"
        )
