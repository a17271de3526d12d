"""`evenly.compare`: every arm against a control of equal cost, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from attrs import evolve
from torch import nn

from evenly import EvenlyError, compare, load_comparison, train
from evenly.data import load
from evenly.models import RECIPES
from evenly.runs.differences import paired
from evenly.runs.summary import METRICS

N, BATCH, EPOCHS = 40, 8, 4
QUICK = {"model": "mlp", "epochs": EPOCHS, "batch_size": BATCH, "lr": 0.1, "device": "cpu"}
pytestmark = pytest.mark.usefixtures("without_pages")


def linear():
    return nn.Linear(3, 2)


def by_name(table):
    return {(row.arm.name, row.seed): row for row in table.rows}


def runs_of(table):
    return {(arm.name, seed): run for (arm, seed), run in table.runs.items()}


# The arms and their controls


ARMS = ["erm+sgd", "useful+sgd", "pde+sgd", "subsample+sgd", "group_dro+sgd", "random_upsample+sgd", "erm+sam"]


@pytest.fixture(scope="module")
def everything(draw):
    """One comparison of many methods, shared by the tests that only look at it."""
    methods = ["erm", "useful", "pde", "subsample", "group_dro", "random_upsample", "erm+sam"]
    return compare(draw, methods=methods, seeds=2, **QUICK)


def test_one_row_per_arm_and_seed_besides_the_controls(everything):
    arms = [(row.arm.name, row.seed) for row in everything.rows if row.arm.control_of is None]
    assert sorted(arms) == sorted((arm, seed) for arm in ARMS for seed in (0, 1))
    keys = [(row.arm, row.seed) for row in everything.rows]
    assert len(set(keys)) == len(keys)
    assert {each.arm for each in everything.summary} == {arm for arm, _ in keys}
    assert everything.runs.keys() == set(keys)
    erm = by_name(everything)["erm+sgd", 1]
    assert (erm.control, erm.result.cost, erm.result.cost_multiple) == (None, EPOCHS * N, 1.0)


def test_all_have_the_selection_rule_that_one_prefers(everything, draw):
    assert {row.result.rule for row in everything.rows} == {everything.plan.rule} == {"worst-group"}
    assert everything.plan.in_common.select == "worst-group"
    assert compare(draw, methods=["erm", "subsample"], seeds=1, **QUICK).plan.rule == "last"


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
    rows = by_name(everything)
    method, other = rows[arm, seed], rows[control, seed]
    assert method.control == other.arm
    assert other.arm.control_of == (None if control == "erm+sgd" else method.arm)
    assert 0 <= other.result.cost - method.result.cost < BATCH + 1  # a last batch of one may have joined another
    assert other.control is None


def test_the_early_stage_is_counted_and_the_control_repeats_as_many(everything):
    for seed in (0, 1):
        run = runs_of(everything)["useful+sgd", seed]
        hard, early = len(run.selection.indices), int(run.selection.details["separating_epoch"])
        assert run.results.cost == pytest.approx(early * N + N / 3 + EPOCHS * (N + hard))
        control = runs_of(everything)["random_upsample+sgd at the cost of useful+sgd", seed]
        assert len(control.selection.indices) == hard
        assert control.history[0]["examples"] == N + hard
        assert control.selection.factor == run.selection.factor == 2
        assert control.plan.budget == run.results.cost


@pytest.mark.parametrize("optimizer", ["sam", "asam", "lsam"])
def test_sam_is_compared_with_twice_the_epochs_of_sgd_and_its_schedule_rescaled(draw, optimizer):
    table = compare(draw, methods=["erm"], optimizers=[optimizer], seeds=1, schedule="step", **QUICK)
    runs = runs_of(table)
    sam, plain = runs[f"erm+{optimizer}", 0], runs[f"erm+sgd at the cost of erm+{optimizer}", 0]
    assert sam.results.cost == plain.results.cost == 2 * EPOCHS * N
    assert (len(sam.history), len(plain.history)) == (EPOCHS, 2 * EPOCHS)
    assert [row["lr"] for row in plain.history] == pytest.approx([0.1] * 4 + [0.01] * 2 + [0.001] * 2)
    assert ("rho" in table.plan.differs) == (optimizer == "asam")


def test_each_optimizer_is_compared_with_its_base_at_equal_cost(draw):
    named = ["sam:adamw", "random_perturbation", "sam:sgd", "sam"]
    rows = by_name(compare(draw, methods=["erm"], optimizers=named, seeds=1, **QUICK))
    costs = {name: row.result.cost / (EPOCHS * N) for (name, _), row in rows.items()}
    twice = ["erm+sam:adamw", "erm+adamw at the cost of erm+sam:adamw", "erm+sam", "erm+sgd at the cost of erm+sam"]
    assert costs == {"erm+random_perturbation": 1, "erm+sgd": 1, **dict.fromkeys(twice, 2)}
    assert rows["erm+random_perturbation", 0].control.name == "erm+sgd"


def test_sam_with_another_method_keeps_sam_in_its_control(draw):
    table = compare(draw, methods=["useful", "subsample", "group_dro"], optimizers=["sam"], seeds=1, **QUICK)
    rows = by_name(table)
    for method, control in (
        ("useful", "random_upsample+sam at the cost of useful+sam"),
        ("subsample", "erm+sam at the cost of subsample+sam"),
        ("group_dro", "erm+sam"),
    ):
        arm, other = rows[f"{method}+sam", 0], rows[control, 0]
        assert arm.control == other.arm
        assert 0 <= other.result.cost - arm.result.cost < 2 * (BATCH + 1)


def test_without_controls(draw):
    table = compare(draw, methods=["erm", "useful"], seeds=1, controls=False, **QUICK)
    assert [(row.arm.name, row.control) for row in table.rows] == [("erm+sgd", None), ("useful+sgd", None)]
    assert all(each.difference("accuracy") is None for each in table.summary)


# What the table holds


def test_the_summary_is_computed_from_the_rows(everything):
    rows = {(row.arm, row.seed): row for row in everything.rows}
    for each in everything.summary:
        for metric in METRICS:
            values = [rows[each.arm, seed].result.measured.metric(metric) for seed in (0, 1)]
            assert each.metrics[metric].values == tuple(values)
            if each.control:
                others = [rows[each.control, seed].result.measured.metric(metric) for seed in (0, 1)]
                found = each.difference(metric)
                over_seeds = evolve(found, examples_low=None, examples_high=None, family=1)
                assert over_seeds == paired([a - b for a, b in zip(values, others, strict=True)])
                assert found.examples_low < found.examples_high
                assert found.family == (
                    sum(other.control is not None for other in everything.summary)
                    if metric == everything.headline
                    else 1
                )
        costs = [rows[each.arm, seed].result for seed in (0, 1)]
        assert each.cost_multiple == pytest.approx(sum(result.cost / (EPOCHS * N) for result in costs) / 2)
        assert each.evaluation_cost_multiple > 0
    plan = everything.plan
    assert (plan.seeds, plan.rule, plan.judged, plan.model, plan.differs) == ((0, 1), "worst-group", "test", "mlp", ())
    assert (plan.in_common.epochs, plan.in_common.batch_size) == (EPOCHS, BATCH)
    json.dumps(everything.to_dict(), allow_nan=False)


@pytest.mark.parametrize("form", ["name", "one Data", "arrays"])
def test_data_in_other_forms(draw, form):
    toy = draw(0)
    given = {"one Data": toy, "arrays": (toy.train.inputs.numpy(), toy.train.labels.numpy()), "name": "shortcut-digits"}
    settings = QUICK | ({"batch_size": 256, "epochs": 1} if form == "name" else {})
    table = compare(given[form], methods="erm", seeds=[3, 8], **settings)
    assert [row.seed for row in table.rows] == [3, 8]
    for row in table.rows:
        source = load("shortcut-digits", seed=row.seed) if form == "name" else given[form]
        alone = train(source, seed=row.seed, **settings).results
        assert row.result.splits == alone.splits
    assert ("worst_group" in table.summary[0].metrics) == (form != "arrays")


def test_options_and_settings_of_one_method_go_before_those_of_all(draw):
    """Its control has the settings too, cut to the same cost; the epochs of ERM are the unit of cost."""
    options = {"useful": {"factor": 3}, "pde": {"warmup_epochs": 1, "lr": 0.01, "epochs": 2}, "group_dro": {"lr": 0.02}}
    table = compare(draw, methods=["erm", *options], seeds=1, options=options, **QUICK)
    runs, at_cost_of = runs_of(table), "erm+sgd at the cost of {}+sgd".format
    assert runs["useful+sgd", 0].selection.factor == 3
    rates = {arm: {row["lr"] for row in run.history} for (arm, _), run in runs.items()}
    assert rates["erm+sgd"] == {0.1}
    assert rates["pde+sgd"] == rates[at_cost_of("pde")] == {0.01}
    assert rates["group_dro+sgd"] == rates[at_cost_of("group_dro")] == {0.02}  # of ERM's cost, and not ERM
    pde = runs["pde+sgd", 0].results
    assert (pde.epochs, pde.cost_multiple) == (2, pytest.approx(pde.cost / (EPOCHS * N)))
    assert 0 <= runs[at_cost_of("pde"), 0].results.cost - pde.cost < BATCH + 1
    assert table.plan.options == options


def test_a_model_of_one_method_is_its_controls_too(draw):
    table = compare(draw, methods=["erm", "subsample"], seeds=1, options={"subsample": {"model": linear}}, **QUICK)
    linears = {arm for (arm, _), run in runs_of(table).items() if isinstance(run.model, nn.Linear)}
    assert linears == {"subsample+sgd", "erm+sgd at the cost of subsample+sgd"}
    assert table.plan.model == "mlp, linear"


def test_erm_is_no_control_where_its_own_settings_give_it_another_cost(draw):
    options = {"erm": {"epochs": 2 * EPOCHS}}
    rows = by_name(compare(draw, methods=["erm", "group_dro"], seeds=1, options=options, **QUICK))
    group_dro = rows["group_dro+sgd", 0]
    assert rows["erm+sgd", 0].result.cost == 2 * group_dro.result.cost
    assert group_dro.control.control_of == group_dro.arm
    assert 0 <= rows[group_dro.control.name, 0].result.cost - group_dro.result.cost < BATCH + 1


def test_a_control_is_evaluated_after_its_own_epochs(draw):
    """An epoch of subsampling is short: every fourth of them, in the control, would be a quarter of the evaluations."""
    own = {"epochs": 12, "evaluate_every": 4, "patience": 2}
    table = compare(draw, methods=["subsample"], seeds=1, options={"subsample": own}, select="average", **QUICK)
    evaluated = {
        arm: [row["epoch"] for row in run.history if row.get("validation")] for (arm, _), run in runs_of(table).items()
    }
    control = evaluated["erm+sgd at the cost of subsample+sgd"]
    assert all(epoch % 4 == 0 for epoch in evaluated["subsample+sgd"])
    assert control == list(range(1, len(control) + 1))


def test_the_unit_of_cost_knows_the_recipe_of_the_model(draw, monkeypatch):
    monkeypatch.setitem(RECIPES, "mlp", {"epochs": 3})
    table = compare(draw, model="mlp", methods=["erm", "erm+sam"], seeds=1, batch_size=BATCH)
    assert {row.arm.name: row.result.cost_multiple for row in table.rows} == {
        "erm+sgd": 1.0,
        "erm+sam": 2.0,
        "erm+sgd at the cost of erm+sam": 2.0,
    }
    assert table.plan.in_common.epochs == 3


def test_inferred_groups_are_left_out_where_an_arm_does_not_use_them(draw):
    table = compare(draw, methods=["erm", "group_dro"], seeds=1, groups="infer", **QUICK)
    inferred = {row.arm.name: row.result.inferred_groups is not None for row in table.rows}
    assert inferred == {name: "group_dro+" in name and " at " not in name for name in inferred}
    assert inferred["group_dro+sgd"]
    assert {run.plan.settings.groups for (arm, _), run in table.runs.items() if arm.method == "erm"} == {"given"}


def test_every_run_records_what_was_asked(draw, tmp_path):
    record = {"forgetting": True, "l1": True, "epochs": [2]}
    table = compare(draw, methods=["erm", "subsample"], seeds=1, record=record, out=tmp_path / "out", **QUICK)
    for run in table.runs.values():
        assert [row["epoch"] for row in run.record.history] == [2]
        assert run.record.forgetting_scores.shape == (N,)
    again = load_comparison(tmp_path / "out")
    assert again.runs.keys() == table.runs.keys()
    assert all(again.runs[key].record.history == run.record.history for key, run in table.runs.items())


def test_how_to_execute_is_handed_on(draw, executed):
    compare(draw, methods=["erm"], seeds=1, workers=3, capture=False, **QUICK)
    compare(draw, methods=["erm"], seeds=1, **QUICK)
    assert [(each.device, each.workers, each.capture) for _, each in executed] == [("cpu", 3, False), ("cpu", 0, True)]


# What is refused


WRONG = {
    "method": ({"methods": ["usefull"]}, "did you mean 'useful'"),
    "optimizer": ({"optimizers": ["sgdd"]}, "did you mean 'sgd'"),
    "optimizer of one arm": ({"methods": ["erm+sbm"]}, "did you mean 'sam'"),
    "option": ({"methods": ["pde"], "options": {"pde": {"warmup": 3}}}, "did you mean 'warmup_epochs'"),
    "method of an option": ({"options": {"pdee": {}}}, "did you mean 'pde'"),
    "setting": ({"learning_rate": 3}, "no setting is called 'learning_rate'"),
    "no seed": ({"seeds": 0}, "seeds must be at least 1, got 0"),
    "half a seed": ({"seeds": 2.5}, "seeds must be a whole number, got 2.5"),
    "seeds that are no numbers": ({"seeds": ["a"]}, "seeds must be a whole number, got 'a'"),
    "no method": ({"methods": []}, "nothing to compare"),
    "a seed twice": ({"seeds": [1, 1]}, "a seed stands twice"),
    "jobs": ({"jobs": 0}, "jobs must be at least 1, got 0"),
    "warm-up": ({"methods": ["pde"], "options": {"pde": {"warmup_epochs": 9}}}, "warmup_epochs must be at most 4"),
    "rule of one": ({"options": {"erm": {"select": "average"}}}, "erm.select is of one method, one table has one"),
    "recipe": ({"recipe": {"options": {"erm": {"factr": 3}}}}, "of erm is called 'factr'"),
    "rate": ({"methods": ["erm", "subsample"], "options": {"subsample": {"lr": 0}}}, "lr .* must be above 0, got 0"),
    "model": ({"model": "convnet"}, "convnet takes images"),
    "inference": ({"groups": "infer", "methods": ["erm"]}, "groups 'infer' would not be used by erm"),
    "no groups": ({"methods": ["erm", "pde"], "data": (torch.randn(8, 3), torch.arange(8) % 2)}, "pde needs groups"),
}


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "a folder above"])
@pytest.mark.parametrize("case", WRONG)
def test_a_comparison_that_is_refused_leaves_the_folder_as_it_was(draw, tmp_path, case, there):
    given, message = WRONG[case]
    if "recipe" in given:
        data = draw(0)
        data.recipe = given["recipe"]
        given = {"data": data}
    out = tmp_path / "deep/out"
    {"nothing": tmp_path, "an empty folder": out, "a folder above": out.parent}[there].mkdir(
        parents=True, exist_ok=True
    )
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(EvenlyError, match=message) as refused:
        compare(**{"data": draw, "methods": ["erm"], "seeds": 1, "out": out} | QUICK | given)
    assert "\n" not in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_old_order_of_arguments_is_pointed_out():
    with pytest.raises(EvenlyError, match=r"write evenly.compare\('patches', model='mlp', ...\)"):
        compare("mlp", "patches")
