"""A comparison's folder: it grows without repeating work, and nothing foreign in it is touched."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from evenly import EvenlyError, compare, load_comparison, train
from evenly.engine.checkpoints import Checkpoints
from evenly.files import read_json
from evenly.runs.arms import Arm

QUICK = {"model": "mlp", "epochs": 4, "batch_size": 8, "lr": 0.1, "device": "cpu"}
pytestmark = pytest.mark.usefixtures("without_pages")


def linear():
    return nn.Linear(3, 2)


def by_name(table):
    return {(row.arm.name, row.seed): row for row in table.rows}


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


def test_a_narrower_call_shows_itself_and_keeps_the_other_rows(draw, tmp_path):
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


def test_a_comparison_that_fails_after_its_first_run_keeps_what_it_has(draw, tmp_path, steps):
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
