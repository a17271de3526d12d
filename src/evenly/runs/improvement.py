"""What `evenly improve` leaves: what the data is, where plain training fails, what was tried, the choice and its test.

improve.json            an `Improvement`; the page is drawn from it and from the folders beside it
runs/                   every run that was tried, an ordinary run folder; trained and measured without the test set
audit/                  the audit of plain training on validation
choice.json             the choice, made on validation; never made again
tested/                 ERM, the chosen method and its control on the test set: `results.json`, `predictions.npz` each
changed/                examples that were wrong and are right now, and the other way round, as the page shows them
best/                   the model that is handed back, a run folder
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from attrs import field, frozen

from evenly.errors import EvenlyError
from evenly.files import AGAIN, read_json, write_json
from evenly.runs.arms import Arm
from evenly.runs.differences import Difference
from evenly.runs.folder import FORMAT
from evenly.runs.results import DataSummary, Measured
from evenly.runs.summary import Summary
from evenly.values import Value, html_table, live

FILE, CHOICE, PAGE = "improve.json", "choice.json", "improve.html"
RUNS, AUDIT, TESTED, CHANGED, BEST = "runs", "audit", "tested", "changed", "best"

Goal = Literal["worst-group", "average", "worst-class"]
METRICS: Mapping[str, str] = {"worst-group": "worst_group", "average": "accuracy", "worst-class": "worst_class"}
"""The metric that a goal is measured by."""
Grouping = Literal["given", "slice", "inferred", "classes", "none"]
"""Where the groups are from: the data, a failing slice of its columns, an early network, the classes (where the goal is
the worst class); or there are none."""
Verdict = Literal["raised", "raised-for-these", "not-confirmed", "no-clear-gain", "too-few", "nothing-tried"]
"""What came of it.

