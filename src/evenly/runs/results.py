"""What one run reached and cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from evenly.data.contract import Data
from evenly.engine.accuracy import Measured, Usage
from evenly.methods.inferred import InferredGroups
from evenly.values import Value

SPLITS = ("train", "validation", "test")
SHOWN = {"train": "training", "validation": "validation", "test": "test"}
"""How a split is called in a sentence."""


@frozen
class DataSummary(Value):
    """The data of a run, as pages show it."""

    name: str
    about: str
    sizes: Mapping[str, int]
    class_names: tuple[str, ...]
    group_names: tuple[str, ...] = ()
    groups: int = 0
    options: Mapping[str, Any] = field(factory=dict)

    @classmethod
    def of(cls, data: Data) -> DataSummary:
        """The summary of a data set; its group names are those that accuracy is measured by."""
        return cls(
            data.name,
            data.about,
            {name: len(split) for name, split in data.splits.items()},
            tuple(map(str, data.class_names or (f"class {k}" for k in range(data.classes)))),
            tuple(data.measured_names),
            data.group_count,
            dict(data.options),
        )


@frozen
class RunResult(Value):
    """One run: what was run, what it reached on every split, what it cost.

    Args:
        rule: which epoch's weights are used.
        selected_after_epochs: the cost up to those weights, in epochs of the full training set.
        cost: in example-gradients: one forward and backward pass of one example. A forward pass alone counts a third.
        unit: the cost that is called 1.00x: ERM's with the same settings.
        chosen: how many training examples the method selected; None where it selects none by design.
        factor: how often per epoch the method repeats them.
        step: how the steps were taken on a GPU.
        remarks: what has to be known of this run, from its method.
    """

    data: DataSummary
    method: str
    optimizer: str
    seed: int
    model: str
    rule: str
    selected_epoch: int
    selected_after_epochs: float
    epochs: int
    cost: float
    unit: float
    evaluation_cost: float
    seconds: float
    device: str
    step: str
    splits: Mapping[str, Measured]
    chosen: int | None = None
    factor: int = 1
    chosen_by_the_end: int | None = None
    used: Usage | None = None
    inferred_groups: InferredGroups | None = None
    remarks: tuple[str, ...] = ()

    @property
    def cost_multiple(self) -> float:
        return self.cost / self.unit

    @property
    def evaluation_cost_multiple(self) -> float:
        return self.evaluation_cost / self.unit

    @property
    def judged(self) -> str:
        """The split that the run is judged on: test, else validation, else train."""
        return next(name for name in ("test", "validation", "train") if name in self.splits)

    @property
    def measured(self) -> Measured:
        """What it reached on the split that it is judged on."""
        return self.splits[self.judged]


__all__ = ["SHOWN", "SPLITS", "DataSummary", "InferredGroups", "Measured", "RunResult", "Usage"]
