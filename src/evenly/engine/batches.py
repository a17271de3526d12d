"""Batches of (x, y, index, group): gathered from tensors on the device, read ahead from files or the host's memory, or
read by a DataLoader from a Dataset."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from evenly.data.augment import Augment
from evenly.data.contract import Split
from evenly.data.mapped import MappedRows
from evenly.data.samplers import EpochSampler
from evenly.data.texts import Texts
from evenly.engine.precision import Precision, resolved
from evenly.engine.streaming import is_streamed, read_ahead
from evenly.engine.world import ALONE, World
from evenly.errors import EvenlyError

EVALUATION_BATCH = 1024
EVALUATION_NUMBERS = 1 << 24
"""Numbers that are put before a network at once where nothing is learned from them, and examples at most; but no fewer
examples than a batch of training has."""

Gather = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Augment | None], Tensor]


@dataclass
class Batch:
    """What an objective sees: inputs, labels, indices into the training set, groups or None.

    `first` is True in the first pass of a step; SAM passes over a batch twice, and an objective that keeps a state
    updates it only then. Where several processes share a batch, `x` has the rows of this one's part alone. They stand
    at `rows` (b,) in the whole batch, `padding` of them, at the end, once more than they should: a process without a
    row of its own still has to take part in the step.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    group: Tensor | None
    first: bool = True
    rows: Tensor | None = None
    padding: int = 0

    def __len__(self) -> int:
        return len(self.y)

    def part_of(self, values: Tensor) -> Tensor:
        """The rows, of what the whole batch has (B, ...), that `x` has (b, ...)."""
        return values if self.rows is None else values[self.rows]


