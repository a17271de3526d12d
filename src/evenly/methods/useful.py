"""USEFUL: upsample early for uniform learning (Nguyen, Haddad, Gan, Mirzasoleiman 2024, section 4).

1. Train for a few epochs, until the drop in training loss has shrunk: the easy features are learned by then.
2. In every class, split the examples by 2-means on the network's outputs; the cluster with the larger mean loss holds
   the examples without easy features (eq. 12).
3. Repeat these examples (twice per epoch) and train again from the same initial weights.

Both trainings have the run's optimizer: with SAM, the early network is trained by SAM as well.

    hard = evenly.hard_examples(logits, labels)
    loader = DataLoader(dataset, batch_size=128, sampler=evenly.Upsample(hard, total=len(dataset)))
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from evenly.data import Data
from evenly.data.contract import as_tensor
from evenly.engine import Fit, Trained
from evenly.engine.evaluation import check_features
from evenly.engine.losses import losses, probabilities, single
from evenly.errors import EvenlyError
from evenly.methods.early import (
    ALIKE,
    Early,
    Factor,
    SeparatingEpoch,
    check_separating_epoch,
    finite,
    retrain_repeating,
    train_early,
)
from evenly.methods.registry import Factory, method
from evenly.settings import Settings, checks_options

WORTH_THREADS = 1_000_000
"""Fewer numbers than this are clustered on one thread: on many cores, handing work round takes longer than doing it."""

MOST_ROUNDS = 10_000
"""Of k-means: far more than it takes until no point changes its cluster."""

ALL_ALIKE = "in each class the early network's outputs are all alike"

On = Literal["probabilities", "logits", "features"]


def check(data: Data, settings: Settings, separating_epoch: int | None, **_: object) -> None:
    """Refuse to separate after the end of the run, and classes that cannot be split."""
    check_separating_epoch(data, settings, separating_epoch)
    check_splittable(data.train.labels)


@method(control="random_upsample", check=check)
def useful(
    model: Factory,
    data: Data,
    fit: Fit,
    *,
    separating_epoch: SeparatingEpoch = None,
    factor: Factor = 2,
    on: On = "probabilities",
) -> Trained:
    """Find the examples without easy features early, repeat them, retrain.

    Eq. 12 clusters f(x; W); that the clusters are of class probabilities is evenly's choice. `on` takes raw logits or
    penultimate activations instead; the paper's factors are 2 to 5.
    """
    if on == "features":
        check_features(model())
    early = train_early(model, data, fit, separating_epoch)
    hard = early.choose(fit, lambda: higher_loss_clusters(early, on, fit.seed))
    return retrain_repeating(model, fit, early, hard, factor, why=reason(on), why_none=ALL_ALIKE)


def reason(on: On) -> str:
    """Why examples were chosen."""
    return f"the higher-loss of two clusters of early {on} in each class"


def higher_loss_clusters(early: Early, on: On, seed: int) -> Tensor:
    """Step 2 on an early network: indices of the examples in the higher-loss cluster of their class."""
    logits, labels = early.outputs(), early.data.train.labels
    if on == "features":
        return hard_examples(logits, labels, features=early.features(), seed=seed)
    return hard_examples(logits, labels, on=on, seed=seed)


@checks_options
def hard_examples(
    logits: Any,
    labels: Any,
    on: Literal["probabilities", "logits"] = "probabilities",
    features: Any = None,
    seed: int = 0,
) -> Tensor:
    """The examples that seem to lack easy features: per class, the higher-loss of two clusters of outputs.

    Args:
        logits: (N, K) outputs of a network early in training; (N,) or (N, 1) is one logit.
        labels: (N,) in 0..K-1.
        on: cluster class probabilities, or raw logits.
        features: (N, D) to cluster instead, e.g. penultimate activations; the logits then only give the losses.
        seed: of the k-means starts. The order of storage changes nothing.

    Returns:
        int64 indices into the arrays given, ascending. A class whose outputs are all alike has no hard examples.
    """
    logits, labels = as_tensor(logits, "logits"), as_tensor(labels, "labels").long()
    if not logits.ndim or labels.ndim != 1 or len(logits) != len(labels):
        raise EvenlyError(
            f"logits {tuple(logits.shape)} do not go with labels {tuple(labels.shape)}; give (N, K) and (N,)"
        )
    finite(logits)
    check_splittable(labels, classes=2 if single(logits) else logits.shape[1])
    if features is not None:
        features = torch.as_tensor(features).detach().cpu()
        if len(features) != len(labels) or not bool(torch.isfinite(features).all()):
            raise EvenlyError(
                f"features {tuple(features.shape)} must be {len(labels)} finite rows; give one for each label"
            )
        features = features.reshape(len(labels), -1)
    hard = []
    for label in labels.unique():  # float64 copies of one class at a time: the whole set may not fit twice
        members = (labels == label).nonzero().flatten()
        outputs = logits[members].double()
        each = losses(outputs, labels[members]).numpy()
        if features is not None:
            points = features[members].double()
        else:
            points = probabilities(outputs) if on == "probabilities" else outputs.reshape(len(members), -1)
        del outputs
        hard.append(members[_higher_loss_cluster(points.numpy(), each, seed)])
    return torch.cat(hard).sort().values


def _higher_loss_cluster(points: np.ndarray, losses: np.ndarray, seed: int) -> np.ndarray:
    """Positions of the 2-means cluster with the larger mean loss; the points are rounded in place.

    The points are clustered in sorted order, so that the k-means starts do not depend on how the examples are stored.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    points.round(ALIKE, out=points)
    if bool((points == points[0]).all()):
        return np.empty(0, dtype=np.int64)
    order = np.lexsort(points.T)
    assignment = np.empty(len(points), dtype=np.int64)
    # tol=0: each start goes on until no point changes its cluster, where sklearn's default leaves some misplaced
    kmeans = KMeans(2, n_init=10, tol=0, max_iter=MOST_ROUNDS, random_state=seed % 2**32, copy_x=False)
    with threadpool_limits(1 if points.size < WORTH_THREADS else torch.get_num_threads()):
        assignment[order] = kmeans.fit_predict(points[order])
    members = [losses[assignment == cluster] for cluster in (0, 1)]
    means = [math.fsum(each) / len(each) for each in members]  # fsum is exact: no order of storage tips a close call
    return np.flatnonzero(assignment == int(np.argmax(means)))


def check_splittable(labels: Tensor, classes: int | None = None) -> None:
    """Refuse labels (N,) that leave a class with nothing to split."""
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
