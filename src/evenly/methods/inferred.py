"""Groups for data that has none: each class in two, by what an early network made of its examples.

An early network knows the easy features and little else. Either what USEFUL calls hard stands apart (the higher-loss of
two clusters of its outputs), or EIIL's second environment does (a larger scale of its outputs raises the loss). Group
2k holds the rest of class k, group 2k + 1 what stands apart.

Validation examples are put into groups by the same network and the same rule: an example joins the cluster of its
class whose mean is nearer, or the environment that the sign of its derivative names. The test set is left alone. Where
true groups are known, they serve to measure what was reached and are kept from training and selection.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from attrs import evolve, frozen
from torch import Tensor, nn

from evenly.data import Data, Split
from evenly.engine import FORWARD, Fit, probabilities
from evenly.engine.accuracy import small_group, unseen_groups
from evenly.engine.checkpoints import Saved
from evenly.methods.early import finite, train_early
from evenly.methods.eiil import second_environment
from evenly.methods.registry import Factory
from evenly.methods.useful import check_splittable, hard_examples
from evenly.settings import BY_GROUP
from evenly.values import Value

Infer = Literal["useful", "eiil"]
NAMES = {"useful": ("easy", "hard"), "eiil": ("first environment", "second environment")}


@frozen
class Minority(Value):
    """The smallest true group: `inferred` is the group that holds most of it, `recall` the share of it that is in
    there, `precision` its share of that group."""

    group: int
    inferred: float
    recall: float
    precision: float


@frozen
class Match(Value):
    """How well inferred groups match the true ones.

    `adjusted_mutual_information` is 1 where they are the same and about 0 where they have nothing to do with each
    other. `purity` has for each true group (None if it is empty) the largest share of it that one inferred group holds.
    """

    adjusted_mutual_information: float
    purity: tuple[float | None, ...]
    minority: Minority


@frozen
class InferredGroups(Value):
    """Groups that were inferred: how, after how many epochs, at what cost, and their sizes in training."""

    by: str
    epoch: float
    cost: float
    names: tuple[str, ...]
    counts: tuple[float, ...]
    without_validation: tuple[str, ...] = ()
    match: Match | None = None


@frozen(eq=False)
class Inferred:
    """What was inferred.

    Args:
        data: the data with the inferred groups of training and validation in place of its own; without a test set.
        rule: "useful" or "eiil".
        epoch: how long the early network was trained.
        cost: example-gradients spent on it, a forward pass over training and validation included.
        known: the data's own groups of the training set, or None.
        network: the early network.
        assign: from another split to its groups (N,), by the same network and the same rule.
    """

    data: Data
    rule: Infer
    epoch: int
    cost: float
    known: Tensor | None
    network: nn.Module
    assign: Callable[[Split], Tensor]

    def summary(self) -> InferredGroups:
        """For the results: how they came about, their sizes, and how well they match the true ones where known."""
        groups, data = self.data.train.groups, self.data
        counts = torch.bincount(groups, minlength=data.group_count).tolist()
        unseen = [] if data.validation is None else [data.measured_names[g] for g in unseen_groups(data)]
        known = None if self.known is None else match(groups, self.known)
        names = tuple(map(str, data.group_names or ()))
        return InferredGroups(self.rule, self.epoch, self.cost, names, tuple(counts), tuple(unseen), known)

    def doubts(self, select: str) -> list[str]:
        """What is wrong with the groups, a sentence each: no class fell in two, or a rule that cannot see some."""
        counts = torch.bincount(self.data.train.groups, minlength=self.data.group_count)
        doubts = []
        if not bool(((counts[::2] > 0) & (counts[1::2] > 0)).any()):
            other = "useful" if self.rule == "eiil" else "eiil"
            doubts.append(
                f"no class fell in two by infer {self.rule!r}, so groups are the classes; try infer={other!r}"
            )
        if select in BY_GROUP and (unseen := unseen_groups(self.data)):
            names = ", ".join(repr(self.data.measured_names[g]) for g in unseen[:3]) + ", ..." * (len(unseen) > 3)
            doubts.append(
                f"{len(unseen)} of {int((counts > 0).sum())} inferred groups ({names}) "
                f"{'has' if len(unseen) == 1 else 'have'} no validation example, so select {select!r} cannot see "
                f"{'it' if len(unseen) == 1 else 'them'}; hold out more examples, or use select='worst-class'"
            )
        elif select in BY_GROUP and (small := small_group(self.data, select)) is not None:
            doubts.append(small)
        return doubts


def infer_groups(model: Factory, data: Data, fit: Fit, rule: Infer = "useful") -> Inferred:
    """Train an early network, until the drop in training loss has shrunk, and put every class's examples in two groups.

    A class that nothing stands apart in is one group. The early fit is a stage of its own, "groups".
    """
    if rule == "useful":
        check_splittable(data.train.labels, names=data.class_names)
    early = train_early(model, data, evolve(fit, budget=None), None, stage="groups")

    def compute() -> Saved:
        outputs = {"train": early.outputs()}
        if data.validation is not None:
            outputs["validation"] = finite(early.trained.outputs(data.validation))
            early.cost += FORWARD * len(data.validation)
        labels = {name: data.splits[name].labels for name in outputs}
        apart = hard_in_each(outputs, labels, fit.seed) if rule == "useful" else second_in_each(outputs, labels)
        return {"cost": early.cost, **{name: 2 * labels[name] + apart[name] for name in outputs}}

    saved = fit.load_or_compute("groups_found", compute)
    classes = data.class_names or [f"class {k}" for k in range(data.classes)]
    names = [f"{name}, {kind}" for name in classes for kind in NAMES[rule]]
    grouped = with_groups(data, {name: saved[name] for name in ("train", "validation") if name in saved}, names)

    def assign(split: Split) -> Tensor:
        outputs, labels = finite(early.trained.outputs(split)), split.labels
        if rule == "eiil":
            return 2 * labels + second_in_each({split.name: outputs}, {split.name: labels})[split.name]
        train = finite(early.trained.outputs(data.train))
        return 2 * labels + nearer_cluster(train, data.train.labels, saved["train"] % 2, outputs, labels)

    trained, known = early.trained, data.train.groups
    return Inferred(grouped, rule, len(trained.history), saved["cost"], known, trained.model, assign)


def by_class(data: Data) -> Data:
    """The data with its classes for groups: what `Method.check` gets before groups are inferred."""
    return with_groups(data, {name: split.labels for name, split in data.splits.items()}, None)


def hard_in_each(outputs: dict[str, Tensor], labels: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """1 for what is hard, by split (N,): USEFUL's clusters on "train", the nearer of their means elsewhere."""
    hard = torch.zeros_like(labels["train"])
    hard[hard_examples(outputs["train"], labels["train"], seed=seed)] = 1
    train = outputs["train"], labels["train"], hard
    others = outputs.keys() - {"train"}
    return {"train": hard} | {name: nearer_cluster(*train, outputs[name], labels[name]) for name in others}