raised              clearly better than ERM on validation, and on test
raised-for-these    the same for these very models; fewer than three seeds, or the seeds alone leave it open on test
not-confirmed       clearly better on validation, not on test
no-clear-gain       nothing is clearly better than ERM on validation: ERM is handed back
too-few             the same, and validation is so small that hardly anything could have been clear
nothing-tried       the budget had no room for a candidate, or none could be trained: ERM is handed back
"""


@frozen
class GiveAway(Value):
    """A column of the data that alone gives the label of `accuracy` of the validation examples; `chance` by guessing
    the most frequent class."""

    column: str
    accuracy: float
    chance: float


@frozen
class DataProfile(Value):
    """What the data is.

    Args:
        class_counts: of each split, how many examples each class has.
        group_counts: of each split where groups are known, how many examples each group has.
        drawn: splits that the data lacked and that were drawn from its training set.
        duplicates: of validation and test, how many of their inputs are in training as well.
        grouping: where the groups are from, and `group_names`.
        slice: of grouping "slice", the failing slice that the groups are made of.
    """

    summary: DataSummary
    class_counts: Mapping[str, tuple[int, ...]]
    grouping: Grouping
    group_names: tuple[str, ...] = ()
    group_counts: Mapping[str, tuple[int, ...]] = field(factory=dict)
    drawn: tuple[str, ...] = ()
    duplicates: Mapping[str, int] = field(factory=dict)
    give_aways: tuple[GiveAway, ...] = ()
    slice: str = ""


@frozen
class Tried(Value):
    """A method that was trained.

    Args:
        reason: why it was tried.
        final: whether it went on from the first seed to all seeds.
        on_validation: over its seeds on validation, with its difference from ERM.
        control: its control of equal cost, with the method's difference from it on validation; None where there was no
            room for it. Of a method that costs what ERM does, it is ERM.
    """

    arm: Arm
    reason: str
    final: bool
    on_validation: Summary
    control: Summary | None = None
    against_control: Difference | None = None


@frozen
class NotTried(Value):
    """A candidate that was left out, and why."""

    arm: Arm
    reason: str


@frozen
class Choice(Value):
    """What was chosen, on validation alone.

    Args:
        arm: the chosen one; plain ERM where nothing is clearly better.
        control: its control of equal cost; None for ERM, and where there was no room for it.
        difference: from ERM on validation, by the goal's metric; None for ERM.
        runs: the folders in `runs/` of ERM, the chosen arm and the control, each by seed.
        best: the folder in `runs/` of the model that is handed back: of the chosen arm the seed best on validation.
        reason: in a sentence.
    """

    arm: Arm
    baseline: Arm
    reason: str
    best: str
    runs: Mapping[str, Mapping[str, str]]
    control: Arm | None = None
    difference: Difference | None = None


@frozen
class Tested(Value):
    """An arm on the test set: over its seeds, with the difference from ERM, and of the chosen one that from its
    control."""

    arm: Arm
    summary: Summary
    against_control: Difference | None = None


@frozen
class Changed(Value):
    """A validation example that the first seed's ERM and the model that is handed back disagree about.

    `png` and `heat` are of images: the image, and where the new model looks (Grad-CAM of its prediction); `text` is of
    texts the beginning, of tables the row.
    """

    index: int
    label: str
    before: str
    after: str
    group: str = ""
    place: str = ""
    text: str = ""
    png: bytes | None = live()
    heat: bytes | None = live()


@frozen
class Improvement(Value):
    """The whole job.

    Args:
        metric: of the goal: "worst_group", "accuracy" or "worst_class".
        rule: which epoch's weights every run uses.
        budget: in runs of ERM for each seed, as asked; `spent` and `unit`, one run of ERM, in example-gradients.
        groups_cost: of `spent`, what it took to find groups.
        estimate: seconds that the rest was expected to take, after ERM had run.
        seconds: that the last call took; one that goes on with what is there takes fewer.
        tested: ERM, the chosen arm, its control; ERM alone where that is chosen.
        best: what the model that is handed back reaches on the test set, one of the chosen arm's seeds.
        gained, lost: validation examples that are right now and were wrong, and the other way round.
        loads: the lines of Python that load the model.
    """

    profile: DataProfile
    goal: Goal
    metric: str
    rule: str
    model: str
    seeds: tuple[int, ...]
    seed: int
    budget: float
    spent: float
    unit: float
    groups_cost: float
    estimate: float
    seconds: float
    tried: tuple[Tried, ...]
    not_tried: tuple[NotTried, ...]
    choice: Choice
    verdict: Verdict
    tested: tuple[Tested, ...]
    gained: tuple[Changed, ...] = ()
    lost: tuple[Changed, ...] = ()
    gained_count: int = 0
    lost_count: int = 0
    notes: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()
    best: Measured | None = None
    out: Path | None = live()

    @property
    def is_better(self) -> bool:
        """Whether another model than ERM's is handed back."""
        return self.choice.arm != self.choice.baseline

    @property
    def baseline(self) -> Tested:
        return self.tested[0]

    @property
    def chosen(self) -> Tested:
        return next(each for each in self.tested if each.arm == self.choice.arm)

    @property
    def spent_multiple(self) -> float:
        """What was spent, in runs of ERM."""
        return self.spent / self.unit

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        write_json(Path(path), {"format": FORMAT, **self.to_dict()})

    def lines(self) -> list[list[str]]:
        """A short table: what was tried, on validation, in percent."""
        lines = [["method", "seeds", f"validation {self.metric.replace('_', ' ')}", "difference from erm", "cost"]]
        for each in self.tried:
            summary = each.on_validation
            difference, mean = summary.difference(self.metric), summary.mean(self.metric)
            percent = "–" if mean is None else f"{mean:.1%}"
            against = "" if difference is None else difference.points
            lines.append([each.arm.name, str(summary.seeds), percent, against, f"{summary.cost_multiple:.2f}x"])
        return lines

    def to_pandas(self) -> Any:
        """A row per method that was tried."""
        try:
            import pandas as pd
        except ImportError:
            raise EvenlyError("to_pandas needs pandas; run: pip install 'evenly[pandas]'") from None
        head, *rows = self.lines()
        return pd.DataFrame(rows, columns=head)

    def __str__(self) -> str:
        lines = self.lines()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
        return "\n".join([self.choice.reason, *rows])

    def _repr_html_(self) -> str:
        return html_table(self.lines())


def read_improvement(folder: Path) -> Improvement:
    """The improvement in a folder; refused in one line where there is none or it is damaged."""
    content = read_json(folder / FILE, AGAIN)
    if content is None:
        raise EvenlyError(f"{folder} holds no finished improvement; run the same `evenly improve` again")
    try:
        values = {name: value for name, value in content.items() if name != "format"}
        found = Improvement.from_dict(values)
    except (EvenlyError, TypeError, AttributeError) as error:
        raise EvenlyError(f"{folder / FILE} is damaged ({error}); {AGAIN}") from None
    return found
