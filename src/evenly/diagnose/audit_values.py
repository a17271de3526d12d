"""What an audit leaves: plain values, which `audit.json` holds and the page is drawn from."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from evenly.diagnose.slices import Search, Slice
from evenly.runs.results import DataSummary
from evenly.values import Value, live


@frozen
class GroupAccuracy(Value):
    """How often a group is right, with the 95% Wilson interval; `below` where it is clearly below the average. There is
    no loss where probabilities are not known."""

    name: str
    n: int
    accuracy: float
    low: float
    high: float
    loss: float | None
    below: bool = False


@frozen
class ProbeError(Value):
    """The error of reading an attribute off the features, with its 95% interval; `chance` is that of guessing."""

    error: float
    low: float
    high: float
    n: int
    chance: float
    balanced_over: tuple[str, ...]


@frozen
class Importance(Value):
    """How unequal the importance weights of `examples` training examples are, at the weights and where SAM takes its
    gradient: uphill by `rho` along the gradient of batches of `batch_size`. None where no example has any weight."""

    gini: float | None
    gini_phantom: float | None
    rho: float
    batch_size: int
    half_of_the_weight: float | None
    examples: int


@frozen
class Eigenvalues(Value):
    """The largest eigenvalues of the Hessian of the mean loss over `examples` training examples."""

    examples: int
    eigenvalues: tuple[float, ...]
    residuals: tuple[float, ...]
    converged: tuple[bool, ...]


@frozen
class Curves(Value):
    """What the page draws: Lorenz curves at equal distances from 0 to 1, and the eigenvalues' density."""

    lorenz: tuple[float, ...] = ()
    lorenz_phantom: tuple[float, ...] = ()
    density_at: tuple[float, ...] = ()
    density: tuple[float, ...] = ()


@frozen
class Mistake(Value):
    """How many examples of a label were taken for another class."""

    label: int
    predicted: int
    n: int


@frozen
class Confusion(Value):
    """How often each label (a row) was taken for each class (a column): whole where the classes are few, and the most
    frequent mistakes."""

    counts: tuple[tuple[int, ...], ...]
    mistakes: tuple[Mistake, ...]


@frozen
class ReliabilityBin(Value):
    """Examples of about the same confidence: its mean, and how often they are right, with the 95% Wilson interval."""

    n: int
    confidence: float
    accuracy: float
    low: float
    high: float


@frozen
class Calibration(Value):
    """The reliability curve in bins of about equal size, the expected calibration error over them, and the mean
    confidence of all examples. Confidence is the probability of the predicted class."""

    bins: tuple[ReliabilityBin, ...]
    error: float
    confidence: float


@frozen
class GroupRates(Value):
    """How often class 1 was found where it was, and claimed where it was not, each with its 95% Wilson interval; None
    where there is no such example. AUC is None where probabilities or one of the labels are missing."""

    name: str
    positives: int
    negatives: int
    true_positive: tuple[float, float, float] | None
    false_positive: tuple[float, float, float] | None
    auc: float | None


@frozen
class Rates(Value):
    """Rates of two classes, over all examples first, then by group; `by` is what the groups are."""

    by: str
    groups: tuple[GroupRates, ...]


@frozen
class ShownExample(Value):
    """One example: its place in the split and in the user's files, and what the model made of it."""

    index: int
    label: int
    predicted: int
    loss: float | None
    group: str = ""
    place: str = ""
    text: str = ""
    png: bytes | None = live()
    heat: bytes | None = live()


@frozen
class Findings(Value):
    """Everything that the page of an audit shows of one model.

    Args:
        verdict: what the numbers say, in sentences; `next_steps`: what to do about it.
        by: what the groups are.
        forgetting: how many training examples were forgotten how often.
        missing: what could not be measured, and why.
        shrunk: what was measured on fewer examples to save time, in sentences.
        table: the file with every example, beside the page; empty where there is none.
        importance: None where there are predictions only.
        slices: where it fails, by values of columns; None where an earlier version wrote this.
        clusters: where to look in the model's own features; they are expected to differ.
    """

    name: str
    data: DataSummary
    split: str
    verdict: tuple[str, ...]
    next_steps: tuple[str, ...]
    overall: GroupAccuracy
    by: str
    groups: tuple[GroupAccuracy, ...]
    probes: Mapping[str, ProbeError]
    importance: Importance | None
    spectrum: Eigenvalues | None
    forgetting: Mapping[str, int] | None
    hardest: tuple[ShownExample, ...]
    easiest: tuple[ShownExample, ...]
    missing: Mapping[str, str]
    shrunk: tuple[str, ...]
    curves: Curves
    seconds: float
    table: str = ""
    slices: Search | None = None
    clusters: tuple[Slice, ...] = ()
    confusion: Confusion | None = None
    calibration: Calibration | None = None
    rates: Rates | None = None
