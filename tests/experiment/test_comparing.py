"""`evenly.compare`: controls of equal cost, folders that grow without repeating work, several processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal

import numpy as np
import pytest
import torch
from torch import nn

from evenly import Data, EvenlyError, compare, load_comparison, train
from evenly.data import load
from evenly.engine.checkpoints import Checkpoints
from evenly.experiment import comparing
from evenly.models import RECIPES
from evenly.runs.arms import Arm
from evenly.runs.summary import METRICS, paired

N, BATCH, EPOCHS = 40, 8, 4
QUICK = {"model": "mlp", "epochs": EPOCHS, "batch_size": BATCH, "lr": 0.1, "device": "cpu"}


def draw(seed: int) -> Data:
    """Two classes, four groups; the spurious second feature is stronger than the first."""
    generator = torch.Generator().manual_seed(1000 + seed)

    def part(count):
        y = torch.arange(count) % 2
        agrees = torch.arange(count) % 10 > 2
        x = torch.randn(count, 3, generator=generator) + torch.stack([2 * y - 1, 4 * (y ^ ~agrees) - 2, 0 * y], 1)
        return x, y, 2 * y + (~agrees).long()

    return Data(train=part(N), validation=part(20), test=part(60), name="toy")


def linear():
    return nn.Linear(3, 2)


@pytest.fixture(autouse=True, scope="module")
def _no_pages():
    """Pages have tests of their own, and drawing them takes longer than training here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evenly.experiment.execute.write_report", lambda *arguments, **options: None)
        patch.setattr("evenly.experiment.comparing.write_report", lambda *arguments, **options: None)
        yield


def by_name(table):
    return {(row.arm.name, row.seed): row for row in table.rows}


def runs_of(table):
    return {(arm.name, seed): run for (arm, seed), run in table.runs.items()}


def without_time(rows):
    return [row.to_dict() | {"result": row.result.to_dict() | {"seconds": 0}} for row in rows]


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# The arms and their controls


ARMS = ["erm+sgd", "useful+sgd", "pde+sgd", "subsample+sgd", "group_dro+sgd", "random_upsample+sgd", "erm+sam"]


@pytest.fixture(scope="module")
def everything():
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


def test_erm_has_no_control_of_its_own(everything):
    for seed in (0, 1):
        row = by_name(everything)["erm+sgd", seed]
        assert (row.control, row.result.cost, row.result.cost_multiple) == (None, EPOCHS * N, 1.0)


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


@pytest.mark.parametrize("optimizer", ["sam", "asam"])
def test_sam_is_compared_with_twice_the_epochs_of_sgd_and_its_schedule_rescaled(optimizer):
    table = compare(draw, methods=["erm"], optimizers=[optimizer], seeds=1, schedule="step", **QUICK)
    runs = runs_of(table)
    sam, plain = runs[f"erm+{optimizer}", 0], runs[f"erm+sgd at the cost of erm+{optimizer}", 0]
    assert sam.results.cost == plain.results.cost == 2 * EPOCHS * N
    assert (len(sam.history), len(plain.history)) == (EPOCHS, 2 * EPOCHS)
    assert [row["lr"] for row in plain.history] == pytest.approx([0.1] * 4 + [0.01] * 2 + [0.001] * 2)
    assert ("rho" in table.plan.differs) == (optimizer == "asam")


def test_sam_with_another_method_keeps_sam_in_its_control():
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


def test_without_controls():
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
                assert each.difference(metric) == paired([a - b for a, b in zip(values, others, strict=True)])
        costs = [rows[each.arm, seed].result for seed in (0, 1)]
        assert each.cost_multiple == pytest.approx(sum(result.cost / (EPOCHS * N) for result in costs) / 2)
        assert each.evaluation_cost_multiple > 0
    plan = everything.plan
    assert (plan.seeds, plan.rule, plan.judged, plan.model, plan.differs) == ((0, 1), "last", "test", "mlp", ())
    assert (plan.in_common.epochs, plan.in_common.batch_size) == (EPOCHS, BATCH)
    json.dumps(everything.to_dict(), allow_nan=False)


def test_each_run_is_what_train_gives_for_that_seed(everything):
    for seed in (0, 1):
        alone = train(draw(seed), method="useful", seed=seed, **QUICK).results
        row = by_name(everything)["useful+sgd", seed]
        assert row.result.to_dict() | {"seconds": 0} == alone.to_dict() | {"seconds": 0}


@pytest.mark.parametrize("form", ["name", "one Data", "arrays"])
def test_data_in_other_forms(form):
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


def test_options_and_settings_of_one_method_go_before_those_of_all():
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


