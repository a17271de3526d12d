"""What one run reached and cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from evenly.data.contract import Data
from evenly.engine.accuracy import Measured, Usage
from evenly.errors import EvenlyError
from evenly.files import write_json
from evenly.methods.inferred import InferredGroups
from evenly.values import Value, html_table

if TYPE_CHECKING:
    import pandas

SPLITS = ("train", "validation", "test")
METRICS = ("accuracy", "loss", "worst_class", "worst_group", "train_weighted")
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
        processes: how many trained it together, under torchrun.
        packages: those that the method, data set, optimizer or model is from, with versions, where it is not evenly's.
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
    processes: int = 1
    packages: Mapping[str, str] = field(factory=dict)

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

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        write_json(Path(path), self.to_dict())

    def to_pandas(self) -> pandas.DataFrame:
        """A row per split: its size and the metrics."""
        try:
            import pandas as pd
        except ImportError:
            raise EvenlyError("to_pandas needs pandas; run: pip install 'evenly[pandas]'") from None
        rows = [
            {"split": name, "examples": self.data.sizes[name], **{each: reached.metric(each) for each in METRICS}}
            for name, reached in self.splits.items()
        ]
        return pd.DataFrame(rows)

    def lines(self) -> list[list[str]]:
        """A short table: a heading, then a line per split, in percent."""
        lines = [["split", "examples", "accuracy", "worst group", "worst class"]]
        for name, reached in self.splits.items():
            shares = [reached.accuracy, reached.worst_group, reached.worst_class]
            percent = ["–" if share is None else f"{share:.1%}" for share in shares]
            lines.append([SHOWN[name], f"{self.data.sizes[name]:,}", *percent])
        return lines

    def __str__(self) -> str:
        lines = self.lines()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
        epochs = f"weights of epoch {self.selected_epoch} of {self.epochs}, {self.cost_multiple:.2f}x the cost of ERM"
        head = f"{self.method} with {self.optimizer} on {self.data.name}, seed {self.seed}: {epochs}"
        return "\n".join([head, *rows])

    def _repr_html_(self) -> str:
        return html_table(self.lines())


__all__ = ["SHOWN", "SPLITS", "DataSummary", "InferredGroups", "Measured", "RunResult", "Usage"]
