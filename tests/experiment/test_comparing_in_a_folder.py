"""A comparison's folder: it grows without repeating work, and nothing foreign in it is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from evenly import EvenlyError, compare, load_comparison, train
from evenly.engine.checkpoints import Checkpoints
from evenly.errors import EvenlyWarning
from evenly.files import read_json
from evenly.methods import METHODS
from evenly.report.comparison_words import sentences
from evenly.runs.arms import Arm
from evenly.runs.comparison import Failure

QUICK = {"model": "mlp", "epochs": 4, "batch_size": 8, "lr": 0.1, "device": "cpu"}
pytestmark = pytest.mark.usefixtures("without_pages")


def linear():
    return nn.Linear(3, 2)


def by_name(table):
    return {(row.arm.name, row.seed): row for row in table.rows}


def by_arm_and_seed(table):
    return {(row.arm, row.seed): row for row in table.rows}


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def steps(monkeypatch):
    """How many optimizer steps have been taken."""
    taken, step = [], torch.optim.SGD.step

    def counted(self, closure=None):
        taken.append(1)
        return step(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", counted)
    return lambda: len(taken)


def test_finished_runs_are_not_repeated_and_seeds_and_methods_can_be_added(draw, tmp_path, steps):
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
    assert read_json(tmp_path / "out/results.json") == json.loads(json.dumps(more.to_dict()))
    for row in more.to_dict()["rows"]:
        plan = more.runs[Arm.from_dict(row["arm"]), row["seed"]].plan
        assert row["folder"] == f"runs/{plan.folder_name}"
        assert (tmp_path / "out" / row["folder"] / "results.json").exists()


def test_calls_in_one_folder_add_up(draw, tmp_path):
    ask = {"data": draw, "out": tmp_path / "out"} | QUICK
    wide = compare(**ask, methods=["erm", "subsample"], seeds=2)
    narrow = compare(**ask, methods=["erm"], seeds=1)
    assert (narrow.rows, narrow.summary, narrow.plan) == (wide.rows, wide.summary, wide.plan)
    third = compare(**ask, methods=["group_dro"], optimizers=["sgd", "sam"], seeds=[5, 1])
    assert by_name(third).items() > by_name(wide).items()
    assert third.plan.methods == ("erm", "subsample", "group_dro")
    assert (third.plan.optimizers, third.plan.seeds) == (("sgd", "sam"), (0, 1, 5))
    assert [(each.arm.pair, each.seeds) for each in third.arms] == [
        ("erm+sgd", 3),  # with seed 5 it is the control of group_dro
        ("subsample+sgd", 2),
        ("group_dro+sgd", 2),
        ("group_dro+sam", 2),
        ("erm+sam", 2),  # another control
    ]
    again = load_comparison(tmp_path / "out")
    assert (again.rows, again.others, again.summary) == (third.rows, (), third.summary)
    assert set(again.runs) == set(third.runs) == set(by_arm_and_seed(third))
    without = compare(**ask, methods=["subsample"], seeds=2, controls=False)
    assert (without.rows, without.summary) == (third.rows, third.summary)  # the control is not forgotten


def test_the_table_of_several_calls_is_that_of_one(draw, tmp_path):
    whole = compare(draw, methods=["erm", "subsample"], seeds=3, out=tmp_path / "whole", **QUICK)
    for seeds in (1, [1, 2]):
        parts = compare(draw, methods=["erm", "subsample"], seeds=seeds, out=tmp_path / "parts", **QUICK)

    def timeless(table):
        return json.loads(json.dumps(table.to_dict()), object_hook=lambda each: each | {"seconds": 0})

    assert timeless(parts) == timeless(whole)


def test_rows_chosen_by_another_rule_wait_beside_the_table(draw, tmp_path):
    ask = {"data": draw, "out": tmp_path / "out", "seeds": 1, "controls": False} | QUICK
    last = compare(**ask, methods=["erm", "subsample"])
    preferred = compare(**ask, methods=["erm", "pde"])  # PDE prefers a rule, and nobody named one
    assert {(each.arm.pair, each.rule) for each in preferred.summary} == {
        ("erm+sgd", "worst-group"),
        ("pde+sgd", "worst-group"),
    }
    assert preferred.others == last.rows
    again = compare(**ask, methods=["group_dro"])
    assert [each.arm.pair for each in again.arms] == ["erm+sgd", "subsample+sgd", "group_dro+sgd"]
    assert again.plan.methods == ("group_dro", "erm", "subsample")
    assert again.others == preferred.rows


def test_a_run_of_an_earlier_call_that_cannot_be_read_is_named(draw, tmp_path):
    ask = {"data": draw, "out": tmp_path / "out", "seeds": 1, "controls": False} | QUICK
    first = compare(**ask, methods=["erm"])
    (tmp_path / "out" / first.rows[0].folder / "metrics.jsonl").write_text("{")
    with pytest.warns(EvenlyWarning, match=r"metrics\.jsonl is damaged .*; the table is without it"):
        table = compare(**ask, methods=["subsample"])
    assert [row.arm.pair for row in table.rows] == ["subsample+sgd"]
    assert table.others == first.rows


class Brittle(nn.Module):
    """Breaks in training while `broken` is not empty."""

    broken: ClassVar[list[str]] = []

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        if self.training and self.broken:
            raise ValueError(f"it broke\nat {self.broken[0]}")
        return self.layer(x)


def test_a_failed_run_is_named_the_rest_go_on_and_retry_runs_it_alone(draw, tmp_path, steps, monkeypatch):
    ask = {"data": draw, "methods": ["erm", "subsample"], "seeds": 2, "out": tmp_path / "out"} | QUICK
    ask["options"] = {"subsample": {"model": Brittle}}
    monkeypatch.setattr(Brittle, "broken", ["seed 0"])
    reason = "ValueError: it broke at seed 0"
    table = compare(**ask)
    labels = [f"subsample with sgd, seed {seed}" for seed in (0, 1)]
    assert table.failures == tuple(Failure(label, seed, reason) for seed, label in enumerate(labels))
    assert list(by_name(table)) == [("erm+sgd", 0), ("erm+sgd", 1)]
    assert load_comparison(tmp_path / "out").failures == table.failures
    assert sentences(table)[1] == f"{labels[0]} failed: {reason}."
    (failed, _) = sorted((tmp_path / "out/runs").glob("*/failed.json"))
    content = read_json(failed)
    assert content["reason"] == reason
    assert "in forward" in content["traceback"]
    monkeypatch.setattr(Brittle, "broken", [])
    taken = steps()
    again = compare(**ask)
    assert (again.failures, again.summary, steps()) == (table.failures, table.summary, taken)
    assert read_json(failed) == content
    mended = compare(**ask, retry=True)
    assert not failed.exists()
    assert mended.failures == ()
    assert "failures" not in mended.to_dict()
    assert mended.summary == compare(**{**ask, "out": None}).summary


def test_where_every_run_failed_the_first_reason_is_the_error(draw, tmp_path, monkeypatch):
    ask = {"data": draw, "methods": ["erm"], "seeds": 2, "out": tmp_path / "out"} | QUICK | {"model": Brittle}
    monkeypatch.setattr(Brittle, "broken", ["once"])
    with pytest.raises(EvenlyError, match=r"^ValueError: it broke at once\n"):
        compare(**ask)
    monkeypatch.setattr(Brittle, "broken", [])
    with pytest.raises(EvenlyError, match=r"^ValueError: it broke at once; retry=True runs it again$"):
        compare(**ask)
    assert len(compare(**ask, retry=True).rows) == 2

    def broken():
        return nn.Linear(4, 2)

    with pytest.raises(EvenlyError, match="cannot take inputs"):
        compare(**ask | {"model": broken, "out": tmp_path / "new/out"})
    assert not (tmp_path / "new").exists()


def test_the_graph_names_every_run_and_where_it_lies(draw, tmp_path):
    ask = {"data": draw, "out": tmp_path / "out"} | QUICK
    compare(**ask, methods=["erm", "subsample"], seeds=1)
    table = compare(**ask, methods=["erm", "group_dro"], seeds=[0, 3])
    nodes = {node["label"]: node for node in read_json(tmp_path / "out/graph.json")["nodes"]}
    assert len(nodes) == 8
    control = nodes["control of subsample with sgd, seed 0"]
    assert control["after"] == nodes["subsample with sgd, seed 0"]["id"]
    assert nodes["control of group_dro with sgd, seed 3"]["folder"] == nodes["erm with sgd, seed 3"]["folder"]
    assert {node["seed"] for node in nodes.values()} == {0, 3}
    folders = {path.parent.relative_to(tmp_path / "out") for path in (tmp_path / "out").glob("runs/*/results.json")}
    assert {Path(node["folder"]) for node in nodes.values()} == folders
    assert {run.folder.relative_to(tmp_path / "out") for run in table.runs.values()} == folders


def test_numbers_of_numpy_are_numbers(draw, tmp_path, steps):
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
def test_an_interrupted_comparison_goes_on(draw, tmp_path, monkeypatch, steps, last):
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
    assert resumed.summary == whole.summary
    for key, run in whole.runs.items():
        assert resumed.runs[key].results.to_dict() | {"seconds": 0} == run.results.to_dict() | {"seconds": 0}


@pytest.mark.parametrize(
    "other",
    [
        {"lr": 0.2},
        {"model": "convnet"},
        {"model": linear},
        {"data": "patches"},
        {"data": "another"},
        {"options": {"erm": {"lr": 0.2}}},
        {"data_options": {"n": 4}},
        {"schedule": lambda progress: 1 - progress},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_comparison_is_refused_and_nothing_is_touched(draw, tmp_path, other):
    halving = {"schedule": lambda progress: 1 - progress / 2}
    ask = {"data": draw(0), "methods": ["erm"], "seeds": 1, "out": tmp_path / "out"} | QUICK | halving
    compare(**ask)
    before = contents(tmp_path)
    other = {"data": draw(1)} if other == {"data": "another"} else other
    with pytest.raises(EvenlyError, match=r"holds another run \(its .*; give out="):
        compare(**ask | other)
    assert contents(tmp_path) == before


def test_data_of_a_file_are_known_by_their_content(tmp_path, monkeypatch, arrays, steps):
    x, y, groups = arrays(40)
    np.savez(tmp_path / "mine.npz", x=x, y=y, groups=groups)
    monkeypatch.chdir(tmp_path)
    ask = {"methods": ["erm"], "out": tmp_path / "out"} | QUICK
    compare("mine.npz", seeds=1, **ask)
    before = steps()
    (tmp_path / "elsewhere").mkdir()
    compare((tmp_path / "mine.npz").rename("elsewhere/mine.npz").resolve(), seeds=1, **ask)
    assert steps() == before
    np.savez(tmp_path / "mine.npz", x=-x, y=y, groups=groups)
    with pytest.raises(EvenlyError, match=r"its data differ .*; give out='.*out-2'"):
        compare("mine.npz", seeds=[7], **ask)


def test_a_foreign_folder_is_left_alone(draw, tmp_path):
    (tmp_path / "thesis.tex").write_text("dear to somebody")
    train(draw(0), out=tmp_path / "run", **QUICK)
    for out, message in (
        (tmp_path, "not empty and holds no comparison"),
        (tmp_path / "run", r"holds another run \(it is no comparison\)"),
        (tmp_path / "thesis.tex", "is a file; give a folder as out"),
    ):
        before = contents(tmp_path)
        with pytest.raises(EvenlyError, match=message):
            compare(draw, out=out, **QUICK)
        assert contents(tmp_path) == before


def test_a_kill_while_the_folder_is_made_leaves_it_usable(draw, tmp_path, monkeypatch):
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


HOLD = """
import sys
from pathlib import Path
from evenly.runs.holder import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.name != "posix", reason="folders are held by POSIX locks")
def test_a_second_call_in_a_folder_is_refused_while_the_first_works(draw, tmp_path):
    ask = {"data": draw, "methods": ["erm"], "seeds": 1, "out": tmp_path} | QUICK
    compare(**ask)
    before = contents(tmp_path)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], **pipes) as first:
        assert first.stdout.readline() == "held\n"
        for _ in range(2):  # the lock is there still
            with pytest.raises(EvenlyError, match=rf"is in use by another process \({first.pid}\); wait for it or"):
                compare(**ask)
        assert contents(tmp_path).keys() - before == {tmp_path / ".lock"}
        first.kill()  # its lock file stays and is nobody's
    assert compare(**ask).rows
    assert contents(tmp_path).keys() == before.keys()


def test_a_graph_of_another_shape_is_named(tmp_path):
    def call():
        return compare("patches", data_options={"n": 40}, methods=["erm"], seeds=1, out=tmp_path / "c", **QUICK)

    call()
    for content in ('{"nodes": 3}', "[]", "{}"):
        (tmp_path / "c" / "graph.json").write_text(content)
        with pytest.raises(EvenlyError, match=r"graph\.json is damaged"):
            call()


def test_arrays_are_known_by_what_was_given_not_by_one_seeds_division(arrays, tmp_path, steps):
    """The seeds of two calls overlap: each is trained once. Other arrays are other data."""
    ask = {"methods": ["erm"], "out": tmp_path / "out"} | QUICK
    compare(arrays(60), seeds=[0, 1], **ask)
    of_two = steps()
    table = compare(arrays(60), seeds=[1, 2], **ask)
    assert (len(list((tmp_path / "out" / "runs").iterdir())), steps()) == (3, 3 * of_two // 2)
    assert [row.seed for row in table.rows] == [0, 1, 2]
    with pytest.raises(EvenlyError, match="its data differ"):
        compare(arrays(60, seed=1), seeds=[1, 2], **ask)


def test_runs_by_another_version_of_a_package_are_repeated_and_do_not_join_the_table(draw, tmp_path, monkeypatch):
    ask = {"data": draw, "out": tmp_path / "out", "methods": ["erm", "subsample"], "controls": False} | QUICK
    for version, seeds in (("1.0", 2), ("1.1", 1)):
        monkeypatch.setattr(METHODS, "package", lambda name, v=version: f"other {v}" if name == "subsample" else None)
        table = compare(**ask, seeds=seeds)
    packages = {(row.arm.method, row.seed): row.result.packages for row in table.rows}
    assert packages == {("erm", 0): {}, ("erm", 1): {}, ("subsample", 0): {"method": "other 1.1"}}
    assert [(row.seed, row.result.packages) for row in table.others] == [(1, {"method": "other 1.0"})]
    assert len(list((tmp_path / "out" / "runs").glob("subsample-*"))) == 3
