"""Accuracy by group, and the numbers that are read off it.

Two things are called average accuracy in this field; both are here. `mean` counts every example once. `weighted` weighs
the groups' accuracies by how frequent the groups are in training, so that a test set with balanced groups still tells
what a user with the training distribution would see (the code of Deng et al. 2023 reports this one).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

from evenly.data.contract import Data, Split, as_groups, as_integers, as_tensor
from evenly.engine.evaluation import check_labels
from evenly.engine.losses import losses, predictions
from evenly.errors import EvenlyError
from evenly.values import Value


@dataclass(frozen=True)
class GroupAccuracy:
    """Accuracy per group (NaN where a group has no example), counts, the worst group, both averages.

    `names` are the groups' names, in the order of the numbers, where names were given.
    """

    per_group: Tensor
    counts: Tensor
    worst: float
    worst_group: int
    mean: float
    weighted: float | None
    names: tuple[str, ...] = ()


@frozen
class Measured(Value):
    """What a network reached on a split. The fields from `worst_group` on are there where there are groups."""

    accuracy: float
    loss: float | None
    worst_class: float | None
    worst_group: float | None = None
    train_weighted: float | None = None
    groups: tuple[float | None, ...] = ()
    group_counts: tuple[int, ...] = ()
    group_intervals: tuple[tuple[float, float] | None, ...] = ()

    def metric(self, name: str) -> float | None:
        """A metric by its name."""
        value: float | None = getattr(self, name)
        return value

    def row(self) -> dict[str, Any]:
        """What the line of an epoch has: no intervals, and nothing by group where there are no groups."""
        values = self.to_dict()
        names = ("accuracy", "loss", "worst_class", "worst_group", "train_weighted", "groups", "group_counts")
        return {name: values[name] for name in (names if self.groups else names[:3])}


@frozen
class Usage(Value):
    """Which training examples a run saw up to the epoch whose weights are used: how many different ones, how often in
    all; by group where there are groups."""

    examples: int
    shown: int
    groups: tuple[float, ...] = ()
    groups_shown: tuple[float, ...] = ()


def group_accuracy(outputs: Any, labels: Any, groups: Any, train_groups: Any = None) -> GroupAccuracy:
    """Accuracy of each group, the worst, and both averages. Time and memory grow with N + G.

    Args:
        outputs: logits (N, K), (N, 1) or (N,); whole numbers (N,) are predicted classes.
        labels: (N,), from 0.
        groups: integers or names (N,), or boolean (N, G) where groups overlap.
        train_groups: the training set's groups, in the same form; without it there is no weighted average.
    """
    right = hits(outputs, labels)
    if groups is None or (train_groups is not None and not len(train_groups)):
        raise EvenlyError(
            f"{'groups are None' if groups is None else 'train_groups are empty'}; give one for each example"
        )
    groups, train_groups, names = _numbered(groups, train_groups)
    groups = as_groups(groups, "groups", len(right))
    train_groups = None if train_groups is None else as_groups(train_groups, "train_groups", len(train_groups))
    if train_groups is not None and train_groups.shape[1:] != groups.shape[1:]:
        raise EvenlyError(
            f"train_groups of shape {tuple(train_groups.shape)} do not go with groups {tuple(groups.shape)}; give both "
            "as integers, or both as booleans with a column for each group"
        )
    return _by_group(right, groups, train_groups, names)


def hits(outputs: Any, labels: Any) -> Tensor:
    """(N,) whether each example is classified right; outputs and labels as in `group_accuracy`."""
    outputs = outputs if isinstance(outputs, Tensor) else as_tensor(outputs, "outputs")
    if outputs.ndim not in (1, 2) or not outputs.numel():
        raise EvenlyError(f"outputs have shape {tuple(outputs.shape)}; give logits (N, K) or predicted classes (N,)")
    labels = as_integers(labels, "labels", len(outputs)).to(outputs.device)
    if count := int(torch.isnan(outputs).reshape(len(outputs), -1).any(1).sum()):
        raise EvenlyError(f"outputs hold NaN for {count} of {len(outputs)} examples; leave them out, or mend the model")
    right: Tensor = _predicted(outputs, labels) == labels
    return right


def _predicted(outputs: Tensor, labels: Tensor) -> Tensor:
    """The predicted classes (N,); labels that are none of the classes are refused."""
    if outputs.is_floating_point() or outputs.ndim == 2:
        check_labels(outputs, labels)
        return predictions(outputs)
    predicted = outputs.long()
    if (least := int(min(predicted.min(), labels.min()))) < 0:
        raise EvenlyError(f"{least} is no class; number classes from 0, and give outputs that are logits as floats")
    return predicted


def _by_group(
    right: Tensor, groups: Tensor, train_groups: Tensor | None = None, names: tuple[str, ...] = ()
) -> GroupAccuracy:
    groups = groups.to(right.device)
    count = max(_count(groups), 0 if train_groups is None else _count(train_groups))
    train_counts = None if train_groups is None else _totals(train_groups, count)
    mean = float(right.double().mean())
    return accuracy_from_counts(_totals(groups, count, right), _totals(groups, count), mean, train_counts, names)


def accuracy_from_counts(
    right: Tensor, counts: Tensor, mean: float, train_counts: Tensor | None = None, names: tuple[str, ...] = ()
) -> GroupAccuracy:
    """Accuracy by group of what was counted.

    Args:
        right: (G,) how many examples of each group are classified right, of `counts` (G,).
        mean: the accuracy over all examples.
        train_counts: (G,) how many examples of each group are in training.
    """
    per_group = right.double() / counts
    present = counts > 0
    weighted = None
    if train_counts is not None:
        share = train_counts.double().to(right.device) * present
        weighted = float((share * per_group.nan_to_num()).sum() / share.sum()) if bool(share.any()) else None
    masked = torch.where(present, per_group, torch.inf)
    return GroupAccuracy(per_group, counts, float(masked.min()), int(masked.argmin()), mean, weighted, names)


def _numbered(groups: Any, train_groups: Any) -> tuple[Any, Any, tuple[str, ...]]:
    """Groups given by name as numbers, in the order of the names, and the names."""
    if isinstance(groups, Tensor) or np.asarray(groups).dtype.kind not in "OUS":
        return groups, train_groups, ()
    own = np.asarray(groups).astype(str)
    others = own[:0] if train_groups is None else np.asarray(train_groups).astype(str)
    names, numbers = np.unique(np.concatenate([own, others]), return_inverse=True)
    return numbers[: len(own)], None if train_groups is None else numbers[len(own) :], tuple(names.tolist())


ENOUGH = 50
"""Examples of a validation group by which an epoch can be chosen: the standard error of its accuracy is 7 points or
less."""


def wilson(count: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """The two-sided interval of Wilson (1927) for a share, `count` of `n`."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    z2 = z**2
    centre = (count + z2 / 2) / (n + z2)
    half = z / (n + z2) * math.sqrt(count * (n - count) / n + z2 / 4)
    return max(0.0, centre - half) if count else 0.0, min(1.0, centre + half) if count < n else 1.0