def nearer_cluster(
    train_outputs: Tensor, train_labels: Tensor, hard: Tensor, outputs: Tensor, labels: Tensor
) -> Tensor:
    """(N,) 1 for other examples that are nearer to the mean of what is hard of their class than to that of the rest.

    Args:
        train_outputs: (M, K) of the clustered examples; `hard` (M,) is 1 in the higher-loss cluster.
        outputs: (N, K) of the others.
    """
    clustered, points = probabilities(train_outputs.double()), probabilities(outputs.double())
    nearer = torch.zeros_like(labels)
    for label in train_labels[hard == 1].unique():
        means = torch.stack([clustered[(train_labels == label) & (hard == kind)].mean(0) for kind in (0, 1)])
        own = labels == label
        nearer[own] = torch.cdist(points[own], means).argmin(1)
    return nearer


def second_in_each(outputs: dict[str, Tensor], labels: dict[str, Tensor]) -> dict[str, Tensor]:
    """1 for what is in EIIL's second environment, by split (N,)."""
    in_each = {name: torch.zeros_like(labels[name]) for name in outputs}
    for name, second in in_each.items():
        second[second_environment(outputs[name], labels[name])] = 1
    return in_each


def match(inferred: Tensor, true: Tensor) -> Match:
    """How well inferred groups (N,) match the true ones: (N,), or (N, G) where they overlap, then by combination."""
    from sklearn.metrics import adjusted_mutual_info_score

    true = true.cpu() if true.ndim == 1 else true.cpu().unique(dim=0, return_inverse=True)[1]
    table = torch.zeros(int(true.max()) + 1, int(inferred.max()) + 1, dtype=torch.long)
    table.index_put_((true, inferred), torch.tensor(1), accumulate=True)
    sizes = table.sum(1)
    smallest = int(torch.where(sizes > 0, sizes, len(true) + 1).argmin())
    fullest = int(table[smallest].argmax())
    shared = int(table[smallest, fullest])
    return Match(
        float(adjusted_mutual_info_score(true.numpy(), inferred.numpy())),
        tuple(int(row.max()) / int(n) if n else None for row, n in zip(table, sizes, strict=True)),
        Minority(smallest, fullest, shared / int(sizes[smallest]), shared / int(table[:, fullest].sum())),
    )


def with_groups(data: Data, groups: Mapping[str, Tensor], names: Sequence[str] | None) -> Data:
    """The data with these groups (N,) by split for its own, and without the splits that have none."""

    def grouped(split: Split | None) -> Split | None:
        if split is None or split.name not in groups:
            return None
        changed = copy.copy(split)
        changed.groups, changed.evaluation_groups = groups[split.name], None
        return changed

    return replace(
        data,
        train=grouped(data.train),
        validation=grouped(data.validation),
        test=grouped(data.test),
        group_names=names,
        evaluation_group_names=None,
    )
