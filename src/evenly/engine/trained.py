"""What a fit returns and a method hands on: the trained network, its history, its cost, and which examples it used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from evenly.data.contract import Split
from evenly.engine.checkpoints import Row
from evenly.engine.evaluation import features_on, outputs_on
from evenly.engine.precision import Precision
from evenly.engine.world import ALONE, World
from evenly.files import atomic

FORWARD = 1 / 3
"""What a forward pass alone costs, in example-gradients."""


class Observer(Protocol):
    """What measures a network after every epoch of a fit, as `evenly.diagnose.recording.Recorder` does."""

    def __call__(self, model: nn.Module, step: int) -> dict[str, float]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass
class Selection:
    """Which training examples a method singled out (indices into the training set), how often an epoch has them, why.

    Args:
        indices: (M,).
        times: (M,) how often an epoch holds each of them, in the last epoch.
        why: in a few words.
        details: further arrays worth keeping, by name.
        chosen_by_the_end: how many were singled out up to the last epoch, where more come with the epochs.
    """

    indices: Tensor
    times: Tensor
    why: str
    details: dict[str, Any] = field(default_factory=dict)
    chosen_by_the_end: int | None = None

    @property
    def factor(self) -> int:
        """How often an epoch has the examples chosen; 1 where none are."""
        return int(self.times.max()) if len(self.times) else 1

    def save(self, path: Path) -> None:
        """Write `selection.npz`."""
        with atomic(path) as file:
            arrays: dict[str, Any] = {key: np.asarray(value) for key, value in self.details.items()}
            np.savez(file, indices=self.indices.numpy(), times=self.times.numpy(), why=np.array(self.why), **arrays)


@dataclass
class Trained:
    """A finished fit. `model` carries the weights that the selection rule chose; `history` has a row per epoch.

    `cost` is in example-gradients: one forward and backward pass of one example. A forward pass alone counts a third.
    `seen_counts` (N,) is how often each training example was seen up to the epoch whose weights are kept, in this
    stage. `world` are the processes that trained it. `record` is the observer that was asked for, with all that it has
    measured. `remarks` are what has to be known of the weights beside their numbers, sentences without a full stop that
    a page may join.
    """

    model: nn.Module
    history: list[Row]
    cost: float
    rule: str
    selected_epoch: int
    seed: int = 0
    evaluation_cost: float = 0.0
    seconds: float = 0.0
    selection: Selection | None = None
    precision: Precision = "auto"
    step: str = "plain"
    workers: int = 0
    seen_counts: Tensor | None = None
    record: Any = None
    remarks: tuple[str, ...] = ()
    world: World = ALONE

    @property
    def selected_cost(self) -> float:
        """Example-gradients by the time that the weights kept were there, with what a method did after the epochs."""
        spent = [row["cost"] for row in self.history if row["epoch"] >= self.selected_epoch]
        return self.cost - spent[-1] + spent[0] if spent else self.cost

    def outputs(self, split: Split) -> Tensor:
        """The network's outputs on a split, in order, in eval mode, on the CPU."""
        return outputs_on(self.model, split, self.seed, self.precision, self.workers, self.world)

    def features(self, split: Split) -> Tensor:
        """The network's penultimate activations on a split (N, D): the input of its last linear layer, as outputs."""
        return features_on(self.model, split, self.seed, self.precision, self.workers, self.world)
