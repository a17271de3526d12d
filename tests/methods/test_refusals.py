"""Every wrong request is answered in one line that names the value and the way out, before anything is trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import evenly
from evenly import EvenlyError
from evenly.methods import find

WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "warm-up longer than the run": ("pde", {"warmup_epochs": 9}, r"warmup_epochs 9 does not fit .*; give 1\.\.4"),
    "no warm-up": ("pde", {"warmup_epochs": 0}, "warmup_epochs 0 does not fit"),
    "decay": ("pde", {"decay": 0.0}, "decay 0.0 stops learning"),
    "every": ("pde", {"every": 0}, "every 0"),
    "add": ("pde", {"add": -3}, "add -3 would take examples away"),
    "cap": ("pde", {"cap": 0}, "cap 0"),
    "draw": ("pde", {"draw": "odd"}, "draw 'odd' cannot be used"),
    "factor": ("useful", {"factor": 0}, "factor 0 cannot be used"),
    "half a factor": ("useful", {"factor": 1.5}, "factor 1.5 cannot be used"),
    "separating after the end": ("useful", {"separating_epoch": 5}, r"separating_epoch 5 .*; give 1\.\.4"),
    "separating before the start": ("useful", {"separating_epoch": 0}, r"separating_epoch 0 .*; give 1\.\.4"),
    "clusters of what": ("useful", {"on": "weights"}, "on 'weights' cannot be used; give .*'features'"),
    "misclassified after the end": (
        "misclassification",
        {"separating_epoch": 5},
        r"separating_epoch 5 .*; give 1\.\.4",
    ),
    "factor of the misclassified": ("misclassification", {"factor": 0}, "factor 0 cannot be used"),
    "no quantile": ("quantile", {"above": 0.0}, "above 0.0 is no quantile .*; give a number between 0 and 1"),
    "above everything": ("quantile", {"above": 1}, "above 1 is no quantile"),
    "quantile before the start": ("quantile", {"separating_epoch": 0}, r"separating_epoch 0 .*; give 1\.\.4"),
    "factor of the quantile": ("quantile", {"factor": 2.5}, "factor 2.5 cannot be used"),
    "weighing down": ("upweight", {"factor": 0.5}, "factor 0.5 would weigh .* down; give a number from 1"),
    "weighing by words": ("upweight", {"factor": "two"}, "factor 'two' cannot be used; give a number"),
    "weighing after the end": ("upweight", {"separating_epoch": 9}, r"separating_epoch 9 .*; give 1\.\.4"),
    "factor of the control": ("random_upsample", {"factor": 0.5}, "factor 0.5 cannot be used"),
    "count": ("random_upsample", {"count": 61}, r"count 61 cannot be drawn from 60 .*; give a whole number in 0\.\.60"),
    "count below nothing": ("random_upsample", {"count": -1}, "count -1 cannot be drawn"),
    "step size": ("group_dro", {"step_size": 0.0}, "step_size 0.0 never moves"),
    "C": ("group_dro", {"C": -1.0}, "C -1.0 would favour large groups"),
    "a misspelt option": ("pde", {"warmup_epoch": 2}, "no .*option of pde is called 'warmup_epoch'; .*'warmup_epochs'"),
    "another method's option": ("erm", {"factor": 2}, "no .*option of erm is called 'factor'"),
    "a misspelt method": ("usefull", {}, "no method is called 'usefull'; did you mean 'useful'"),
}


def never(*_: Any) -> None:
    pytest.fail("trained before it refused")


@pytest.mark.parametrize("case", WRONG)
def test_refuses_before_training(tiny: Any, case: str) -> None:
    method, options, message = WRONG[case]
    with pytest.raises(EvenlyError, match=message) as refusal:
        evenly.train("mlp", tiny(observe=never), method, epochs=4, **options)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("method", ["pde", "subsample", "group_dro"])
def test_groups_are_asked_for_where_needed(tiny: Any, method: str) -> None:
    split = tiny().train
    with pytest.raises(EvenlyError, match=f"{method} needs groups and the data has none"):
        evenly.train("mlp", (split.inputs, split.labels), method, epochs=4)
    overlapping = torch.nn.functional.one_hot(split.groups).bool()
    with pytest.raises(EvenlyError, match=f"{method} needs one group per example and the groups overlap"):
        evenly.train("mlp", (split.inputs, split.labels, overlapping), method, epochs=4)


@pytest.mark.parametrize("method", ["erm", "useful", "misclassification", "quantile", "upweight", "random_upsample"])
def test_the_others_do_without_groups_and_with_overlapping_ones(tiny: Any, method: str) -> None:
    split = tiny().train
    for groups in ([], [torch.nn.functional.one_hot(split.groups).bool()]):
        assert evenly.train("mlp", (split.inputs, split.labels, *groups), method, epochs=2).history


@pytest.mark.parametrize("method", ["useful", "upweight"])
def test_a_class_of_one_example_is_refused_before_the_early_stage(tiny: Any, method: str) -> None:
    data = tiny([0] * 9 + [3], observe=never)
    with pytest.raises(EvenlyError, match="class 1 has one example and cannot be split"):
        evenly.train("mlp", data, method, epochs=4)


@pytest.mark.parametrize("method", ["misclassification", "quantile"])
def test_what_makes_no_clusters_takes_a_class_of_one_example(tiny: Any, method: str) -> None:
    assert evenly.train("mlp", tiny([0] * 9 + [3]), method, epochs=2).history


def test_features_of_a_network_without_linear_layers_are_refused_before_training(tiny: Any) -> None:
    data = tiny(observe=never)

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :2] * self.scale

    with pytest.raises(EvenlyError, match=r"Scale has no linear layer .*; use its outputs instead"):
        evenly.train(Scale, data, "useful", epochs=4, on="features")


def test_a_method_called_directly_checks_its_options(tiny: Any, engine: Any, linear: Any) -> None:
    with pytest.raises(EvenlyError, match="no option of pde is called 'evry'; did you mean 'every'"):
        find("pde")(linear, tiny(), engine(), evry=2)


def test_selection_by_worst_group_needs_validation(tiny: Any) -> None:
    with pytest.raises(EvenlyError, match="needs a validation set"):
        evenly.train("mlp", tiny(held_out=False), "pde", epochs=4, select="worst-group")
