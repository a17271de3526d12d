"""Copies of tensors that can be put back bit for bit."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from evenly.optim.foreach import alike


class Snapshot:
    """Takes copies of tensors and puts them back in place.

    The copies' memory is kept from one :meth:`take` to the next, so that a captured graph finds it where
    it was.
    """

    def __init__(self) -> None:
        self._memory: dict[Tensor, Tensor] = {}
        self._taken: list[tuple[list[Tensor], list[Tensor]]] = []
        self._before: list[Tensor] = []
        self._pairs: list[tuple[list[Tensor], list[Tensor]]] = []

    def take(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        if not self._is_as_before(tensors):
            self._before = tensors
            self._pairs = [(originals, [self._copy_of(t) for t in originals]) for originals in alike(tensors)]
        self._taken = self._pairs
        for originals, copies in self._taken:
            torch._foreach_copy_(copies, originals)

    def put_back(self) -> None:
        for originals, copies in self._taken:
            torch._foreach_copy_(originals, copies)
        self._taken = []

    def _is_as_before(self, tensors: list[Tensor]) -> bool:
        """Whether these are the tensors of the last time, where they were; then their copies are laid out already."""
        if len(tensors) != len(self._before) or any(a is not b for a, b in zip(tensors, self._before, strict=True)):
            return False
        pairs = ((t, copy) for originals, copies in self._pairs for t, copy in zip(originals, copies, strict=True))
        return all(t.dtype is copy.dtype and t.device == copy.device and t.shape == copy.shape for t, copy in pairs)

    def _copy_of(self, tensor: Tensor) -> Tensor:
        copy = self._memory.get(tensor)
        # model.to(...) moves a parameter without making a new one
        if copy is None or (copy.device, copy.dtype, copy.shape) != (tensor.device, tensor.dtype, tensor.shape):
            copy = self._memory[tensor] = torch.empty_like(tensor)
        return copy