class _Indexed(Dataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        return self.dataset[i][0]


class Batches:
    """Batches of a split on a device. `batch_size` None is the full batch: everything in one step.

    The last batch of an epoch may be smaller; where a single example would be left over it joins the batch before,
    which then has `batch_size` + 1, since batch normalisation needs two.

    Args:
        augment: what happens to uint8 images in `epoch`; nothing where not given, and never in `in_order`.
        seed: of the augmentation, which is a function of (seed, epoch, example and which copy of it).
        precision: in which networks compute; see `evenly.engine.precision`.
        stream: whether inputs stay where they are and batches are read ahead; see `evenly.engine.streaming`.
        world: the processes that share every batch of `epoch`, and the batches of `in_order`.
        least: rows of a batch that a process computes, at least; where its part has fewer, some are padding.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int | None,
        device: torch.device,
        workers: int = 0,
        augment: Augment | None = None,
        seed: int = 0,
        precision: Precision = "auto",
        stream: str = "auto",
        world: World = ALONE,
        least: int = 1,
    ) -> None:
        if isinstance(split.inputs, Texts):
            raise EvenlyError(
                f"the {split.name} inputs are texts; turn them into token ids with evenly.models.encoded(data, network)"
            )
        self.streamed = is_streamed(split.inputs, device, stream)
        self.split = split.to(device, inputs=not self.streamed)
        self.batch_size, self.device, self.workers = batch_size, device, workers
        self.world, self.least = world, least
        self.augment = augment if augment is not None and augment.steps else None
        # tensors, since a captured step reads them anew and a compiled one would be made again for every number
        self.seed = torch.tensor(seed, device=device)
        self.at_epoch = torch.zeros((), dtype=torch.int64, device=device)
        self.precision = resolved(precision, split, device)
        self._whole: tuple[Tensor, Batch, int] | None = None
        stored = split.inputs
        if self.augment is not None and isinstance(stored, Tensor | MappedRows) and stored.dtype != torch.uint8:
            raise EvenlyError(
                f"{self.augment!r} is for uint8 images and the {split.name} inputs are {stored.dtype}; "
                "give pixels of 0 to 255 as uint8, or augment='none'"
            )

    def epoch(self, sampler: EpochSampler) -> Iterator[Batch]:
        """The batches of the sampler's epoch, augmented.

        A full batch of tensors is put together once and kept while its members stay and no layer has written into it.
        """
        if self.batch_size is not None:
            yield from self._read(self.places(sampler), self.augment)
            return
        members = sampler.members()
        if self.augment is not None or self.streamed or not isinstance(self.split.inputs, Tensor):
            self.at_epoch.fill_(sampler.epoch)
            yield next(self._read([self._numbered(members)], self.augment))
            return
        kept = self._whole
        if kept is None or kept[1].x._version != kept[2] or not torch.equal(kept[0], members):
            batch = next(self._read([members.to(self.device)], None))
            kept = self._whole = (members, batch, batch.x._version)
        yield kept[1]

    def places(self, sampler: EpochSampler) -> list[Tensor]:
        """The sampler's epoch cut into batches of places; the place of the r-th copy of example i is i + r N, r >= 0.

        Copies of an example differ in their places so that each is augmented in its own way.
        """
        assert self.batch_size is not None
        self.at_epoch.fill_(sampler.epoch)
        return _cut(self._numbered(sampler.indices()), self.batch_size)

    def at(
        self, place: Tensor, augment: Augment | None, gather: Gather | None = None, rows: Tensor | None = None
    ) -> Batch:
        """The examples at these places as this epoch sees them under `augment`: those on the device, or `rows`."""
        index = place if augment is None else place % len(self.split)
        inputs, where = self.split.inputs, index
        if rows is not None:
            inputs, where = rows, torch.arange(len(rows), device=rows.device)
        assert isinstance(inputs, Tensor)
        x = (gather or gathered)(inputs, where, place, self.at_epoch, self.seed, augment)
        return self._batch(x, index)

    def rows(self, places: list[Tensor]) -> Iterator[Tensor | None]:
        """The inputs at each of some lists of places, as stored, read ahead; None where all lie on the device."""
        inputs = self.split.inputs
        if not self.streamed or not isinstance(inputs, Tensor | MappedRows):
            return iter([None] * len(places))
        index = torch.cat(places).cpu() % len(self.split)  # at once, since each copy waits for the device
        return read_ahead(inputs, index.split([len(place) for place in places]), self.device)

    def in_order(self) -> Iterator[Batch]:
        """Every example once, as stored and as it is; of several processes each has some of the batches."""
        places, world = self._in_order(), self.world
        mine = places if len(places) < world.size else places[world.rank :: world.size]
        return self._own(mine, None)

    def first_ones(self, count: int) -> Batch:
        """The first examples as stored, for a trial."""
        return next(self._own([torch.arange(min(count, len(self.split)), device=self.device)], None))

    def collected(self, rows: Tensor) -> Tensor:
        """What all processes made of the batches of `in_order` (N, ...), of what this one made of its own."""
        if self.world.size == 1:
            return rows
        sizes = [len(place) for place in self._in_order()]
        if len(sizes) < self.world.size:  # too few to divide: each has all, and the first one's hold
            return self.world.shared(rows.cpu).to(rows.device)
        return self.world.interleaved(rows, sizes)

    def _in_order(self) -> list[Tensor]:
        everything = torch.arange(len(self.split), device=self.device)
        fit = EVALUATION_NUMBERS // max(1, math.prod(self.split.example_shape))
        return _cut(everything, max(self.batch_size or 1, min(fit, EVALUATION_BATCH)))

    def _numbered(self, indices: Tensor) -> Tensor:
        indices = indices.to(self.device)
        return indices if self.augment is None else numbered(indices, len(self.split))

    def _read(self, places: list[Tensor], augment: Augment | None) -> Iterator[Batch]:
        """The batches at these places; of several processes each reads the inputs of its part of every batch."""
        if self.world.size == 1:
            yield from self._own(places, augment)
            return
        count, parts = len(self.split), [_part(len(place), self.world, self.least) for place in places]
        mine = [place[rows.to(place.device)] for place, (rows, _) in zip(places, parts, strict=True)]
        for part, place, (rows, padding) in zip(self._own(mine, augment), places, parts, strict=True):
            yield replace(self._batch(part.x, place % count), rows=rows.to(self.device), padding=padding)

    def _own(self, places: list[Tensor], augment: Augment | None) -> Iterator[Batch]:
        if isinstance(self.split.inputs, Tensor) and not self.streamed:
            for place in places:
                yield self.at(place, augment)
            return
        count = len(self.split)
        for x, place in zip(self.rows(places) if self.streamed else self._loader(places), places, strict=True):
            yield self._batch(viewed(x.to(self.device), place, self.at_epoch, self.seed, augment), place % count)

    def _loader(self, places: list[Tensor]) -> DataLoader[Any]:
        # the loader's own seed only serves its workers; the order of the indices is given
        return DataLoader(
            _Indexed(self.split.inputs),
            batch_sampler=[(place % len(self.split)).tolist() for place in places],
            num_workers=self.workers,
            generator=torch.Generator().manual_seed(torch.initial_seed()),
        )

    def _batch(self, x: Tensor, index: Tensor) -> Batch:
        group = None if self.split.groups is None else self.split.groups[index]
        return Batch(x, _rows(self.split.labels, index), index, group)


def gathered(
    inputs: Tensor, index: Tensor, place: Tensor, epoch: Tensor, seed: Tensor, augment: Augment | None
) -> Tensor:
    """Rows of the inputs as a network sees them."""
    return viewed(_rows(inputs, index), place, epoch, seed, augment)


def _rows(tensor: Tensor, index: Tensor) -> Tensor:
    return tensor[index] if tensor.is_cuda else tensor.index_select(0, index)  # which is faster on the CPU


def viewed(x: Tensor, place: Tensor, epoch: Tensor, seed: Tensor, augment: Augment | None) -> Tensor:
    """Inputs as a network sees them: augmented, pixels as numbers in [0, 1], channels last on a GPU."""
    if augment is not None:
        x = augment(x, place, epoch, seed)
    if x.dtype == torch.uint8:
        x = x.float() / 255
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.ndim == 4 else x


def numbered(indices: Tensor, total: int) -> Tensor:
    """index + total r for the r-th time, from 0, that an index stands among `indices` (M,)."""
    order = torch.argsort(indices, stable=True)
    ranked = indices[order]
    copy = torch.arange(len(indices), device=indices.device) - torch.searchsorted(ranked, ranked)
    return indices.index_add(0, order, total * copy)


def _part(count: int, world: World, least: int) -> tuple[Tensor, int]:
    """Which rows of a batch of `count` a process computes, and how many of them, at the end, are padding."""
    part = world.part(count)
    padding = max(0, least - (part.stop - part.start))
    return torch.arange(part.start, part.stop + padding) % count, padding  # rows that it has not, as far as there are


def _cut(indices: Tensor, batch_size: int) -> list[Tensor]:
    """Batches of indices; a last one of a single example joins the one before, since batch normalisation needs two."""
    parts = list(indices.split(batch_size))
    if batch_size > 1 and len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts
