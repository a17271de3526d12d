"""Groups for data that has none: each class in two, by what an early network made of its examples.

An early network knows the easy features and little else. Either what USEFUL calls hard stands apart (the costlier of
two clusters of its outputs), or EIIL's second environment does (a larger scale of its outputs costs more). Group 2k
holds the rest of class k, group 2k + 1 what stands apart.

Validation examples are put into groups by the same network and the same rule: an example joins the cluster of its
class whose mean is nearer, or the environment that the sign of its derivative names. The test set is left alone. Where
true groups are known, they serve to measure what was reached and are kept from training and selection.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from evenly.data import Data, Split
from evenly.engine import FORWARD, Fit, probabilities
from evenly.engine.accuracy import unseen_groups
from evenly.methods.early import finite, train_early
from evenly.methods.eiil import second_environment
from evenly.methods.kept import kept
from evenly.methods.registry import Factory, Method
from evenly.methods.useful import hard_examples, splittable

Infer = Literal["useful", "eiil"]
NAMES = {"useful": ("easy", "hard"), "eiil": ("first environment", "second environment")}


@dataclass(frozen=True)
class Inferred:
    """What was inferred.

    Args:
        data: the data with the inferred groups of training and validation in place of its own; without a test set.
        by: "useful" or "eiil".
        epoch: how long the early network was trained.
        cost: example-gradients spent on it, a forward pass over training and validation included.
        known: the data's own groups of the training set, or None.
    """

    data: Data
    by: Infer
    epoch: int
    cost: float
    known: Tensor | None

    def summary(self) -> dict[str, Any]:
        """For the results: how they came about, their sizes, and how well they match the true ones where known."""
        groups = self.data.train.groups
        counts = torch.bincount(groups, minlength=self.data.group_count).tolist()
        row = {"by": self.by, "epoch": self.epoch, "cost": self.cost, "names": self.data.group_names, "counts": counts}
        if self.data.validation is not None:
            row["without_validation"] = [self.data.measured_names[g] for g in unseen_groups(self.data)]
        return row if self.known is None else {**row, "match": match(groups, self.known)}

    def doubts(self, select: str) -> list[str]:
        """What is wrong with the groups, a sentence each: no class fell in two, or a rule that cannot see some."""
        counts = torch.bincount(self.data.train.groups, minlength=self.data.group_count)
        found = []
        if not bool(((counts[::2] > 0) & (counts[1::2] > 0)).any()):
            other = "useful" if self.by == "eiil" else "eiil"
            found.append(f"no class fell in two by infer {self.by!r}, so groups are the classes; try infer={other!r}")
        if select == "worst-group" and (unseen := unseen_groups(self.data)):
            shown = ", ".join(repr(self.data.measured_names[g]) for g in unseen[:3]) + ", ..." * (len(unseen) > 3)
            found.append(
                f"{len(unseen)} of {int((counts > 0).sum())} inferred groups ({shown}) "
                f"{'has' if len(unseen) == 1 else 'have'} no validation example, so select 'worst-group' cannot see "
                f"{'it' if len(unseen) == 1 else 'them'}; hold out more examples, or use select='worst-class'"
            )
        return found


def infer_groups(model: Factory, data: Data, fit: Fit, by: Infer = "useful") -> Inferred:
    """Train an early network, until the drop in training loss has shrunk, and put every class's examples in two groups.

    A class that nothing stands apart in is one group. The early fit is a stage of its own, "groups".
    """
    if by == "useful":
        splittable(data.train.labels)
    early = train_early(model, data, replace(fit, budget=None), None, stage="groups")

    def make() -> dict[str, Any]:
        outputs = {"train": early.outputs()}
        if data.validation is not None:
            outputs["validation"] = finite(early.run.outputs(data.validation))
            early.cost += FORWARD * len(data.validation)
        labels = {name: data.splits[name].labels for name in outputs}
        apart = hard_in_each(outputs, labels, fit.seed) if by == "useful" else second_in_each(outputs, labels)
        return {"cost": early.cost, **{name: 2 * labels[name] + apart[name] for name in outputs}}

    found = kept(fit, "groups_found", make)
    classes = data.class_names or [f"class {k}" for k in range(data.classes)]
    grouped = replace(
        data,
        train=_with(data.train, found["train"]),
        validation=None if data.validation is None else _with(data.validation, found["validation"]),
        test=None,
        group_names=[f"{name}, {kind}" for name in classes for kind in NAMES[by]],
        evaluation_group_names=None,
    )
    return Inferred(grouped, by, len(early.run.history), found["cost"], data.train.groups)


def rehearse(method: Method, model: Factory, data: Data, fit: Fit, options: Mapping[str, Any]) -> None:
    """Let a method refuse what it is asked before groups are inferred for it: up to its first fit, by class instead."""
    splits: dict[str, Any] = {name: _with(split, split.labels) for name, split in data.splits.items() if name != "test"}
    by_class = replace(data, **splits, test=None, group_names=None, evaluation_group_names=None)
    settings = {field.name: getattr(fit, field.name) for field in fields(fit)} | {"inferred": True}
    with suppress(_BeginsError):
        method(model, by_class, _Rehearsal(**settings), **options)


class _BeginsError(Exception):
    """A method has nothing to refuse and begins to train."""


class _Rehearsal(Fit):
    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise _BeginsError


def hard_in_each(outputs: dict[str, Tensor], labels: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """1 for what is hard, by split (N,): USEFUL's clusters on "train", the nearer of their means elsewhere."""
    hard = torch.zeros_like(labels["train"])
    hard[hard_examples(outputs["train"], labels["train"], seed=seed)] = 1
    known = probabilities(outputs["train"].double())
    found = {"train": hard}
    for name in outputs.keys() - {"train"}:
        points, found[name] = probabilities(outputs[name].double()), torch.zeros_like(labels[name])
        for label in labels["train"][hard == 1].unique():
            means = torch.stack([known[(labels["train"] == label) & (hard == kind)].mean(0) for kind in (0, 1)])
            own = labels[name] == label
            found[name][own] = torch.cdist(points[own], means).argmin(1)
    return found


