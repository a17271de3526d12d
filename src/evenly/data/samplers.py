"""Which examples are seen, how often, in which epoch: torch Samplers whose every draw is a function of (seed, epoch).

Iterating to the end moves a sampler to its next epoch. A loop that counts epochs itself calls `set_epoch`.

    sampler = evenly.Upsample(hard, total=len(dataset), factor=2)
    loader = DataLoader(dataset, batch_size=128, sampler=sampler)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Sampler

from evenly.data.contract import Count, as_tensor
from evenly.errors import EvenlyError, shortened
from evenly.randomness import generator
from evenly.settings import at_least, at_most, checks_options

MOST = 10_000
"""The largest upsampling factor; the methods' papers have up to 100."""


class EpochSampler(Sampler[int]):
    """A sampler whose examples in an epoch are `members()`, visited in an order drawn from (seed, epoch)."""

    total: int | None = None
    """The number of examples in the data set that it draws from."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = int(seed)
        self.epoch = 0

    @abstractmethod
    def members(self) -> Tensor:
        """The indices of this epoch, an index as often as it is seen, in no particular order."""

    def indices(self) -> Tensor:
        """The indices of this epoch in the order of visit."""
        members = self.members()
        return members[torch.randperm(len(members), generator=generator(self.seed, "order", self.epoch))]

    def __iter__(self) -> Iterator[int]:
        yield from self.indices().tolist()
        self.epoch += 1

    def __len__(self) -> int:
        return len(self.members())

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that comes next."""
        self.epoch = int(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The epoch and the seed: beside the arguments it was made with, all that the draws depend on."""
        return {"epoch": self.epoch, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where `state_dict` was taken."""
        self.epoch, self.seed = int(state["epoch"]), int(state["seed"])


class Everything(EpochSampler):
    """Every example once per epoch."""

    def __init__(self, total: int, seed: int = 0) -> None:
        super().__init__(seed)
        self.total = total
        self._members = torch.arange(total)

    def members(self) -> Tensor:
        return self._members


class Upsample(EpochSampler):
    """Every example once per epoch, those in `hard` `factor` times.

    Args:
        hard: indices to repeat, each at most once.
        total: the number of examples in the data set.
        factor: how often a hard example is seen per epoch, a whole number in 1..`MOST`.
    """

    @checks_options
    def __init__(self, hard: Any, total: int, factor: Annotated[int, at_least(1), at_most(MOST)] = 2, seed: int = 0):
        super().__init__(seed)
        hard = as_tensor(hard, "hard indices").flatten()
        if hard.dtype == torch.bool or (hard.is_floating_point() and len(hard)):
            raise EvenlyError(f"hard must be integer indices, got {hard.dtype}; of a mask give mask.nonzero()")
        hard = hard.long()
        if len(hard) and (int(hard.min()) < 0 or int(hard.max()) >= total):
            outside = int(hard[(hard < 0) | (hard >= total)][0])
            raise EvenlyError(f"hard indices must be from 0 to {total - 1}, got {outside}")
        values, counts = hard.unique(return_counts=True)
        if len(values) != len(hard):
            repeated = int(values[counts > 1][0])
            raise EvenlyError(f"hard must name each index once, got {repeated} twice; repeat examples with factor")
        self.total = total
        self._members = torch.cat([torch.arange(total), hard.repeat(int(factor) - 1)])

    def members(self) -> Tensor:
        return self._members


class ProgressiveExpansion(EpochSampler):
    """The training sets of PDE: a group-balanced set first, then a little more of the rest at a time.

    The set is a pure function of (seed, epoch): the balanced set while ``epoch < warmup_epochs``, after that
    ``1 + (epoch - warmup_epochs) // every`` expansions of it. Nothing is drawn twice; when the pool is empty the set
    stays what it is.

    Args:
        groups: (N,) the group of each example.
        warmup_epochs: how long the balanced set is used alone.
        every: epochs between expansions.
        add: examples per expansion; a list gives one number for each expansion (none after its end), "all" adds the
            whole rest at once.
        cap: examples per group in the balanced set, at most. Smaller groups enter whole. Without it every group gives
            as many as the smallest has.
        draw: "even" draws as evenly over the groups as what is left of them allows, "random" draws blind to groups.
    """

    @checks_options
    def __init__(
        self,
        groups: Any,
        warmup_epochs: Annotated[int, at_least(0)] = 140,
        every: Count = 10,
        add: int | Sequence[int] | Literal["all"] = 10,
        cap: Annotated[int | None, at_least(1)] = None,
        draw: Literal["even", "random"] = "even",
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self._groups = _as_groups(groups)
        self.total = len(self._groups)
        self.warmup_epochs, self.every, self.cap, self.draw = int(warmup_epochs), int(every), cap, draw
        self.add = _as_additions(add)
        self._arrange()

    def _arrange(self) -> None:
        """Draw the order of arrival: the balanced set, then the rest as it will be added."""
        queues = [
            members[torch.randperm(len(members), generator=generator(self.seed, "group", g))]
            for g, members in members_by_group(self._groups).items()
        ]
        smallest = min(len(queue) for queue in queues)
        taken = [smallest if self.cap is None else min(self.cap, len(queue)) for queue in queues]
        self._warmup_size = sum(taken)
        balanced = [queue[:count] for queue, count in zip(queues, taken, strict=True)]
        pools = [queue[count:] for queue, count in zip(queues, taken, strict=True)]
        rest = _evenly(pools) if self.draw == "even" else _blindly(pools, self.seed)
        self._arrival = torch.cat([*balanced, rest])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._arrange()

    def size(self, epoch: int) -> int:
        """How many examples are in the set at an epoch."""
        if epoch < self.warmup_epochs:
            return self._warmup_size
        expansions = 1 + (epoch - self.warmup_epochs) // self.every
        if isinstance(self.add, int):
            added = self.add * expansions
        elif self.add == "all":
            added = len(self._arrival)
        else:
            added = sum(self.add[:expansions])
        return min(self._warmup_size + added, len(self._arrival))

    def members(self) -> Tensor:
        return self._arrival[: self.size(self.epoch)]

    def entry_epochs(self, epochs: int) -> Tensor:
        """(N,) the epoch in which each example enters a run of so many epochs; -1 for those that never do."""
        entered = torch.full((len(self._arrival),), -1)
        for epoch in reversed(range(epochs)):
            entered[self._arrival[: self.size(epoch)]] = epoch
        return entered


class GroupBalanced(EpochSampler):
    """Every group equally often in an epoch of `total` draws; small groups repeat, none more unevenly than needed.

    Args:
        groups: (N,) the group of each example.
        total: draws per epoch; the number of examples where not given.
    """

    @checks_options
    def __init__(self, groups: Any, total: Annotated[int | None, at_least(1)] = None, seed: int = 0) -> None:
        super().__init__(seed)
        groups = _as_groups(groups)
        self._queues = list(members_by_group(groups).values())
        self.total = len(groups)
        self._total = len(groups) if total is None else int(total)

    def members(self) -> Tensor:
        share, extra = divmod(self._total, len(self._queues))
        members = []
        for position, queue in enumerate(self._queues):
            # the remainder moves round the groups, so that none is favoured over the epochs
            count = share + ((position - self.epoch) % len(self._queues) < extra)
            rounds = range(-(-count // len(queue)))
            draws = [
                torch.randperm(len(queue), generator=generator(self.seed, "round", self.epoch, position, r))
                for r in rounds
            ]
            members.append(queue[torch.cat([*draws, torch.empty(0, dtype=torch.long)])[:count]])
        return torch.cat(members)

    def __len__(self) -> int:
        return self._total


def _as_groups(values: Any) -> Tensor:
    groups = as_tensor(values, "groups")
    if groups.ndim != 1 or not len(groups) or groups.is_floating_point() or groups.dtype == torch.bool:
        raise EvenlyError(f"groups must be integers (N,), got shape {tuple(groups.shape)} and type {groups.dtype}")
    return groups


def members_by_group(groups: Tensor) -> dict[int, Tensor]:
    """The indices of each group's examples, ascending, by group."""
    present, sizes = groups.unique(return_counts=True)
    members = groups.argsort(stable=True).split(sizes.tolist())
    return dict(zip(present.tolist(), members, strict=True))


def _as_additions(add: Any) -> int | list[int] | Literal["all"]:
    if isinstance(add, str) and add == "all":
        return "all"
    sizes = as_tensor(add, "add")
    if sizes.ndim > 1 or (sizes.numel() and (sizes.is_floating_point() or sizes.is_complex())):
        raise EvenlyError(f"add must be a whole number, or one for each expansion, got {shortened(add)}")
    if bool((sizes < 0).any()):
        raise EvenlyError(f"add must be at least 0, got {add}")
    return int(sizes) if sizes.ndim == 0 else [int(size) for size in sizes]


def _evenly(pools: Sequence[Tensor]) -> Tensor:
    """Round after round, one from each group that has any left: every prefix is as even as what is left allows."""
    rank = torch.cat([torch.arange(len(pool)) for pool in pools])
    return torch.cat(list(pools))[torch.argsort(rank, stable=True)]


def _blindly(pools: Sequence[Tensor], seed: int) -> Tensor:
    pool = torch.cat(list(pools))
    return pool[torch.randperm(len(pool), generator=generator(seed, "pool"))]
