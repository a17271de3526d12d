"""A search for settings on validation: its spaces, its trials, what they cost, the values chosen for each method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import field, frozen

from evenly.runs.arms import Arm, value_text
from evenly.values import Value

DIGITS = 3
"""Significant digits of a searched number, so that it can be read and typed again."""


@frozen
class Space(Value):
    """The values that a setting may have in a search: between two numbers, or one of several.

    Args:
        name: as in a sweep: "lr" for all methods, "useful.factor" for one.
        whole: whether numbers are whole.
    """

    name: str
    kind: Literal["log", "uniform", "int", "choice"]
    low: float = 0.0
    high: float = 1.0
    choices: tuple[Any, ...] = ()
    whole: bool = False

    @property
    def setting(self) -> str:
        """The name without the method's."""
        return self.name.rpartition(".")[2]

    def at(self, place: float) -> Any:
        """The value at a place in [0, 1]; of a range that is log, equal lengths there are equal ratios."""
        if self.kind == "choice":
            return self.choices[min(int(place * len(self.choices)), len(self.choices) - 1)]
        high = self.high + 1 if self.whole else self.high
        value = self.low * (high / self.low) ** place if self.kind == "log" else self.low + place * (high - self.low)
        value = int(value) if self.whole else float(f"{value:.{DIGITS}g}")
        return type(value)(min(max(value, self.low), self.high))

    def __str__(self) -> str:
        if self.kind == "choice":
            return ",".join(value_text(value, self.name) for value in self.choices)
        return f"{self.kind}:{self.low:g}:{self.high:g}"


@frozen
class Trial(Value):
    """One run of a search.

    Args:
        values: the searched settings and options, by name.
        cost: in example-gradients; of a run that failed, that of the most expensive run before it.
        score: the selection rule's metric on validation; None of a run that failed.
        reason: why it failed.
    """

    values: Mapping[str, Any]
    cost: float
    score: float | None = None
    loss: float | None = None
    reason: str = ""


@frozen
class Searched(Value):
    """The search of one arm, or of the control of an arm.

    Args:
        spaces: by the name of the setting or option.
        trials: in order; the first has the values of a comparison without a search.
        unit: the cost of ERM, in example-gradients.
        metric: what `score` is.
        best: the number of the trial whose values are chosen; None where all failed.
        uncut: of a control, whether it is ERM for all its epochs: then it has the values that ERM has.
    """

    arm: Arm
    spaces: Mapping[str, Space]
    trials: tuple[Trial, ...]
    unit: float
    metric: str
    best: int | None = None
    uncut: bool = False

    @property
    def chosen(self) -> Trial | None:
        return None if self.best is None else self.trials[self.best]

    @property
    def values(self) -> Mapping[str, Any]:
        """The values chosen; none where all trials failed."""
        return {} if self.chosen is None else self.chosen.values

    @property
    def cost_multiple(self) -> float:
        """What its trials cost together, as a multiple of ERM."""
        return sum(trial.cost for trial in self.trials) / self.unit


@frozen
class Search(Value):
    """A search for all methods of a comparison.

    Args:
        trials: the budget of each, in runs of ERM.
        seed: of all trials; no seed of the comparison.
    """

    spaces: tuple[Space, ...]
    trials: int
    searcher: str
    seed: int
    searched: tuple[Searched, ...] = field(default=())

    def of(self, arm: Arm) -> Searched | None:
        """The search of an arm, or of a control."""
        return next((each for each in self.searched if each.arm == arm), None)

    def values(self, arm: Arm) -> Mapping[str, Any]:
        """The values chosen for an arm, or for a control; none where it was not searched."""
        searched = self.of(arm)
        return {} if searched is None else searched.values