def test_a_model_of_one_method_is_its_controls_too():
    table = compare(draw, methods=["erm", "subsample"], seeds=1, options={"subsample": {"model": linear}}, **QUICK)
    linears = {arm for (arm, _), run in runs_of(table).items() if isinstance(run.model, nn.Linear)}
    assert linears == {"subsample+sgd", "erm+sgd at the cost of subsample+sgd"}
    assert table.plan.model == "mlp, linear"


def test_erm_is_no_control_where_its_own_settings_give_it_another_cost():
    options = {"erm": {"epochs": 2 * EPOCHS}}
    rows = by_name(compare(draw, methods=["erm", "group_dro"], seeds=1, options=options, **QUICK))
    group_dro = rows["group_dro+sgd", 0]
    assert rows["erm+sgd", 0].result.cost == 2 * group_dro.result.cost
    assert group_dro.control.control_of == group_dro.arm
    assert 0 <= rows[group_dro.control.name, 0].result.cost - group_dro.result.cost < BATCH + 1


def test_a_control_is_evaluated_after_its_own_epochs():
    """An epoch of subsampling is short: every fourth of them, in the control, would be a quarter of the evaluations."""
    own = {"epochs": 12, "evaluate_every": 4, "patience": 2}
    table = compare(draw, methods=["subsample"], seeds=1, options={"subsample": own}, select="average", **QUICK)
    evaluated = {
        arm: [row["epoch"] for row in run.history if row.get("validation")] for (arm, _), run in runs_of(table).items()
    }
    control = evaluated["erm+sgd at the cost of subsample+sgd"]
    assert all(epoch % 4 == 0 for epoch in evaluated["subsample+sgd"])
    assert control == list(range(1, len(control) + 1))


def test_the_unit_of_cost_knows_the_recipe_of_the_model(monkeypatch):
    monkeypatch.setitem(RECIPES, "mlp", {"epochs": 3})
    table = compare(draw, model="mlp", methods=["erm", "erm+sam"], seeds=1, batch_size=BATCH)
    assert {row.arm.name: row.result.cost_multiple for row in table.rows} == {
        "erm+sgd": 1.0,
        "erm+sam": 2.0,
        "erm+sgd at the cost of erm+sam": 2.0,
    }
    assert table.plan.in_common.epochs == 3


def test_inferred_groups_are_left_out_where_an_arm_does_not_use_them():
    table = compare(draw, methods=["erm", "group_dro"], seeds=1, groups="infer", **QUICK)
    inferred = {row.arm.name: row.result.inferred_groups is not None for row in table.rows}
    assert inferred == {name: "group_dro+" in name and " at " not in name for name in inferred}
    assert inferred["group_dro+sgd"]
    assert {run.plan.settings.groups for (arm, _), run in table.runs.items() if arm.method == "erm"} == {"given"}


def test_every_run_records_what_was_asked(tmp_path):
    record = {"forgetting": True, "l1": True, "epochs": [2]}
    table = compare(draw, methods=["erm", "subsample"], seeds=1, record=record, out=tmp_path / "out", **QUICK)
    for run in table.runs.values():
        assert [row["epoch"] for row in run.record.history] == [2]
        assert run.record.forgetting_scores.shape == (N,)
    again = load_comparison(tmp_path / "out")
    assert again.runs.keys() == table.runs.keys()
    assert all(again.runs[key].record.history == run.record.history for key, run in table.runs.items())


def test_how_to_execute_is_handed_on(monkeypatch):
    seen, execute = [], comparing.execute

    def watched(plan, data, out, execution, progress):
        seen.append((execution.device, execution.workers, execution.capture))
        return execute(plan, data, out, execution, progress)

    monkeypatch.setattr(comparing, "execute", watched)
    compare(draw, methods=["erm"], seeds=1, workers=3, capture=False, **QUICK)
    compare(draw, methods=["erm"], seeds=1, **QUICK)
    assert seen == [("cpu", 3, False), ("cpu", 0, True)]


# What is refused


def with_recipe(recipe):
    data = draw(0)
    data.recipe = recipe
    return data


