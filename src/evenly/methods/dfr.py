"""DFR: deep feature reweighting (Kirichenko, Izmailov, Wilson 2023, section 5).

1. Train the network by ERM; its features are what its last linear layer is given.
2. Draw a group-balanced subset, every group cut down to the size of the smallest, and fit a logistic regression with
   an L1 penalty to its standardised features; average the coefficients over several draws.
3. Put them in the place of the last layer.

`on` says whose group-balanced draws: those of training (DFR-Tr, 10 of them) or of validation (DFR-Val, 20). As in the
authors' code, features are scaled by the mean and deviation of the training set, and the strength of the penalty is the
first with the best worst group. DFR-Tr measures it on validation; where there is none, on a half of training that was
held out, though nearly every strength does well on examples that the features know by heart. DFR-Val measures it on a
half of validation that was held out from the other, by whose draw the features are then scaled. Every group is halved,
so that none is missing: that is evenly's own. A rule that selects an epoch by validation uses it twice. Accuracy on
validation is no test of a layer that was trained there. The test set is not used.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from evenly.data import Data, ProgressiveExpansion, Split
from evenly.data.samplers import members_by_group
from evenly.engine import FORWARD, Fit, Selection, Trained, group_accuracy
from evenly.engine.batches import Batches
from evenly.engine.checkpoints import Saved
from evenly.engine.evaluation import linear_layers, outputs_of
from evenly.errors import EvenlyError, SettingError
from evenly.methods.registry import Factory, method
from evenly.randomness import derive, generator
from evenly.settings import Settings, at_least, at_most

STRENGTHS = (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)
"""Inverse strengths of the penalty to choose from, the authors' for Waterbirds; CelebA's are in its recipe."""

DRAWS = {"train": 10, "validation": 20}
"""The authors' numbers of group-balanced draws."""

MOST_DRAWS = 10_000

On = Literal["train", "validation"]

FITTED_TO = {
    "train": "training examples",
    "validation": "validation examples, so that accuracy on validation is no test of it",
}


def check(
    data: Data, settings: Settings, on: On, draws: int | None, strengths: Sequence[float], seed: int, **_: object
) -> None:
    """Refuse a split that is not there, is all there is to measure on, or whose draws would lack a class."""
    split = data.splits.get(on)
    if split is None:
        raise EvenlyError("on 'validation' needs a validation set and there is none; use on='train'")
    if on == "validation" and data.test is None and settings.groups != "infer":  # inferring sets the test set aside
        raise EvenlyError(
            "on 'validation' fits the last layer there, so that nothing is left to measure it on; give a test set, or "
            "use on='train'"
        )
    if not strengths or min(strengths) <= 0:
        raise SettingError("strengths", list(strengths), "numbers above 0, at least one")
    labels, names = split.labels.cpu(), data.class_names or range(data.classes)
    if (missing := missing_class(labels, data.classes)) is not None:
        raise EvenlyError(f"class {names[missing]} has no {on} example to fit a last layer to; use on='train'")
    tuned, held_out, sets = balanced_draws(data, on, draws or DRAWS[on], seed)
    for members in [tuned, *sets] if len(held_out) else sets:
        if (missing := missing_class(labels[members], data.classes)) is not None:
            raise EvenlyError(
                f"a group-balanced draw of {len(members)} examples holds none of class {names[missing]}; make the "
                "groups of one class each, or give the smallest one more examples"
            )


@method(needs_groups=True, check=check)
def dfr(
    model: Factory,
    data: Data,
    fit: Fit,
    *,
    on: On = "train",
    draws: Annotated[int | None, at_least(1), at_most(MOST_DRAWS)] = None,
    strengths: Sequence[float] = STRENGTHS,
) -> Trained:
    """Train by ERM, then fit the last layer anew to group-balanced data, of training or of validation.

    Where not given, `draws` is 10 on training and 20 on validation. `strengths` are the inverse strengths of the L1
    penalty to choose from.
    """
    draws = DRAWS[on] if draws is None else draws
    name = output_layer(model(), data.train)
    trained = fit(model(), data)
    splits = [data.train] if data.validation is None else [data.train, data.validation]

    def compute() -> Saved:
        features = {split.name: trained.features(split).double() for split in splits}
        return last_layer(features, data, on, draws, strengths, fit.seed)

    saved = fit.load_or_compute("last_layer", compute)
    # the features, and the example that showed where the last layer is
    trained.cost += FORWARD * (sum(map(len, splits)) + 1)
    layer = trained.model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    replace_weights(layer, saved["weight"], saved["bias"])
    if on == "train":
        used = saved["times_drawn"].nonzero().flatten()
        why = f"in at least one of the {draws} group-balanced draws of training examples that fit the last layer"
    else:
        used = torch.empty(0, dtype=torch.long)
        why = f"the last layer is fitted to {draws} group-balanced draws of validation examples"
    details = {name: saved[name] for name in ("C", "held_out_worst_group", "times_drawn")}
    trained.selection = Selection(used, torch.ones_like(used), why, details)
    trained.remarks = (f"after the epochs the last layer was fitted anew to group-balanced draws of {FITTED_TO[on]}",)
    return trained