def standard_error(share: float, n: int) -> float:
    """Of a share of n examples, by Agresti and Coull (1998): with two successes and two failures added, so that n of n
    has one, too."""
    adjusted = (share * n + 2) / (n + 4)
    return math.sqrt(adjusted * (1 - adjusted) / (n + 4))


def intervals(shares: Sequence[float | None], counts: Sequence[int]) -> tuple[tuple[float, float] | None, ...]:
    """Wilson's 95% interval of each group's share of right answers; None where a group has no example."""
    pairs = zip(shares, counts, strict=True)
    return tuple(None if share is None or not n else wilson(round(share * n), n) for share, n in pairs)


def usage(seen_counts: Tensor, data: Data) -> Usage:
    """Where the examples that were trained on came from.

    Args:
        seen_counts: (N,) how often each training example was seen.
    """
    examples, shown = int((seen_counts > 0).sum()), int(seen_counts.sum())
    if (groups := data.train.measured_groups) is None:
        return Usage(examples, shown)
    groups, count = groups.cpu(), len(data.measured_names)
    by_group = (_totals(groups, count, weight).tolist() for weight in (seen_counts > 0, seen_counts))
    return Usage(examples, shown, *map(tuple, by_group))


def measure(outputs: Tensor, split: Split, data: Data) -> Measured:
    """What is reported of a split: accuracy, loss, worst class, and by group where there are groups."""
    labels = split.labels
    if bool(torch.isnan(outputs).any()):
        raise EvenlyError(
            f"the model gives NaN on {int(torch.isnan(outputs).flatten(1).any(1).sum())} {split.name} examples in eval "
            "mode; look at its inputs, or train with a lower learning rate"
        )
    right = predictions(outputs) == labels
    by_class = _by_group(right, labels)
    loss = float(losses(outputs, labels).double().mean())
    reached = Measured(by_class.mean, loss if math.isfinite(loss) else None, by_class.worst)  # JSON has no infinity
    if split.measured_groups is None:
        return reached
    by_group = _by_group(right, split.measured_groups, data.train.measured_groups)
    unseen = [0] * (len(data.measured_names) - len(by_group.counts))
    counts = by_group.counts.tolist() + unseen
    shares = [a if n else None for a, n in zip(by_group.per_group.tolist() + unseen, counts, strict=True)]
    return evolve(
        reached,
        worst_group=by_group.worst,
        train_weighted=by_group.weighted,
        groups=tuple(shares),
        group_counts=tuple(counts),
    )


