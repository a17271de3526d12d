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

import torch
from torch import Tensor

from evenly.data.contract import Data, Split
from evenly.engine.losses import losses, predictions
from evenly.errors import EvenlyError


@dataclass(frozen=True)
class GroupAccuracy:
    """Accuracy per group (NaN where a group has no example), counts, the worst group, both averages."""

    per_group: Tensor
    counts: Tensor
    worst: float
    worst_group: int
    mean: float
    weighted: float | None


def group_accuracy(outputs: Any, labels: Any, groups: Any, train_groups: Any = None) -> GroupAccuracy:
    """Accuracy of each group, the worst, and both averages.

    Args:
        outputs: logits (N, K), (N, 1) or (N,).
        labels: (N,).
        groups: integers (N,), or boolean (N, G) where groups overlap.
        train_groups: the training set's groups, in the same form; without it there is no weighted average.
    """
    outputs, labels = torch.as_tensor(outputs), torch.as_tensor(labels)
    if labels.ndim != 1 or len(labels) != len(outputs) or not len(labels):
        raise EvenlyError(
            f"labels of shape {tuple(labels.shape)} do not go with outputs {tuple(outputs.shape)}; give (N,) and (N, K)"
        )
    if torch.as_tensor(groups).ndim == 1 and int(torch.as_tensor(groups).min()) < 0:
        raise EvenlyError(f"groups hold {int(torch.as_tensor(groups).min())}; number the groups from 0")
    right = (predictions(outputs) == labels).double()
    train_groups = None if train_groups is None else torch.as_tensor(train_groups)
    count = max(_count(torch.as_tensor(groups)), 0 if train_groups is None else _count(train_groups))
    members = _members(torch.as_tensor(groups), count).to(right.device)
    if len(members) != len(right):
        raise EvenlyError(f"{len(members)} groups for {len(right)} examples; give one group for each")
    counts = members.sum(0)
    per_group = (members.double().T @ right) / counts
    present = counts > 0
    weighted = None
    if train_groups is not None:
        share = _members(train_groups, count).sum(0).double().to(right.device) * present
        weighted = float((share * per_group.nan_to_num()).sum() / share.sum()) if bool(share.any()) else None
    masked = torch.where(present, per_group, torch.inf)
    return GroupAccuracy(per_group, counts, float(masked.min()), int(masked.argmin()), float(right.mean()), weighted)


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


def intervals(shares: Sequence[float | None], counts: Sequence[int]) -> list[list[float] | None]:
    """Wilson's 95% interval of each group's share of right answers; None where a group has no example."""
    return [None if a is None or not n else list(wilson(round(a * n), n)) for a, n in zip(shares, counts, strict=True)]


def usage(seen_counts: Tensor, data: Data) -> dict[str, Any]:
    """Where the examples that were trained on came from: how many different ones, how often they were seen in all.

    Args:
        seen_counts: (N,) how often each training example was seen.
    """
    used = {"examples": int((seen_counts > 0).sum()), "shown": int(seen_counts.sum())}
    if data.train.measured_groups is None:
        return used
    members = _members(data.train.measured_groups.cpu(), len(data.measured_names)).long()
    by_group = {"groups": (seen_counts > 0).long() @ members, "groups_shown": seen_counts @ members}
    return used | {key: value.tolist() for key, value in by_group.items()}


def measure(outputs: Tensor, split: Split, data: Data) -> dict[str, Any]:
    """What is reported of a split: accuracy, loss, worst class, and by group where there are groups."""
    labels = split.labels
    if bool(torch.isnan(outputs).any()):
        raise EvenlyError(
            f"the model gives NaN on {int(torch.isnan(outputs).flatten(1).any(1).sum())} {split.name} examples in eval "
            "mode; look at its inputs, or train with a lower learning rate"
        )
    by_class = group_accuracy(outputs, labels, labels)
    loss = float(losses(outputs, labels).double().mean())
    row: dict[str, Any] = {
        "accuracy": by_class.mean,
        "loss": loss if math.isfinite(loss) else None,  # JSON has no infinity
        "worst_class": by_class.worst,
    }
    if split.measured_groups is not None:
        by_group = group_accuracy(outputs, labels, split.measured_groups, data.train.measured_groups)
        unseen = [0] * (len(data.measured_names) - len(by_group.counts))
        row |= {
            "worst_group": by_group.worst,
            "train_weighted": by_group.weighted,
            "groups": [
                None if n == 0 else a
                for a, n in zip(by_group.per_group.tolist() + unseen, by_group.counts.tolist() + unseen, strict=True)
            ],
            "group_counts": by_group.counts.tolist() + unseen,
        }
    return row


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
    in_train, held_out = (_members(split.measured_groups, count).sum(0) for split in (data.train, data.validation))
    return ((in_train > 0) & (held_out == 0)).nonzero().flatten().tolist()


def small_group(data: Data, rule: str) -> str | None:
    """Why a rule that goes by groups cannot be relied on: its smallest group in validation, which must be there.

    None where every group has `ENOUGH` examples.
    """
    sizes = _members(data.validation.measured_groups, len(data.measured_names)).sum(0)
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


def _members(groups: Tensor, count: int) -> Tensor:
    """Boolean membership (N, G)."""
    if groups.ndim == 2:
        return groups.bool()
    return groups[:, None] == torch.arange(count, device=groups.device)
