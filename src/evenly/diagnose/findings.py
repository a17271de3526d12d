"""What an audit found: its numbers, the sentences that they support (`audit_words`) and what its page shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenly.data.contract import Data, Split
from evenly.diagnose import audit_words
from evenly.diagnose.audit_values import (
    Calibration,
    Curves,
    Eigenvalues,
    Findings,
    GroupAccuracy,
    Importance,
    ProbeError,
    ShownExample,
)
from evenly.diagnose.importance import gini_if_any, lorenz
from evenly.diagnose.probing import Probe
from evenly.diagnose.rates import calibration_of, confusion_of, rates_of
from evenly.diagnose.results import Result
from evenly.diagnose.slices import Search, Slice
from evenly.diagnose.spectrum import HessianSpectrum
from evenly.engine.accuracy import wilson
from evenly.errors import EvenlyError
from evenly.randomness import isolated
from evenly.runs.example_intervals import agresti_min
from evenly.runs.examples import is_image, snippet, thumbnail
from evenly.runs.results import DataSummary

SHOWN = 12
"""How many of the hardest examples are listed, and of the easiest."""
LORENZ_POINTS, DENSITY_POINTS = 101, 256
"""Points of a drawn curve, whatever the number of examples."""
LARGEST_IMAGE = 160
"""Pixels of an image on the page."""
MOST_COLUMNS = 20
"""Classes up to which the table of examples has the probability of each."""
PROBE = ("error", "low", "high", "n", "chance", "balanced_over")
SPECTRUM = ("eigenvalues", "residuals", "converged")


@dataclass(frozen=True)
class Share:
    """`right` of `n` examples, with their mean loss and the 95% Wilson interval; `label` where all are of one class.
    The loss is None where probabilities are not known."""

    name: str
    right: int
    n: int
    loss: float | None
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
            each class in the model's own features; "class" where there are only predictions.
        labels, predicted, losses: (N,) of every example; no losses where probabilities are not known.
        importance, phantom: (M,) importance weights of training examples, at the weights and at SAM's phantom weights;
            None of predictions.
        probes: the probing error of the label and of every attribute, where there are attributes.
        spectrum: of the Hessian of the training loss.
        forgetting: (M,) how often each training example was forgotten, where that was recorded.
        missing: what could not be measured, and why.
        members: the indices of each group's examples, by its name.
        probabilities: (N, K) of every class; None where they are not known.
        batch_size: examples whose gradient SAM's step uphill follows, for the phantom weights.
        shrunk: what was measured on fewer examples than asked for, in sentences.
        heat: Grad-CAM (H, W) of the hardest and the easiest images, by their indices.
        slices: the values of columns on which it fails, and how many were searched.
        clusters: where to look in the model's own features. They are expected to differ, so they claim nothing.
    """

    name: str
    split: Split
    data: Data
    overall: Share
    by: str
    groups: list[Share]
    members: dict[str, Tensor]
    labels: Tensor
    predicted: Tensor
    probabilities: Tensor | None
    losses: Tensor | None
    rho: float
    batch_size: int
    importance: Tensor | None
    phantom: Tensor | None
    probes: dict[str, Probe] = field(default_factory=dict)
    spectrum: HessianSpectrum | None = None
    forgetting: Tensor | None = None
    missing: dict[str, str] = field(default_factory=dict)
    shrunk: list[str] = field(default_factory=list)
    seconds: float = 0.0
    heat: dict[int, Tensor] = field(default_factory=dict)
    slices: Search = field(default_factory=Search)
    clusters: tuple[Slice, ...] = ()

    @property
    def worst(self) -> Share:
        """The group with the lowest accuracy."""
        return audit_words.worst_of(self.groups)

    @property
    def hardest(self) -> Tensor:
        """Indices of the examples with the largest losses; where losses are not known, of the first wrong ones."""
        wrong = SHOWN if self.losses is not None else min(SHOWN, int((self.predicted != self.labels).sum()))
        return self._order[:wrong]

    @property
    def easiest(self) -> Tensor:
        """Indices of the examples with the smallest losses; none where losses are not known."""
        return self._order[:0] if self.losses is None else self.losses.argsort(stable=True)[:SHOWN]

    @property
    def _order(self) -> Tensor:
        """All examples, the largest loss first; where losses are not known, the wrong ones first."""
        badness = (self.predicted != self.labels).long() if self.losses is None else self.losses
        return badness.argsort(descending=True, stable=True)

    def whole_class(self, label: int | None, leave_out: Share | None = None) -> Share | None:
        """The groups of one class taken together, without one of them; None where none are left."""
        rest = [group for group in self.groups if group.label == label and group is not leave_out]
        if not rest or label is None:
            return None
        n = sum(group.n for group in rest)
        losses = [group.n * group.loss for group in rest if group.loss is not None]
        loss = sum(losses) / n if len(losses) == len(rest) else None
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
        return audit_words.verdict(self)

    def compared(self, other: Audit) -> list[str]:
        """This model against another on the same examples, in sentences."""
        check_pair(self, other)
        ours, theirs = (each.predicted == each.labels for each in (self, other))
        gained, lost = int((ours & ~theirs).sum()), int((~ours & theirs).sum())
        return audit_words.compared(self, other, gained, lost, paired(gained, lost, len(ours)))

    def findings(self, table: str = "") -> Findings:
        """What the page shows, as plain values.

        Args:
            table: the file with every example, beside the page.
        """
        density: tuple[Tensor, ...] = ()
        spectrum, eigenvalues = self.spectrum, None
        if spectrum is not None:
            eigenvalues = Eigenvalues(spectrum.samples, *(tuple(getattr(spectrum, part).tolist()) for part in SPECTRUM))
            density = spectrum.density.curve(points=DENSITY_POINTS)
        return Findings(
            name=self.name,
            data=DataSummary.of(self.data),
            split=self.split.name,
            verdict=tuple(self.verdict()),
            next_steps=tuple(audit_words.next_steps(self)),
            overall=self._group(self.overall),
            by=self.by,
            groups=tuple(map(self._group, self.groups)),
            probes={name: ProbeError(*(getattr(each, part) for part in PROBE)) for name, each in self.probes.items()},
            importance=self._importance(),
            spectrum=eigenvalues,
            forgetting=None if self.forgetting is None else _histogram(self.forgetting),
            hardest=tuple(map(self._example, self.hardest.tolist())),
            easiest=tuple(map(self._example, self.easiest.tolist())),
            missing=dict(self.missing),
            shrunk=tuple(self.shrunk),
            curves=Curves(_lorenz(self.importance), _lorenz(self.phantom), *(tuple(side.tolist()) for side in density)),
            seconds=round(self.seconds, 2),
            table=table,
            slices=self.slices,
            clusters=self.clusters,
            confusion=confusion_of(self.labels, self.predicted, self.data.classes),
            calibration=self.calibration,
            rates=rates_of(
                self.labels, self.predicted, self.probabilities, self.by, self.members, self.split, self.data
            ),
        )

    @property
    def calibration(self) -> Calibration | None:
        """Whether it is right as often as its probabilities say; None where they are not known."""
        shares = self.probabilities
        return None if shares is None else calibration_of(self.labels, self.predicted, shares)

    def _importance(self) -> Importance | None:
        if self.importance is None or self.phantom is None:
            return None
        return Importance(
            _finite(gini_if_any(self.importance)),
            _finite(gini_if_any(self.phantom)),
            self.rho,
            self.batch_size,
            _finite(audit_words.half_of_the_weight(self.importance)),
            len(self.importance),
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything but the examples' own arrays, as JSON has it."""
        return self.findings().to_dict()

    def header(self) -> list[str]:
        """The columns of `rows`: where the example is from, label, prediction, probabilities, loss, group, forgetting.

        With more than `MOST_COLUMNS` classes there are the probabilities of the label and of the prediction only.
        """
        names = class_names_of(self.data)
        columns = ["the label", "the prediction"] if len(names) > MOST_COLUMNS else names
        place = ["place"] if self._place(0) else []
        text = [] if self.split.texts is None else ["text"]
        forgetting = ["forgetting"] if self._has_forgetting else []
        numbers = [] if self.losses is None else [*(f"probability of {name}" for name in columns), "loss"]
        by = [] if self.by == "class" else [self.by]
        return ["example", *place, *text, "label", "prediction", *numbers, *by, *forgetting]

    def rows(self) -> Iterator[list[Any]]:
        """A row for every example of the split, the largest loss first; numbers to six digits."""
        names, members = class_names_of(self.data), self._group_names()
        order = self._order
        columns = (each[order].tolist() for each in (self.labels, self.predicted))
        for i, label, predicted in zip(order.tolist(), *columns, strict=True):
            row: list[Any] = [i, *([place] if (place := self._place(i)) else [])]
            row += [] if self.split.texts is None else [self.split.texts[i]]
            row += [names[label], names[predicted]]
            if self.losses is not None and self.probabilities is not None:
                shares = self.probabilities[i]
                shares = shares[[label, predicted]] if len(names) > MOST_COLUMNS else shares
                row += [f"{number:.6g}" for number in (*shares.tolist(), float(self.losses[i]))]
            row += [] if self.by == "class" else [members.get(i, "")]
            if self.forgetting is not None and self._has_forgetting:
                row.append(f"{float(self.forgetting[i]):g}")
            yield row

    @property
    def _has_forgetting(self) -> bool:
        return self.forgetting is not None and self.split.name == "train"

    def _group_names(self) -> dict[int, str]:
        names: dict[int, str] = {}
        for name, members in self.members.items():
            for i in members.tolist():
                names[i] = f"{names[i]}; {name}" if i in names else name
        return names

    def _place(self, i: int) -> str:
        files = getattr(self.split.inputs, "files", None) if self.split.places is None else self.split.places
        return "" if files is None else str(files[i])

    def _group(self, share: Share) -> GroupAccuracy:
        failed = self.by != "cluster" and self.is_below(share, len(self.groups))
        return GroupAccuracy(share.name, share.n, share.accuracy, *share.interval, share.loss, failed)

    def _example(self, i: int) -> ShownExample:
        label, predicted = int(self.labels[i]), int(self.predicted[i])
        loss = None if self.losses is None else float(self.losses[i])
        group = "; ".join(name for name, members in self.members.items() if bool((members == i).any()))
        text = "" if self.split.texts is None else snippet(self.split.texts[i])
        png = heat = None
        if self.split.texts is None and is_image(self.split.example_shape):
            inputs = self.split.inputs
            with isolated():  # a Dataset may draw as it is read
                image = inputs[i].cpu() if isinstance(inputs, Tensor) else torch.as_tensor(inputs[i][0])
            png = thumbnail(image, LARGEST_IMAGE)
            if i in self.heat:
                heat = thumbnail(heated(image, self.heat[i]), LARGEST_IMAGE)
        return ShownExample(i, label, predicted, loss, group, self._place(i), text, png, heat)


def heated(image: Tensor, heat: Tensor) -> Tensor:
    """The image in gray under its heat map: red where the model looks."""
    image = image.float()
    low, high = float(image.min()), float(image.max())
    gray = ((image.mean(0) - low) / (high - low if high > low else 1.0)).clamp(0, 1)
    red, blue = 0.45 * gray + 0.55 * heat, 0.45 * gray + 0.25 * (1 - heat)
    return torch.stack([red, 0.45 * gray, blue]).clamp(0, 1)


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


def paired(gained: int, lost: int, n: int) -> tuple[float, float]:
    """The 95% interval of (gained - lost) / n over the same n examples."""
    return agresti_min(gained - lost, gained + lost, n)


def _histogram(scores: Tensor) -> dict[str, int]:
    counts = torch.bincount(scores[torch.isfinite(scores)].long()).tolist()
    return {str(k): count for k, count in enumerate(counts)} | {"never right": int(torch.isinf(scores).sum())}


def _lorenz(weights: Tensor | None) -> tuple[float, ...]:
    """The Lorenz curve at equal distances; empty where no example has any weight."""
    if weights is None or not weights.any():
        return ()
    examples, weight = (side.numpy() for side in lorenz(weights))
    return tuple(np.interp(np.linspace(0, 1, LORENZ_POINTS), examples, weight).tolist())


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
