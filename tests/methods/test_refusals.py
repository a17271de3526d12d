"""Every wrong request is answered in one line that names the value and the way out, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import evenly
from evenly import EvenlyError
from evenly.methods import METHODS, find

WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "warm-up longer than the run": ("pde", {"warmup_epochs": 9}, r"warmup_epochs 9 does not fit .*; give 1\.\.4"),
    "no warm-up": ("pde", {"warmup_epochs": 0}, "warmup_epochs 0 does not fit"),
    "decay": ("pde", {"decay": 0.0}, r"decay 0.0 stops learning .*; give a factor in \(0, 1\]"),
    "growth for decay": ("pde", {"decay": 2}, r"decay 2 raises the learning rate .*; give a factor in \(0, 1\]"),
    "nothing to add": ("pde", {"add": 0}, "add 0 never expands .*; give numbers from 1, or use subsample"),
    "nothing in a list": ("pde", {"add": [0, 0]}, r"add \[0, 0\] never expands"),
    "an empty list": ("pde", {"add": []}, r"add \[\] never expands"),
    "a cap below nothing": ("pde", {"cap": -1}, "cap must be at least 1, got -1"),
    "every": ("pde", {"every": 0}, "^every must be at least 1, got 0$"),
    "add": ("pde", {"add": -3}, "add must be at least 0, got -3"),
    "cap": ("pde", {"cap": 0}, "cap must be at least 1, got 0"),
    "draw": ("pde", {"draw": "odd"}, "draw 'odd' cannot be used"),
    "factor": ("useful", {"factor": 0}, "factor must be a whole number from 1 to 10000, got 0"),
    "a factor that no memory holds": ("jtt", {"factor": 10**9}, "factor must be .* from 1 to 10000, got 1000000000"),
    "a factor without end": ("useful", {"factor": float("inf")}, "factor inf cannot be used"),
    "half a factor": ("useful", {"factor": 1.5}, "factor 1.5 cannot be used"),
    "separating after the end": ("useful", {"separating_epoch": 5}, r"separating_epoch 5 .*; give 1\.\.4"),
    "separating before the start": ("useful", {"separating_epoch": 0}, r"separating_epoch 0 .*; give 1\.\.4"),
    "clusters of what": ("useful", {"on": "weights"}, "on 'weights' cannot be used; give .*'features'"),
    "misclassified after the end": (
        "misclassification",
        {"separating_epoch": 5},
        r"separating_epoch 5 .*; give 1\.\.4",
    ),
    "factor of the misclassified": (
        "misclassification",
        {"factor": 0},
        "factor must be a whole number from 1 to 10000, got 0",
    ),
    "no quantile": ("quantile", {"above": 0.0}, "above 0.0 is no quantile .*; give a number between 0 and 1"),
    "above everything": ("quantile", {"above": 1}, "above 1 is no quantile"),
    "quantile before the start": ("quantile", {"separating_epoch": 0}, r"separating_epoch 0 .*; give 1\.\.4"),
    "factor of the quantile": ("quantile", {"factor": 2.5}, "factor 2.5 cannot be used"),
    "weighing down": ("upweight", {"factor": 0.5}, "factor 0.5 would weigh .* down; give a number in 1"),
    "weighing all others away": ("upweight", {"factor": 1e30}, r"factor 1e\+30 would leave nothing of the others"),
    "weighing by words": ("upweight", {"factor": "two"}, "factor 'two' cannot be used; give a number"),
    "weighing after the end": ("upweight", {"separating_epoch": 9}, r"separating_epoch 9 .*; give 1\.\.4"),
    "factor of the control": ("random_upsample", {"factor": 0.5}, "factor 0.5 cannot be used"),
    "count": ("random_upsample", {"count": 61}, r"count 61 cannot be drawn from 60 .*; give a whole number in 0\.\.60"),
    "count below nothing": ("random_upsample", {"count": -1}, "count -1 cannot be drawn"),
    "step size": ("group_dro", {"step_size": 0.0}, "step_size 0.0 never moves"),
    "step size beyond all": ("group_dro", {"step_size": 1e10}, r"step_size 1e\+10 gives one .*; give .* up to 1e\+06"),
    "C beyond all": ("group_dro", {"C": 1e7}, r"C 1e\+07 gives one group all the weight"),
    "C": ("group_dro", {"C": -1.0}, "C -1.0 would favour large groups"),
    "identified after the end": ("jtt", {"separating_epoch": 5}, r"separating_epoch 5 .*; give 1\.\.4"),
    "no upsampling": ("jtt", {"factor": 0}, "factor must be a whole number from 1 to 10000, got 0"),
    "reference after the end": ("eiil", {"separating_epoch": 5}, r"separating_epoch 5 .*; give 1\.\.4"),
    "step size of environments": ("eiil", {"step_size": 0}, "step_size 0 never moves"),
    "step size of environments beyond all": ("eiil", {"step_size": 1e10}, r"step_size 1e\+10 gives one group all"),
    "C of environments": ("eiil", {"C": -1}, "C -1 would favour large groups"),
    "no generalised cross-entropy": ("lff", {"q": 0.0}, r"q 0.0 is outside .*; give a number in \[0.0001, 1\]"),
    "no generalised cross-entropy to rounding": ("lff", {"q": 1e-40}, r"q 1e-40 is outside"),
    "less than generalised": ("lff", {"q": -0.7}, r"q -0.7 is outside"),
    "more than generalised": ("lff", {"q": 1.5}, r"q 1.5 is outside"),
    "only the past": ("lff", {"average": 1.0}, r"average 1.0 leaves .*; give a number in \[0, 1\)"),
    "less than the past": (
        "lff",
        {"average": -0.1},
        r"average -0.1 counts .* past against .*; give a number in \[0, 1\)",
    ),
    "no draw": ("dfr", {"draws": 0}, "draws 0 fit no last layer; give a whole number in 1"),
    "draws without end": ("dfr", {"draws": 10**9}, r"draws 1000000000 would take days; give .* in 1\.\.10000"),
    "drawn from where": ("dfr", {"on": "test"}, "on 'test' cannot be used; give 'train' or 'validation'"),
    "patience with nothing to wait for": ("pde", {"patience": 3}, "patience 3 has no .* metric .*; give select"),
    "no patience": ("pde", {"patience": 0, "select": "average"}, "patience 0 leaves nothing to do"),
    "inferring what": (
        "pde",
        {"groups": "infer", "infer": "jtt"},
        "infer 'jtt' cannot be used; give 'useful' or 'eiil'",
    ),
    "inferring unasked": ("pde", {"infer": "eiil"}, "infer 'eiil' is how groups are inferred; give groups='infer'"),
    "groups of what kind": ("pde", {"groups": "guess"}, "groups 'guess' cannot be used; give 'given' or 'infer'"),
    "a learning rate beyond numbers": ("erm", {"lr": 1e300}, r"lr 1e\+300 is more than a float32 can hold; give a"),
    "a penalty beyond numbers": ("erm", {"weight_decay": 1e300}, r"weight_decay 1e\+300 is more than a float32"),
    "momentum without end": ("erm", {"momentum": 1.0}, "momentum 1.0 never forgets .*; give one below 1"),
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


@pytest.mark.parametrize(
    "case", [case for case, (_, options, _) in WRONG.items() if not {"groups", "infer"} & {*options}]
)
def test_refuses_before_groups_are_inferred(tiny: Any, case: str) -> None:
    method, options, message = WRONG[case]
    rule = {} if "patience" in options else {"select": "worst-group"}
    with pytest.raises(EvenlyError, match=message):
        evenly.train("mlp", tiny(observe=never), method, epochs=4, **{"groups": "infer"} | rule | options)


@pytest.mark.parametrize("method", ["pde", "subsample", "group_dro", "reweight", "dfr"])
def test_groups_are_asked_for_where_needed(tiny: Any, method: str) -> None:
    split = tiny().train
    with pytest.raises(EvenlyError, match=f"{method} needs groups and the data has none; .*groups='infer'"):
        evenly.train("mlp", (split.inputs, split.labels), method, epochs=4)
    overlapping = torch.nn.functional.one_hot(split.groups).bool()
    with pytest.raises(EvenlyError, match=f"{method} needs one group per example and the groups overlap"):
        evenly.train("mlp", (split.inputs, split.labels, overlapping), method, epochs=4)


@pytest.mark.parametrize(
    "method",
    ["erm", "useful", "misclassification", "quantile", "upweight", "random_upsample", "jtt", "lff", "eiil"],
)
def test_the_others_do_without_groups_and_with_overlapping_ones(tiny: Any, method: str) -> None:
    split = tiny().train
    for groups in ([], [torch.nn.functional.one_hot(split.groups).bool()]):
        assert evenly.train("mlp", (split.inputs, split.labels, *groups), method, epochs=2).history


@pytest.mark.parametrize("method", ["useful", "upweight"])
def test_a_class_of_one_example_is_refused_before_the_early_stage(tiny: Any, method: str) -> None:
    data = tiny([0] * 9 + [3], observe=never)
    with pytest.raises(EvenlyError, match="class 1 has one example and cannot be split"):
        evenly.train("mlp", data, method, epochs=4)


@pytest.mark.parametrize("method", ["misclassification", "quantile", "jtt", "lff", "eiil"])
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
    with pytest.raises(EvenlyError, match="Scale has no linear layer"):
        evenly.train(Scale, data, "dfr", epochs=4)


def test_a_last_layer_needs_a_network_that_ends_in_one_and_examples_of_every_class(tiny: Any) -> None:
    data = tiny(observe=never)
    with pytest.raises(
        EvenlyError, match=r"Sequential does not end in a linear layer .*; let its last nn.Linear return"
    ):
        evenly.train(lambda: nn.Sequential(nn.Linear(5, 2), nn.Tanh()), data, "dfr", epochs=4)
    with pytest.raises(EvenlyError, match=r"on 'validation' needs a validation set .*; use on='train'"):
        evenly.train("mlp", tiny(held_out=False), "dfr", epochs=4, on="validation")
    keep = data.validation.labels == 0
    parts = (part[keep] for part in (data.validation.inputs, data.validation.labels, data.validation.groups))
    with pytest.raises(EvenlyError, match=r"class 1 has no validation example .*; use on='train'"):
        evenly.train("mlp", evenly.Data(data.train, tuple(parts), data.train), "dfr", epochs=4, on="validation")
    with pytest.raises(EvenlyError, match=r"nothing is left to measure it on; give a test set, or use on='train'"):
        evenly.train("mlp", evenly.Data(data.train, data.validation), "dfr", epochs=4, on="validation")
    mixed = evenly.Data((data.train.inputs, data.train.labels, torch.arange(60).clamp(max=1)), observe=never)
    with pytest.raises(EvenlyError, match=r"draw of 2 examples holds none of class \d; make the groups of one class"):
        evenly.train("mlp", mixed, "dfr", epochs=1, draws=60)


def test_a_method_called_directly_checks_its_options(tiny: Any, engine: Any, linear: Any) -> None:
    with pytest.raises(EvenlyError, match="no option of pde is called 'evry'; did you mean 'every'"):
        find("pde")(linear, tiny(), engine(), evry=2)


@pytest.mark.parametrize("method", METHODS)
def test_a_rule_that_cannot_select_is_refused_before_the_first_stage(tiny: Any, tmp_path: Path, method: str) -> None:
    whole = tiny(observe=never)
    seen = whole.validation.groups != 1
    held = whole.validation.inputs[seen], whole.validation.labels[seen], whole.validation.groups[seen]
    lacking = evenly.Data(whole.train, held, whole.test, observe=never)
    plan = {"epochs": 4, "out": tmp_path / "run"}
    for data, settings, said in (
        (lacking, {"select": "worst-group"}, "'group 1' has no validation example"),
        (tiny(held_out=False, observe=never), {"select": "average"}, "needs a validation set and there is none"),
        (tiny(held_out=False, observe=never), {"select": "worst-group", "groups": "infer"}, "needs a validation set"),
        (whole, {"select": "average", "evaluate_every": None}, "needs looks at validation"),
    ):
        with pytest.raises(EvenlyError, match=said):
            evenly.train("mlp", data, method, **plan, **settings)
        assert not (tmp_path / "run").exists()


def test_selection_by_worst_group_needs_validation(tiny: Any) -> None:
    with pytest.raises(EvenlyError, match="needs a validation set"):
        evenly.train("mlp", tiny(held_out=False), "pde", epochs=4, select="worst-group")