WRONG = {
    "method": ({"methods": ["usefull"]}, "did you mean 'useful'"),
    "optimizer": ({"optimizers": ["sgdd"]}, "did you mean 'sgd'"),
    "optimizer of one arm": ({"methods": ["erm+sbm"]}, "did you mean 'sam'"),
    "option": ({"options": {"pde": {"warmup": 3}}}, "did you mean 'warmup_epochs'"),
    "method of an option": ({"options": {"pdee": {}}}, "did you mean 'pde'"),
    "setting": ({"learning_rate": 3}, "no setting is called 'learning_rate'"),
    "no seed": ({"seeds": 0}, "nothing to compare"),
    "no method": ({"methods": []}, "nothing to compare"),
    "a seed twice": ({"seeds": [1, 1]}, "a seed stands twice"),
    "jobs": ({"jobs": 0}, "jobs must be at least 1, got 0"),
    "warm-up": ({"methods": ["pde"], "options": {"pde": {"warmup_epochs": 9}}}, "warmup_epochs must be at most 4"),
    "recipe": ({"data": with_recipe({"options": {"erm": {"factr": 3}}})}, "of erm is called 'factr'"),
    "rate": ({"methods": ["erm", "subsample"], "options": {"subsample": {"lr": 0}}}, "lr .* must be above 0, got 0"),
    "model": ({"model": "convnet"}, "convnet takes images"),
    "inference": ({"groups": "infer", "methods": ["erm"]}, "groups 'infer' would not be used by erm"),
    "no groups": ({"methods": ["erm", "pde"], "data": (torch.randn(8, 3), torch.arange(8) % 2)}, "pde needs groups"),
}


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "a folder above"])
@pytest.mark.parametrize("case", WRONG)
def test_a_comparison_that_is_refused_leaves_the_folder_as_it_was(tmp_path, case, there):
    given, message = WRONG[case]
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


# The folder


@pytest.fixture
def steps(monkeypatch):
    """How many optimizer steps have been taken."""
    taken, step = [], torch.optim.SGD.step

    def counted(self, closure=None):
        taken.append(1)
        return step(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", counted)
    return lambda: len(taken)


def test_finished_runs_are_not_repeated_and_seeds_and_methods_can_be_added(tmp_path, steps):
    ask = {"data": draw, "out": tmp_path / "out"} | QUICK
    first = compare(**ask, methods=["erm", "subsample"], seeds=2)
    weights = {p: p.stat().st_mtime_ns for p in (tmp_path / "out/runs").rglob("model.safetensors")}
    assert len(weights) == 2 * 3
    before = steps()
    again = compare(**ask, methods=["erm", "subsample"], seeds=2)
    assert steps() == before
    assert (again.rows, again.summary) == (first.rows, first.summary)
    more = compare(**ask, methods=["erm", "subsample", "group_dro"], seeds=3)
    assert {p: p.stat().st_mtime_ns for p in weights} == weights
    assert by_name(more).items() > by_name(first).items()
    assert json.loads((tmp_path / "out/results.json").read_text()) == json.loads(json.dumps(more.to_dict()))
    for row in more.to_dict()["rows"]:
        plan = more.runs[Arm.from_dict(row["arm"]), row["seed"]].plan
        assert row["folder"] == f"runs/{plan.folder_name}"
        assert (tmp_path / "out" / row["folder"] / "results.json").exists()


def test_a_narrower_call_shows_itself_and_keeps_the_other_rows(tmp_path):
    ask = {"data": draw, "out": tmp_path / "out", "controls": False} | QUICK
    wide = compare(**ask, methods=["erm", "subsample"], seeds=2)
    assert wide.others == ()
    narrow = compare(**ask, methods=["erm"], seeds=1)
    assert list(by_name(narrow)) == [("erm+sgd", 0)]
    third = compare(**ask, methods=["group_dro"], seeds=1)
    again = load_comparison(tmp_path / "out")
    assert (again.rows, again.others, again.summary) == (third.rows, third.others, third.summary)
    assert {each.arm.name for each in again.summary} == {"group_dro+sgd"}
    assert {(row.arm, row.seed): row for row in again.others} == {(row.arm, row.seed): row for row in wide.rows}
    assert compare(**ask, methods=["erm", "subsample", "group_dro"], seeds=2).others == ()


def test_a_comparison_that_fails_after_its_first_run_keeps_what_it_has(tmp_path, steps):
    ask = {"data": draw, "seeds": 1, "out": tmp_path / "out", "controls": False} | QUICK

    def broken():
        return nn.Linear(4, 2)

    with pytest.raises(EvenlyError, match="cannot take inputs"):
        compare(**ask, methods=["erm", "subsample"], options={"subsample": {"model": broken}})
    taken = steps()
    assert (tmp_path / "out/config.json").exists()
    with pytest.raises(EvenlyError, match="cannot take inputs"):
        compare(**ask, methods=["erm", "subsample"], options={"subsample": {"model": broken}})
    assert steps() == taken


def test_numbers_of_numpy_are_numbers(tmp_path, steps):
    ask = {"data": draw, "methods": ["useful"], "out": tmp_path / "out"} | QUICK
    kinds = {
        "seeds": np.arange(2),
        "epochs": np.int64(2),
        "momentum": 0,
        "options": {"useful": {"factor": np.int64(3)}},
    }
    rows = compare(**ask | kinds).rows
    taken = steps()
    again = compare(**ask | {"seeds": 2, "epochs": 2, "momentum": 0.0, "options": {"useful": {"factor": 3}}}).rows
    assert (again, steps()) == (rows, taken)


@pytest.mark.parametrize("last", [3, 9, 17])
def test_an_interrupted_comparison_goes_on(tmp_path, monkeypatch, steps, last):
    ask = {"data": draw, "methods": ["erm", "useful"], "seeds": 2} | QUICK
    whole = compare(**ask)
    total, saved, save = steps(), [], Checkpoints.save

    def interrupted(self, stage, state):
        save(self, stage, state)
        saved.append(stage)
        if len(saved) == last:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compare(**ask, out=tmp_path / "out")
    assert not (tmp_path / "out/results.json").exists()
    resumed = compare(**ask, out=tmp_path / "out")
    assert steps() == 2 * total  # every epoch was trained once
    assert without_time(resumed.rows) == without_time(whole.rows)
    assert resumed.summary == whole.summary


@pytest.mark.parametrize(
    "other",
    [
        {"lr": 0.2},
        {"model": "convnet"},
        {"model": linear},
        {"data": "patches"},
        {"data": draw(1)},
        {"options": {"pde": {"every": 2}}},
        {"data_options": {"n": 4}},
        {"schedule": lambda progress: 1 - progress},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_comparison_is_refused_and_nothing_is_touched(tmp_path, other):
    halving = {"schedule": lambda progress: 1 - progress / 2}
    ask = {"data": draw(0), "methods": ["erm"], "seeds": 1, "out": tmp_path / "out"} | QUICK | halving
    compare(**ask)
    before = contents(tmp_path)
    with pytest.raises(EvenlyError, match="holds another run, with other data, model, options or settings"):
        compare(**ask | other)
    assert contents(tmp_path) == before


def test_a_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("dear to somebody")
    train(draw(0), out=tmp_path / "run", **QUICK)
    for out, message in (
        (tmp_path, "not empty and holds no comparison"),
        (tmp_path / "run", "holds another run"),
        (tmp_path / "thesis.tex", "is a file; give a folder as out"),
    ):
        before = contents(tmp_path)
        with pytest.raises(EvenlyError, match=message):
            compare(draw, out=out, **QUICK)
        assert contents(tmp_path) == before


def test_a_kill_while_the_folder_is_made_leaves_it_usable(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*arguments):
        raise Killed

    ask = {"data": draw, "methods": ["erm"], "seeds": 1, "out": tmp_path / "out"} | QUICK
    with monkeypatch.context() as dying:
        dying.setattr("pathlib.Path.replace", kill)
        dying.setattr("pathlib.Path.unlink", lambda *arguments, **options: None)  # the dead do not tidy up
        with pytest.raises(Killed):
            compare(**ask)
    assert compare(**ask).rows


# Several processes


def test_processes_change_nothing(tmp_path):
    """Runs of a spawned process come back with their models; results are those of this process, bit for bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ask = {"data": "shortcut-digits", "model": "mlp", "methods": ["erm", "useful"], "seeds": 2, "epochs": 2}
        one = compare(**ask, device="cpu")
        two = compare(**ask, device="cpu", jobs=2, out=tmp_path / "out")
    finally:
        torch.set_num_threads(threads)
    assert without_time(one.rows) == without_time(two.rows)
    assert one.summary == two.summary
    for key, run in one.runs.items():
        other = two.runs[key].model.state_dict()
        assert all(torch.equal(value, other[name]) for name, value in run.model.state_dict().items())


@pytest.mark.timeout(60)  # it once hung in the pool's shutdown
def test_what_cannot_be_sent_to_a_process_is_refused():
    """The patches' Data carries a function that observes the network; it was made inside another."""
    with pytest.raises(EvenlyError, match="use jobs 1"):
        compare(load("patches", n=40), methods=["erm"], seeds=2, jobs=2, epochs=1)


def dies_with_seed_1(seed: int):
    if seed == 1 and multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)  # as the system does where memory runs out
    return draw(seed)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("folder", "way_out"), [("out", "the same call goes on"), (None, "again with an out")])
def test_a_worker_that_is_killed_is_one_line_and_the_call_goes_on(tmp_path, folder, way_out):
    ask = {"data": dies_with_seed_1, "methods": ["erm"], "seeds": 2, **QUICK}
    out = None if folder is None else tmp_path / folder
    message = f"one of 2 worker processes was killed, perhaps for lack of memory; .*{way_out}.* fewer jobs"
    with pytest.raises(EvenlyError, match=message) as error:
        compare(**ask, jobs=2, out=out)
    assert "\n" not in str(error.value)
    if out is not None:
        assert len(compare(**ask, out=out).rows) == 2
