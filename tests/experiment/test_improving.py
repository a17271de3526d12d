"""The whole job on a small data set with a shortcut: what is chosen, tested, handed back; budget, kills, refusals.

EVENLY_IMPROVE_KILLS=20 pytest tests/experiment/test_improving.py -k kill kills as often.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import evenly
from evenly import EvenlyError
from evenly.data import Data, Split
from evenly.data.completing import completed
from evenly.engine.loop import Loop
from evenly.experiment.candidates import candidates_for
from evenly.experiment.screening import affordable_seeds
from evenly.report.blocks import Page
from evenly.runs.improvement import read_improvement

KILLS = int(os.environ.get("EVENLY_IMPROVE_KILLS", "2"))
QUICK = {"model": "mlp", "epochs": 4, "batch_size": 16, "lr": 0.02, "device": "cpu", "budget": 8}
TIMES = ("seconds", "estimate", "crc32", "loads", "spent_seconds")


@pytest.fixture(scope="module", autouse=True)
def _short_pages():
    """The pages of single runs have tests of their own, and take longer than these runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evenly.report.pages.run_page", lambda run: Page(run.results.method, "", [], ""))
        yield


def part(count, rng, share):
    """Inputs, labels and groups: the first feature is the label, faintly, the second agrees with it on a share."""
    y = np.arange(count) % 2
    agrees = rng.random(count) < share
    shortcut = np.where(agrees, y, 1 - y)
    x = rng.standard_normal((count, 6)) * 0.8
    x[:, 0] += 2 * y - 1
    x[:, 1] += 3 * (2 * shortcut - 1)
    return x.astype(np.float32), y, 2 * y + (shortcut != y)


@pytest.fixture(scope="module")
def parts():
    rng = np.random.default_rng(0)
    return {"train": part(400, rng, 0.96), "validation": part(300, rng, 0.5), "test": part(400, rng, 0.5)}


@pytest.fixture(scope="module")
def data(parts):
    return Data(**parts, name="toy")


@pytest.fixture(scope="module")
def job(data, tmp_path_factory):
    return evenly.improve(data, out=tmp_path_factory.mktemp("job") / "out", **QUICK)


def numbers(folder):
    """What improve.json holds but for times."""

    def without_times(pairs):
        return {name: value for name, value in pairs if name not in TIMES}

    return json.loads((folder / "improve.json").read_text(), object_pairs_hook=without_times)


def test_a_model_with_a_better_worst_group_is_handed_back(job, data):
    assert job.verdict == "raised", job
    assert job.is_better
    best = evenly.load(job.out / "best")
    before, after = job.baseline.summary.mean("worst_group"), best.results.splits["test"].worst_group
    assert after > before + 0.1
    assert job.chosen.summary.difference("worst_group").outcome == "raised"
    assert len(best.predict(torch.zeros(3, 6))) == 3
    outputs = best.outputs(data.test)
    right = (outputs.argmax(1) == data.test.labels).double().mean()
    assert best.results.splits["test"].accuracy == pytest.approx(float(right))


def test_the_folder_holds_what_it_should(job):
    names = {path.name for path in job.out.iterdir()}
    assert {"best", "runs", "tested", "audit", "choice.json", "improve.json", "improve.html", "config.json"} <= names
    assert read_improvement(job.out).to_dict() == job.to_dict()
    page = (job.out / "improve.html").read_text()
    assert job.choice.arm.method in page


def test_candidates_have_no_test_block_and_the_handed_back_one_has(job):
    runs = list((job.out / "runs").iterdir())
    assert len(runs) > 8
    for run in runs:
        assert set(json.loads((run / "results.json").read_text())["splits"]) == {"train", "validation"}
        with np.load(run / "predictions.npz") as arrays:
            assert not [name for name in arrays.files if name.startswith("test")]
    assert "test" in evenly.load(job.out / "best").results.splits