def check_groups(data: Data) -> None:
    """Refuse to choose an epoch by the worst group where validation lacks a group that training has."""
    names, unseen = data.measured_names, unseen_groups(data)
    if unseen:
        others = len(unseen) - 1
        more = f" (nor {'has 1 more group' if others == 1 else f'have {others} more groups'})" if others else ""
        raise EvenlyError(
            f"{names[unseen[0]]!r} has no validation example{more}, so select 'worst-group' cannot see it; use "
            "select='worst-class' or 'average', or hold out some of its examples"
        )


def unseen_groups(data: Data) -> list[int]:
    """The groups that training has and validation, which must be there, has not."""
    count = len(data.measured_names)
    in_train, held_out = (_totals(split.measured_groups, count) for split in (data.train, data.validation))
    return ((in_train > 0) & (held_out == 0)).nonzero().flatten().tolist()


def small_group(data: Data, rule: str) -> str | None:
    """Why a rule that goes by groups cannot be relied on: its smallest group in validation, which must be there.

    None where every group has `ENOUGH` examples.
    """
    sizes = _totals(data.validation.measured_groups, len(data.measured_names))
    least = int(sizes[sizes > 0].min())
    if least >= ENOUGH:
        return None
    name, error = data.measured_names[sizes.tolist().index(least)], 100 * standard_error(0.5, least)
    return (
        f"select {rule!r} goes by groups of validation, where {name!r} has {least} example{'s' * (least != 1)}: the "
        f"standard error of its accuracy is up to {error:.0f} points; hold out more, or use select='average'"
    )


def _count(groups: Tensor) -> int:
    return groups.shape[1] if groups.ndim == 2 else int(groups.max()) + 1 if len(groups) else 0


def _totals(groups: Tensor, count: int, weights: Tensor | None = None) -> Tensor:
    """How many examples each group has (G,), or the sum of their whole-numbered weights (N,)."""
    weights = torch.ones(len(groups), dtype=torch.bool, device=groups.device) if weights is None else weights
    if groups.ndim == 2:  # a column at a time: numbers of the matrix's size would take eight times its memory
        return torch.stack([weights[column].sum() for column in groups.T])
    return torch.zeros(count, dtype=torch.long, device=groups.device).index_add(0, groups, weights.long())
