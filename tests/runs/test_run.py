"""Runs are read from their folder alone: the same outputs bit for bit, nothing written, damage named in a line."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from attrs import evolve
from PIL import Image
from torch import nn

import evenly
from evenly import Data, EvenlyError
from evenly.data import load as load_data
from evenly.engine.accuracy import wilson
from evenly.files import sealed
from evenly.models import encoded, factory
from evenly.runs.folder import Config
from evenly.runs.network import NetworkSpec
from evenly.runs.results import DataSummary, RunResult
from evenly.runs.run import Run

QUICK = {"epochs": 2, "batch_size": 8, "device": "cpu"}


def arrays(path):
    draw = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = (draw.normal(size=(40, 4)) + y[:, None]).astype(np.float32)
    np.savez(path / "own.npz", x=x, y=y, groups=2 * y + (np.arange(40) % 10 < 3))
    return path / "own.npz"


def photos(path):
    for k, name in enumerate(("cat", "dog")):
        (path / "photos" / name).mkdir(parents=True)
        for i in range(8):
            pixels = np.random.default_rng(i).integers(0, 160, (16, 16, 3), dtype=np.uint8) + np.uint8(60 * k)
            Image.fromarray(pixels).save(path / "photos" / name / f"{i}.png")
    return path / "photos"


def texts(path):
    rows = [f"{'good' if i % 2 else 'bad'} film {i % 7},{'pos' if i % 2 else 'neg'}" for i in range(30)]
    (path / "own.csv").write_text("\n".join(["text,label", *rows]))
    return path / "own.csv"


def tuned(path):
    torch.save(factory("mlp", (4,), 2, 7)[0]().state_dict(), path / "start.pt")
    return {"model": "mlp", "model_options": {"weights": str(path / "start.pt")}}


def own() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2, bias=False))


CASES = {
    "mlp": (arrays, {"model": "mlp", "method": "useful", "optimizer": "sam"}),
    "resnet18 with scaling": (photos, {"model": "resnet18", "normalise": "data", "lr": 1e-3}),
    "bag of words": (texts, {"model": "bag_of_words", "data_options": {"text": "text"}}),
    "fine-tuned": (arrays, tuned),
    "dfr": (arrays, {"model": "mlp", "method": "dfr", "record": {"forgetting": True}}),
    "own module": (arrays, {"model": own, "method": "dfr", "schedule": lambda progress: 1 - progress / 2}),
}


def digest(folder):
    parts = (f"{p.relative_to(folder)} {p.is_file() and p.read_bytes()}" for p in sorted(folder.rglob("*")))
    return hashlib.sha256("".join(parts).encode()).hexdigest()


@pytest.mark.parametrize("case", CASES)
def test_a_folder_copied_elsewhere_is_enough(tmp_path, case):
    make, arguments = CASES[case]
    source = make(tmp_path)
    arguments = arguments(tmp_path) if callable(arguments) else arguments
    run = evenly.train(source, **QUICK | arguments, seed=3, out=tmp_path / "run")
    split = encoded(load_data(source, seed=3, **arguments.get("data_options", {})), run.model).test
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for path in tmp_path.iterdir():
        if path.name != "copy":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = digest(tmp_path / "copy")
    for path in tmp_path.glob("copy/**/*"):
        path.chmod(0o555)
    try:
        again = evenly.load(tmp_path / "copy", model=own() if case == "own module" else None)
        assert torch.equal(again.outputs(split), run.outputs(split))
    finally:
        for path in tmp_path.glob("copy/**/*"):
            path.chmod(0o755)
    assert digest(tmp_path / "copy") == before
    assert not again.model.training
    assert again.results == run.results
    assert again.history == run.history
    assert again.plan.digest == run.plan.digest
    assert repr(again) == repr(run).replace(str(tmp_path / "run"), str(tmp_path / "copy"))
    assert (again.selection is None) == (run.selection is None)
    if run.selection is not None:
        assert again.selection.indices.equal(run.selection.indices)
        assert again.selection.times.equal(run.selection.times)
        assert again.selection.why == run.selection.why
        assert again.selection.details.keys() == run.selection.details.keys()
    if run.record is not None:
        assert again.record.history == run.record.history
        assert again.record.forgetting_scores.equal(run.record.forgetting_scores)


def rows(count=24):
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 2


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    data = Data(train=rows(), validation=rows(), test=rows(), name="toy")
    evenly.train(data, model="mlp", method="useful", record={"l1": True}, out=folder, **QUICK)
    return folder


HOLD = """
import sys
from pathlib import Path
from evenly.runs.holder import locked
lock = locked(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.name != "posix", reason="folders are held by POSIX locks")
def test_a_folder_that_another_process_writes_into_is_read(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], **pipes) as holder:
        assert holder.stdout.readline() == "held\n"
        assert evenly.load(folder).model(rows()[0]).shape == (24, 2)
        holder.kill()


