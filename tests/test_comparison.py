"""`evenly.compare`: paired statistics, controls of equal cost, and folders that grow without repeating work."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal

import numpy as np
import pytest
import torch
from evenly.comparison import Comparison, _slug, paired, summarise
from evenly.sweep import point_name
from scipy import stats

from evenly import Data, EvenlyError, compare, train
from evenly.data import load
from evenly.models import RECIPES

N, BATCH, EPOCHS = 40, 8, 4
QUICK = {"epochs": EPOCHS, "batch_size": BATCH, "lr": 0.1}
METRICS = {"accuracy", "worst_group", "train_weighted", "worst_class"}


def law(seed: int) -> Data:
    """Two classes, four groups; the spurious second feature is stronger than the first."""
    draw = torch.Generator().manual_seed(1000 + seed)

    def part(count):
        y = torch.arange(count) % 2
        agrees = torch.arange(count) % 10 > 2
        x = torch.randn(count, 3, generator=draw) + torch.stack([2 * y - 1, 4 * (y ^ ~agrees) - 2, 0 * y], 1)
        return x, y, 2 * y + (~agrees).long()

    return Data(train=part(N), validation=part(20), test=part(60), name="toy")


@pytest.fixture(autouse=True)
def no_pages(monkeypatch):
    """Pages have tests of their own, and drawing them takes longer than training here."""
    monkeypatch.setattr("evenly.report.run_page", lambda *arguments, **options: None)
    monkeypatch.setattr("evenly.report.comparison_page", lambda *arguments, **options: None)


def rows_of(table) -> dict:
    return {(row["arm"], row["seed"]): row for row in table.rows}


def without_time(rows):
    return [row | {"seconds": 0} for row in rows]


# The statistics


@pytest.mark.parametrize("n", [2, 3, 10])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_paired_intervals_are_those_of_scipy(n, level):
    differences = np.random.default_rng(n).normal(0.02, 0.1, n).tolist()
    ours = paired(differences, level)
    interval = stats.ttest_1samp(differences, 0).confidence_interval(level)
    assert ours == {
        "mean": pytest.approx(np.mean(differences)),
        "low": pytest.approx(interval.low),
        "high": pytest.approx(interval.high),
        "pairs": n,
    }


@pytest.mark.parametrize("differences", [[0.25], [0.25, 0.25, 0.25], [0.9 - 0.6, 0.7 - 0.4]])
def test_one_pair_or_pairs_that_are_all_alike_have_no_interval(differences):
    mean = pytest.approx(differences[0])
    assert paired(differences) == {"mean": mean, "low": None, "high": None, "pairs": len(differences)}


def test_pairs_without_any_difference_have_a_mean_of_exactly_0():
    assert paired([0.1 + 0.2 - 0.3, 0.0]) == {"mean": 0.0, "low": None, "high": None, "pairs": 2}


def row(arm, seed, accuracy, control=None, control_of=None, groups=(1.0,)):
    method, optimizer = arm.split(" ")[0].split("+")
    return {
        "arm": arm, "method": method, "optimizer": optimizer, "seed": seed, "rule": "last", "control": control,
        "control_of": control_of, "cost_multiple": 1.0 + seed, "test": {"accuracy": accuracy, "groups": list(groups)},
    }  # fmt: skip


def test_differences_are_paired_by_seed_not_by_position():
    rows = [row("useful+sgd", s, a, "erm+sgd") for s, a in ((5, 0.9), (6, 0.8))]
    rows += [row("erm+sgd", s, a) for s, a in ((6, 0.5), (5, 0.7))]
    useful, erm = summarise(rows)
    assert useful["accuracy"]["mean"] == pytest.approx(0.85)
    assert useful["accuracy"]["sd"] == pytest.approx(np.std([0.9, 0.8], ddof=1))
    expected = paired([0.9 - 0.7, 0.8 - 0.5])
    assert useful["accuracy"]["difference"] == {key: pytest.approx(value) for key, value in expected.items()}
    assert "difference" not in erm["accuracy"]
    assert (useful["seeds"], useful["cost_multiple"], useful["control_cost_multiple"]) == (2, 6.5, 6.5)


def test_each_seed_is_paired_with_its_own_control():
    """Where a method's cost is ERM's in one seed only, the control is ERM itself there and a shorter ERM elsewhere."""
    cut = "erm+sgd at the cost of pde+sgd"
    rows = [row("pde+sgd", 0, 0.9, "erm+sgd"), row("pde+sgd", 1, 0.8, cut)]
    rows += [row("erm+sgd", 0, 0.5), row("erm+sgd", 1, 0.1), row(cut, 1, 0.6, control_of="pde+sgd")]
    pde = summarise(rows)[0]
    expected = paired([0.9 - 0.5, 0.8 - 0.6])
    assert pde["accuracy"]["difference"] == {key: pytest.approx(value) for key, value in expected.items()}


def test_a_group_that_a_test_set_lacks():
    """In one seed, in all of them, or beyond the end of the list: it is left out, and the rest is still averaged."""
    rows = [row("erm+sgd", 0, 0.5, groups=[0.5, None, 1.0, None]), row("erm+sgd", 1, 0.5, groups=[0.25, 0.5, 1.0])]
    (entry,) = summarise(rows)
    assert entry["groups"] == [0.375, 0.5, 1.0, None]
    json.dumps(entry, allow_nan=False)


# The controls


@pytest.fixture(scope="module")
def everything():
    """One comparison of all methods, shared by the tests that only look at it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evenly.report.run_page", lambda *arguments, **options: None)
        return compare(
            "mlp",
            law,
            ["erm", "useful", "pde", "subsample", "group_dro", "random_upsample", "erm+sam"],
            seeds=2,
            **QUICK,
        )


