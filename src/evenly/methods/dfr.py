"""DFR: deep feature reweighting (Kirichenko, Izmailov, Wilson 2023, section 5).

1. Train the network by ERM; its features are what its last linear layer is given.
2. Draw a group-balanced subset, every group cut down to the size of the smallest, and fit a logistic regression with
   an L1 penalty to its standardised features; average the coefficients over several draws.
3. Put them in the place of the last layer.

The strength of the penalty is the one with the best worst group on a half of the examples that was held out from the
fits it is chosen by. `on` says which examples: those of training (DFR-Tr) or of validation (DFR-Val). That is not quite
the authors' code, which chooses the strength of DFR-Tr on validation: on training examples, which the features know by
heart, nearly every strength does well. A rule that selects an epoch by validation uses it twice under DFR-Val.
Accuracy on validation is no test of a layer that was trained there. The test set is not used.
"""

from __future__ import annotations

import copy
import inspect
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from evenly.data import Data, ProgressiveExpansion, Split
from evenly.engine import FORWARD, Fit, Selection, Trained, group_accuracy
from evenly.engine.batches import Batches
from evenly.engine.checkpoints import Saved
from evenly.engine.evaluation import linear_layers, outputs_of
from evenly.errors import EvenlyError
from evenly.methods.registry import Factory, method
from evenly.randomness import derive, generator
from evenly.settings import Settings, at_least, at_most

STRENGTHS = (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)
"""Inverse strengths of the penalty to choose from, the paper's."""

MOST_DRAWS = 10_000

FITTED_TO = {
    "train": "training examples",
    "validation": "validation examples, so that accuracy on validation is no test of it",
}


def check(
    data: Data, settings: Settings, on: Literal["train", "validation"], draws: int, seed: int, **_: object
) -> None:
    """Refuse a split that is not there, is all there is to measure on, or whose draws would lack a class."""
    split = data.splits.get(on)
    if split is None:
        raise EvenlyError("on 'validation' needs a validation set and there is none; use on='train'")
    if on == "validation" and data.test is None:
        raise EvenlyError(
            "on 'validation' fits the last layer there, so that nothing is left to measure it on; give a test set, or "
            "use on='train'"
        )
    assert split.groups is not None
    labels = split.labels.cpu()
    if (missing := missing_class(labels, data.classes)) is not None:
        raise EvenlyError(f"class {missing} has no {on} example to fit a last layer to; use on='train'")
    half, held_out, sets = balanced_draws(split.groups.cpu(), draws, seed)
    for members in [half, *sets] if len(held_out) else sets:
        if (missing := missing_class(labels[members], data.classes)) is not None:
            raise EvenlyError(
                f"a group-balanced draw of {len(members)} examples holds none of class {missing}; make the groups of "
                "one class each, or give the smallest one more examples"
            )


@method(needs_groups=True, check=check)
def dfr(
    model: Factory,
    data: Data,
    fit: Fit,
    *,
    on: Literal["train", "validation"] = "train",
    draws: Annotated[int, at_least(1), at_most(MOST_DRAWS)] = 10,
) -> Trained:
    """Train by ERM, then fit the last layer anew to group-balanced data, of training or of validation.

    The features are standardised by the mean and deviation of the whole split; that goes into the layer's weights.
    """
    split = data.splits[on]
    name = output_layer(model(), split)
    trained = fit(model(), data)
    saved = fit.load_or_compute(
        "last_layer", lambda: last_layer(trained.features(split), split, data.classes, draws, fit.seed)
    )
    trained.cost += FORWARD * (len(split) + 1)  # the features, and the example that showed where the last layer is
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


def last_layer(features: Tensor, split: Split, classes: int, draws: int, seed: int) -> Saved:
    """Step 2 on features (N, D): `weight` (K, D) and `bias` (K,) for features as they are, and how they were found.

    `C` is the inverse strength chosen and `held_out_worst_group` what it reached (NaN where no group had an example to
    spare: C is then the first of `STRENGTHS`); `times_drawn` (N,) counts the draws that an example was in.
    """
    from sklearn.preprocessing import StandardScaler

    assert split.groups is not None
    labels, groups = split.labels.cpu(), split.groups.cpu()
    scaler = StandardScaler().fit(features.double().numpy())
    x = torch.from_numpy(scaler.transform(features.double().numpy()))
    half, held_out, sets = balanced_draws(groups, draws, seed)
    best, C = (-1.0, 0.0), STRENGTHS[0]
    if len(held_out):
        for strength in STRENGTHS:
            weight, bias = regression(x[half], labels[half], classes, strength, seed)
            reached = group_accuracy(x[held_out] @ weight.T + bias, labels[held_out], groups[held_out])
            if (reached.worst, reached.mean) > best:
                best, C = (reached.worst, reached.mean), strength
    layers = [regression(x[members], labels[members], classes, C, seed) for members in sets]
    weight, bias = (torch.stack(parts).mean(0) for parts in zip(*layers, strict=True))
    weight = weight / torch.from_numpy(scaler.scale_)
    return {
        "weight": weight,
        "bias": bias - weight @ torch.from_numpy(scaler.mean_),
        "C": C,
        "held_out_worst_group": best[0] if len(held_out) else float("nan"),
        "times_drawn": torch.bincount(torch.cat(sets), minlength=len(labels)),
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
    for g in groups.unique():
        members = (groups == g).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator(seed, "halves", int(g)))]
        first.append(members[: -(-len(members) // 2)])
        second.append(members[-(-len(members) // 2) :])
    return torch.cat(first), torch.cat(second)


def balanced_draws(groups: Tensor, draws: int, seed: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Indices of the draw that the strength is chosen by, of the examples held out from it, and of the draws that the
    layer is fitted to, from groups (N,)."""
    fitted, held_out = halves(groups, seed)
    half = fitted[draw(groups[fitted], seed, "half")]
    return half, held_out, [draw(groups, seed, number) for number in range(draws)]


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
