"""One process's part of a sampler's epoch, for DistributedDataParallel and the trainers built on it.

    sampler = evenly.Sharded(evenly.ProgressiveExpansion(groups, warmup_epochs=140))
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)     # the same lines in every process

It is a `torch.utils.data.DistributedSampler`, so that Lightning, Fabric and Ray Train, which put a sampler of their own
around any other, take it as it is. Unlike torch's, it asks for the length anew in every epoch, since PDE's sets grow,
and it may be made before there is a process group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor, distributed
from torch.utils.data import DistributedSampler

from evenly.data.samplers import EpochSampler
from evenly.errors import EvenlyError
from evenly.settings import at_least, checks_options


class Sharded(DistributedSampler[int]):
    """Every `processes`-th index of a sampler's epoch, from the `rank`-th on.

    Together, W processes with batches of b see in every step the W b indices that one process would see in a batch of
    W b. Where an epoch's length is no multiple of W, its first indices are seen once more, W - 1 of them at most, so
    that all processes take the same number of steps. `padding` tells which.

    Args:
        sampler: one of evenly's samplers, with the same arguments in every process.
        rank: of this process; that of torch's default process group where not given, 0 where there is none.
        processes: how many there are; likewise, 1 where there is no process group.
    """

    @checks_options
    def __init__(
        self,
        sampler: EpochSampler,
        rank: Annotated[int | None, at_least(0)] = None,
        processes: Annotated[int | None, at_least(1)] = None,
    ) -> None:
        if not isinstance(sampler, EpochSampler):
            raise EvenlyError(
                f"a {type(sampler).__name__} cannot be divided among processes; give one of evenly's samplers, "
                "e.g. evenly.Upsample"
            )
        if rank is not None and (processes is None or rank >= processes):
            raise EvenlyError(f"rank {rank} is none of {processes or 'an unknown number of'} processes; give both")
        # not torch's __init__, which fixes rank, number of processes and length
        self.sampler, self._rank, self._processes = sampler, rank, processes
        self.drop_last, self.shuffle, self._skipped = False, True, 0

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Of this process, from 0."""
        return (distributed.get_rank() if _grouped() else 0) if self._rank is None else self._rank

    @property
    def processes(self) -> int:
        """How many processes share an epoch."""
        return (distributed.get_world_size() if _grouped() else 1) if self._processes is None else self._processes

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """torch's name for `processes`."""
        return self.processes

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """torch's name for the length."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """The indices of all processes in this epoch, padding included."""
        return len(self) * self.processes

    @property
    def seed(self) -> int:  # type: ignore[override]
        """The sampler's."""
        return self.sampler.seed

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The epoch that comes next."""
        return self.sampler.epoch

    def padding(self) -> Tensor:
        """The indices that this epoch has once more than the sampler says, so that all processes have as many."""
        return _cycled(self.sampler.indices(), -len(self.sampler) % self.processes)

    def indices(self) -> Tensor:
        """This process's indices of this epoch in the order of visit."""
        indices = self.sampler.indices()
        return torch.cat([indices, _cycled(indices, -len(indices) % self.processes)])[self.rank :: self.processes]

    def __iter__(self) -> Iterator[int]:
        skipped, self._skipped = self._skipped, 0
        yield from self.indices()[skipped:].tolist()
        self.sampler.epoch += 1

    def skip(self, count: int) -> None:
        """Leave out the first `count` of this process's indices when the epoch that comes next is iterated over.

        For a run that goes on in the middle of an epoch; the length stays that of the whole epoch.
        """
        self._skipped = int(count)

    def __len__(self) -> int:
        return math.ceil(len(self.sampler) / self.processes)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that comes next."""
        if epoch != self.sampler.epoch:
            self._skipped = 0
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The sampler's: the same in every process, whatever their number."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where `state_dict` was taken."""
        self.sampler.load_state_dict(state)


def _grouped() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def _cycled(indices: Tensor, count: int) -> Tensor:
    """The first `count` indices, from the start again where there are fewer."""
    return indices[torch.arange(count) % max(len(indices), 1)]