def test_one_row_per_arm_and_seed_besides_the_controls(everything):
    arms = [row for row in everything.rows if row["control_of"] is None]
    expected = ["erm+sgd", "useful+sgd", "pde+sgd", "subsample+sgd", "group_dro+sgd", "random_upsample+sgd", "erm+sam"]
    assert sorted((row["arm"], row["seed"]) for row in arms) == sorted((arm, s) for arm in expected for s in (0, 1))
    keys = [(row["arm"], row["seed"]) for row in everything.rows]
    assert len(set(keys)) == len(keys)
    assert {entry["arm"] for entry in everything.summary} == {arm for arm, _ in keys}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("arm", "control"),
    [
        ("useful+sgd", "random_upsample+sgd at the cost of useful+sgd"),
        ("pde+sgd", "erm+sgd at the cost of pde+sgd"),
        ("subsample+sgd", "erm+sgd at the cost of subsample+sgd"),
        ("random_upsample+sgd", "erm+sgd at the cost of random_upsample+sgd"),
        ("erm+sam", "erm+sgd at the cost of erm+sam"),
        ("group_dro+sgd", "erm+sgd"),
    ],
)
def test_a_control_costs_the_same_to_within_a_batch(everything, arm, control, seed):
    rows = rows_of(everything)
    method, other = rows[arm, seed], rows[control, seed]
    assert method["control"] == control
    assert other["control_of"] == (None if control == "erm+sgd" else arm)
    assert 0 <= other["cost"] - method["cost"] < BATCH + 1  # a last batch of one may have joined another
    assert other["control"] is None


def test_erm_has_no_control_of_its_own(everything):
    assert all(row["control"] is None for row in everything.rows if row["arm"] == "erm+sgd")
    assert all(row["cost"] == EPOCHS * N for row in everything.rows if row["arm"] == "erm+sgd")


def test_the_early_stage_is_counted_and_the_control_repeats_as_many(everything):
    for seed in (0, 1):
        run = everything.runs["useful+sgd", seed]
        hard = len(run.selection.indices)
        early = int(run.selection.details["separating_epoch"])
        assert run.cost == pytest.approx(early * N + N / 3 + EPOCHS * (N + hard))
        control = everything.runs["random_upsample+sgd at the cost of useful+sgd", seed]
        assert len(control.selection.indices) == hard
        assert control.history[0]["examples"] == N + hard
        assert control.selection.factor == run.selection.factor == 2
        assert len(control.history) >= EPOCHS


def test_sam_is_compared_with_twice_the_epochs(everything):
    for seed in (0, 1):
        sam, plain = (everything.runs[arm, seed] for arm in ("erm+sam", "erm+sgd at the cost of erm+sam"))
        assert sam.cost == plain.cost == 2 * EPOCHS * N
        assert (len(sam.history), len(plain.history)) == (EPOCHS, 2 * EPOCHS)


def test_schedules_are_rescaled_to_the_length_of_the_control():
    table = compare("mlp", law, ["erm+sam"], seeds=1, schedule="step", **QUICK)
    rates = [row["lr"] for row in table.runs["erm+sgd at the cost of erm+sam", 0].history]
    assert rates == pytest.approx([0.1] * 4 + [0.01] * 2 + [0.001] * 2)


def test_sam_with_another_method_keeps_sam_in_its_control():
    table = compare("mlp", law, ["useful", "subsample", "group_dro"], ["sam"], seeds=1, **QUICK)
    rows = rows_of(table)
    for method, control in (
        ("useful", "random_upsample+sam at the cost of useful+sam"),
        ("subsample", "erm+sam at the cost of subsample+sam"),
        ("group_dro", "erm+sam"),
    ):
        arm, other = rows[f"{method}+sam", 0], rows[control, 0]
        assert arm["control"] == control
        assert 0 <= other["cost"] - arm["cost"] < 2 * (BATCH + 1)


def test_without_controls():
    table = compare("mlp", law, ["erm", "useful"], seeds=1, controls=False, **QUICK)
    assert [row["arm"] for row in table.rows] == ["erm+sgd", "useful+sgd"]
    assert all(row["control"] is None for row in table.rows)
    assert all("difference" not in entry["accuracy"] for entry in table.summary)


# What the table holds


def test_rows_carry_every_metric_and_the_cost(everything):
    for row in everything.rows:
        for split in ("train", "validation", "test"):
            assert set(row[split]) >= METRICS
        assert {"cost", "cost_multiple", "evaluation_cost", "rule", "seed", "method", "optimizer"} <= set(row)
        assert row["cost_multiple"] == pytest.approx(row["cost"] / (EPOCHS * N))
        assert row["evaluation_cost_multiple"] == pytest.approx(row["evaluation_cost"] / (EPOCHS * N))
        assert row["evaluation_cost"] > 0


def test_the_summary_is_computed_from_the_rows(everything):
    rows = rows_of(everything)
    for entry in everything.summary:
        for metric in METRICS:
            values = [rows[entry["arm"], seed]["test"][metric] for seed in (0, 1)]
            assert entry[metric]["values"] == values
            assert entry[metric]["mean"] == pytest.approx(sum(values) / 2)
            if entry["control"]:
                control = [rows[entry["control"], seed]["test"][metric] for seed in (0, 1)]
                expected = paired([a - b for a, b in zip(values, control, strict=True)])
                assert entry[metric]["difference"] == {k: pytest.approx(v) for k, v in expected.items()}
        looks = [rows[entry["arm"], seed]["evaluation_cost_multiple"] for seed in (0, 1)]
        assert entry["evaluation_cost_multiple"] == pytest.approx(sum(looks) / 2)
    assert everything.plan["seeds"] == [0, 1]
    assert everything.plan["rule"] == "last"
    json.dumps(everything.as_json(), allow_nan=False)


def test_each_run_is_what_train_gives_for_that_seed(everything):
    for seed in (0, 1):
        alone = train("mlp", law(seed), "useful", seed=seed, **QUICK)
        row = rows_of(everything)["useful+sgd", seed]
        assert {key: row[key] for key in alone.results if key != "seconds"} == {
            key: value for key, value in alone.results.items() if key != "seconds"
        }


@pytest.mark.parametrize("data", ["name", "one Data", "arrays"])
def test_data_in_other_forms(data):
    toy = law(0)
    arrays = (toy.train.inputs.numpy(), toy.train.labels.numpy())
    given = {"name": "shortcut-digits", "one Data": toy, "arrays": arrays}[data]
    settings = QUICK | ({"batch_size": 256, "epochs": 1} if data == "name" else {})
    table = compare("mlp", given, ["erm"], seeds=[3, 8], **settings)
    for row in table.rows:
        source = load("shortcut-digits", seed=row["seed"]) if data == "name" else given
        alone = train("mlp", source, seed=row["seed"], **settings)
        assert row["train"] == alone.results["train"]
    assert [row["seed"] for row in table.rows] == [3, 8]
    if data == "arrays":
        assert set(table.summary[0]) >= {"accuracy", "worst_class"}
        assert "worst_group" not in table.summary[0]


def test_options_go_to_their_method_only():
    table = compare("mlp", law, ["erm", "useful", "pde"], seeds=1, controls=False,
                    options={"useful": {"factor": 3}, "pde": {"warmup_epochs": 1}}, **QUICK)  # fmt: skip
    assert table.runs["useful+sgd", 0].selection.factor == 3
    sizes = [row["examples"] for row in table.runs["pde+sgd", 0].history]
    assert sizes[1] > sizes[0]
    assert table.plan["options"] == {"useful": {"factor": 3}, "pde": {"warmup_epochs": 1}}


def test_a_setting_of_one_method_comes_before_that_of_all():
    """Its control has it too, cut to the same cost; the epochs of ERM are the unit of cost."""
    table = compare("mlp", law, ["erm", "pde"], seeds=1, options={"pde": {"lr": 0.01, "epochs": 2}}, **QUICK)
    rates = {arm: [row["lr"] for row in run.history] for (arm, _), run in table.runs.items()}
    control = "erm+sgd at the cost of pde+sgd"
    assert rates["pde+sgd"] == [0.01] * 2
    assert rates["erm+sgd"] == [0.1] * EPOCHS
    assert set(rates[control]) == {0.01}
    rows = rows_of(table)
    assert rows["pde+sgd", 0]["cost_multiple"] == pytest.approx(rows["pde+sgd", 0]["cost"] / (EPOCHS * N))
    assert 0 <= rows[control, 0]["cost"] - rows["pde+sgd", 0]["cost"] < BATCH + 1


def test_erm_is_no_control_where_its_own_settings_give_it_another_cost():
    table = compare("mlp", law, ["erm", "group_dro"], seeds=1, options={"erm": {"epochs": 2 * EPOCHS}}, **QUICK)
    rows = rows_of(table)
    group_dro = rows["group_dro+sgd", 0]
    assert rows["erm+sgd", 0]["cost"] == 2 * group_dro["cost"]
    assert 0 <= rows[group_dro["control"], 0]["cost"] - group_dro["cost"] < BATCH + 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"methods": ["usefull"]}, "did you mean 'useful'"),
        ({"optimizers": ["sgdd"]}, "did you mean 'sgd'"),
        ({"methods": ["erm+sbm"]}, "did you mean 'sam'"),
        ({"options": {"pde": {"warmup": 3}}}, "did you mean 'warmup_epochs'"),
        ({"options": {"pdee": {}}}, "did you mean 'pde'"),
        ({"learning_rate": 3}, "no setting is called 'learning_rate'"),
        ({"seeds": 0}, "nothing to compare"),
        ({"methods": []}, "nothing to compare"),
        ({"seeds": [1, 1]}, "a seed stands twice"),
        ({"jobs": 0}, "jobs 0"),
    ],
    ids=str,
)
def test_wrong_arguments_are_said_before_anything_runs(tmp_path, arguments, said):
    with pytest.raises(EvenlyError, match=said):
        compare(**{"model": "mlp", "data": law, "out": tmp_path / "out"} | QUICK | arguments)
    assert not (tmp_path / "out").exists()


# The sweep

SWEPT = {key: value for key, value in QUICK.items() if key != "batch_size"}


def measured(row):
    """What a run reached and cost, without its name."""
    return {key: row[key] for key in ("train", "validation", "test", "cost", "epochs", "chosen")}


@pytest.fixture(scope="module")
def batch_sizes():
    return compare("mlp", law, ["erm", "useful", "group_dro"], seeds=2, sweep={"batch_size": [8, None]}, **SWEPT)


def test_a_sweep_runs_every_arm_and_its_control_at_every_value(batch_sizes):
    assert list(dict.fromkeys(row["arm"] for row in batch_sizes.rows)) == [
        f"{arm}, batch_size {size}"
        for size in ("8", "full")
        for arm in ("erm+sgd", "useful+sgd", "random_upsample+sgd at the cost of useful+sgd", "group_dro+sgd")
    ]
    assert len(batch_sizes.rows) == 16
    for row in batch_sizes.rows:
        assert row["sweep"] == {"batch_size": 8 if row["arm"].endswith(" 8") else None}
    assert batch_sizes.plan["sweep"] == {"batch_size": [8, None]}
    assert "batch_size" not in batch_sizes.plan["in_common"]
    assert batch_sizes.plan["in_common"]["epochs"] == EPOCHS
    json.dumps(batch_sizes.as_json(), allow_nan=False)


@pytest.mark.parametrize(("size", "text"), [(8, "8"), (None, "full")])
def test_runs_of_a_sweep_are_what_train_gives_at_that_value(batch_sizes, size, text):
    rows = rows_of(batch_sizes)
    arm = f"useful+sgd, batch_size {text}"
    for seed in (0, 1):
        alone = train("mlp", law(seed), "useful", seed=seed, batch_size=size, **SWEPT)
        assert measured(rows[arm, seed]) == measured(alone.results)
        count = {"count": len(alone.selection.indices), "factor": 2}
        other = train(
            "mlp", law(seed), "random_upsample", seed=seed, budget=alone.cost, batch_size=size, **count, **SWEPT
        )
        assert rows[arm, seed]["control"] == f"random_upsample+sgd at the cost of {arm}"
        assert measured(rows[rows[arm, seed]["control"], seed]) == measured(other.results)
        assert rows[rows[arm, seed]["control"], seed]["control_of"] == arm


def test_differences_in_a_sweep_are_from_the_control_at_the_same_value(batch_sizes):
    rows, summary = rows_of(batch_sizes), {entry["arm"]: entry for entry in batch_sizes.summary}
    for text, at in (("8", {"batch_size": 8}), ("full", {"batch_size": None})):
        entry = summary[f"group_dro+sgd, batch_size {text}"]
        assert entry["sweep"] == at
        assert entry["control"] == f"erm+sgd, batch_size {text}"
        assert summary[entry["control"]]["control_of"] is None
        expected = paired([
            rows[entry["arm"], seed]["test"]["accuracy"] - rows[entry["control"], seed]["test"]["accuracy"]
            for seed in (0, 1)
        ])  # fmt: skip
        assert entry["accuracy"]["difference"] == {key: pytest.approx(value) for key, value in expected.items()}


def test_an_option_varies_its_method_only_and_names_are_multiplied():
    sweep = {"useful.factor": [2, 3], "batch_size": np.array([8, 16])}
    table = compare("mlp", law, ["erm", "useful"], seeds=1, sweep=sweep, **SWEPT)
    arms = {entry["arm"]: entry["sweep"] for entry in table.summary if entry["control_of"] is None}
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
        if not arm.startswith("erm"):
            assert run.selection.factor == (3 if "factor 3" in arm else 2)
    costs = {arm: run.cost for (arm, _), run in table.runs.items()}
    for arm in arms:
        if arm.startswith("useful"):
            assert 0 <= costs[f"random_upsample+sgd at the cost of {arm}"] - costs[arm] < 17


def test_where_epochs_are_swept_erm_costs_one_at_each_value():
    table = compare("mlp", law, ["erm", "erm+sam"], seeds=1, sweep={"epochs": [2, 4]}, batch_size=BATCH)
    costs = {row["arm"]: (row["cost"], row["cost_multiple"]) for row in table.rows}
    assert costs == {
        f"{arm}, epochs {epochs}": (multiple * epochs * N, multiple)
        for arm, multiple in (("erm+sgd", 1.0), ("erm+sam", 2.0), ("erm+sgd at the cost of erm+sam", 2.0))
        for epochs in (2, 4)
    }


def test_a_setting_of_one_method_can_be_swept_and_its_control_has_it():
    table = compare("mlp", law, ["erm", "subsample"], seeds=1, sweep={"subsample.lr": [0.01, 0.02]}, **QUICK)
    rates = {arm: {row["lr"] for row in run.history} for (arm, _), run in table.runs.items()}
    assert rates == {
        "erm+sgd": {0.1}, "subsample+sgd, lr 0.01": {0.01}, "subsample+sgd, lr 0.02": {0.02},
        "erm+sgd at the cost of subsample+sgd, lr 0.01": {0.01},
        "erm+sgd at the cost of subsample+sgd, lr 0.02": {0.02},
    }  # fmt: skip


def test_a_control_is_looked_at_after_its_own_epochs():
    """An epoch of subsampling is short: every fourth of them, in the control, would be four times as rare a look."""
    own = {"epochs": 12, "evaluate_every": 4, "patience": 2}
    table = compare("mlp", law, ["subsample"], seeds=1, options={"subsample": own}, **QUICK | {"select": "average"})
    looks = {
        arm: [row["epoch"] for row in run.history if row.get("validation")] for (arm, _), run in table.runs.items()
    }
    control = looks["erm+sgd at the cost of subsample+sgd"]
    assert all(epoch % 4 == 0 for epoch in looks["subsample+sgd"])
    assert control == list(range(1, len(control) + 1))


def test_rho_varies_the_arms_that_have_one():
    table = compare("mlp", law, ["erm"], ["sgd", "sam"], seeds=1, sweep={"rho": [0.05, 0.5]}, **QUICK)
    arms = ["erm+sgd", *(f"erm+sam, rho {rho}" for rho in (0.05, 0.5))]
    assert [row["arm"] for row in table.rows if row["control_of"] is None] == arms
    weak, strong = (table.runs[arm, 0].model.state_dict() for arm in arms[1:])
    assert not all(torch.equal(weak[name], strong[name]) for name in weak)


@pytest.mark.parametrize("out", [None, "c"])
def test_a_control_that_several_values_share_is_trained_once(tmp_path, monkeypatch, out):
    asked = []

    def watched(model, data, method, optimizer, **given):
        asked.append((method, optimizer, given.get("rho")))
        return train(model, data, method, optimizer, **given)

    monkeypatch.setattr("evenly.comparison.train", watched)
    folder = None if out is None else tmp_path / out
    table = compare("mlp", law, ["erm"], ["sam"], seeds=1, sweep={"rho": [0.05, 0.5]}, out=folder, **QUICK)
    assert asked == [("erm", "sam", 0.05), ("erm", "sgd", None), ("erm", "sam", 0.5)]
    rows = {row["arm"]: row for row in table.rows}
    weak, strong = (rows[f"erm+sgd at the cost of erm+sam, rho {rho}"] for rho in (0.05, 0.5))
    assert measured(weak) == measured(strong)
    assert (weak["control_of"], strong["control_of"]) == ("erm+sam, rho 0.05", "erm+sam, rho 0.5")
    assert all("difference" in entry["accuracy"] for entry in table.summary if entry["control"])
    # where epochs are swept, the cost that is called 1.00x is another, and so are the runs
    asked.clear()
    compare("mlp", law, ["erm"], ["sam"], seeds=1, sweep={"epochs": [2, 3]}, batch_size=BATCH, lr=0.1)
    assert len(asked) == 4


def linear():
    return torch.nn.Linear(3, 2)


@pytest.mark.parametrize("whose", ["", "useful."])
def test_models_can_be_swept_and_a_control_has_its_arms_model(whose):
    table = compare(None, law, ["useful"], seeds=1, sweep={f"{whose}model": ["mlp", linear]}, **QUICK)
    for row in table.rows:
        assert isinstance(table.runs[row["arm"], 0].model, torch.nn.Linear) is ("model linear" in row["arm"])
    assert len(table.rows) == 4
    assert table.plan["sweep"] == {f"{whose}model": ["mlp", "linear"]}


def test_a_model_of_one_method_comes_before_that_of_all():
    table = compare("mlp", law, ["erm", "subsample"], seeds=1, options={"subsample": {"model": linear}}, **QUICK)
    linears = {arm for (arm, _), run in table.runs.items() if isinstance(run.model, torch.nn.Linear)}
    assert linears == {"subsample+sgd", "erm+sgd at the cost of subsample+sgd"}


@pytest.mark.parametrize(
    ("sweep", "more", "said"),
    [
        ({"batchsize": [1]}, {}, "no setting is called 'batchsize'; did you mean 'batch_size'"),
        ({"factor": [2]}, {}, "sweep 'factor' does not say whose option it is; write useful.factor"),
        ({"usefull.factor": [2]}, {}, "did you mean 'useful'"),
        ({"useful.factr": [2]}, {}, "no option of useful is called 'factr'; did you mean 'factor'"),
        ({"pde.every": [2]}, {}, "sweep 'pde.every' varies no arm, none has method pde"),
        ({"rho": [0.1]}, {}, "sweep 'rho' varies no arm, none has optimizer sam"),
        ({"select": ["last"]}, {}, "select cannot be swept, one table has one selection rule"),
        ({"batch_size": []}, {}, "sweep of batch_size has no values"),
        ({"batch_size": 8}, {}, "sweep of batch_size is 8, not a list"),
        ({"schedule": "step"}, {}, "sweep of schedule is 'step', not a list"),
        ({"batch_size": [8, 2.5]}, {}, r"batch_size 2\.5 cannot be used"),
        ({"useful.factor": [2, "two"]}, {}, "factor 'two' cannot be used"),
        ({"weight_decay": [0, 1, 0.0]}, {}, r"0\.0 stands twice in the sweep of weight_decay"),
        ({"schedule": ["step", "step"]}, {}, "step stands twice"),
        ({"lr": [0.1]}, {"lr": 0.2}, r"lr is swept and also fixed at 0\.2"),
        ({"lr": [0.1]}, {"options": {"useful": {"lr": 0.3}}}, r"lr is swept and also fixed at 0\.3"),
        ({"useful.factor": [2]}, {"options": {"useful": {"factor": 3}}}, "useful.factor is swept and also fixed at 3"),
        ({"model": ["mlp"]}, {"model": "mlp"}, "model is swept and also fixed at 'mlp'"),
        ({"useful.lr": [0.1], "lr": [0.1]}, {}, "useful.lr and lr are both swept"),
        ({"lr": [0.1, -1]}, {}, "lr -1 does not train"),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_sweep_is_said_in_one_line_before_anything_runs(tmp_path, monkeypatch, sweep, more, said):
    monkeypatch.setattr("evenly.comparison.train", None)
    with pytest.raises(EvenlyError, match=said) as refused:
        compare(
            **{"data": law, "methods": ["erm", "useful"], "sweep": sweep, "out": tmp_path / "out", "epochs": 2} | more
        )
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_number_swept_for_one_method_may_be_fixed_for_the_others():
    table = compare("mlp", law, ["erm", "subsample"], seeds=1, sweep={"subsample.lr": [0.3]}, controls=False, **QUICK)
    assert {arm: run.history[0]["lr"] for (arm, _), run in table.runs.items()} == {
        "erm+sgd": QUICK["lr"], "subsample+sgd, lr 0.3": 0.3,
    }  # fmt: skip


NAMES = [
    "erm+sgd", "erm+sgd at the cost of pde+sgd", "useful+sgd, lr 0.1", "useful+sgd, lr 1e-05", "erm+sgd, augment a+b",
    "erm+sgd, augment a-b", "erm+sgd, augment a b", "erm+sgd, model torchvision:vit", "erm+sgd, model torchvision/vit",
    "erm+sgd, model ../../up", "erm+sgd at the cost of useful+sgd, augment a+b", f"erm+sgd, model {'x' * 300}",
    f"erm+sgd, model {'x' * 299}y", "erm+sgd, model ünï", "erm+sgd, model únï", "erm+sgd, add 1/2", "erm+sgd, add 12",
]  # fmt: skip


def test_folders_of_runs_are_safe_and_of_one_arm_each():
    slugs = [_slug(name) for name in NAMES]
    assert len(set(slugs)) == len(NAMES)
    assert all(set(slug) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") for slug in slugs)
    assert max(map(len, slugs)) < 200
    assert slugs[:3] == ["erm-sgd", "erm-sgd--pde-sgd", "useful-sgd-lr-0.1"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "none"), (True, "true"), (0.05, "0.05"), ([1, 2], "1/2"), ({}, "none"),
     ({"width": 8, "depth": None}, "width=8 depth=none")],
)  # fmt: skip
def test_values_in_names(value, text):
    assert point_name({"batch_size": None, "useful.x": value}) == f"batch_size full, useful.x {text}"


def test_how_to_run_is_handed_on_where_it_is_given(monkeypatch):
    seen = []

    def watched(*arguments, **given):
        seen.append({name: given.get(name) for name in ("device", "workers", "capture")})
        return train(*arguments, **{name: value for name, value in given.items() if name not in ("workers", "capture")})

    monkeypatch.setattr("evenly.comparison.train", watched)
    compare("mlp", law, ["erm"], seeds=1, device="cpu", workers=3, capture=False, **QUICK)
    compare("mlp", law, ["erm"], seeds=1, **QUICK)
    assert seen == [
        {"device": "cpu", "workers": 3, "capture": False}, {"device": "auto", "workers": None, "capture": None},
    ]  # fmt: skip


def test_the_unit_of_cost_knows_the_recipe_of_the_model(monkeypatch):
    monkeypatch.setitem(RECIPES, "mlp", {"epochs": 3})
    table = compare("mlp", law, ["erm", "erm+sam"], seeds=1, batch_size=BATCH)
    multiples = {row["arm"]: row["cost_multiple"] for row in table.rows}
    assert multiples == {"erm+sgd": 1.0, "erm+sam": 2.0, "erm+sgd at the cost of erm+sam": 2.0}
    assert table.plan["in_common"]["epochs"] == 3


# The folder


@pytest.fixture
def steps(monkeypatch):
    """How many optimizer steps have been taken."""
    taken = []
    step = torch.optim.SGD.step

    def counted(self, closure=None):
        taken.append(1)
        return step(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", counted)
    return lambda: len(taken)


def test_finished_runs_are_not_repeated_and_seeds_and_methods_can_be_added(tmp_path, steps):
    ask = {"model": "mlp", "data": law, "out": tmp_path / "out"} | QUICK
    first = compare(**ask, methods=["erm", "subsample"], seeds=2)
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "out/runs").rglob("*.pt")}
    assert len(stamps) == 2 * 3
    before = steps()
    again = compare(**ask, methods=["erm", "subsample"], seeds=2)
    assert steps() == before
    assert again.rows == first.rows
    assert again.summary == first.summary

    more = compare(**ask, methods=["erm", "subsample", "group_dro"], seeds=3)
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps
    assert rows_of(more).keys() > rows_of(first).keys()
    assert all(rows_of(more)[key] == value for key, value in rows_of(first).items())
    assert json.loads((tmp_path / "out/results.json").read_text()) == json.loads(json.dumps(more.as_json()))


def test_a_narrower_call_tells_of_itself_and_keeps_the_other_rows(tmp_path):
    ask = {"model": "mlp", "data": law, "out": tmp_path / "out", "controls": False} | QUICK
    wide = compare(**ask, methods=["erm", "subsample"], seeds=2)
    assert wide.others == []
    narrow = compare(**ask, methods=["erm"], seeds=1)
    assert [(row["arm"], row["seed"]) for row in narrow.rows] == [("erm+sgd", 0)]
    third = compare(**ask, methods=["group_dro"], seeds=1)
    written = json.loads((tmp_path / "out/results.json").read_text())
    assert written == json.loads(json.dumps(third.as_json()))
    assert {entry["arm"] for entry in written["summary"]} == {"group_dro+sgd"}
    assert len(written["others"]) == 4
    assert rows_of(Comparison("", written["others"], [], {})) == rows_of(wide)
    again = compare(**ask, methods=["erm", "subsample", "group_dro"], seeds=2)
    assert again.others == []


def test_a_sweep_resumes_and_others_can_be_added(tmp_path, steps):
    ask = {"model": "mlp", "data": law, "methods": ["erm", "subsample"], "seeds": 1, "out": tmp_path / "out"} | SWEPT
    first = compare(**ask, sweep={"batch_size": [8, 16]})
    taken = steps()
    again = compare(**ask, sweep={"batch_size": [8, 16]})
    assert (steps(), again.rows) == (taken, first.rows)
    more = compare(**ask, sweep={"batch_size": [16, 32]})
    assert rows_of(more)["erm+sgd, batch_size 16", 0] == rows_of(first)["erm+sgd, batch_size 16", 0]
    assert {row["arm"] for row in more.others} == {row["arm"] for row in first.rows if row["sweep"]["batch_size"] == 8}
    plain = compare(**ask)
    assert len(plain.others) == 9
    assert {path.name for path in (tmp_path / "out/runs").iterdir()} >= {
        "erm-sgd-batch_size-8-seed0", "erm-sgd--subsample-sgd-batch_size-32-seed0", "subsample-sgd-seed0",
    }  # fmt: skip


LATE = {
    "an option beyond the run": ({"methods": ["pde"], "options": {"pde": {"warmup_epochs": 9}}}, law, "does not fit"),
    "a recipe of another method": ({"methods": ["erm"]}, "recipe", "no setting or option of erm is called 'factr'"),
    "a rate that cannot be": ({"methods": ["erm", "subsample"], "options": {"subsample": {"lr": 0}}}, law, "lr 0"),
    "a model that cannot be": ({"methods": ["erm"], "model": "convnet"}, law, "convnet"),
}  # fmt: skip


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "a folder above"])
@pytest.mark.parametrize("case", LATE)
def test_a_comparison_refused_late_leaves_the_folder_as_it_was(tmp_path, case, there):
    arguments, data, said = LATE[case]
    if data == "recipe":
        data = law(0)
        data.recipe = {"options": {"erm": {"factr": 3}}}
    out = tmp_path / "deep/out"
    (tmp_path if there == "nothing" else out if there == "an empty folder" else tmp_path / "deep").mkdir(
        parents=True, exist_ok=True
    )
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(EvenlyError, match=said):
        compare(**{"model": "mlp", "data": data, "seeds": 1, "out": out} | QUICK | arguments)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_comparison_refused_after_its_first_run_keeps_what_it_has(tmp_path, steps):
    ask = {"model": "mlp", "data": law, "seeds": 1, "out": tmp_path / "out", "controls": False} | QUICK
    with pytest.raises(EvenlyError, match="every"):
        compare(**ask, methods=["erm", "pde"], sweep={"pde.every": [2, 0]})
    taken = steps()
    assert (tmp_path / "out/config.json").exists()
    compare(**ask, methods=["erm", "pde"], sweep={"pde.every": [2]})
    assert steps() == taken


