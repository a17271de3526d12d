"""What an audit found: its numbers, and the sentences that they support. `docs/audit.md` says what is claimed when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from evenly.data.contract import Data, Split
from evenly.diagnose.importance import gini_if_any
from evenly.diagnose.probing import Probe
from evenly.diagnose.results import Result, plain
from evenly.diagnose.spectrum import HessianSpectrum
from evenly.engine.accuracy import wilson
from evenly.errors import EvenlyError

SHOWN = 12
"""How many of the hardest examples are listed, and of the easiest."""
FEWEST = 20
"""Examples that a part of a class must have before it is named."""
FLAT = 1e-3
"""An eigenvalue below this share of the largest is taken for 0."""
PROBE = ("error", "low", "high", "n", "chance", "balanced_over")
SPECTRUM = ("eigenvalues", "residuals", "converged")


@dataclass(frozen=True)
class Share:
    """`right` of `n` examples, with their mean loss and the 95% Wilson interval; `label` where all are of one class."""

    name: str
    right: int
    n: int
    loss: float
    label: int | None = None

    @property
    def accuracy(self) -> float:
        return self.right / self.n

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.right, self.n)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.name}: {self.accuracy:.1%} of {self.n:,} (95% interval {low:.1%} to {high:.1%})"


@dataclass
class Audit(Result):
    """What a model has learned. Indices are into the audited split.

    Attributes:
        split: the audited split.
        overall: the model's accuracy on it.
        by: what the groups are: "group", "label and ATTRIBUTE", or, where the data has neither, "cluster": two parts of
            each class in the model's own features.
        labels, predicted, losses: (N,) of every example.
        importance, phantom: (M,) importance weights of training examples, at the weights and at SAM's phantom weights.
        probes: the probing error of the label and of every attribute, where there are attributes.
        spectrum: of the Hessian of the training loss.
        forgetting: (M,) how often each training example was forgotten, where that was recorded.
        missing: what could not be measured, and why.
        sampled: how many training examples importance weights and curvature were computed over.
        heat: (2 SHOWN, H, W) Grad-CAM of the hardest and the easiest images.
    """

    name: str
    split: Split
    data: Data
    overall: Share
    by: str
    groups: list[Share]
    labels: Tensor
    predicted: Tensor
    losses: Tensor
    rho: float
    importance: Tensor
    phantom: Tensor
    probes: dict[str, Probe] = field(default_factory=dict)
    spectrum: HessianSpectrum | None = None
    forgetting: Tensor | None = None
    missing: dict[str, str] = field(default_factory=dict)
    sampled: int = 0
    seconds: float = 0.0
    heat: Tensor | None = None

    @property
    def worst(self) -> Share:
        """The group with the lowest accuracy."""
        return min(self.groups, key=lambda group: (group.accuracy, group.name))

    @property
    def hardest(self) -> Tensor:
        """Indices of the examples with the largest losses."""
        return self.losses.argsort(descending=True, stable=True)[:SHOWN]

    @property
    def easiest(self) -> Tensor:
        """Indices of the examples with the smallest losses."""
        return self.losses.argsort(stable=True)[:SHOWN]

    def whole_class(self, label: int | None, leave_out: Share | None = None) -> Share | None:
        """The groups of one class taken together, without one of them; None where none are left."""
        rest = [group for group in self.groups if group.label == label and group is not leave_out]
        if not rest or label is None:
            return None
        n = sum(group.n for group in rest)
        loss = sum(group.n * group.loss for group in rest) / n
        return Share(class_names_of(self.data)[label], sum(group.right for group in rest), n, loss, label)

    def is_below(self, share: Share, count: int) -> bool:
        """Whether a share, one of `count`, lies below the average: its exact upper bound at 1 - .025 / count (Clopper
        and Pearson 1934) does. Wilson's would claim it too often of many small groups near 100%."""
        from scipy.stats import beta

        if share.right == share.n:
            return False
        return bool(beta.ppf(1 - 0.025 / count, share.right + 1, share.n - share.right) < self.overall.accuracy)

    def verdict(self) -> list[str]:
        """What the numbers say, in sentences."""
        low, high = self.overall.interval
        sentences = [
            f"{self.name} is right on {self.overall.accuracy:.1%} of {self.overall.n:,} {self.split.name} examples "
            f"(95% interval {low:.1%} to {high:.1%})."
        ]
        if len(self.groups) > 1:
            sentences += {"group": _on_groups, "cluster": _on_clusters}.get(self.by, _on_cells)(self)
        sentences += [*_on_probes(self), _on_importance(self)]
        if self.spectrum is not None:
            sentences.append(_on_curvature(self.spectrum))
        if self.forgetting is not None:
            sentences.append(_on_forgetting(self.forgetting))
        return sentences

    def compared(self, other: Audit) -> list[str]:
        """This model against another on the same examples, in sentences."""
        check_pair(self, other)
        ours, theirs = (each.predicted == each.labels for each in (self, other))
        gained, lost = int((ours & ~theirs).sum()), int((~ours & theirs).sum())
        low, high = paired(gained, lost, len(ours))
        difference = 100 * (gained - lost) / len(ours)
        clear = "" if low > 0 or high < 0 else ": no clear difference"
        sentences = [
            f"{self.name} is right on {self.overall.accuracy:.1%} of {len(ours):,} {self.split.name} examples, "
            f"{other.name} on {other.overall.accuracy:.1%}: {difference:+.1f} points (95% interval {100 * low:+.1f} to "
            f"{100 * high:+.1f}, paired: {_examples(gained)} right by the first only, "
            f"{_examples(lost)} by the second only){clear}."
        ]
        if len(self.groups) > 1 and len(other.groups) > 1 and "cluster" not in (self.by, other.by):
            sentences.append(f"The lowest {self.by} of the first is {self.worst}; of the second {other.worst}.")
        return sentences

    def to_dict(self) -> dict[str, Any]:
        """Everything but the examples' own arrays, as JSON has it."""
        content = {
            "name": self.name,
            "data": self.data.name,
            "split": self.split.name,
            "verdict": self.verdict(),
            "overall": _accuracy(self.overall),
            "by": self.by,
            "groups": [_accuracy(group) for group in self.groups],
            "probes": {name: _fields(probe, PROBE) for name, probe in self.probes.items()},
            "importance": {
                "gini": gini_if_any(self.importance),
                "gini_phantom": gini_if_any(self.phantom),
                "rho": self.rho,
                "half_of_the_weight": half_of_the_weight(self.importance),
            },
            "spectrum": None if self.spectrum is None else _fields(self.spectrum, SPECTRUM),
            "forgetting": None if self.forgetting is None else _histogram(self.forgetting),
            "hardest": [self._example(i) for i in self.hardest.tolist()],
            "easiest": [self._example(i) for i in self.easiest.tolist()],
            "missing": self.missing,
            "looked_at": {"training examples": self.sampled},
            "seconds": round(self.seconds, 2),
        }
        return {name: plain(value) for name, value in content.items()}

    def _example(self, i: int) -> dict[str, float]:
        label, predicted = int(self.labels[i]), int(self.predicted[i])
        return {"index": i, "label": label, "predicted": predicted, "loss": float(self.losses[i])}


