"""Copies of tensors that can be put back bit for bit."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from evenly.optim.foreach import group_tensors
from evenly.optim.shards import shards

_layout = attrgetter("device", "dtype", "shape")


class Snapshot:
    """Copies tensors and later puts the copies back in place; of a tensor split over processes, this process's shard.

    The copies' memory is reused from one :meth:`take` to the next, so that a captured graph finds it at the same
    address, and is freed with the tensors.
    """

    def __init__(self) -> None:
        self._memory = WeakTensorKeyDictionary()  # a tensor that was deleted needs no copy
        self._taken: list[tuple[list[Tensor], list[Tensor]]] = []
        self._last: list[Tensor] = []
        self._layout: list[Any] = []
        self._pairs: list[tuple[list[Tensor], list[Tensor]]] = []

    def take(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        layout = [_layout(t) for t in tensors]
        if layout != self._layout or not all(map(is_, tensors, self._last)):
            self._last, self._layout = tensors, layout
            self._pairs = [(originals, [self.copy_of(t) for t in originals]) for originals in group_tensors(tensors)]
        self._taken = self._pairs
        for originals, copies in self._taken:
            torch._foreach_copy_(copies, shards(originals))

    def put_back(self) -> None:
        for originals, copies in self._taken:
            torch._foreach_copy_(shards(originals), copies)
        self._taken = []

    def copy_of(self, tensor: Tensor) -> Tensor:
        """The memory of its copy: what :meth:`take` found in it last."""
        copy: Tensor | None = self._memory.get(tensor)
        (held,) = shards([tensor])
        # model.to(...) moves a parameter's data without making a new parameter
        if copy is None or _layout(copy) != _layout(held):
            copy = self._memory[tensor] = torch.empty_like(held)
        return copy
