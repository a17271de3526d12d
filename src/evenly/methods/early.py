"""The early stage that USEFUL and its rivals share (Nguyen, Haddad, Gan, Mirzasoleiman 2024, sections 4 and D.6).

Train until the drop in training loss has shrunk: the easy features are learned by then, the difficult ones are not.
Which examples a strategy then singles out is its own; most repeat them and train again from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from evenly.data import Data, Upsample
from evenly.data.samplers import MOST
from evenly.engine import FORWARD, Fit, Row, Selection, Trained
from evenly.errors import EvenlyError, SettingError
from evenly.methods.registry import Factory
from evenly.settings import Settings, at_least, at_most

Factor = Annotated[int, at_least(1), at_most(MOST)]
"""How often an epoch has each of the examples chosen."""
SeparatingEpoch = Annotated[int | None, at_least(1)]
"""How long the early network is trained; None: until the drop in training loss has shrunk."""

SHRUNK = 0.25
"""The drop in training loss has shrunk when it is under this share of its peak.

The paper separates "when the change in training error starts to shrink"; that this is read off the loss, and where it
has shrunk enough, is evenly's choice.
"""

FALLEN = 0.1
"""Nothing counts as shrunk before the loss has fallen by this share: plateaus at the start are not the end of
learning."""

ALIKE = 12
"""Outputs and losses that agree to this many digits are the same: a class learned to the last digit has no two
clusters, and rounding does not part examples with equal outputs."""


@dataclass
class Early:
    """A network that has learned the easy features.

    Args:
        trained: the early fit.
        decided: what set the separating epoch: the rule, the user, or the end of a run in which the drop never shrank.
        cost: example-gradients spent so far; every pass over the training set adds a forward pass.
    """

    trained: Trained
    data: Data
    decided: Literal["rule", "given", "end"]
    cost: float

    def outputs(self) -> Tensor:
        """The early network's outputs on the training set: (N, K), or (N,) or (N, 1) for one logit."""
        self.cost += FORWARD * len(self.data.train)
        return finite(self.trained.outputs(self.data.train))

    def features(self) -> Tensor:
        """The early network's penultimate activations on the training set (N, D)."""
        self.cost += FORWARD * len(self.data.train)
        return self.trained.features(self.data.train)

    def choose(self, fit: Fit, rule: Callable[[], Tensor]) -> Tensor:
        """The indices that a rule singles out; those that it chose before, where the run goes on."""
        saved = fit.load_or_compute("chosen", lambda: {"indices": rule(), "cost": self.cost})
        self.cost = saved["cost"]
        return torch.as_tensor(saved["indices"])

    def selection(
        self, chosen: Tensor, times: int, why: str, none: str = "this is plain training", **details: Any
    ) -> Selection:
        """The examples chosen (M,), each seen so many times per epoch, with the curve that set the epoch.

        `none` says what comes of there being none to choose. The details are those of `separated`.
        """
        labels, losses = self.data.train.labels.cpu(), [row["train_loss"] for row in self.trained.history]
        return separated(
            chosen, times, why, labels, losses, self.decided, classes=self.data.classes, none=none, **details
        )


def separated(
    chosen: Tensor,
    times: int,
    why: str,
    labels: Tensor,
    losses: list[float],
    decided: Literal["rule", "given", "end"],
    *,
    classes: int = 0,
    none: str = "this is plain training",
    **details: Any,
) -> Selection:
    """The examples chosen (M,) of all with these labels (N,), with the early epochs' training losses.

    The details hold `separating_epoch`, `early_losses` (one for each early epoch), `early_limits` (what the rule
    holds each drop of them against), `decided`, `separation` (what set the epoch, in words), and `share_per_class`
    (K,), the share of each class that was chosen (0 for a class without examples).
    """
    if decided == "end":
        why += "; the drop in training loss never shrank, so they were separated at the end of a whole run"
    if not len(chosen):
        why += f"; there are none, so {none}"
    classes = max(classes, int(labels.max()) + 1)
    sizes, picked = (torch.bincount(part, minlength=classes) for part in (labels, labels[chosen]))
    details = {
        "separating_epoch": len(losses),
        "early_losses": losses,
        "early_limits": [SHRUNK * largest for largest in accumulate(map(sub, losses, losses[1:]), max)],
        "decided": decided,
        "separation": separation_reason(losses, decided),
        "share_per_class": picked.double() / sizes.clamp(min=1),
        **details,
    }
    return Selection(chosen, torch.full_like(chosen, times), why, details)


def check_separating_epoch(data: Data, settings: Settings, separating_epoch: int | None, **_: object) -> None:
    """Refuse to separate after the end of the run."""
    if separating_epoch is not None and separating_epoch > settings.epochs:
        raise SettingError("separating_epoch", separating_epoch, f"at most {settings.epochs}, the number of epochs")


def train_early(model: Factory, data: Data, fit: Fit, separating_epoch: int | None, stage: str = "early") -> Early:
    """Train until the separating epoch: the one given, or the first at which the drop in training loss has shrunk."""

    def is_over(history: list[Row]) -> bool:
        if separating_epoch is not None:
            return len(history) >= separating_epoch
        return drop_has_shrunk([row["train_loss"] for row in history])

    trained = fit(model(), data, stage=stage, until=is_over, select="last", evaluate_every=None, patience=None)
    shrunk: Literal["rule", "end"] = "rule" if is_over(trained.history) else "end"
    return Early(trained, data, shrunk if separating_epoch is None else "given", trained.cost)


def retrain_repeating(
    model: Factory, fit: Fit, early: Early, chosen: Tensor, factor: int, *, why: str, why_none: str
) -> Trained:
    """Train again from the start on the data with the examples chosen (M,) seen `factor` times per epoch.

    Args:
        why: these were chosen.
        why_none: there was none to choose.
    """
    total = len(early.data.train)
    trained = fit(model(), early.data, sampler=Upsample(chosen, total, factor, fit.seed), spent=early.cost)
    trained.selection = early.selection(chosen, factor, why)
    if not len(chosen):
        trained.remarks = (f"nothing was repeated: {why_none}",)
    return trained


def drop_has_shrunk(training_losses: list[float], share: float = SHRUNK) -> bool:
    """Whether the loss has fallen at all (by `FALLEN`) and its last drop is under `share` of the largest so far."""
    if len(training_losses) < 2 or training_losses[-1] > (1 - FALLEN) * training_losses[0]:
        return False
    drops = -np.diff(training_losses)
    return bool(drops[-1] < share * drops.max())


def separation_reason(losses: Sequence[float], decided: str) -> str:
    """What set the separating epoch, in a sentence or two."""
    epoch = len(losses)
    rule = (
        f"the first epoch at which the training loss has fallen by {FALLEN:.0%} and its last drop is under "
        f"{SHRUNK:.0%} of the largest so far"
    )
    if decided == "rule":
        return f"The examples were separated at epoch {epoch}, {rule}."
    if decided == "end":
        return f"The rule waits for {rule}. There was none, so the examples were separated at the end, epoch {epoch}."
    own = next((t for t in range(1, epoch + 1) if drop_has_shrunk(list(losses[:t]))), None)
    would = f"would have waited for {rule}" if own is None else f"would have taken epoch {own}, {rule}"
    return f"The separating epoch was set to {epoch}. The rule {would}."


def finite(logits: Tensor) -> Tensor:
    """The logits, if they are numbers."""
    if not bool(torch.isfinite(logits).all()):
        raise EvenlyError("the logits hold NaN or infinity; train with a lower learning rate before separating")
    return logits