def last_layer(
    features: Mapping[str, Tensor], data: Data, on: On, draws: int, strengths: Sequence[float], seed: int
) -> Saved:
    """Step 2 on features (N, D) by split: `weight` (K, D) and `bias` (K,) for features as they are, and how they were
    found.

    `C` is the inverse strength chosen and `held_out_worst_group` what it reached (NaN where no group had an example to
    spare: C is then the first of `strengths`); `times_drawn` (N,) counts the draws that an example was in.
    """
    from sklearn.preprocessing import StandardScaler

    labels = {name: data.splits[name].labels.cpu() for name in features}
    held_on = "validation" if "validation" in features else on
    groups = data.splits[held_on].groups
    assert groups is not None
    tuned, held_out, sets = balanced_draws(data, on, draws, seed)
    scaler = StandardScaler().fit(features["train"].numpy())

    def scaled(split: str, by: StandardScaler = scaler) -> Tensor:
        return torch.from_numpy(by.transform(features[split].numpy()))

    C, reached = strengths[0], [float("nan")]
    if len(held_out):
        half = StandardScaler().fit(features[on][tuned].numpy()) if on == "validation" else scaler
        x, y, to_measure = scaled(on, half)[tuned], labels[on][tuned], scaled(held_on, half)[held_out]
        layers = [regression(x, y, data.classes, strength, seed) for strength in strengths]
        reached = [
            group_accuracy(to_measure @ weight.T + bias, labels[held_on][held_out], groups.cpu()[held_out]).worst
            for weight, bias in layers
        ]
        C = strengths[int(np.argmax(reached))]
    x, y = scaled(on), labels[on]
    layers = [regression(x[members], y[members], data.classes, C, seed) for members in sets]
    weight, bias = (torch.stack(parts).mean(0) for parts in zip(*layers, strict=True))
    weight = weight / torch.from_numpy(scaler.scale_)
    return {
        "weight": weight,
        "bias": bias - weight @ torch.from_numpy(scaler.mean_),
        "C": C,
        "held_out_worst_group": max(reached),
        "times_drawn": torch.bincount(torch.cat(sets), minlength=len(y)),
    }


def regression(x: Tensor, labels: Tensor, classes: int, C: float, seed: int) -> tuple[Tensor, Tensor]:
    """Coefficients (K, D) and intercepts (K,) of an L1 logistic regression, scikit-learn's with liblinear.

    Of two classes one regression, half of it in each row with its sign; of more, each class against the others.
    """
    from sklearn.linear_model import LogisticRegression

    # scikit-learn from 1.8 names the L1 penalty by its share
    named = inspect.signature(LogisticRegression).parameters["penalty"].default == "deprecated"
    penalty: dict[str, Any] = {"l1_ratio": 1.0} if named else {"penalty": "l1"}
    rows = []
    for label in [1] if classes == 2 else range(classes):
        model = LogisticRegression(C=C, solver="liblinear", max_iter=1000, random_state=seed % 2**32, **penalty)
        model.fit(x.numpy(), (labels == label).numpy())
        rows.append(np.append(model.coef_[0], model.intercept_[0]))
    both = torch.from_numpy(np.stack(rows))
    both = torch.cat([-both, both]) / 2 if classes == 2 else both
    return both[:, :-1], both[:, -1]


def halves(groups: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of two halves of every group, drawn at random; the odd one goes to the first."""
    first, second = [], []
    for g, stored in members_by_group(groups).items():
        members = stored[torch.randperm(len(stored), generator=generator(seed, "halves", g))]
        first.append(members[: -(-len(members) // 2)])
        second.append(members[-(-len(members) // 2) :])
    return torch.cat(first), torch.cat(second)


def balanced_draws(data: Data, on: On, draws: int, seed: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Indices into the split `on` of the draw that the strength is chosen by and of the draws that the layer is fitted
    to; between them, of the examples held out to choose by: of validation where there is one."""
    groups = data.splits[on].groups
    assert groups is not None
    groups = groups.cpu()
    sets = [draw(groups, seed, number) for number in range(draws)]
    if on == "train" and data.validation is not None:
        return draw(groups, seed, "strength"), torch.arange(len(data.validation)), sets
    fitted, held_out = halves(groups, seed)
    return fitted[draw(groups[fitted], seed, "half")], held_out, sets


def missing_class(labels: Tensor, classes: int) -> int | None:
    """The first class that is not among labels (M,); None where all are."""
    present = labels.unique()
    return next((k for k in range(classes) if k not in present), None)


def draw(groups: Tensor, seed: int, which: int | str) -> Tensor:
    """Indices of a group-balanced subset."""
    return ProgressiveExpansion(groups, seed=derive(seed, "last layer", which)).members()


def output_layer(model: nn.Module, split: Split) -> str:
    """The name of the linear layer whose outputs are the network's own; refused where there is none."""
    one = copy.copy(split)
    one.inputs = split.inputs[:1] if isinstance(split.inputs, Tensor) else Subset(split.inputs, [0])
    one.labels, one.groups = split.labels[:1], None
    ran: list[tuple[nn.Module, Tensor]] = []

    def watch(layer: nn.Module, inputs: Any, outputs: Tensor) -> None:
        ran.append((layer, outputs.clone()))  # what comes after the layer may write into it

    hooks = [layer.register_forward_hook(watch) for layer in linear_layers(model)]
    try:
        outputs = outputs_of(model, Batches(one, None, torch.device("cpu"), precision="float32"))
    finally:
        for hook in hooks:
            hook.remove()
    if ran and torch.equal(ran[-1][1].flatten(), outputs.flatten()):
        names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
        return names[ran[-1][0]]
    raise EvenlyError(
        f"{type(model).__name__} does not end in a linear layer that could be fitted anew; let its last nn.Linear "
        "return the outputs as they are"
    )


@torch.no_grad()
def replace_weights(layer: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    """Give a linear layer these weights (K, D) and bias (K,); of a single output, the second row less the first."""
    if layer.out_features == 1:
        weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
    layer.weight.copy_(weight)
    layer.bias = nn.Parameter(bias.to(layer.weight))  # it may have had none
