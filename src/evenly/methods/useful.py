"""USEFUL: upsample early for uniform learning (Nguyen, Haddad, Gan, Mirzasoleiman 2024, section 4).

1. Train for a few epochs, until the drop in training loss has shrunk: the easy features are learned by then.
2. In every class, split the examples by 2-means on the network's outputs; the cluster with the larger mean loss holds
   the examples without easy features (eq. 12).
3. Repeat these examples (twice per epoch) and train again from the start.

    hard = evenly.hard_examples(logits, labels)
    loader = DataLoader(dataset, batch_size=128, sampler=evenly.Upsample(hard, total=len(dataset)))
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from evenly.data import Data, Upsample
from evenly.engine import FORWARD, Fit, Run, Selection, losses, probabilities
from evenly.engine.losses import single
from evenly.errors import EvenlyError
from evenly.methods.registry import Factory, method

SHRUNK = 0.25
"""The drop in training loss has shrunk when it is under this share of its peak.

The paper separates "when the change in training error starts to shrink"; that this is read off the loss, and where it
has shrunk enough, is evenly's choice, and so is clustering probabilities where eq. 12 clusters f(x; W).
"""

ALIKE = 12
"""Outputs that agree to this many digits are the same: a class learned to the last digit has no two clusters."""


@method(control="random_upsample")
def useful(
    model: Factory,
    data: Data,
    fit: Fit,
    *,
    separating_epoch: int | None = None,
    factor: int = 2,
    on: Literal["probabilities", "logits"] = "probabilities",
) -> Run:
    """Find the examples without easy features early, repeat them, retrain."""
    if separating_epoch is not None and not 1 <= separating_epoch <= fit.epochs:
        raise EvenlyError(f"separating_epoch {separating_epoch} is outside the run; give 1..{fit.epochs}")
    Upsample([], total=len(data.train), factor=factor)  # a factor that cannot be used is said before the early stage
    _splittable(data.train.labels)

    def separated(history: list[dict[str, Any]]) -> bool:
        if separating_epoch is not None:
            return len(history) >= separating_epoch
        return drop_has_shrunk([row["train_loss"] for row in history])

    early = fit(model(), data, stage="early", until=separated, select="last", evaluate_every=None)
    hard = hard_examples(early.outputs(data.train), data.train.labels, on=on, seed=fit.seed)
    spent = early.cost + FORWARD * len(data.train)
    run = fit(model(), data, sampler=Upsample(hard, len(data.train), factor, fit.seed), spent=spent)
    why = "the costlier of two clusters of early outputs in each class"
    if separating_epoch is None and not separated(early.history):
        why += "; the drop in training loss never shrank, so they were separated at the end of a whole run"
    run.selection = Selection(
        hard, torch.full_like(hard, factor), why,
        {"separating_epoch": len(early.history)},
    )  # fmt: skip
    return run


def drop_has_shrunk(training_losses: list[float], share: float = SHRUNK) -> bool:
    """Whether the last drop in training loss is under `share` of the largest drop so far.

    Nothing counts as shrunk before the loss has fallen by a tenth: plateaus at the start are not the end of learning.
    """
    if len(training_losses) < 2 or training_losses[-1] > 0.9 * training_losses[0]:
        return False
    drops = -np.diff(training_losses)
    return bool(drops[-1] < share * drops.max())


def hard_examples(
    logits: Any,
    labels: Any,
    on: Literal["probabilities", "logits"] = "probabilities",
    features: Any = None,
    seed: int = 0,
) -> Tensor:
    """The examples that seem to lack easy features: per class, the costlier of two clusters of outputs.

    Args:
        logits: (N, K) outputs of a network early in training; (N,) or (N, 1) is one logit.
        labels: (N,) in 0..K-1.
        on: cluster class probabilities, or raw logits.
        features: (N, D) to cluster instead, e.g. penultimate activations; the logits then only give the losses.
        seed: of the k-means starts. The order of storage changes nothing.

    Returns:
        int64 indices into the arrays given, ascending. A class whose outputs are all alike has no hard examples.
    """
    logits, labels = torch.as_tensor(logits).detach().cpu().double(), torch.as_tensor(labels).cpu().long()
    if len(logits) != len(labels) or labels.ndim != 1:
        raise EvenlyError(
            f"logits {tuple(logits.shape)} do not go with labels {tuple(labels.shape)}; give (N, K) and (N,)"
        )
    if not bool(torch.isfinite(logits).all()):
        raise EvenlyError("the logits hold NaN or infinity; train with a lower learning rate before separating")
    if on not in ("probabilities", "logits"):
        raise EvenlyError(f"on {on!r} is not known; give 'probabilities' or 'logits'")
    _splittable(labels, classes=2 if single(logits) else logits.shape[1])
    if features is not None:
        points = torch.as_tensor(features).detach().cpu().double()
        if len(points) != len(labels) or not bool(torch.isfinite(points).all()):
            raise EvenlyError(
                f"features {tuple(points.shape)} must be {len(labels)} finite rows; give one for each label"
            )
        points = points.reshape(len(labels), -1)
    else:
        points = probabilities(logits) if on == "probabilities" else logits.reshape(len(labels), -1)
    cost = losses(logits, labels)
    hard = [
        members[_costlier_cluster(points[members].numpy(), cost[members].numpy(), seed)]
        for label in labels.unique()
        for members in [(labels == label).nonzero().flatten()]
    ]
    return torch.cat(hard).sort().values


def _costlier_cluster(points: np.ndarray, cost: np.ndarray, seed: int) -> np.ndarray:
    """Positions of the 2-means cluster with the larger mean loss.

    The points are clustered in sorted order, so that the k-means starts do not depend on how the examples are stored.
    """
    from sklearn.cluster import KMeans

    points = points.round(ALIKE)
    if len(np.unique(points, axis=0)) < 2:
        return np.empty(0, dtype=np.int64)
    order = np.lexsort(points.T)
    assignment = np.empty(len(points), dtype=np.int64)
    assignment[order] = KMeans(2, n_init=10, random_state=seed % 2**32).fit_predict(points[order])
    means = [cost[assignment == cluster].mean() for cluster in (0, 1)]
    return np.flatnonzero(assignment == int(np.argmax(means)))


def _splittable(labels: Tensor, classes: int | None = None) -> None:
    if len(labels) == 0:
        raise EvenlyError("there are no examples to split into easy and hard; give at least two of a class")
    if int(labels.min()) < 0 or (classes is not None and int(labels.max()) >= classes):
        raise EvenlyError(f"labels run from {int(labels.min())} to {int(labels.max())}; give 0..K-1 for K classes")
    counts = torch.bincount(labels)
    if bool((counts == 1).any()):
        label = int((counts == 1).nonzero()[0])
        raise EvenlyError(
            f"class {label} has one example and cannot be split into easy and hard; add examples or drop the class"
        )
