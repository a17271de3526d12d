"""Batches of (x, y, index, group): gathered by index from tensors in memory, or read by a DataLoader from a Dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from evenly.data.contract import Split
from evenly.data.samplers import EpochSampler

EVALUATION_BATCH = 1024


@dataclass
class Batch:
    """What an objective sees: inputs, labels, indices into the training set, groups or None.

    `first` is True in the first pass of a step; SAM passes over a batch twice, and an objective that keeps a state
    updates it only then.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    group: Tensor | None
    first: bool = True

    def __len__(self) -> int:
        return len(self.y)


class _Indexed(Dataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return self.dataset[i][0], i


class Batches:
    """Batches of a split on a device. `batch_size` None is the full batch: everything in one step."""

    def __init__(self, split: Split, batch_size: int | None, device: torch.device, workers: int = 0) -> None:
        self.split = split.to(device)
        self.batch_size, self.device, self.workers = batch_size, device, workers
        self._whole: tuple[Tensor, Batch, int] | None = None

    def epoch(self, sampler: EpochSampler) -> Iterator[Batch]:
        """The batches of the sampler's epoch.

        A full batch of tensors is put together once and kept while its members stay and no layer has written into it.
        """
        if self.batch_size is not None:
            yield from self._read(sampler.indices(), self.batch_size)
            return
        members = sampler.members()
        kept = self._whole if isinstance(self.split.inputs, Tensor) else None
        if kept is None or kept[1].x._version != kept[2] or not torch.equal(kept[0], members):
            batch = next(self._read(members, max(len(members), 1)))
            kept = self._whole = (members, batch, batch.x._version)
        yield kept[1]

    def in_order(self) -> Iterator[Batch]:
        """Every example once, as stored."""
        return self._read(torch.arange(len(self.split)), max(self.batch_size or 0, EVALUATION_BATCH))

    def _read(self, indices: Tensor, batch_size: int) -> Iterator[Batch]:
        if isinstance(self.split.inputs, Tensor):
            for index in _cut(indices.to(self.device), batch_size):
                yield self._batch(self.split.inputs[index], index)
            return
        # the loader's own seed only serves its workers; the order of the indices is given
        loader = DataLoader(
            _Indexed(self.split.inputs),
            batch_sampler=[part.tolist() for part in _cut(indices, batch_size)],
            num_workers=self.workers,
            generator=torch.Generator().manual_seed(torch.initial_seed()),
        )
        for x, index in loader:
            yield self._batch(x.to(self.device), index.to(self.device))

    def _batch(self, x: Tensor, index: Tensor) -> Batch:
        if x.dtype == torch.uint8:
            x = x.float() / 255
        group = None if self.split.groups is None else self.split.groups[index]
        return Batch(x, self.split.labels[index], index, group)


def _cut(indices: Tensor, batch_size: int) -> list[Tensor]:
    """Batches of indices; a last one of a single example joins the one before, since batch normalisation needs two."""
    parts = list(indices.split(batch_size))
    if batch_size > 1 and len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


@torch.no_grad()
def outputs_of(model: nn.Module, batches: Batches) -> Tensor:
    """The model's outputs on every example, in the order of storage, in eval mode."""
    was_training = model.training
    model.eval()
    try:
        return torch.cat([model(batch.x) for batch in batches.in_order()])
    finally:
        model.train(was_training)