def check_pair(one: Audit, other: Audit) -> None:
    """Refuse two audits of different data or splits."""
    check_same(one.data, other.data)
    if other.split.name != one.split.name:
        raise EvenlyError(
            f"the two audits are of different splits, {one.split.name} and {other.split.name}; judge both on one"
        )


def check_same(one: Data, other: Data) -> None:
    """Refuse to compare models on different data."""
    if one is not other and one.fingerprint() != other.fingerprint():
        names = "" if one.name == other.name else f", {one.name} and {other.name}"
        raise EvenlyError(f"the two models are of different data{names}; give two models on the same data")


def class_names_of(data: Data) -> list[str]:
    """The data's names of its classes, or "class K"."""
    return [str(name) for name in data.class_names] if data.class_names else [f"class {k}" for k in range(data.classes)]


def half_of_the_weight(weights: Tensor) -> float:
    """The smallest share of examples that has half of the weight."""
    cumulative = weights.sort(descending=True).values.cumsum(0)
    if not float(cumulative[-1]):
        return math.nan
    return (int((cumulative < cumulative[-1] / 2).sum()) + 1) / len(weights)


def fisher(right: int, n: int, other: int, m: int) -> float:
    """The chance that, of `right` + `other` right answers, a set of n has `right` or fewer where a set of m has the
    rest, if both are alike (Fisher's exact test, one-sided)."""
    from scipy.stats import hypergeom

    return float(hypergeom.cdf(right, n + m, right + other, n))