def test_every_control_has_the_cost_of_its_method(job):
    for each in job.tried[1:]:
        if each.control is not None:
            assert each.control.cost_multiple == pytest.approx(each.on_validation.cost_multiple, rel=0.1)


@pytest.mark.parametrize("groups", ["given", "infer"])
def test_no_outputs_on_test_before_the_choice_and_then_once_for_each_network(data, tmp_path, monkeypatch, groups):
    """Where groups are inferred, the early network divides the test set as well, after the choice."""
    seen, out = Counter(), tmp_path / "out"
    test = {row.tobytes() for row in data.test.inputs.numpy()}
    forward = torch.nn.Linear.forward

    def counting(layer, x):
        if layer.in_features == 6 and any(row.tobytes() in test for row in x.detach().numpy().astype(np.float32)):
            seen[(out / "choice.json").exists()] += len(x)
        return forward(layer, x)

    monkeypatch.setattr(torch.nn.Linear, "forward", counting)
    job = evenly.improve(data, groups=groups, out=out, **QUICK)
    networks = {name for runs in job.choice.runs.values() for name in runs.values()}
    assert seen[False] == 0
    assert seen[True] == (len(networks) + (groups == "infer")) * len(data.test)


def test_what_is_spent_is_counted_and_stays_within_the_budget(data, tmp_path, monkeypatch):
    spent, step = [0.0], Loop.run

    def counting(loop):
        before = loop.fit.spent
        trained = step(loop)
        spent[0] += trained.history[-1]["cost"] - before if trained.history else 0.0
        return trained

    monkeypatch.setattr(Loop, "run", counting)
    job = evenly.improve(data, out=tmp_path / "out", **{**QUICK, "budget": 5})
    # a forward pass over the training set after an early stage is no part of a fit
    assert job.spent == pytest.approx(spent[0], rel=0.05)
    assert job.spent <= job.budget * len(job.seeds) * job.unit
    assert spent[0] <= job.budget * len(job.seeds) * job.unit


@pytest.mark.parametrize(
    ("budget", "seeds", "groups"), [(9, 1, "given"), (1, 1, "given"), (2, 2, "infer"), (5, 3, "infer")]
)
def test_the_budget_holds_where_methods_cost_more_than_usual(parts, tmp_path, budget, seeds, groups):
    """A third of the training labels are wrong, so that methods repeat many examples."""
    x, y, g = parts["train"]
    noisy = np.where(np.arange(len(y)) % 3 == 0, 1 - y, y)
    splits = {"validation": parts["validation"], "test": parts["test"]}
    data = Data(train=(x, noisy, g), **splits, name="noisy")
    job = evenly.improve(data, seeds=seeds, groups=groups, out=tmp_path / "out", **{**QUICK, "budget": budget})
    last_epoch = job.unit / QUICK["epochs"]
    assert job.spent <= budget * seeds * job.unit + last_epoch


def test_with_a_small_budget_the_last_candidates_are_left_out(data, tmp_path):
    job = evenly.improve(data, out=tmp_path / "out", **{**QUICK, "budget": 3})
    assert [each.arm.method for each in job.tried][:2] == ["erm", "group_dro"]
    left_out = [each.arm.method for each in job.not_tried]
    assert "jtt" in left_out
    assert all("budget" in each.reason for each in job.not_tried)
    assert job.spent_multiple <= 9


def test_with_no_room_erm_is_handed_back(data, tmp_path):
    job = evenly.improve(data, out=tmp_path / "out", **{**QUICK, "budget": 1})
    assert job.verdict == "nothing-tried"
    assert not job.is_better
    assert evenly.load(job.out / "best").results.method == "erm"


def test_seeds_are_dropped_before_the_first_candidate_is_but_never_below_three():
    first = candidates_for("worst-group", "given")[0]
    assert first.most == 1
    assert affordable_seeds(range(6), 100, first) == range(6)
    assert affordable_seeds(range(6), 9, first) == range(4)
    assert affordable_seeds(range(6), 2, first) == range(3)
    assert affordable_seeds(range(2), 1, first) == range(2)


