"""What data or settings rule out is refused in one line that names the value and the way out, before any training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from evenly import Data, EvenlyError
from evenly.methods import METHODS, find
from evenly.methods.inferred import by_class

WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "warm-up longer than the run": ("pde", {"warmup_epochs": 9}, "warmup_epochs must be at most 4, .*, got 9"),
    "a list that adds nothing": ("pde", {"add": [0, 0]}, r"add must be numbers from 0, .*, got \[0, 0\]"),
    "an empty list": ("pde", {"add": []}, r"add must be numbers from 0, .*, got \[\]"),
    "a list that takes away": ("pde", {"add": [3, -1]}, r"add must be numbers from 0, .*, got \[3, -1\]"),
    "more than there are": ("random_upsample", {"count": 61}, "count must be at most 60, .*, got 61"),
    "a misspelt option": ("pde", {"evry": 2}, "no option of pde is called 'evry'; did you mean 'every'"),
    "another method's option": ("erm", {"factor": 2}, "no option of erm is called 'factor'"),
    **{
        f"{method} separates after the end": (method, {"separating_epoch": 5}, "separating_epoch must be at most 4")
        for method, entry in METHODS.items()
        if "separating_epoch" in entry.options
    },
}
NEED_GROUPS = [name for name, entry in METHODS.items() if entry.needs_groups]


def never(*_: Any) -> Any:
    pytest.fail("built a network before it refused")


@pytest.mark.parametrize("inferred", [False, True])
@pytest.mark.parametrize("case", WRONG)
def test_refuses_before_training_and_before_groups_are_inferred(
    tiny: Any, engine: Any, case: str, inferred: bool
) -> None:
    method, options, message = WRONG[case]
    data = by_class(tiny()) if inferred else tiny()
    with pytest.raises(EvenlyError, match=message) as refusal:
        find(method).check(data, engine().settings, options)
    assert "\n" not in str(refusal.value)
    with pytest.raises(EvenlyError, match=message):
        find(method)(never, data, engine(), **options)


def test_a_misspelt_method_is_named_with_the_nearest() -> None:
    with pytest.raises(EvenlyError, match="no method is called 'usefull'; did you mean 'useful'"):
        find("usefull")


@pytest.mark.parametrize("method", NEED_GROUPS)
def test_groups_are_asked_for_where_needed(tiny: Any, engine: Any, method: str) -> None:
    split = tiny().train
    with pytest.raises(EvenlyError, match=f"{method} needs groups and the data has none; .*groups='infer'"):
        find(method)(never, Data((split.inputs, split.labels)), engine())
    overlapping = Data((split.inputs, split.labels, torch.nn.functional.one_hot(split.groups).bool()))
    with pytest.raises(EvenlyError, match=f"{method} needs one group per example and the groups overlap"):
        find(method)(never, overlapping, engine())
    find(method).check(by_class(overlapping), engine().settings, {})


@pytest.mark.parametrize("method", set(METHODS) - set(NEED_GROUPS))
def test_the_others_do_without_groups_and_with_overlapping_ones(
    tiny: Any, engine: Any, linear: Any, method: str
) -> None:
    split = tiny(dtype=torch.float64).train
    for groups in ([], [torch.nn.functional.one_hot(split.groups).bool()]):
        assert find(method)(linear, Data((split.inputs, split.labels, *groups)), engine(epochs=2)).history


@pytest.mark.parametrize("method", set(METHODS) - set(NEED_GROUPS))
def test_a_class_of_one_example_is_refused_where_classes_are_split(
    tiny: Any, engine: Any, linear: Any, method: str
) -> None:
    data = tiny([0] * 9 + [3], dtype=torch.float64)
    if method in ("useful", "upweight"):
        with pytest.raises(EvenlyError, match="class 1 has one example and cannot be split"):
            find(method)(never, data, engine())
    else:
        assert find(method)(linear, data, engine(epochs=2)).history


def test_features_of_a_network_without_linear_layers_are_refused_before_training(tiny: Any, engine: Any) -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :2] * self.scale

    untrained = tiny(observe=never)
    with pytest.raises(EvenlyError, match=r"Scale has no linear layer .*; use its outputs instead"):
        find("useful")(Scale, untrained, engine(), on="features")
    for network in (Scale, lambda: nn.Sequential(nn.Linear(5, 2), nn.Tanh())):
        with pytest.raises(EvenlyError, match=r"does not end in a linear layer .*; let its last nn.Linear return"):
            find("dfr")(network, untrained, engine())


def test_a_last_layer_needs_examples_of_every_class_and_something_to_measure_it_on(tiny: Any, engine: Any) -> None:
    data = tiny()
    keep = data.validation.labels == 0
    of_one_class = tuple(
        part[keep] for part in (data.validation.inputs, data.validation.labels, data.validation.groups)
    )
    mixed = Data((data.train.inputs, data.train.labels, torch.arange(60).clamp(max=1)))
    for wrong, options, message in (
        (tiny(held_out=False), {"on": "validation"}, r"needs a validation set .*; use on='train'"),
        (Data(data.train, data.validation), {"on": "validation"}, r"nothing is left to measure it on; give a test set"),
        (
            Data(data.train, of_one_class, data.train),
            {"on": "validation"},
            r"class 1 has no validation example .*; use",
        ),
        (data, {"strengths": [1.0, 0.0]}, r"strengths must be numbers above 0, at least one, got \[1.0, 0.0\]"),
        (mixed, {"draws": 60}, r"draw of 2 examples holds none of class \d; make the groups of one class"),
    ):
        with pytest.raises(EvenlyError, match=message):
            find("dfr")(never, wrong, engine(), **options)


@pytest.mark.parametrize("method", METHODS)
def test_a_rule_that_cannot_select_is_refused_before_the_first_stage(tiny: Any, engine: Any, method: str) -> None:
    whole = tiny()
    seen = whole.validation.groups != 1
    held = whole.validation.inputs[seen], whole.validation.labels[seen], whole.validation.groups[seen]
    lacking = Data(whole.train, held, whole.test)
    for data, settings, message in (
        (lacking, {"select": "worst-group"}, "'group 1' has no validation example"),
        (tiny(held_out=False), {"select": "average"}, "needs a validation set and there is none"),
        (tiny(held_out=False), {"select": "worst-group", "groups": "infer"}, "needs a validation set"),
        (whole, {"select": "average", "evaluate_every": None}, "needs evaluations on validation"),
    ):
        with pytest.raises(EvenlyError, match=message):
            find(method)(never, data, engine(**settings))
    find(method).check(lacking, engine(select="worst-group", groups="infer").settings, {})