def paired(gained: int, lost: int, n: int) -> tuple[float, float]:
    """The 95% interval of (gained - lost) / n over the same n examples: that of McNemar's table with half an example
    more in each of its four cells (Agresti and Min 2005)."""
    b, c, total = gained + 0.5, lost + 0.5, n + 2
    centre = (b - c) / total
    half = NormalDist().inv_cdf(0.975) * math.sqrt(b + c - (b - c) ** 2 / total) / total
    return max(-1.0, centre - half), min(1.0, centre + half)


def _on_groups(audit: Audit) -> list[str]:
    """Whether a group of the data is below the average; no cause, as the numbers show none."""
    failed = [group for group in audit.groups if audit.is_below(group, len(audit.groups))]
    if not failed:
        return [f"No group is clearly below the average; the lowest is {audit.worst}."]
    worst = min(failed, key=lambda group: (group.accuracy, group.name))
    are = "is" if len(failed) == 2 else "are"
    others = f"; {len(failed) - 1} more of {len(audit.groups)} groups {are} below it" if len(failed) > 1 else ""
    return [f"It fails on {worst}, {_gap(audit, worst):.1f} points below its average{others}."]


def _on_cells(audit: Audit) -> list[str]:
    """Of label by attribute: a cell worse than the rest of its own class, else a class that is weak as a whole."""
    for cell in sorted(audit.groups, key=lambda each: (each.accuracy, each.name)):
        rest = audit.whole_class(cell.label, leave_out=cell)
        if rest is None or not audit.is_below(cell, len(audit.groups)):
            continue
        # the worst of many is low by chance as well
        if fisher(cell.right, cell.n, rest.right, rest.n) < 0.025 / len(audit.groups):
            return [
                f"It fails on {cell}, {100 * (rest.accuracy - cell.accuracy):.1f} points below the other "
                f"{rest.n:,} examples of {rest.name}: it leans on something that these examples lack."
            ]
    labels = dict.fromkeys(group.label for group in audit.groups)
    classes = [whole for label in labels if (whole := audit.whole_class(label)) is not None]
    weakest = min(classes, key=lambda each: each.accuracy)
    if len(classes) > 1 and audit.is_below(weakest, len(classes)):
        attribute = audit.by.removeprefix("label and ")
        return [
            f"It is weak on {weakest}, {_gap(audit, weakest):.1f} points below its average, "
            f"and on no {attribute} in it clearly more than on the rest of it."
        ]
    return [f"No {audit.by} is clearly below the rest of its class; the lowest is {audit.worst}."]


def _on_clusters(audit: Audit) -> list[str]:
    """Where to look: a part of a class in the model's own features. It decides from these, so one part being right less
    often than the other proves nothing."""
    parts = [
        (part, rest) for part in audit.groups if (rest := audit.whole_class(part.label, leave_out=part)) is not None
    ]
    lower = [(part, rest) for part, rest in parts if part.n >= FEWEST and part.accuracy < rest.accuracy]
    if not lower:
        return []
    part, rest = min(lower, key=lambda pair: (pair[0].accuracy, pair[0].name))
    which = "smaller" if part.n < rest.n else "larger" if part.n > rest.n else "one"
    where = "outputs" if "features" in audit.missing else "features"
    return [
        f"Within {rest.name}, its {where} fall in two parts; the {which}, {part.n:,} of {part.n + rest.n:,}, is "
        f"right on {part.accuracy:.1%}, the other on {rest.accuracy:.1%}: look at those."
    ]


