"""The whole of USEFUL and of PDE inside another library's epoch loop: the part that no host has to know of.

A host that keeps its loop trains on one sampler, calls `set_epoch` with its own count of epochs, and does three things
with it. `begin(epochs)` comes before the first epoch. USEFUL then wants `observe(loss, examples)` after every step of
its early stage and `end_epoch()` after every early epoch. Where that answers True, `separate(logits, labels)` chooses
the examples to repeat, and the host puts its network, optimizer and schedules back to their start.

    early epochs 0..S-1: every example          epochs S..S+E-1: the examples chosen `factor` times
    |---------------- separate ---------------->|--------- as a new run of E epochs --------->

The orders of visit are those of `evenly.train` with the same seed. Under several processes the sampler is put into
`evenly.Sharded`; every process calls the same functions and all choose the same examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, distributed

from evenly.data.samplers import EpochSampler, Everything, ProgressiveExpansion, Upsample
from evenly.engine.accuracy import GroupAccuracy
from evenly.engine.trained import Selection
from evenly.engine.world import ALONE, World
from evenly.errors import EvenlyError, SettingError
from evenly.methods.early import Factor, SeparatingEpoch, drop_has_shrunk, separated
from evenly.methods.pde import check_expansions, examples_used, expansions
from evenly.methods.useful import hard_examples, reason
from evenly.settings import at_least, checks_options

Epochs = Annotated[int | None, at_least(1)]
Decided = Literal["rule", "given", "end"]


def processes() -> World:
    """The processes of the default process group, if the host has one; this one alone otherwise."""
    if distributed.is_available() and distributed.is_initialized():
        return World(distributed.get_rank(), distributed.get_world_size())
    return ALONE


class UsefulSampler(EpochSampler):
    """USEFUL's two stages as one sampler: every example once, then those chosen `factor` times.

    Args:
        total: the number of training examples.
        epochs: of the retraining, and of the early stage at most; `begin` gives it where it is not known yet.
        separating_epoch: how long the early stage is; None: until the drop in training loss has shrunk.
        factor: how often an epoch of the retraining has the examples chosen.
        on: the early outputs to cluster, as in `evenly.hard_examples`.
        seed: of the orders of visit and of the clustering.
    """

    @checks_options
    def __init__(
        self,
        total: Annotated[int, at_least(1)],
        *,
        epochs: Epochs = None,
        separating_epoch: SeparatingEpoch = None,
        factor: Factor = 2,
        on: Literal["probabilities", "logits"] = "probabilities",
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.total: int = total
        self.separating_epoch, self.factor, self.on = separating_epoch, factor, on
        self.epochs: int | None = None
        self.losses: list[float] = []
        """The training loss of every early epoch."""
        self.selection: Selection | None = None
        """The examples chosen, with how and when; None in the early stage."""
        self._observed = torch.zeros(2, dtype=torch.float64)
        self._stage: tuple[int | None, EpochSampler] | None = None
        if epochs is not None:
            self.begin(epochs)

    def begin(self, epochs: int) -> None:
        """Set the number of epochs of the retraining, which bounds the early stage too."""
        if self.separating_epoch is not None and self.separating_epoch > epochs:
            raise SettingError("separating_epoch", self.separating_epoch, f"at most {epochs}, the number of epochs")
        self.epochs = int(epochs)

    @property
    def separated_at(self) -> int | None:
        """The separating epoch: how many epochs the early stage took; None while it goes on."""
        return None if self.selection is None else int(self.selection.details["separating_epoch"])

    @property
    def early(self) -> bool:
        """Whether the epoch that comes next is one of the early stage."""
        return self.separated_at is None or self.epoch < self.separated_at

    @property
    def over(self) -> bool:
        """Whether the early stage has had its last epoch."""
        return self._decided() is not None

    @property
    def last_epoch(self) -> int | None:
        """How many epochs both stages take together; None as long as this is not known."""
        return None if self.separated_at is None or self.epochs is None else self.separated_at + self.epochs

    def observe(self, loss: Tensor | float, examples: int) -> None:
        """Count a step of the early stage: the mean loss of the examples that this process trained on."""
        value = torch.as_tensor(loss, dtype=torch.float64).detach() * examples
        self._observed = self._observed.to(value.device) + torch.stack([value, torch.full_like(value, examples)])

    def end_epoch(self) -> bool:
        """Note the end of an early epoch; whether it was the last. Every process has to call it."""
        if self.epochs is None:
            raise EvenlyError("the number of epochs is not known; call begin(epochs) first, or give epochs=")
        total, count = map(sum, zip(*processes().gathered(self._observed.tolist()), strict=True))
        if not count:
            raise EvenlyError("no training loss was observed in this epoch; call observe(loss, examples) in every step")
        self._observed = torch.zeros(2, dtype=torch.float64)
        self.losses.append(total / count)
        return self._decided() is not None

    def separate(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Choose the examples to repeat (M,) and go over to the retraining, which begins with the next epoch.

        Of several processes the first one's choice holds for all: each has to call it, with outputs of its own.

        Args:
            logits: (N, K), (N, 1) or (N,), the early network's outputs on all training examples in order, in eval mode
                and without augmentation.
            labels: (N,).
        """
        if len(logits) != self.total:
            raise EvenlyError(f"there are outputs of {len(logits)} examples; give those of all {self.total} in order")
        decided = self._decided()
        assert decided is not None, "the early stage is not over"
        labels = labels.cpu()
        hard = processes().shared(lambda: hard_examples(logits, labels, on=self.on, seed=self.seed))
        self.selection = separated(hard, self.factor, reason(self.on), labels.long(), list(self.losses), decided)
        return hard

    def _decided(self) -> Decided | None:
        """What ends the early stage now, if anything does."""
        done = len(self.losses)
        if self.separating_epoch is not None:
            return "given" if done >= self.separating_epoch else None
        if drop_has_shrunk(self.losses):
            return "rule"
        return "end" if self.epochs is not None and done >= self.epochs else None

    def members(self) -> Tensor:
        return self._sampler().members()

    def indices(self) -> Tensor:
        return self._sampler().indices()

    def _sampler(self) -> EpochSampler:
        """The sampler of the stage that the epoch is in, at its own count of epochs."""
        start = None if self.early else self.separated_at
        if self._stage is None or self._stage[0] != start:
            if start is None or self.selection is None:
                self._stage = (start, Everything(self.total, self.seed))
            else:
                self._stage = (start, Upsample(self.selection.indices, self.total, self.factor, self.seed))
        sampler = self._stage[1]
        sampler.seed = self.seed
        sampler.set_epoch(self.epoch - (start or 0))
        return sampler

    def state_dict(self) -> dict[str, Any]:
        """The epoch, the seed, the early losses and the examples chosen."""
        chosen = self.selection
        return super().state_dict() | {
            "losses": list(self.losses),
            "observed": self._observed.tolist(),
            "selection": None if chosen is None else (chosen.indices, chosen.times, chosen.why, dict(chosen.details)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.losses = list(state["losses"])
        self._observed = torch.tensor(state["observed"], dtype=torch.float64)
        self.selection = None if state["selection"] is None else Selection(*state["selection"])
        self._stage = None


class PDESampler(EpochSampler):
    """PDE's sets, with the method's defaults for a run of so many epochs where nothing is given.

    Args:
        groups: (N,) the group of each training example.
        epochs: of the run; `begin` gives it where it is not known yet.
        warmup_epochs, every, add, cap, draw: as in `evenly.ProgressiveExpansion`; None is what the method `pde` takes.
    """

    def __init__(
        self,
        groups: Any,
        *,
        epochs: int | None = None,
        warmup_epochs: int | None = None,
        every: int | None = None,
        add: int | Sequence[int] | Literal["all"] | None = None,
        cap: int | None = None,
        draw: Literal["even", "random"] = "even",
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.epochs: int | None = None
        self._groups = groups
        self._options: dict[str, Any] = {
            "warmup_epochs": warmup_epochs, "every": every, "add": add, "cap": cap, "draw": draw,
        }  # fmt: skip
        self._sampler: ProgressiveExpansion | None = None
        self.total = expansions(groups, 10**9, **self._options).total  # which checks the options before the run
        if epochs is not None:
            self.begin(epochs)

    def begin(self, epochs: int) -> None:
        """Set the number of epochs, on which the defaults depend; a run that goes on keeps those that it began with."""
        if self.epochs is None:
            self._arrange(int(epochs))

    def _arrange(self, epochs: int) -> None:
        check_expansions(epochs, self._options["warmup_epochs"], self._options["add"])
        self.epochs = epochs
        self._sampler = expansions(self._groups, epochs, seed=self.seed, **self._options)

    @property
    def expansion(self) -> ProgressiveExpansion:
        """The sampler of these sets, at this epoch."""
        if self._sampler is None:
            raise EvenlyError("PDE's sets depend on the number of epochs; give epochs=, or begin the run first")
        self._sampler.set_epoch(self.epoch)
        return self._sampler

    @property
    def warmup_epochs(self) -> int:
        """How long the balanced set is used alone."""
        return self.expansion.warmup_epochs

    def members(self) -> Tensor:
        return self.expansion.members()

    def selection(self, epochs: int, selected_epoch: int) -> Selection:
        """The examples in the set up to the epoch whose weights are kept, of a run that took so many epochs."""
        return examples_used(self.expansion, epochs, selected_epoch)

    def state_dict(self) -> dict[str, Any]:
        """The epoch, the seed, and the number of epochs that the defaults came from."""
        return super().state_dict() | {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.epochs = self._sampler = None
        if state["epochs"] is not None:
            self._arrange(state["epochs"])


def validation_row(accuracy: GroupAccuracy) -> dict[str, Any]:
    """A validation's accuracy by group, as `evenly.engine.selector.Selector` reads it."""
    return {
        "accuracy": accuracy.mean,
        "worst_group": accuracy.worst,
        "groups": accuracy.per_group.tolist(),
        "group_counts": accuracy.counts.tolist(),
    }