def second_in_each(outputs: dict[str, Tensor], labels: dict[str, Tensor]) -> dict[str, Tensor]:
    """1 for what is in EIIL's second environment, by split (N,)."""
    found = {name: torch.zeros_like(labels[name]) for name in outputs}
    for name, second in found.items():
        second[second_environment(outputs[name], labels[name])] = 1
    return found


def match(inferred: Tensor, true: Tensor) -> dict[str, Any]:
    """How well inferred groups (N,) match the true ones: (N,), or (N, G) where they overlap, then by combination.

    `adjusted_mutual_information` is 1 where they are the same and about 0 where they have nothing to do with each
    other. `purity` has for each true group (None if it is empty) the largest share of it that one inferred group holds.
    `minority` tells of the smallest true group: `inferred`, the group that holds most of it, `recall`, the share of it
    that is in there, and `precision`, its share of that group.
    """
    from sklearn.metrics import adjusted_mutual_info_score

    true = true.cpu() if true.ndim == 1 else true.cpu().unique(dim=0, return_inverse=True)[1]
    table = torch.zeros(int(true.max()) + 1, int(inferred.max()) + 1, dtype=torch.long)
    table.index_put_((true, inferred), torch.tensor(1), accumulate=True)
    sizes = table.sum(1)
    smallest = int(torch.where(sizes > 0, sizes, len(true) + 1).argmin())
    fullest = int(table[smallest].argmax())
    held = int(table[smallest, fullest])
    return {
        "adjusted_mutual_information": float(adjusted_mutual_info_score(true.numpy(), inferred.numpy())),
        "purity": [int(row.max()) / int(n) if n else None for row, n in zip(table, sizes, strict=True)],
        "minority": {
            "group": smallest,
            "inferred": fullest,
            "recall": held / int(sizes[smallest]),
            "precision": held / int(table[:, fullest].sum()),
        },
    }


def _with(split: Split, groups: Tensor) -> Split:
    """The split with these groups (N,) for its own."""
    changed = copy.copy(split)
    changed.groups, changed.evaluation_groups = groups, None
    return changed