def _on_importance(audit: Audit) -> str:
    if not audit.importance.any():
        return "It is so sure of the training examples used here that none of them moves it any more."
    phantom = gini_if_any(audit.phantom)
    sam = f"; {phantom:.2f} where SAM with rho {audit.rho:g} would take its gradient"
    return (
        f"Half of the total importance weight is that of {half_of_the_weight(audit.importance):.1%} of the training "
        f"examples used here (Gini {gini_if_any(audit.importance):.2f}"
        f"{'' if math.isnan(phantom) or not audit.rho else sam})."
    )


def _on_probes(audit: Audit) -> list[str]:
    attributes = [probe for name, probe in audit.probes.items() if name != "label"]
    if not attributes:
        return []
    best, label = min(attributes, key=lambda probe: probe.error), audit.probes.get("label")
    text = (
        f"Its features tell {best.attribute} with an error of {best.error:.1%} (95% interval {best.low:.1%} to "
        f"{best.high:.1%}; guessing {best.chance:.1%})"
    )
    if not set(audit.split.attributes) <= {best.attribute, *best.balanced_over}:
        text += f" on a set balanced over {_joined(best.balanced_over)} only"
    if label is None:
        return [f"{text}."]
    balanced = f"where {best.attribute} does not give it away"
    if best.attribute not in label.balanced_over:
        balanced = f"balanced over {_joined(label.balanced_over)} only"
    easier = ": the attribute is the easier one to read" if best.high < label.low else ""
    return [f"{text}, the label with {label.error:.1%} on a set {balanced}{easier}."]


def _on_curvature(spectrum: HessianSpectrum) -> str:
    """The largest eigenvalue, and how many times the last one it is where both are known well enough to divide."""
    values, residuals, converged = spectrum.eigenvalues, spectrum.residuals, spectrum.converged
    text = f"The largest eigenvalue of the training loss's Hessian is {float(values[0]):.3g}"
    if not converged[0]:
        text += f", not converged (residual {float(residuals[0]):.1g})"
    elif len(values) > 1 and converged[-1] and values[-1] > max(FLAT * values[0], 10 * residuals[-1]):
        text += f", {float(values[0] / values[-1]):.1f} times the {_ordinal(len(values))} found"
    return f"{text}."


def _on_forgetting(scores: Tensor) -> str:
    never = int(torch.isinf(scores).sum())
    forgotten = int((scores[torch.isfinite(scores)] > 0).sum())
    known = int((~torch.isnan(scores)).sum())
    return (
        f"Of {known:,} training {'example' if known == 1 else 'examples'} {_were(forgotten)} forgotten at least once "
        f"and {_were(never)} never right."
    )


def _gap(audit: Audit, share: Share) -> float:
    return 100 * (audit.overall.accuracy - share.accuracy)


def _examples(count: int) -> str:
    return f"{count:,} {'example' if count == 1 else 'examples'}"


def _were(count: int) -> str:
    return f"{count:,} {'was' if count == 1 else 'were'}"


def _ordinal(k: int) -> str:
    ending = "th" if k % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(k % 10, "th")
    return f"{k}{ending}"


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1] if names else "its own values"


def _histogram(scores: Tensor) -> dict[str, int]:
    counts = torch.bincount(scores[torch.isfinite(scores)].long()).tolist()
    return {str(k): count for k, count in enumerate(counts)} | {"never right": int(torch.isinf(scores).sum())}


def _accuracy(share: Share) -> dict[str, str | float]:
    low, high = share.interval
    return {"name": share.name, "n": share.n, "accuracy": share.accuracy, "low": low, "high": high, "loss": share.loss}


def _fields(result: Result, names: Sequence[str]) -> dict[str, object]:
    return {name: getattr(result, name) for name in names}