def test_groups_unknown_are_inferred_and_the_test_set_is_divided_after_the_choice(parts, tmp_path):
    data = Data(**{name: each[:2] for name, each in parts.items()}, name="toy")
    job = evenly.improve(data, groups="infer", out=tmp_path / "out", **QUICK)
    assert job.profile.grouping == "inferred"
    assert job.groups_cost > 0
    assert set(job.profile.group_counts) == {"train", "validation", "test"}
    assert job.baseline.summary.mean("worst_group") is not None


def test_a_failing_slice_makes_the_groups(parts, tmp_path):
    splits = {
        name: Split(
            torch.from_numpy(x), y, attributes={"place": (groups % 2), "noise": np.arange(len(y)) % 3}, name=name
        )
        for name, (x, y, groups) in parts.items()
    }
    job = evenly.improve(Data(**splits, name="toy"), out=tmp_path / "out", **QUICK)
    assert job.profile.grouping == "slice"
    assert "place" in job.profile.slice
    assert job.is_better


def test_the_goal_of_the_worst_class(tmp_path):
    rng = np.random.default_rng(1)

    def imbalanced(count, share):
        y = (rng.random(count) < share).astype(int)
        x = rng.standard_normal((count, 4)).astype(np.float32)
        x[:, 0] += 1.5 * y
        return x, y

    data = Data(imbalanced(500, 0.08), imbalanced(300, 0.5), imbalanced(300, 0.5), name="rare")
    job = evenly.improve(data, goal="worst-class", out=tmp_path / "out", **QUICK)
    assert job.metric == "worst_class"
    assert job.profile.grouping == "classes"
    assert job.is_better
    assert job.chosen.summary.difference("worst_class").mean > 0.1


def test_the_goal_of_the_average_brings_useful_and_sam(data, tmp_path):
    job = evenly.improve(data, goal="average", out=tmp_path / "out", **QUICK)
    assert {each.arm.pair for each in job.tried} >= {"erm+sgd", "useful+sgd", "erm+sam"}
    assert job.metric == "accuracy"


def test_missing_splits_are_drawn_from_training(parts):
    x, y, groups = parts["train"]
    whole, drawn = completed(Data(train=(x, y, groups)), seed=3)
    assert drawn == ("validation", "test")
    assert [len(split) for split in whole.splits.values()] == [240, 80, 80]
    rows = [row.tobytes() for split in whole.splits.values() for row in split.inputs.numpy()]
    assert Counter(rows) == Counter(row.tobytes() for row in x)
    again, _ = completed(Data(train=(x, y, groups)), seed=3)
    assert again.fingerprint() == whole.fingerprint()
    assert completed(whole, seed=3) == (whole, ())


def test_a_finished_job_is_read_back_and_another_question_is_refused(job, data):
    again = evenly.improve(data, out=job.out, **QUICK)
    assert again.to_dict() == job.to_dict()
    with pytest.raises(EvenlyError, match="holds another run"):
        evenly.improve(data, out=job.out, **{**QUICK, "budget": 9})


