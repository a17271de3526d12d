"""The early stage that USEFUL and its rivals share (Nguyen, Haddad, Gan, Mirzasoleiman 2024, sections 4 and D.6).

Train until the drop in training loss has shrunk: the easy features are learned by then, the difficult ones are not.
Which examples a strategy then singles out is its own; most repeat them and train again from the start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from evenly.data import Data, Upsample
from evenly.engine import FORWARD, Fit, Run, Selection
from evenly.errors import EvenlyError
from evenly.methods.kept import kept
from evenly.methods.registry import Factory

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
        run: the early fit.
        decided: what set the separating epoch: the rule, the user, or the end of a run in which the drop never shrank.
        cost: example-gradients spent so far; every look at the training set adds a forward pass.
    """

    run: Run
    data: Data
    decided: Literal["rule", "given", "end"]
    cost: float

    def outputs(self) -> Tensor:
        """The early network's outputs on the training set: (N, K), or (N,) or (N, 1) for one logit."""
        self.cost += FORWARD * len(self.data.train)
        return finite(self.run.outputs(self.data.train))

    def features(self) -> Tensor:
        """The early network's penultimate activations on the training set (N, D)."""
        self.cost += FORWARD * len(self.data.train)
        return self.run.features(self.data.train)

    def choose(self, fit: Fit, how: Callable[[], Tensor]) -> Tensor:
        """The indices that `how` singles out, kept with the run and read back where it goes on."""

        def make() -> dict[str, Any]:
            chosen = how()
            return {"indices": chosen, "cost": self.cost}

        found = kept(fit, "chosen", make)
        self.cost = found["cost"]
        return torch.as_tensor(found["indices"])

    def selection(
        self, chosen: Tensor, times: int, why: str, none: str = "this is plain training", **details: Any
    ) -> Selection:
        """The examples chosen (M,), each shown so many times per epoch, with the curve that set the epoch.

        `none` says what comes of there being none to choose.

        The details hold `separating_epoch`, `early_losses` (one for each early epoch), `decided`, and
        `share_per_class` (K,), the share of each class that was chosen (0 for a class without examples).
        """
        if self.decided == "end":
            why += "; the drop in training loss never shrank, so they were separated at the end of a whole run"
        if not len(chosen):
            why += f"; there are none, so {none}"
        labels = self.data.train.labels.cpu()
        sizes, picked = (torch.bincount(part, minlength=self.data.classes) for part in (labels, labels[chosen]))
        return Selection(
            chosen, torch.full_like(chosen, times), why,
            {
                "separating_epoch": len(self.run.history),
                "early_losses": [row["train_loss"] for row in self.run.history],
                "decided": self.decided,
                "share_per_class": picked.double() / sizes.clamp(min=1),
                **details,
            },
        )  # fmt: skip


def train_early(
    model: Factory, data: Data, fit: Fit, separating_epoch: int | None, factor: int = 1, stage: str = "early"
) -> Early:
    """Train until the separating epoch: the one given, or the first at which the drop in training loss has shrunk.

    A `factor` that examples could not be repeated by is refused here, before anything is trained.
    """
    if separating_epoch is not None and not 1 <= separating_epoch <= fit.epochs:
        raise EvenlyError(f"separating_epoch {separating_epoch} is outside the run; give 1..{fit.epochs}")
    Upsample([], total=len(data.train), factor=factor)

    def separated(history: list[dict[str, Any]]) -> bool:
        if separating_epoch is not None:
            return len(history) >= separating_epoch
        return drop_has_shrunk([row["train_loss"] for row in history])

    run = fit(model(), data, stage=stage, until=separated, select="last", evaluate_every=None)
    shrunk: Literal["rule", "end"] = "rule" if separated(run.history) else "end"
    return Early(run, data, shrunk if separating_epoch is None else "given", run.cost)


def retrain_repeating(model: Factory, fit: Fit, early: Early, chosen: Tensor, factor: int, why: str) -> Run:
    """Train again from the start on the data with the examples chosen (M,) shown `factor` times per epoch."""
    total = len(early.data.train)
    run = fit(model(), early.data, sampler=Upsample(chosen, total, factor, fit.seed), spent=early.cost)
    run.selection = early.selection(chosen, factor, why)
    return run


def drop_has_shrunk(training_losses: list[float], share: float = SHRUNK) -> bool:
    """Whether the loss has fallen at all (by `FALLEN`) and its last drop is under `share` of the largest so far."""
    if len(training_losses) < 2 or training_losses[-1] > (1 - FALLEN) * training_losses[0]:
        return False
    drops = -np.diff(training_losses)
    return bool(drops[-1] < share * drops.max())


def finite(logits: Tensor) -> Tensor:
    """The logits, if they are numbers."""
    if not bool(torch.isfinite(logits).all()):
        raise EvenlyError("the logits hold NaN or infinity; train with a lower learning rate before separating")
    return logits
