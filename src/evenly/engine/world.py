"""The processes that train one network together, as `torchrun` starts them, and what they exchange.

    torchrun --nproc-per-node 2 -m evenly train my.npz --method useful

Every process runs the same program on the same data. A batch is the one that a single process would have: each process
computes its part of it, and gradients are averaged. What decides how a run goes on (losses, outputs, what a method
chose) is exchanged, so that all processes decide alike. The first process alone writes files and prints.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

import torch
from attrs import frozen
from torch import Tensor, distributed
from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store
from torch.distributed.rendezvous import rendezvous

from evenly.errors import EvenlyError, reason_of
from evenly.launch import is_launched, local_processes, local_rank

Result = TypeVar("Result")
TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the others: the first one may write pages and cluster examples meanwhile."""


@frozen
class World:
    """This process among those that train together; by default it is the only one."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return self.rank == 0

    def part(self, count: int) -> slice:
        """Which of so many rows are this process's; the parts differ by one row at most and follow each other."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def shared(self, compute: Callable[[], Result]) -> Result:
        """What the first process computes, in every process; an error there is an error in all."""
        if self.size == 1:
            return compute()
        message: list[Any] = [None]
        if self.first:
            try:
                message = [(compute(), None)]
            except Exception as error:
                distributed.broadcast_object_list([(None, reason_of(error))])
                raise
        distributed.broadcast_object_list(message)
        value, reason = message[0]
        if reason is not None:
            raise EvenlyError(reason)
        return value  # type: ignore[no-any-return]

    def on_first(self, act: Callable[[], Result]) -> Result | None:
        """What the first process does alone while the others wait; None in the others."""
        kept: list[Result] = []

        def run() -> None:
            kept.append(act())

        self.shared(run)
        return kept[0] if kept else None

    def gathered(self, value: Result) -> list[Result]:
        """The values of all processes, in the order of their ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def all_reach(self, point: str) -> bool:
        """Whether every process reaches a point of the program, by its name, within a minute.

        Unlike the other exchanges it may be called when some processes are elsewhere, as after an error in one.
        """
        store, number = _get_default_store(), next(_POINTS)  # so that a name can serve again
        store.set(f"evenly/{number} {point}/{self.rank}", "here")
        try:
            store.wait([f"evenly/{number} {point}/{rank}" for rank in range(self.size)], timedelta(minutes=1))
        except DistStoreError:
            return False
        return True

    def summed(self, values: Tensor) -> Tensor:
        """The sum of every process's values; the same bits in all."""
        if self.size > 1:
            values = values.clone()
            distributed.all_reduce(values)
        return values

    def whole(self, rows: Tensor, count: int) -> Tensor:
        """The rows of all processes' parts of `count` rows, in order; gradients flow into this process's own."""
        if self.size == 1:
            return rows
        most = -(-count // self.size)
        padded = torch.zeros(most, *rows.shape[1:], dtype=rows.dtype, device=rows.device)
        padded[: len(rows)] = rows.detach()
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        distributed.all_gather(parts, padded)
        sizes = [(r + 1) * count // self.size - r * count // self.size for r in range(self.size)]
        received = [part[:size] for part, size in zip(parts, sizes, strict=True)]
        received[self.rank] = rows
        return torch.cat(received)

    def interleaved(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """All rows of batches of these sizes; every `size`-th batch from the `rank`-th on is this process's."""
        shapes = self.gathered((tuple(rows.shape), rows.dtype))
        received = []
        for rank, (shape, dtype) in enumerate(shapes):
            part = rows.contiguous() if rank == self.rank else torch.empty(shape, dtype=dtype, device=rows.device)
            distributed.broadcast(part, src=rank)
            received.append(iter(part.split([*sizes[rank :: self.size]])))
        return torch.cat([next(received[number % self.size]) for number in range(len(sizes))])


ALONE = World()
_POINTS = count()
"""How often `all_reach` was called: as often in all processes, as long as they fail together."""


def current(device: torch.device) -> World:
    """The processes that train together, which meet here for the first time: those of torch's default process group, or
    else those that `torchrun` started.

    Args:
        device: where this process computes. Several processes on one GPU, which NCCL refuses, speak through gloo.
    """
    if not distributed.is_initialized():
        if not is_launched():
            return ALONE
        crowded = device.type != "cuda" or local_processes() > torch.cuda.device_count()
        backend = "gloo" if crowded else "cpu:gloo,cuda:nccl"
        store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
        # torchrun keeps its store when it starts processes again: they would connect to the addresses of dead ones
        attempt = PrefixStore(f"evenly/attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        distributed.init_process_group(backend, store=attempt, rank=rank, world_size=size, timeout=TIMEOUT)
        atexit.register(_leave)
    return World(distributed.get_rank(), distributed.get_world_size())


def own_device(device: torch.device) -> torch.device:
    """The GPU of this process among those of its machine, where none was named and `torchrun` started several."""
    if device != torch.device("cuda") or not is_launched():
        return device
    number, count = local_rank(), torch.cuda.device_count()
    if number >= count:
        raise EvenlyError(
            f"process {number} has no GPU of its own among {count}; start at most {count} with --nproc-per-node, or "
            "give device='cuda:0' to let them share one"
        )
    return torch.device("cuda", number)


def _leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()