def test_numbers_of_numpy_are_numbers(tmp_path):
    ask = {"model": "mlp", "data": law, "methods": ["useful"], "batch_size": BATCH}
    kinds = {"seeds": np.arange(2), "epochs": np.int64(2), "options": {"useful": {"factor": np.int64(3)}}}
    rows = compare(**ask, **kinds, out=tmp_path / "out").rows
    again = compare(**ask, seeds=2, epochs=2, options={"useful": {"factor": 3}}, out=tmp_path / "out").rows
    assert rows == again


@pytest.mark.parametrize("at", [3, 9, 17])
def test_an_interrupted_comparison_goes_on(tmp_path, monkeypatch, steps, at):
    whole = compare("mlp", law, ["erm", "useful"], seeds=2, **QUICK)
    total = steps()
    from evenly.engine.folder import Folder

    saved, save = [], Folder.save

    def interrupted(self, stage, state):
        save(self, stage, state)
        saved.append(stage)
        if len(saved) == at:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compare("mlp", law, ["erm", "useful"], seeds=2, out=tmp_path / "out", **QUICK)
    assert not (tmp_path / "out/results.json").exists()
    resumed = compare("mlp", law, ["erm", "useful"], seeds=2, out=tmp_path / "out", **QUICK)
    assert steps() == 2 * total  # every epoch was trained once
    assert without_time(resumed.rows) == without_time(whole.rows)
    assert resumed.summary == whole.summary


@pytest.mark.parametrize(
    "other",
    [
        {"lr": 0.2}, {"model": "convnet"}, {"data": "patches"}, {"options": {"pde": {"every": 2}}},
        {"data_options": {"n": 4}}, {"epochs": 3},
    ],
    ids=str,
)  # fmt: skip
def test_other_settings_are_refused_and_nothing_is_touched(tmp_path, other):
    ask = {"model": "mlp", "data": law, "methods": ["erm"], "seeds": 1, "out": tmp_path / "out"} | QUICK
    compare(**ask)
    before = {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    with pytest.raises(EvenlyError, match="holds another run"):
        compare(**ask | other)
    assert {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()} == before


def test_other_data_under_the_same_name_is_refused(tmp_path):
    compare("mlp", law(0), ["erm"], seeds=1, out=tmp_path / "out", **QUICK)
    before = {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    with pytest.raises(EvenlyError, match="holds another run"):
        compare("mlp", law(1), ["erm"], seeds=1, out=tmp_path / "out", **QUICK)
    assert {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()} == before


def test_a_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("dear to somebody")
    with pytest.raises(EvenlyError, match="not empty and holds no comparison"):
        compare("mlp", law, out=tmp_path, **QUICK)
    train("mlp", law(0), out=tmp_path / "run", **QUICK)
    with pytest.raises(EvenlyError, match="holds another run"):
        compare("mlp", law, out=tmp_path / "run", **QUICK)
    assert (tmp_path / "thesis.tex").read_text() == "dear to somebody"


def test_a_kill_while_the_folder_is_made_leaves_it_usable(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*arguments):
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr("pathlib.Path.replace", kill)
        dying.setattr("pathlib.Path.unlink", lambda *arguments, **options: None)  # the dead do not tidy up
        with pytest.raises(Killed):
            compare("mlp", law, ["erm"], seeds=1, out=tmp_path / "out", **QUICK)
    assert compare("mlp", law, ["erm"], seeds=1, out=tmp_path / "out", **QUICK).rows


# Several processes


def test_processes_change_nothing(tmp_path):
    """Runs of a spawned process come back with their models; results are those of this process, bit for bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ask = {"model": "mlp", "data": "shortcut-digits", "methods": ["erm", "useful"], "seeds": 2, "epochs": 2}
        one = compare(**ask)
        two = compare(**ask, jobs=2, out=tmp_path / "out")
    finally:
        torch.set_num_threads(threads)
    assert without_time(one.rows) == without_time(two.rows)
    assert one.summary == two.summary
    for key, run in one.runs.items():
        other = two.runs[key].model.state_dict()
        assert all(torch.equal(value, other[name]) for name, value in run.model.state_dict().items())


@pytest.mark.timeout(60)  # it once hung in the pool's shutdown
def test_what_cannot_be_sent_to_a_process_is_said():
    """The patch law's Data carries a function that watches the network; it was made inside another."""
    with pytest.raises(EvenlyError, match="use jobs 1"):
        compare(None, load("patches", n=40), ["erm"], seeds=2, jobs=2, epochs=1)


def dies_with_seed_1(seed: int):
    if seed == 1 and multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)  # as the system does where memory runs out
    return law(seed)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("folder", "way_out"), [("out", "the same call goes on"), (None, "again with an out")])
def test_a_worker_that_is_killed_is_said_in_a_line_and_the_call_goes_on(tmp_path, folder, way_out):
    ask = {"model": "mlp", "data": dies_with_seed_1, "methods": ["erm"], "seeds": 2, **QUICK}
    out = None if folder is None else tmp_path / folder
    with pytest.raises(EvenlyError, match="one of 2 worker processes was killed, perhaps for lack of memory") as error:
        compare(**ask, jobs=2, out=out)
    assert way_out in str(error.value)
    assert "fewer jobs" in str(error.value)
    assert "\n" not in str(error.value)
    if out is not None:
        assert len(compare(**ask, out=out).rows) == 2
