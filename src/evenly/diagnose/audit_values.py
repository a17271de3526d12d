"""What an audit leaves: plain values, which `audit.json` holds and the page is drawn from."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from evenly.runs.results import DataSummary
from evenly.values import Value, live


@frozen
class GroupAccuracy(Value):
    """How often a group is right, with the 95% Wilson interval; `below` where it is clearly below the average."""

    name: str
    n: int
    accuracy: float
    low: float
    high: float
    loss: float
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
class ShownExample(Value):
    """One example: its place in the split and in the user's files, and what the model made of it."""

    index: int
    label: int
    predicted: int
    loss: float
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
    importance: Importance
    spectrum: Eigenvalues | None
    forgetting: Mapping[str, int] | None
    hardest: tuple[ShownExample, ...]
    easiest: tuple[ShownExample, ...]
    missing: Mapping[str, str]
    shrunk: tuple[str, ...]
    curves: Curves
    seconds: float
    table: str = ""
