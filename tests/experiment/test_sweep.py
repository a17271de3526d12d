"""Sweeps: which arms a value varies, what their controls are, and which sweeps are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from evenly import EvenlyError, compare, train
from evenly.experiment.sweep import points, values_for_all, values_of, varies
from evenly.runs.arms import Arm

N, BATCH, EPOCHS = 40, 8, 4
SWEPT = {"epochs": EPOCHS, "lr": 0.1, "device": "cpu"}
QUICK = SWEPT | {"model": "mlp", "batch_size": BATCH}
pytestmark = pytest.mark.usefixtures("without_pages")


def linear():
    return nn.Linear(3, 2)


def by_name(table):
    return {(row.arm.name, row.seed): row for row in table.rows}


def rates(table):
    return {arm.name: {row["lr"] for row in run.history} for (arm, _), run in table.runs.items()}


# Which arms


def test_points_values_and_what_varies():
    pairs = [("erm", "sgd"), ("useful", "sgd"), ("erm", "sam")]
    sweep = {"useful.factor": (2, 3), "rho": (0.1,), "batch_size": (8, None)}
    assert points(sweep, pairs) == [
        (("erm", "sgd"), {"batch_size": 8}),
        (("useful", "sgd"), {"useful.factor": 2, "batch_size": 8}),
        (("erm", "sam"), {"rho": 0.1, "batch_size": 8}),
        (("erm", "sgd"), {"batch_size": None}),
        (("useful", "sgd"), {"useful.factor": 2, "batch_size": None}),
        (("erm", "sam"), {"rho": 0.1, "batch_size": None}),
        (("useful", "sgd"), {"useful.factor": 3, "batch_size": 8}),
        (("useful", "sgd"), {"useful.factor": 3, "batch_size": None}),
    ]
    assert points({}, pairs) == [(pair, {}) for pair in pairs]
    swept = {"useful.factor": 3, "batch_size": 8}
    assert (values_for_all(swept), values_of(swept, "useful")) == ({"batch_size": 8}, {"factor": 3})
    assert not varies("useful.rho", "useful", "sgd")
    assert varies("useful.rho", "useful", "asam")


@pytest.fixture(scope="module")
def batch_sizes(draw):
    sweep = {"batch_size": [8, None]}
    return compare(draw, model="mlp", methods=["erm", "useful", "group_dro"], seeds=2, sweep=sweep, **SWEPT)


def test_a_sweep_runs_every_arm_and_its_control_at_every_value(batch_sizes):
    names = list(dict.fromkeys(row.arm.name for row in batch_sizes.rows))
    assert names == [
        f"{arm}, batch_size {size}"
        for size in ("8", "full")
        for arm in ("erm+sgd", "useful+sgd", "random_upsample+sgd at the cost of useful+sgd", "group_dro+sgd")
    ]
    assert len(batch_sizes.rows) == 16
    for row in batch_sizes.rows:
        assert row.arm.swept == {"batch_size": 8 if row.arm.name.endswith(" 8") else None}
        if row.arm.method == "group_dro":
            assert row.control == Arm("erm", "sgd", row.arm.swept)
    plan = batch_sizes.plan
    assert (plan.sweep, plan.differs, plan.in_common.epochs) == ({"batch_size": (8, None)}, ("batch_size",), EPOCHS)
    json.dumps(batch_sizes.to_dict(), allow_nan=False)


@pytest.mark.parametrize(("size", "text"), [(8, "8"), (None, "full")])
def test_runs_of_a_sweep_are_what_train_gives_at_that_value(draw, batch_sizes, size, text):
    settings = SWEPT | {"model": "mlp", "batch_size": size}
    for seed in (0, 1):
        row = by_name(batch_sizes)[f"useful+sgd, batch_size {text}", seed]
        alone = train(draw(seed), method="useful", seed=seed, **settings)
        assert (row.result.splits, row.result.cost) == (alone.results.splits, alone.results.cost)
        count = {"count": alone.results.chosen, "factor": 2, "budget": alone.results.cost}
        other = train(draw(seed), method="random_upsample", seed=seed, **count, **settings).results
        control = by_name(batch_sizes)[row.control.name, seed]
        assert control.arm == Arm("random_upsample", "sgd", row.arm.swept, control_of=row.arm)
        assert (control.result.splits, control.result.cost) == (other.splits, other.cost)


def test_an_option_varies_its_method_only_and_names_are_multiplied(draw):
    sweep = {"useful.factor": [2, 3], "batch_size": np.array([8, 16])}
    table = compare(draw, model="mlp", methods=["erm", "useful"], seeds=1, sweep=sweep, **SWEPT)
    arms = {each.arm.name: each.arm.swept for each in table.arms}
    assert arms == {
        "erm+sgd, batch_size 8": {"batch_size": 8},
        "erm+sgd, batch_size 16": {"batch_size": 16},
        **{
            f"useful+sgd, factor {factor}, batch_size {size}": {"useful.factor": factor, "batch_size": size}
            for factor in (2, 3)
            for size in (8, 16)
        },
    }
    for (arm, _), run in table.runs.items():
        if arm.method != "erm":
            assert run.selection.factor == arm.swept["useful.factor"]
        if arm.control_of is not None:
            assert 0 <= run.results.cost - table.runs[arm.control_of, 0].results.cost < 17


def test_where_epochs_are_swept_erm_costs_one_at_each_value(draw):
    table = compare(draw, model="mlp", methods=["erm", "erm+sam"], seeds=1, sweep={"epochs": [2, 4]}, batch_size=BATCH)
    assert {row.arm.name: (row.result.cost, row.result.cost_multiple) for row in table.rows} == {
        f"{arm}, epochs {epochs}": (multiple * epochs * N, multiple)
        for arm, multiple in (("erm+sgd", 1.0), ("erm+sam", 2.0), ("erm+sgd at the cost of erm+sam", 2.0))
        for epochs in (2, 4)
    }


def test_a_setting_of_one_method_can_be_swept_and_its_control_has_it(draw):
    sweep = {"subsample.lr": [0.01, 0.02]}
    assert rates(compare(draw, methods=["erm", "subsample"], seeds=1, sweep=sweep, **QUICK)) == {
        "erm+sgd": {0.1},
        "subsample+sgd, lr 0.01": {0.01},
        "subsample+sgd, lr 0.02": {0.02},
        "erm+sgd at the cost of subsample+sgd, lr 0.01": {0.01},
        "erm+sgd at the cost of subsample+sgd, lr 0.02": {0.02},
    }


def test_rho_varies_the_arms_that_have_one(draw):
    table = compare(draw, methods=["erm"], optimizers=["sgd", "sam"], seeds=1, sweep={"rho": [0.05, 0.5]}, **QUICK)
    arms = [row.arm for row in table.rows if row.arm.control_of is None]
    assert [arm.name for arm in arms] == ["erm+sgd", "erm+sam, rho 0.05", "erm+sam, rho 0.5"]
    weak, strong = (table.runs[arm, 0].model.state_dict() for arm in arms[1:])
    assert not all(torch.equal(weak[name], strong[name]) for name in weak)


@pytest.mark.parametrize("out", [None, "c"])
def test_a_control_that_several_values_share_is_trained_once(draw, tmp_path, executed, out):
    folder = None if out is None else tmp_path / out
    sweep = {"rho": [0.05, 0.5]}
    table = compare(draw, methods=["erm"], optimizers=["sam"], seeds=1, sweep=sweep, out=folder, **QUICK)
    assert [(plan.optimizer.name, plan.budget) for plan, _ in executed] == [
        ("sam", None),
        ("sgd", 2 * EPOCHS * N),
        ("sam", None),
    ]
    weak, strong = (row for row in table.rows if row.arm.control_of is not None)
    assert weak.result == strong.result
    assert [each.arm.control_of.swept["rho"] for each in (weak, strong)] == [0.05, 0.5]
    assert all(each.difference("accuracy") is not None for each in table.summary if each.control)
    # where epochs are swept, the cost that is called 1.00x is another, and so are the runs
    executed.clear()
    compare(draw, model="mlp", methods=["erm"], optimizers=["sam"], seeds=1, sweep={"epochs": [2, 3]}, batch_size=BATCH)
    assert len(executed) == 4


@pytest.mark.parametrize("owner", ["", "useful."])
def test_models_can_be_swept_and_a_control_has_its_arms_model(draw, owner):
    table = compare(
        draw, methods=["useful"], seeds=1, sweep={f"{owner}model": ["mlp", linear]}, **SWEPT, batch_size=BATCH
    )
    for (arm, _), run in table.runs.items():
        assert isinstance(run.model, nn.Linear) is ("model linear" in arm.name)
    assert len(table.rows) == 4
    assert table.plan.sweep == {f"{owner}model": ("mlp", "linear")}


def test_a_sweep_resumes_and_others_can_be_added(draw, tmp_path, executed):
    ask = {"data": draw, "model": "mlp", "methods": ["erm", "subsample"], "seeds": 1, "out": tmp_path / "out"} | SWEPT
    first = compare(**ask, sweep={"batch_size": [8, 16]})
    assert len(list((tmp_path / "out/runs").iterdir())) == len(executed) == 6
    assert compare(**ask, sweep={"batch_size": [8, 16]}).rows == first.rows
    more = compare(**ask, sweep={"batch_size": [16, 32]})
    assert len(list((tmp_path / "out/runs").iterdir())) == 9
    assert by_name(more)["erm+sgd, batch_size 16", 0] == by_name(first)["erm+sgd, batch_size 16", 0]
    assert by_name(more).items() > by_name(first).items()
    assert (len(more.rows), more.others, more.plan.sweep) == (9, (), {"batch_size": (8, 16, 32)})
    unswept = compare(**ask)
    assert ({row.arm.name for row in unswept.rows}, len(unswept.others)) == ({"erm+sgd", "subsample+sgd"} | {
        row.arm.name for row in unswept.rows if row.arm.control_of}, 9)  # fmt: skip
    again = compare(**ask | {"methods": ["erm"]}, sweep={"batch_size": [8]})
    assert (by_name(again), again.plan.methods) == (by_name(more), ("erm", "subsample"))


# What is refused


@pytest.mark.parametrize(
    ("sweep", "more", "message"),
    [
        ({"batchsize": [1]}, {}, "no setting is called 'batchsize'; did you mean 'batch_size'"),
        ({"factor": [2]}, {}, r"sweep 'factor' does not say whose option it is; write useful\.factor"),
        ({"usefull.factor": [2]}, {}, "did you mean 'useful'"),
        ({"useful.factr": [2]}, {}, "no option of useful is called 'factr'; did you mean 'factor'"),
        ({"pde.every": [2]}, {}, r"sweep 'pde\.every' varies no arm, none has method pde"),
        ({"rho": [0.1]}, {}, "sweep 'rho' varies no arm, none has an optimizer with it, e.g. sam"),
        ({"select": ["last"]}, {}, "select cannot be swept, one table has one selection rule"),
        ({"batch_size": []}, {}, "sweep of batch_size has no values"),
        ({"batch_size": 8}, {}, "sweep of batch_size is 8, not a list"),
        ({"schedule": "step"}, {}, "sweep of schedule is 'step', not a list"),
        ({"batch_size": [8, 2.5]}, {}, r"batch_size must be a whole number, got 2\.5"),
        ({"useful.factor": [2, "two"]}, {}, r"factor \(option of useful\) must be a whole number, got 'two'"),
        ({"augment": ["none", "foo"]}, {}, "augment must be one of none, .*, got 'foo'"),
        ({"weight_decay": [0, 1, 0.0]}, {}, r"0\.0 stands twice in the sweep of weight_decay"),
        ({"schedule": ["step", "step"]}, {}, "step stands twice"),
        ({"lr": [0.1]}, {"lr": 0.2}, r"lr is swept and also fixed at 0\.2"),
        ({"lr": [0.1]}, {"options": {"useful": {"lr": 0.3}}}, r"lr is swept and also fixed at 0\.3"),
        ({"useful.factor": [2]}, {"options": {"useful": {"factor": 3}}}, "useful.factor is swept and also fixed at 3"),
        ({"model": ["mlp"]}, {"model": "mlp"}, "model is swept and also fixed at 'mlp'"),
        ({"useful.lr": [0.1], "lr": [0.1]}, {}, "useful.lr and lr are both swept"),
    ],
    ids=str,
)
def test_a_wrong_sweep_is_refused_in_one_line_before_anything_runs(draw, tmp_path, executed, sweep, more, message):
    ask = {"data": draw, "methods": ["erm", "useful"], "sweep": sweep, "out": tmp_path / "out", "epochs": 2}
    with pytest.raises(EvenlyError, match=message) as refused:
        compare(**ask | more)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()
    assert not executed
