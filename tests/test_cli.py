"""The command line: what is wrong is one line on stderr and exit code 2, and nothing is written over."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from evenly.arguments import pairs

import evenly as package
from evenly import EvenlyError, __version__
from evenly.cli import main
from evenly.data import DATASETS
from evenly.methods import METHODS
from evenly.models import MODELS, TEXT_MODELS
from evenly.optim.registry import OPTIMIZERS

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = np.arange(40) % 2
GROUPS = Y + 2 * (np.arange(40) % 5 == 0)
QUICK = ["--epochs", "2", "--batch-size", "8"]


@pytest.fixture
def mine(tmp_path):
    """Write arrays to a file and return its name; without arguments, good ones."""

    def save(name="mine.npz", **columns):
        columns = {"x": X, "y": Y, "groups": GROUPS} | columns
        np.savez(tmp_path / name, **{key: column for key, column in columns.items() if column is not None})
        return name

    return save


def snapshot(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(result, said):
    """Exit code 2, nothing on stdout, one line on stderr that says it."""
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("evenly: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert re.search(said, err), err


# What is wrong with the command


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("train mine.npz --method usefull", "no method is called 'usefull'; did you mean 'useful'"),
        ("train mine.npz --method group-dro", "did you mean 'group_dro'"),
        ("train shortcut-digit", "no data set is called 'shortcut-digit'; did you mean 'shortcut-digits'"),
        ("train mine.npz --model mpl", "no model is called 'mpl'; did you mean 'mlp'"),
        ("train mine.npz --optimizer sgdm", "no optimizer is called 'sgdm'; did you mean 'sgd'"),
        ("train mine.npz --schedule cosin", "no schedule is called 'cosin'; did you mean 'cosine'"),
        (
            "train mine.npz --select worst-gruop",
            "no selection rule is called 'worst-gruop'; did you mean 'worst-group'",
        ),
        ("train mine.npz --method useful -o factr=3", "called 'factr'; did you mean 'factor'"),
        ("train mine.npz -o factor=3", "no option of erm is called 'factor'"),
        ("train shortcut-digits -d rat=0.9", "no option of shortcut-digits is called 'rat'; did you mean 'rate'"),
        ("train shortcut-digits -d rate=1.5", r"rate must be a share from 0 to 1, got 1\.5"),
        ("train mine.npz -d rate=0.5", "does not apply to a file"),
        ("train mine.npz --method useful -o factor=0", "factor must be .*, got 0"),
        ("train mine.npz --method useful -o factor=2.5", r"factor 2\.5 cannot be used"),
        ("train mine.npz --method useful -o factor=two", "factor"),
        ("train mine.npz --method useful -o separating_epoch=two", "separating_epoch"),
        ("train mine.npz --method useful -o separating_epoch=9 --epochs 3", "separating_epoch 9 is outside the run"),
        ("train mine.npz --method useful -o on=feelings", "on 'feelings' cannot be used"),
        ("train mine.npz --method pde -o warmup_epochs=9 --epochs 3", "warmup_epochs 9 does not fit a run of 3 epochs"),
        ("train mine.npz --method pde -o warmup_epochs=9 --epochs 1", "does not fit a run of 1 epoch; give 1..1"),
        ("train mine.npz --method pde -o warmup_epochs=two", "warmup_epochs"),
        ("train mine.npz --method pde -o decay=two", "decay"),
        ("train mine.npz --method pde -o add=some", "add"),
        ("train mine.npz --method pde -o add=2.5", "add"),
        ("train mine.npz --method random_upsample -o count=2.5", "count"),
        ("train mine.npz --method group_dro -o step_size=two", "step_size"),
        ("train patches -d n=two", "n"),
        ("train patches -d n=10.5", r"10\.5"),
        ("train patches -d n=0", "n 0 "),
        ("train shortcut-digits -d rate=most", "rate"),
        ("train mine.npz --groups infer", "groups 'infer' would not be used by erm; give --select worst-group, or a"),
        ("train mine.npz --infer eiil", "infer 'eiil' is how groups are inferred; give --groups infer as well"),
        (
            "train mine.npz --groups label,place",
            "groups 'label,place' names columns of a table and mine.npz holds arrays; .* or give --groups infer$",
        ),
        (
            "compare shortcut-digits --groups label,place",
            "groups 'label,place' names columns of a table, which shortcut-digits is not; leave groups out, or",
        ),
        ("train mine.npz --normalise data", "use --normalise none and scale"),
        ("train mine.npz -o factor", "option 'factor' is not name=value"),
        ("train mine.npz -o =3", "is not name=value"),
        ("train mine.npz --epochs 0", "epochs 0 leaves nothing to do"),
        ("train mine.npz --epochs two", "--epochs"),
        ("train mine.npz --epochs 2.5", "--epochs"),
        ("train mine.npz --lr 0", r"lr 0\.0 does not train"),
        ("train mine.npz --lr -1", r"lr -1\.0 does not train"),
        ("train mine.npz --lr nan", "lr nan cannot be used"),
        ("train mine.npz --momentum -1", "momentum"),
        ("train mine.npz --weight-decay -1", "weight.decay"),
        ("train mine.npz --optimizer sam --rho -1", "rho"),
        ("train mine.npz --batch-size 0", "batch.size 0"),
        ("train mine.npz --batch-size -8", "batch.size '-8'"),
        ("train mine.npz --batch-size half", "batch.size 'half' is not a number of examples"),
        ("train mine.npz --batch-size ²", "batch.size '²'"),
        ("train mine.npz --device abacus", "device 'abacus' cannot be used"),
        ("train mine.npz --seed two", "--seed"),
        ("train mine.npz --speed 3", "--speed"),
        ("train mine.npz extra", "extra"),
        ("train", "(?i)missing argument"),
        ("tran mine.npz", "tran"),
        ("train nowhere.npz", "there is no file 'nowhere.npz'"),
        ("train mine.npz --lr 1e30", "NaN or infinite in epoch 1 .* lower the learning rate"),
        ("compare mine.npz --methods usefull", "did you mean 'useful'"),
        ("compare mine.npz --methods ,", "nothing to compare"),
        ("compare mine.npz --methods erm+", "no optimizer is called ''"),
        ("compare mine.npz --optimizers sgdm", "did you mean 'sgd'"),
        ("compare mine.npz -o factor=3", "option 'factor' does not say whose it is"),
        ("compare mine.npz -o useful.factr=3", "did you mean 'factor'"),
        ("compare mine.npz -o usefull.factor=3", "did you mean 'useful'"),
        ("compare mine.npz --seeds three", "seeds 'three' are not numbers"),
        ("compare mine.npz --seeds 1,two", "seeds '1,two' are not numbers"),
        ("compare mine.npz --seeds 0", r"seeds 0 leave nothing to run; give how many \(3\)"),
        ("compare mine.npz --seeds=-2", r"seeds -2 leave nothing to run; give how many \(3\)"),
        ("compare mine.npz --seeds 4,1,1", r"seed 1 stands twice in '4,1,1', .*; give each once, or how many \(3\)"),
        ("train mine.npz --patience 1.5", "--patience .*1.5.*whole number|'1.5' is not a valid int"),
        ("train mine.npz --lr high", "--lr .*high.* a number|'high' is not a valid float"),
        ("compare mine.npz --jobs 0", "jobs 0"),
        ("compare nowhere.npz", "there is no file 'nowhere.npz'"),
        ("compare mine.npz --sweep batch_size", "sweep 'batch_size' is not name=value,value"),
        ("compare mine.npz --sweep =3", "sweep '=3' is not name=value,value"),
        ("compare mine.npz --sweep batch_size=", "sweep of batch_size has no values"),
        ("compare mine.npz --sweep batch_size=8,,9", "batch_size '' cannot be used"),
        ("compare mine.npz --sweep batch_size=8,half", "batch_size 'half' cannot be used"),
        ("compare mine.npz --sweep batch_size=8,8", "8 stands twice in the sweep of batch_size"),
        ("compare mine.npz --sweep batch_size=8 --sweep batch_size=9", "batch_size is swept twice"),
        ("compare mine.npz --sweep batchsize=8", "did you mean 'batch_size'"),
        ("compare mine.npz --sweep factor=2,3", "write useful.factor"),
        ("compare mine.npz --sweep lr=.1,.2 --lr 0.1", r"lr is swept and also fixed at 0\.1"),
        ("compare mine.npz --workers=-1", "workers -1 cannot be used"),
        ("train mine.npz --workers=-1", "workers -1 cannot be used"),
        ("train mine.npz --workers many", "--workers"),
        ("train mine.npz --model-option weights", "'weights' is not name=value"),
        ("train mine.npz --augment basc", "basc"),
        ("train mine.npz --precision half", "precision 'half' cannot be used"),
        ("train mine.npz --normalise some", "normalise 'some' cannot be used"),
        ("methods --speed", "--speed"),
    ],
)
def test_a_wrong_command(evenly, mine, tmp_path, command, said):
    mine()
    before = snapshot(tmp_path)
    refused(evenly(*command.split()), said)
    assert {path: content for path, content in snapshot(tmp_path).items() if path in before} == before


def test_hints_of_options_that_a_method_has_are_said_as_they_are_typed(evenly, mine):
    parts = np.where(np.arange(40) % 4 < 2, "train", "test")
    refused(evenly("train", mine(split=parts), "--method", "dfr", "-o", "on=validation"), "use on=train$")


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        ("use select='last'", "use --select last"),
        ("leave them out with skip_bad=True", "leave them out with -d skip_bad=true"),
        ("name another with label=COLUMN, or add", "name another with -d label=COLUMN, or add"),
        ("e.g. groups=label,place", "e.g. --groups label,place"),
        ("with attributes=age", "with -d attributes=age"),
        ("write -d label=stars", "write -d label=stars"),
        ("/data/label=1/a.csv has no column 'x'", "/data/label=1/a.csv has no column 'x'"),
        ("write e.g. factor=3", "write e.g. factor=3"),
        ("give optimizer(lr=0.1)", "give optimizer(lr=0.1)"),
    ],
)
def test_hints_are_said_as_they_are_typed(monkeypatch, capsys, said, typed):
    def app(**_):
        raise EvenlyError(said)

    monkeypatch.setattr("evenly.cli.app", app)
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (2, f"evenly: {typed}\n")


def test_what_is_true_or_false_is_typed_in_any_case():
    assert pairs(["a=True", "b=FALSE", "c=true", "d=Truely", "e=1"]) == {
        "a": True, "b": False, "c": True, "d": "Truely", "e": 1,
    }  # fmt: skip


def test_many_groups_of_few_examples_are_told_of_in_a_line_and_trained_on(evenly, mine):
    code, _, err = evenly("train", mine(groups=np.arange(40)), "--out", "a", *QUICK)
    many = r"evenly: \d+ training examples are in (\d+) groups, the smallest of 1 example: .*; group by fewer .*\n"
    assert code == 0
    assert (told := re.fullmatch(many, err)), err
    assert int(told[1]) > 20
    assert evenly("train", mine(groups=GROUPS), "--out", "b", *QUICK)[::2] == (0, "")
    times = 11  # as many groups, of enough examples
    enough = {"x": np.tile(X, (times, 1)), "y": np.tile(Y, times), "groups": np.tile(np.arange(40), times)}
    everything = np.array(["train"] * 40 * times)
    assert evenly("train", mine(**enough, split=everything), "--out", "c", *QUICK)[::2] == (0, "")


# What is wrong with the file


def with_nan():
    x = X.copy()
    x[7, 1] = np.nan
    return x


WRONG_FILES = {
    "a class of one": ({"y": np.r_[2, Y[1:]]}, "class 2 has one example and cannot be split"),
    "groups of another length": ({"groups": GROUPS[:-1]}, "groups in mine.npz has 39 rows, x has 40"),
    "labels of another length": ({"y": Y[:-1]}, "y in mine.npz has 39 rows, x has 40"),
    "nothing": ({"x": X[:0], "y": Y[:0], "groups": Y[:0], "split": None}, "the training set in mine.npz is empty"),
    "nothing to train on": ({"split": np.array(["test"] * 40)}, "the train set is empty"),
    "a strange split": ({"split": np.array(["tain"] * 40)}, "split 'tain'"),
    "NaN": ({"x": with_nan()}, "1 of 40 train inputs hold NaN or infinity, the first at index 7"),
    "labels from 1": ({"y": Y + 1}, r"must be 0\.\.K-1"),
    "a gap in the labels": ({"y": Y * 2}, r"must be 0\.\.K-1"),
    "one class": ({"y": Y * 0}, "one class only"),
    "halves as labels": ({"y": Y + 0.5}, "not whole numbers"),
    "words as labels": ({"y": np.where(Y, "cat", "dog")}, "labels|y in"),
    "a column of labels": ({"y": Y[:, None]}, r"\(40, 1\)"),
    "a column of labels to split by": ({"y": Y[:, None], "split": None}, "labels|y in"),
    "groups from -1": ({"groups": GROUPS - 1}, "number the groups from 0"),
    "words as groups": ({"groups": np.where(Y, "a", "b")}, "groups"),
    "no features": ({"x": X[:, 0]}, r"give \(N, features\)"),
    "a number as inputs": ({"x": np.float32(1.0), "split": None}, "x"),
    "words as inputs": ({"x": np.where(X > 0, "a", "b")}, "x|inputs"),
    "complex inputs": ({"x": X.astype(complex)}, "complex"),
    "objects": ({"x": X.astype(object)}, "cannot be read as plain arrays"),
    "a stranger": ({"z": X}, "holds z; evenly reads x, y, groups and split"),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_a_wrong_file(evenly, mine, tmp_path, case):
    columns, said = WRONG_FILES[case]
    mine(**{"split": np.array(["train"] * 40)} | columns)
    refused(evenly("train", "mine.npz", "--method", "useful", *QUICK), said)
    assert not (tmp_path / "runs").exists()


def test_methods_that_need_groups(evenly, mine):
    refused(evenly("train", mine(groups=None), "--method", "pde", *QUICK), "pde needs groups and the data has none")


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 cut short"], ids=["empty", "text", "cut"])
def test_a_file_that_is_no_archive(evenly, tmp_path, content):
    (tmp_path / "mine.npz").write_bytes(content)
    refused(evenly("train", "mine.npz"), r"mine\.npz cannot be read")
    gc.collect()  # a file left open is said here, not in a test that comes later


def test_an_array_under_the_wrong_name(evenly, tmp_path):
    with (tmp_path / "mine.npz").open("wb") as file:
        np.save(file, X)
    refused(evenly("train", "mine.npz"), r"mine\.npz")


def test_nothing_in_a_file_is_executed(evenly, mine, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    refused(evenly("train", mine(x=np.array([Bomb()] * 40, dtype=object)), *QUICK), "cannot be read as plain arrays")
    assert not (tmp_path / "exploded").exists()


# What is wrong with the folder


def test_a_folder_that_is_taken(evenly, mine, tmp_path):
    mine()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter1.tex").write_text("dear to somebody")
    assert evenly("train", "mine.npz", "--out", "run", *QUICK)[0] == 0
    assert evenly("compare", "mine.npz", "--methods", "erm", "--seeds", 1, "--out", "table", *QUICK)[0] == 0
    before = snapshot(tmp_path)
    refused(evenly("train", "mine.npz", "--out", "run", "--lr", "0.01", *QUICK), "run holds another run")
    refused(evenly("train", "mine.npz", "--out", "thesis", *QUICK), "thesis is not empty and holds no run")
    refused(evenly("train", "mine.npz", "--out", "mine.npz", *QUICK), "mine.npz is a file")
    refused(evenly("train", "mine.npz", "--out", "mine.npz/below", *QUICK), "mine.npz")
    refused(evenly("train", "mine.npz", "--out", "table", *QUICK), "table holds another run")
    refused(evenly("compare", "mine.npz", "--methods", "erm", "--out", "run", *QUICK), "run holds another run")
    refused(evenly("compare", "mine.npz", "--methods", "erm", "--out", "thesis", *QUICK), "thesis is not empty")
    refused(
        evenly("compare", "mine.npz", "--methods", "erm", "--out", "table", "--lr", 1, *QUICK), "table holds another"
    )
    (tmp_path / "run/checkpoint/final.pt").write_bytes(b"nonsense")
    refused(evenly("train", "mine.npz", "--out", "run", *QUICK), "final.pt is not a checkpoint")
    (tmp_path / "run/checkpoint/final.pt").write_bytes(before[tmp_path / "run/checkpoint/final.pt"])
    assert snapshot(tmp_path) == before


def test_a_name_of_two_lines_is_still_one_line(evenly, mine, tmp_path):
    (tmp_path / "two\nlines").mkdir()
    (tmp_path / "two\nlines/chapter1.tex").write_text("dear to somebody")
    refused(evenly("train", mine(), "--out", "two\nlines", *QUICK), "two lines is not empty and holds no run")


def test_a_folder_that_cannot_be_made(evenly, mine):
    refused(evenly("train", mine(), "--out", "/proc/nowhere/run", *QUICK), "/proc/nowhere")
    refused(evenly("compare", mine(), "--out", "/proc/nowhere/run", *QUICK), "/proc/nowhere")


def test_a_command_that_was_refused_can_be_mended_with_the_same_folder(evenly, mine):
    ask = ["train", mine(), "--method", "pde", "--out", "run", *QUICK]
    refused(evenly(*ask, "-o", "warmup_epochs=9"), "warmup_epochs 9")
    assert evenly(*ask, "-o", "warmup_epochs=1")[0] == 0


def test_a_loss_that_is_not_finite_keeps_the_folder(evenly, mine, tmp_path):
    refused(evenly("train", mine(), "--out", "run", "--lr", "1e30", *QUICK), "lower the learning rate")
    assert (tmp_path / "run/config.json").exists()
    assert not (tmp_path / "run/results.json").exists()


# What is right


@pytest.mark.parametrize(
    ("verb", "names"),
    [
        ("methods", set(METHODS)),
        ("datasets", {*DATASETS, "FILE.csv", "FILE.npz", "FOLDER"}),
        ("models", {*MODELS, *TEXT_MODELS, "hf:FOLDER", "torchvision:NAME", "timm:NAME"}),
    ],
)
def test_lists(evenly, verb, names):
    code, out, err = evenly(verb)
    assert (code, err) == (0, "")
    assert {line.split()[0] for line in out.splitlines() if line[0] != " "} == names
    code, out, err = evenly(verb, "--json")
    assert (code, err) == (0, "")
    assert set(json.loads(out)) == names
    assert all(len(summary) > 10 for summary in json.loads(out).values())


def test_train_says_what_came_of_it_and_where_the_page_is(evenly, mine, tmp_path):
    code, out, err = evenly("train", mine(), "--method", "pde", "--optimizer", "sam", *QUICK, "--select", "worst-group")
    assert (code, err) == (0, "")
    folder = tmp_path / "runs/mine-pde-sam-seed0"
    results = json.loads((folder / "results.json").read_text())
    assert f"{results['test']['accuracy']:.1%}" in out
    assert f"{results['test']['worst_group']:.1%}" in out
    assert f"{results['cost_multiple']:.2f}x" in out
    assert f"{results['evaluation_cost_multiple']:.2f}x the cost of ERM, counted apart" in out
    counts, names = results["test"]["group_counts"], results["group_names"]
    lowest = [g for g, a in enumerate(results["test"]["groups"]) if a == results["test"]["worst_group"]]
    assert any(f"{names[g]}: {counts[g]} example" in out for g in lowest)
    assert "rule: worst-group" in out
    page = re.search(r"page\s+(\S+)", out).group(1)
    assert (tmp_path / page).read_text().lstrip().lower().startswith("<!doctype html>")
    assert {p.name for p in folder.iterdir()} >= {"config.json", "metrics.jsonl", "checkpoint", "selection.npz"}

    before = snapshot(folder / "checkpoint")
    again = evenly("train", "mine.npz", "--method", "pde", "--optimizer", "sam", *QUICK, "--select", "worst-group")
    assert again == (0, out, "")
    assert snapshot(folder / "checkpoint") == before


def test_train_takes_every_setting(evenly, mine, tmp_path):
    code, out, err = evenly(
        "train", mine(), "--method", "useful", "--optimizer", "sam", "--model", "mlp", "--epochs", 3,
        "--batch-size", "full", "--lr", 0.2, "--momentum", 0.5, "--weight-decay", 0.001, "--rho", 0.1,
        "--schedule", "cosine", "--select", "average", "-o", "factor=3", "-o", "on=logits",
        "--seed", 5, "--device", "cpu", "--out", "deep/run", "--json", "--precision", "float32", "--augment", "none",
        "--normalise", "none", "--workers", 1, "--no-capture",
    )  # fmt: skip
    assert (code, err) == (0, "")
    results = json.loads(out)
    assert results == json.loads((tmp_path / "deep/run/results.json").read_text())
    assert (results["seed"], results["epochs"], results["rule"]) == (5, 3, "average")
    config = json.loads((tmp_path / "deep/run/config.json").read_text())
    assert config["method"] == {"name": "useful", "options": {"factor": 3, "on": "logits"}}
    assert config["settings"] == {
        "epochs": 3, "batch_size": None, "lr": 0.2, "momentum": 0.5, "weight_decay": 0.001, "rho": 0.1,
        "schedule": "cosine", "select": "average", "evaluate_every": 1, "augment": "none", "normalise": "none",
        "precision": "float32",
    }  # fmt: skip


@pytest.fixture
def asked(monkeypatch):
    """What the command line asks of train and compare, which do not run."""
    seen = []

    def note(*arguments, **given):
        seen.append(given)
        raise package.EvenlyError("asked")

    monkeypatch.setattr("evenly.experiment.train", note)
    monkeypatch.setattr("evenly.comparison.compare", note)
    return seen


NEW = {"augment": "basic+trivial", "normalise": "data", "precision": "bf16"}


@pytest.mark.parametrize("verb", ["train", "compare"])
def test_settings_of_images_and_of_running_are_handed_on_where_given(evenly, mine, asked, verb):
    flags = [word for name, value in NEW.items() for word in (f"--{name}", value)]
    options = ["--model-option", "weights=a.npz", "--model-option", "width=.5", "--workers", 3, "--no-capture"]
    evenly(verb, mine(), *flags, *options)
    evenly(verb, mine())
    expected = {**NEW, "model_options": {"weights": "a.npz", "width": 0.5}, "workers": 3, "capture": False}
    assert {name: asked[0][name] for name in expected} == expected
    assert asked[1].keys().isdisjoint(expected)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["batch_size=128,256,full"], {"batch_size": [128, 256, None]}),
        (["useful.batch_size=full"], {"useful.batch_size": [None]}),
        (["lr=.1,0.2,1e-3,-.5e-1"], {"lr": [0.1, 0.2, 0.001, -0.05]}),
        (["useful.factor=2,3", "augment=none, basic+trivial"],
         {"useful.factor": [2, 3], "augment": ["none", "basic+trivial"]}),
        (["pde.add=[1,2],[3,4]"], {"pde.add": [[1, 2], [3, 4]]}),
        (["schedule=full"], {"schedule": ["full"]}),
        ([], {}),
    ],
)  # fmt: skip
def test_a_sweep_is_read_from_the_command_line(evenly, mine, asked, words, values):
    evenly("compare", mine(), *(part for word in words for part in ("--sweep", word)))
    assert asked[0]["sweep"] == values
    assert [type(v) for vs in asked[0]["sweep"].values() for v in vs] == [type(v) for vs in values.values() for v in vs]


def test_compare_shows_a_sweep(evenly, mine, tmp_path, monkeypatch):
    monkeypatch.setattr("evenly.report.run_page", lambda *arguments: None)
    ask = ["compare", mine(), "--methods", "erm,useful", "--seeds", 2, "--epochs", 2, "--out", "t"]
    code, out, err = evenly(*ask, "--sweep", "batch_size=8,16", "--sweep", "useful.factor=2,3")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    lines = [line.strip() for line in out.splitlines()]
    assert lines.count("batch_size 8") == 3  # ERM's, and one for each factor
    assert lines.count("useful.factor 3") == 2
    told = " ".join(out.split())
    assert "ERM with sgd reaches between" in told
    assert "useful with sgd at batch_size 16, useful.factor 3" in told
    table = json.loads((tmp_path / "t/results.json").read_text())
    assert table["plan"]["sweep"] == {"batch_size": [8, 16], "useful.factor": [2, 3]}
    page = (tmp_path / "t/report.html").read_text()
    assert "Over the swept values" in page
    assert "Results at batch_size 16, useful.factor 3" in page


@pytest.mark.parametrize(("device", "step"), [("cuda", "plain: it waits for the CPU"), ("cpu", "plain: no GPU"),
                                              ("cuda", "captured")])  # fmt: skip
def test_train_says_why_steps_were_not_captured(evenly, mine, monkeypatch, device, step):
    from evenly.experiment import train

    def on_a_gpu(*arguments, **given):
        run = train(*arguments, **given)
        run.results |= {"device": device, "step": step}
        return run

    monkeypatch.setattr("evenly.experiment.train", on_a_gpu)
    code, out, _ = evenly("train", mine(), *QUICK)
    assert code == 0
    assert ("  steps were not captured: it waits for the CPU\n" in out) is (step == "plain: it waits for the CPU")
    assert out.count("captured") == (step == "plain: it waits for the CPU")


def test_the_optimizers_named_in_the_help_are_those_there_are(evenly):
    for verb in ("train", "compare"):
        told = re.search(r"--optimizers? <?\w+>?\s+([a-z, \n]+?)[.\[]", evenly(verb, "--help")[1]).group(1)
        assert set(re.findall(r"\w+", told)) - {"or", "separated", "by", "commas"} == set(OPTIMIZERS)


def test_train_on_a_law_with_options(evenly):
    code, out, _ = evenly("train", "patches", "-d", "n=50", "-d", "beta_d=0.4", "--epochs", 2, "--json")
    assert code == 0
    assert json.loads(out)["train"]["group_counts"]
    assert sum(json.loads(out)["train"]["group_counts"]) == 50


def test_compare_shows_a_table_and_reads_itself_back(evenly, mine, tmp_path):
    ask = [
        "compare",
        mine(),
        "--methods",
        "erm,useful",
        "--seeds",
        "100,101",
        "-o",
        "useful.factor=3",
        "--out",
        "t",
        *QUICK,
    ]
    code, out, err = evenly(*ask)
    assert (code, err) == (0, "")
    for text in ("erm", "useful", "random_upsample", "page: t/report.html"):
        assert text in out
    assert max(map(len, out.splitlines())) <= 80
    assert (tmp_path / "t/report.html").exists()
    code, printed, _ = evenly(*ask, "--json")
    assert code == 0
    table = json.loads(printed)
    assert table == json.loads((tmp_path / "t/results.json").read_text())
    assert {row["seed"] for row in table["rows"]} == {100, 101}
    assert table["plan"]["options"] == {"useful": {"factor": 3}}


def test_ctrl_c_is_one_line_and_the_same_command_goes_on(evenly, mine, monkeypatch):
    from evenly.engine.folder import Folder

    def interrupt(self, stage, state):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "save", interrupt)
        code, out, err = evenly("train", mine(), "--out", "run", *QUICK)
    assert (code, out, err.count("\n")) == (130, "", 1)
    assert "the same command goes on" in err
    assert evenly("train", "mine.npz", "--out", "run", *QUICK)[0] == 0


def test_version_and_help(evenly):
    assert evenly("--version") == (0, f"evenly {__version__}\n", "")
    code, out, _ = evenly("--help")
    assert code == 0
    assert all(verb in out for verb in ("demo", "train", "compare", "methods", "datasets", "models"))


def test_nothing_at_all_is_answered_by_the_help(evenly):
    _, out, err = evenly()
    assert "Commands:\n" in out + err


@pytest.mark.parametrize("verb", ["demo", "train", "compare", "methods", "datasets", "models"])
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_verb_has_help_with_an_example(evenly, verb, flag):
    code, out, err = evenly(verb, flag)
    assert (code, err) == (0, "")
    assert f"evenly {verb}" in out.split("\n", 1)[1]
    assert "Example" in out


@pytest.mark.parametrize(("arguments", "code"), [(["methods"], 0), (["train", "mine.npz", "--epochs", "0"], 2)])
def test_as_a_process_of_its_own(tmp_path, arguments, code):
    np.savez(tmp_path / "mine.npz", x=X, y=Y)
    source = Path(package.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", "from evenly.cli import main; main()", *arguments],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == (1 if code else 0)
    assert "Traceback" not in done.stderr


def test_stability_leaves_a_diagram(evenly, tmp_path):
    out = tmp_path / "s"
    done = evenly("stability", "--x-values", "1,5,60", "--y-values", "1,9", "--repeats", "4", "--out", out)
    assert done[0] == 0, done[2]
    assert "The theorems decide" in done[1]
    assert all(len(line) <= 80 for line in done[1].splitlines() if not line.startswith("page"))
    content = json.loads((out / "stability.json").read_text())
    assert np.shape(content["diverged"]) == (2, 3)
    assert (out / "phase.svg").stat().st_size > 1000
    assert "<svg" in (out / "stability.html").read_text()
    again = evenly("stability", "--x-values", "1,5,60", "--y-values", "1,9", "--repeats", "4", "--out", out, "--json")
    assert json.loads(again[1]) == content


def test_stability_of_given_hessians(evenly, tmp_path):
    np.savez(tmp_path / "h.npz", gradients=np.eye(3))
    good = evenly("stability", tmp_path / "h.npz", "--lr", "0.5", "--batch-size", "3", "--out", tmp_path / "a")
    assert good[0] == 0
    assert "stable under SGD, margin 12" in good[1]
    bad = evenly("stability", tmp_path / "h.npz", "--lr", "7", "--batch-size", "3", "--out", tmp_path / "b", "--json")
    assert bad[0] == 1
    assert json.loads(bad[1])["sgd"]["answer"] == "diverges"


def test_stability_of_a_run(evenly, tmp_path):
    assert evenly("train", "patches", "-d", "n=60", "--epochs", "3", "--out", tmp_path / "run")[0] == 0
    done = evenly("stability", tmp_path / "run", "--batch-size", "7", "--rho", "0.1", "--out", tmp_path / "card")
    assert done[0] == 0, done[2]
    assert "batch size 7: stable under SGD" in done[1]
    assert json.loads((tmp_path / "card/stability.json").read_text())["rho"] == 0.1
    assert "batch size 60:" in evenly("stability", tmp_path / "run", "--out", tmp_path / "card")[1]
    assert evenly("stability", tmp_path / "run", "--batch-size", "0", "--out", tmp_path / "card")[0] == 2
    other = evenly("stability", "--x-values", "1", "--y-values", "1", "--out", tmp_path / "card")
    assert other[0] == 2
    assert "holds the stability of something else" in other[2]


def test_a_defect_of_ours_is_not_taken_for_an_answer(evenly, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("evenly.minima.read", broken)
    done = evenly("stability", "x.npz", "--out", tmp_path / "out")
    assert done[0] == 70
    assert "ZeroDivisionError: ours" in done[2]


def test_cards_and_diagrams_have_folders_of_their_own(evenly, tmp_path):
    np.savez(tmp_path / "h-0.1.npz", gradients=np.eye(3))
    assert evenly("stability", "h-0.1.npz", "--lr", "0.5", "--batch-size", "3")[0] == 0
    assert evenly("stability", "--n", "10", "--repeats", "1", "--steps", "5")[0] == 0
    assert {path.parent.name for path in tmp_path.rglob("stability.json")} == {"h-0.1", "phase-diagram"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--x", "lr", "--y", "lr"), "both axes are 'lr'"),
        (("--x-values", "1,a"), "are not numbers"),
        (("--rho", "0.1"), "--rho is for a minimum"),
        (("nowhere",), "holds no finished run"),
        (("h.npz",), "give --lr and --batch-size"),
        (("h.npz", "--lr", "1", "--batch-size", "9"), "must be at most 3, the number of examples, got 9"),
        (("h.npz", "--lr", "1", "--batch-size", "2", "--sigma", "3"), "--sigma is for a phase diagram"),
        (("empty.npz", "--lr", "1", "--batch-size", "2"), "must hold one of the arrays"),
        (("bad.npz", "--lr", "1", "--batch-size", "2"), "not positive semidefinite: its smallest eigenvalue is -1"),
        (("text.npz", "--lr", "1", "--batch-size", "2"), "cannot be read"),
        (("text.txt",), "neither a run's folder nor an .npz file"),
        (("nothing.npz", "--lr", "1", "--batch-size", "2"), "cannot be read"),
        (("words.npz", "--lr", "1", "--batch-size", "2"), "must be an array of real numbers"),
        (("h.npz", "--lr", "1e-300", "--batch-size", "2"), "must be 0 or of a size between"),
        (("h.npz", "--lr", "1", "--batch-size", "2", "--rho", "1e300"), "must be 0 or of a size between"),
        (("--seed", "-1"), "must be at least 0, got -1"),
    ],
)
def test_stability_refuses_in_one_line(evenly, tmp_path, words, said):
    np.savez(tmp_path / "h.npz", gradients=np.eye(3))
    np.savez(tmp_path / "empty.npz", other=np.eye(3))
    np.savez(tmp_path / "bad.npz", hessians=np.stack([np.eye(2), -np.eye(2)]))
    np.savez(tmp_path / "words.npz", gradients=np.array([["a", "b"]]))
    (tmp_path / "nothing.npz").write_bytes(b"")
    for name in ("text.npz", "text.txt"):
        (tmp_path / name).write_text("hello")
    out = tmp_path / "out"
    done = evenly("stability", *words, "--out", out)
    assert done[0] == 2
    assert said in done[2]
    assert len(done[2].strip().splitlines()) == 1
    assert not out.exists()


def test_stability_does_not_write_into_a_folder_of_something_else(evenly, tmp_path):
    (tmp_path / "mine").write_text("hello")
    done = evenly("stability", "--x-values", "1", "--y-values", "1", "--out", tmp_path)
    assert done[0] == 2
    assert "is not empty and holds no stability.json" in done[2]


def test_audit_leaves_a_page_and_speaks(evenly, tmp_path):
    for method in ("erm", "pde"):
        own = ["-o", "warmup_epochs=1"] if method == "pde" else []
        command = ["train", "shortcut-digits", "--method", method, "--epochs", "2", "--device", "cpu", "--out", method]
        assert evenly(*command, *own)[0] == 0
    code, said, _ = evenly("audit", "erm", "--top", "2", "--samples", "50", "--device", "cpu")
    assert code == 0
    assert "erm (mlp by erm with sgd) is right on" in said
    assert "page: audits/erm/audit.html" in said
    content = json.loads((tmp_path / "audits" / "erm" / "audit.json").read_text())
    assert len(content["audits"][0]["spectrum"]["eigenvalues"]) == 2
    assert evenly("audit", "erm", "--top", "2", "--samples", "50", "--device", "cpu")[0] == 0  # the same again
    for option, value, was in (
        ("--top", "0", "top is 2, not 0"), ("--rho", "0.1", "rho is 0.05, not 0.1"), ("--seed", "1", "seed is 0, not"),
        ("--samples", "20", "samples is 50, not 20"), ("--split", "train", "split is None, not 'train'"),
    ):  # fmt: skip
        again = evenly("audit", "erm", "--top", "2", "--samples", "50", "--device", "cpu", option, value)
        refused(again, re.escape(f"holds the audit of something else (its {was}"))
    refused(evenly("audit", "erm", "-d", "n=5", "--out", "c"), "-d is for a file of weights, and erm is a run")
    refused(evenly("audit", "erm", "--normalise", "data", "--out", "c"), "--normalise is for a file of weights")
    refused(evenly("audit", "", "--out", "erm"), "there is no ''; give a run's folder or a file of weights")
    refused(evenly("audit", "."), "holds no run of evenly; give the folder")
    refused(evenly("audit", "erm", "--top", "100000000", "--out", "c"), "more than an audit looks for; give 200")
    assert not (tmp_path / "c").exists()
    code, said, _ = evenly(
        "audit",
        "erm",
        "--against",
        "pde",
        "--top",
        "0",
        "--samples",
        "50",
        "--out",
        "both",
        "--device",
        "cpu",
        "--json",
    )
    assert code == 0
    assert [each["name"].split()[0] for each in json.loads(said)["audits"]] == ["erm", "pde"]
    assert "paired" in json.loads(said)["compared"][0]
    assert (tmp_path / "both" / "audit.html").exists()
    refused(evenly("audit", "pde", "--out", "both"), "holds the audit of something else")
    weights = ("erm/checkpoint/final.pt", "--model", "mlp", "--top", "0", "--samples", "20", "--device", "cpu")
    code, said, _ = evenly("audit", "pde", "--against", *weights, "--out", "mixed")  # whose data is the run's
    assert code == 0
    assert re.match(r"pde \(mlp by pde with sgd\) is right on .*% of 800 test examples,\s+mlp", said)
    assert "The lowest group of the first is" in " ".join(said.split())


def test_audit_takes_a_file_of_weights(evenly, mine, tmp_path):
    from evenly.data import load
    from evenly.models import factory

    arrays = mine()
    data = load(arrays)
    network = factory("mlp", data.train.example_shape, data.classes, 3)[0]()
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    command = ("audit", "weights.pt", "--top", "0", "--device", "cpu")
    code, said, _ = evenly(*command, "--model", "mlp", "--data", arrays)
    assert code == 0
    assert "mlp (weights.pt) is right on" in said
    refused(evenly(*command, "--out", "b"), "give --model NAME and --data DATA")
    refused(evenly("audit", "nowhere", "--out", "c"), "give a run's folder or a file of weights")
    (tmp_path / "text.pt").write_text("no weights")
    refused(evenly("audit", "text.pt", "--model", "mlp", "--data", arrays, "--out", "d"), "text.pt")

    class Danger:
        def __reduce__(self):
            return (print, ("run",))

    torch.save({"w": Danger()}, tmp_path / "danger.pt")
    refused(evenly("audit", "danger.pt", "--model", "mlp", "--data", arrays, "--out", "e"), "danger.pt")


def test_what_was_recorded_in_training_is_in_the_metrics_and_the_audit(evenly, mine, tmp_path):
    command = ("train", mine(), *QUICK, "--device", "cpu", "--out", "run")
    refused(evenly(*command, "--record", "forgetting"), "'forgetting' is not name=value")
    refused(evenly(*command, "--record", "forgeting=true"), "no option of record is called 'forgeting'; did you mean")
    for given, said in (
        (("spectrum=abc",), "spectrum 'abc' is no number|spectrum abc is no number"),
        (("data=3", "l1=true"), "no option of record is called 'data'; there are: epochs, every, .*, spectrum$"),
        (("importance=[1]",), r"importance \[1\] is no length"),
        (("importance=abc",), "importance 'abc' is no length; give rho"),
        (("importance=-1", "every=2"), "rho -1 is no length"),
        (('importance={"kind":"zz"}', "every=2"), "kind 'zz' cannot be used"),
        (("spectrum=100000", "every=2"), "more eigenvalues than are looked for in .*; give 200 or fewer"),
        (("epochs=3", "l1=true"), "epochs 3"),
    ):
        refused(evenly(*command, *(word for each in given for word in ("--record", each))), said)
    assert not (tmp_path / "run").exists()
    assert evenly(*command, "--record", "forgetting=true", "--record", "l1=true", "--record", "every=2")[0] == 0
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert ["l1_norm" in row for row in rows] == [False, True]
    refused(evenly(*command), "holds another run")
    others = ("--record", "forgetting=true", "--record", "l1=true", "--record", "every=3")
    refused(evenly(*command, *others), r"holds another run \(its record's every is 2, not 3\)")
    code, said, _ = evenly(*command[:-1], "late", *others)
    assert code == 0
    assert "nothing was recorded: every 3 did not come round in 2 epochs" in said
    code, said, _ = evenly("audit", "run", "--data", "mine.npz", "--top", "0", "--device", "cpu", "--json")
    assert code == 0
    assert sum(json.loads(said)["audits"][0]["forgetting"].values()) == 24  # 60% of 40
    assert "Times forgotten" in (tmp_path / "audits/run/audit.html").read_text()


def test_audit_refuses_in_one_line_and_writes_nothing(evenly, mine, tmp_path):
    arrays, other = mine(), mine("other.npz", x=X + 1)
    for name, of in (("one", arrays), ("two", other)):
        assert evenly("train", of, *QUICK, "--device", "cpu", "--out", name)[0] == 0
    (tmp_path / "weights.pt").write_bytes((tmp_path / "one/checkpoint/final.pt").read_bytes())
    quick = ("--top", "0", "--device", "cpu", "--out", "page")
    by_file = ("audit", "weights.pt", "--model", "mlp")
    for command, said in (
        (("audit", "one", "--data", arrays, "--against", "one"), "--against one is what it would be held against"),
        (("audit", "one", "--data", arrays, "--against", "./two/../one"), "held against; name another"),
        (("audit", "one", "--data", arrays, "--against", "two"), "data given is not what two was trained on"),
        (("audit", "one", "--data", arrays, "--split", "holdout"), "there is no holdout split; the data has train"),
        (("audit", "one", "--data", arrays, "--samples", "0"), "samples 0 leaves no example to look at"),
        (("audit", "one", "--data", arrays, "--rho", "-1"), "rho -1.0 is no length"),
        (("audit", "one", "--data", arrays, "--top", "-2"), "top -2 is no number of eigenvalues"),
        (("audit", "one", "--data", arrays, "--model", "mlp"), "--model is for a file of weights"),
        ((*by_file, "--data", mine("wide.npz", x=np.c_[X, X])), "in the model"),
        ((*by_file, "--data", mine("more.npz", y=np.arange(40) % 3, groups=None)), "in the model"),
        ((*by_file, "--data", mine("unlabelled.npz", y=None)), "unlabelled.npz"),
        ((*by_file, "--data", mine("one.npz", x=X[:1], y=Y[:1], groups=None)), "one class only"),
        (("audit", "mine.npz", "--model", "mlp", "--data", arrays), "holds no weight of this"),
        (("audit", "page", "--model", "mlp", "--data", arrays), "there is no 'page'"),
    ):
        refused(evenly(command[0], *quick, *command[1:]), re.escape(said))
        assert not (tmp_path / "page").exists()
    assert evenly("audit", "one", *quick[:-1], "found")[0] == 0  # the run knows where its file is
    (tmp_path / "mine.npz").rename(tmp_path / "elsewhere.npz")
    refused(
        evenly("audit", "one", *quick), "trained on 'mine', which is no longer at .*mine.npz; give that data as well"
    )
    assert evenly("audit", "one", "--data", "elsewhere.npz", *quick)[0] == 0
    arrays = "elsewhere.npz"
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    refused(evenly(*by_file, "--data", arrays, *quick[:-1], "full"), "is not empty and holds no audit.json")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]


def test_results_are_not_put_among_the_images(evenly, tmp_path, monkeypatch):
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (6, 6), (9 * i, 60 * (name == "dog"), 0)).save(tmp_path / "photos" / name / f"{i}.png")
    monkeypatch.chdir(tmp_path / "photos")
    refused(evenly("train", ".", "--epochs", "1"), "taken for a class; give --out elsewhere")
    code, said, _ = evenly("train", ".", "--epochs", "1", "--device", "cpu", "--out", tmp_path / "run")
    assert code == 0
    assert "photos: erm with sgd" in said