def test_a_model_that_is_gone_is_handed_back_again(job, data, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(job.out, out)
    shutil.rmtree(out / "best")
    evenly.improve(data, out=out, **QUICK)
    assert evenly.load(out / "best").results.to_dict() == evenly.load(job.out / "best").results.to_dict()


def test_a_choice_that_is_written_is_not_made_again(job, data, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(job.out, out)
    for name in ("improve.json", "improve.html"):
        (out / name).unlink()
    shutil.rmtree(out / "best")
    shutil.rmtree(out / "tested")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evenly.experiment.choosing.best_of", lambda *arguments: None)
        evenly.improve(data, out=out, **QUICK)
    assert numbers(out) == numbers(job.out)


def test_the_data_of_the_model_is_found_again(parts, tmp_path):
    """By the file and the seed that divided it, also where its groups were left out."""
    from evenly.experiment.training import data_of

    file = tmp_path / "my.npz"
    x, y, groups = (np.concatenate(arrays) for arrays in zip(*parts.values(), strict=True))
    np.savez(file, x=x, y=y, groups=groups)
    job = evenly.improve(file, seed=5, groups="infer", out=tmp_path / "out", **{**QUICK, "budget": 4})
    assert job.seeds == (5, 6, 7)
    found = data_of(evenly.load(job.out / "best"))
    assert len(found.test) == job.profile.summary.sizes["test"]


def test_groups_that_overlap_are_measured(parts, tmp_path):
    splits = {
        name: (x, y, np.stack([groups % 2 == 0, groups % 2 == 1], axis=1)) for name, (x, y, groups) in parts.items()
    }
    job = evenly.improve(Data(**splits, name="toy"), out=tmp_path / "out", **{**QUICK, "budget": 3})
    assert all("overlap" in each.reason for each in job.not_tried if each.arm.method == "group_dro")


def test_what_the_data_alone_shows_is_reported_first(parts, tmp_path, caplog):
    x, y, groups = parts["train"]
    place = {name: Split(torch.from_numpy(a), b, c, {"code": b}, name=name) for name, (a, b, c) in parts.items()}
    place["test"] = Split(torch.from_numpy(x[:50]), y[:50], groups[:50], {"code": y[:50]}, name="test")
    with caplog.at_level("INFO", logger="evenly"):
        job = evenly.improve(Data(**place, name="toy"), out=tmp_path / "out", **{**QUICK, "budget": 1})
    assert job.profile.duplicates == {"validation": 0, "test": 50}
    assert [each.column for each in job.profile.give_aways] == ["code"]
    first = caplog.messages[:2]
    assert first == ["50 of 50 test inputs are in training as well", "the column code alone gives the label away"]


SCRIPT = """
import sys
import numpy as np
import evenly
import evenly.engine.checkpoints
from evenly.data import Data
evenly.engine.checkpoints.CHECKPOINT_SECONDS = 0.0
with np.load(sys.argv[1]) as arrays:
    parts = {name: tuple(arrays[f"{name}_{k}"] for k in range(3)) for name in ("train", "validation", "test")}
evenly.improve(Data(**parts, name="toy"), out=sys.argv[2], model="mlp", epochs=4, batch_size=16, lr=0.02, device="cpu",
               budget=8)
"""


def test_kills_at_random_moments_change_nothing(job, parts, tmp_path):
    """A killed job goes on with the same command; one that comes to its end before it is killed is begun anew."""
    file = tmp_path / "data.npz"
    np.savez(file, **{f"{name}_{k}": each for name, arrays in parts.items() for k, each in enumerate(arrays)})
    draw, kills, folders = random.Random(0), 0, 1

    def command():
        return [sys.executable, "-c", SCRIPT, str(file), str(tmp_path / f"out{folders}")]

    while kills < KILLS:
        process = subprocess.Popen(command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert process.wait(timeout=4 + 8 * draw.random()) == 0
            folders += 1
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
    subprocess.run(command(), check=True, timeout=600)
    for number in range(1, folders + 1):
        assert numbers(tmp_path / f"out{number}") == numbers(job.out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 0}, "budget must be at least 1"),
        ({"goal": "fairness"}, "goal must be"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"optimizer": "nonsense"}, "optimizer"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(data, tmp_path, arguments, message, refused_call):
    refused_call(message, evenly.improve, data, out=tmp_path / "out", **{**QUICK, **arguments})
    assert not Path(tmp_path / "out").exists()


def test_a_folder_of_something_else_is_refused(data, tmp_path, refused_call):
    (tmp_path / "file").write_text("mine")
    refused_call("holds no improvement", evenly.improve, data, out=tmp_path, **QUICK)