DAMAGE = {
    "config.json": [
        (None, "holds no run of evenly; give the folder that `evenly train` left behind"),
        ('{"plan": ', r"config\.json is damaged \(.*\); copy the run's folder again, or remove it and train again"),
        ("[" * 10**5, r"config\.json is damaged"),
        ("9" * 10**4, r"config\.json is damaged"),
        ("\0", r"config\.json is damaged"),
        ("[]", r"config\.json is damaged \(it holds no names and values\)"),
        ('{"seed": 0}', r"config\.json was written by evenly 0\.1; remove the folder and train again"),
        ({"format": 9}, r"config\.json was written by another version \(format 9\)"),
        ({"format": 2}, r"config\.json is damaged \(a Config lacks 'plan'"),
        ('{"format": 2}', r"config\.json is damaged \(its checksum is missing\)"),
        (('"epochs": 2', '"epochs": 3'), r"config\.json is damaged \(its content does not match its checksum\)"),
        (('"crc32"', '"crc33"'), r"config\.json is damaged \(its checksum is missing\)"),
    ],
    "results.json": [
        (None, "holds a run that is not finished; run the same command again to finish it"),
        ("{", r"results\.json is damaged"),
        ("3", r"results\.json is damaged \(it holds no names and values\)"),
        ("{}", r"results\.json was written by evenly 0\.1"),
        ({"format": 2, "cost": 3}, r"results\.json is damaged \(a RunResult lacks 'data'"),
        (('"cost": ', '"cost": 1'), r"results\.json is damaged \(its content does not match its checksum\)"),
    ],
    "metrics.jsonl": [
        (None, r"metrics\.jsonl cannot be read"),
        ('{"epoch": 1}\n', r"metrics\.jsonl is damaged \(its checksum is missing\); copy the run's folder again"),
        ("3", r"metrics\.jsonl is damaged"),
        ("[" * 10**5, r"metrics\.jsonl is damaged"),
        (('"examples": 24', '"examples": 25'), r"metrics\.jsonl is damaged \(its content does not match"),
        ("", ""),
    ],
    "selection.npz": [(None, ""), ("half", r"selection\.npz is damaged \(File is not a zip file\); copy")],
    "record.npz": [(None, ""), ("half", r"record\.npz is damaged \(.*\); copy the run's folder again")],
    "model.safetensors": [(None, r"holds no model\.safetensors"), ("half", r"model\.safetensors is damaged")],
}
EACH = [(name, damage, message) for name, cases in DAMAGE.items() for damage, message in cases]


@pytest.mark.parametrize(("name", "damage", "message"), EACH)
def test_a_file_that_is_damaged_is_named_in_a_line(finished, tmp_path, name, damage, message):
    path = shutil.copytree(finished, tmp_path / "run") / name
    if damage is None:
        path.unlink()
    elif isinstance(damage, tuple):
        assert damage[0] in path.read_text()
        path.write_text(path.read_text().replace(*damage, 1))
    else:
        path.write_text(json.dumps(sealed(damage)) if isinstance(damage, dict) else damage)
    if not message:
        assert evenly.load(tmp_path / "run").results.epochs == 2
        return
    with pytest.raises(EvenlyError, match=message) as refused:
        _ = evenly.load(tmp_path / "run").model
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["config.json", "results.json", "metrics.jsonl", "selection.npz", "record.npz", "model.safetensors"]
)
def test_a_flipped_bit_is_refused_by_name_or_changes_nothing(finished, tmp_path, name):
    def content():
        run = evenly.load(tmp_path / "run")
        weights = {key: value.numpy().tobytes() for key, value in run.model.state_dict().items()}
        chosen = {name: np.asarray(value).tolist() for name, value in run.selection.details.items()}
        return run.config, run.results, run.history, run.record.history, chosen, weights

    path = shutil.copytree(finished, tmp_path / "run") / name
    whole, expected, draw = path.read_bytes(), content(), np.random.default_rng(0)
    refusals = []
    for _ in range(20):
        place, bit = int(draw.integers(len(whole))), 1 << int(draw.integers(8))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        try:
            assert content() == expected, (place, bit)
        except EvenlyError as error:
            refusals.append(str(error))
    assert len(refusals) > 10
    assert all(re.fullmatch(rf".*/{name} .*; .*", refusal) for refusal in refusals)


def test_what_is_no_run_is_refused(tmp_path, finished):
    with pytest.raises(EvenlyError, match="nowhere does not exist; give the folder that `evenly train` left behind"):
        evenly.load(tmp_path / "nowhere")
    for load in (evenly.load, evenly.load_comparison):
        with pytest.raises(EvenlyError, match="folder must be a path, got None"):
            load(None)
    evenly.compare(Data(train=rows()), model="mlp", methods=["erm"], seeds=1, out=tmp_path / "table", **QUICK)
    with pytest.raises(EvenlyError, match=r"holds a comparison, not a run; its runs are in .*runs"):
        evenly.load(tmp_path / "table")
    with pytest.raises(EvenlyError, match="is rebuilt by its name; leave `model` out"):
        evenly.load(finished, model=own())
    evenly.train(Data(train=rows()), model=nn.Linear(3, 2), out=tmp_path / "own", **QUICK)
    run = evenly.load(tmp_path / "own")
    assert run.results.epochs == 2
    with pytest.raises(EvenlyError, match=r"a module of your own; give it: evenly.load\("):
        _ = run.model


def test_outputs_and_group_intervals_are_those_that_the_run_measured(tmp_path):
    """Also in bf16, which the loaded run has to use again."""
    evenly.train(arrays(tmp_path), model="mlp", precision="bf16", out=tmp_path / "run", **QUICK)
    run = evenly.load(tmp_path / "run")
    test = load_data(tmp_path / "own.npz", seed=0).test
    with np.load(tmp_path / "run/predictions.npz") as stored:
        assert torch.equal(run.outputs(test), torch.from_numpy(stored["test_outputs"]))
    measured = run.results.splits["test"]
    bounds = [wilson(round(a * n), n) for a, n in zip(measured.groups, measured.group_counts, strict=True) if n]
    assert [each for each in measured.group_intervals if each is not None] == bounds


def test_a_run_prints_as_a_short_table(result, plan):
    reached = evolve(result(0.9, (1.0, 0.8)), data=DataSummary("<b>", "", {"test": 40}, ("a", "b")))
    run = Run(Config(plan(), NetworkSpec("mlp"), {}, ("a", "b")), reached)
    assert str(run).splitlines() == [
        "erm with sgd on <b>, seed 0: weights of epoch 2 of 2, 1.00x the cost of ERM",
        "split  examples  accuracy  worst group  worst class",
        "test         40     90.0%        80.0%        90.0%",
        "in memory",
    ]
    shown = run._repr_html_()
    assert "<td>test</td><td>40</td><td>90.0%</td><td>80.0%</td>" in shown
    assert "<b>" not in shown


def test_results_as_a_table_and_as_a_file(result, tmp_path):
    pytest.importorskip("pandas", reason="needs pandas: pip install 'evenly[pandas]'")
    reached = result(0.9, (1.0, 0.8))
    (row,) = reached.to_pandas().to_dict("records")
    assert (row["split"], row["examples"], row["accuracy"], row["worst_group"]) == ("test", 40, 0.9, 0.8)
    reached.save(tmp_path / "results.json")
    assert RunResult.from_dict(json.loads((tmp_path / "results.json").read_text())) == reached
