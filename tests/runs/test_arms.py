"""Arms: names that a reader knows them by, and which are the same."""

from __future__ import annotations

import json

import pytest

from evenly.runs.arms import Arm, point_name

SWEPT = Arm("useful", "sgd", {"batch_size": None, "useful.factor": 3})


def test_names():
    assert Arm("erm", "sam").name == Arm("erm", "sam").pair == "erm+sam"
    assert SWEPT.name == "useful+sgd, batch_size full, factor 3"
    control = Arm("random_upsample", "sgd", SWEPT.swept, control_of=SWEPT)
    assert control.name == "random_upsample+sgd at the cost of useful+sgd, batch_size full, factor 3"
    assert control.pair == "random_upsample+sgd"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (True, "true"),
        (0.05, "0.05"),
        ([1, 2], "1/2"),
        ({}, "none"),
        ({"width": 8, "depth": None}, "width=8 depth=none"),
    ],
)
def test_values_in_names(value, text):
    assert point_name({"batch_size": None, "useful.x": value}) == f"batch_size full, useful.x {text}"


def test_an_arm_that_was_read_back_is_the_same_arm():
    control = Arm("erm", "sgd", {"model_options": {"hidden": (4, 2)}}, SWEPT)
    again = Arm.from_dict(json.loads(json.dumps(control.to_dict())))
    assert again == control
    assert {control: 1}[again] == 1
    for other in (SWEPT, Arm("erm", "sgd"), Arm("erm", "sgd", control.swept), Arm("erm", "adam", control.swept, SWEPT)):
        assert other != control
    assert control != "erm+sgd"
    assert Arm("useful", "sgd", {"factor": 3}) != Arm("useful", "sgd", {"useful.factor": 3})  # of equal names


def test_within():
    assert Arm("erm", "sgd", {"batch_size": None}).within(SWEPT)
    assert Arm("erm", "sgd").within(SWEPT)
    assert not Arm("erm", "sgd", {"batch_size": 8}).within(SWEPT)
    assert not SWEPT.within(Arm("erm", "sgd"))
