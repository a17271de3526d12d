"""Data larger than memory: runs on images and tables that stay in files end as those in memory, and under a limit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import evenly
from evenly.data import columns, load, mapped
from evenly.data.mapped import MappedRows

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "streaming.py"
RUNS = [("erm", "sgd"), ("erm", "sam"), ("useful", "sgd"), ("useful", "sam"), ("pde", "sgd"), ("dfr", "sgd")]
OPTIONS = {"useful": {"separating_epoch": 1}, "pde": {"warmup_epochs": 1, "every": 1}}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Images with a place in four groups."""
    folder, draw = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    lines = ["file,label,place"]
    for i in range(90):
        label, place = i % 2, (i // 2 + (i % 7 == 0)) % 2
        pixels = draw.integers(40 * label, 180 + 40 * label, (9, 8, 3), dtype=np.uint8)
        pixels[:, :, place] //= 2
        Image.fromarray(pixels).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{'ab'[label]},{'xy'[place]}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """A table of numbers, some missing, and a category."""
    path, draw = tmp_path_factory.mktemp("people") / "people.csv", np.random.default_rng(0)
    lines = ["age,pay,odd,kind,place,label"]
    for i in range(200):
        age, pay = draw.normal(40 + 9 * (i % 2)), draw.lognormal(0, 3)
        kind, place = draw.choice(["a", "b", ""]), "xy"[int(draw.random() < 0.3 + 0.4 * (i % 2))]
        lines.append(f"{'' if i % 9 == 0 else age},{pay},{i % 5},{kind},{place},{'no' if i % 2 else 'yes'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def trained(data, method, optimizer, **how):
    settings = {"device": "cpu", "seed": 3, "epochs": 3, "batch_size": 16, "progress": lambda *_: None}
    return evenly.train(str(data), method=method, optimizer=optimizer, **settings, **OPTIONS.get(method, {}), **how)


def assert_same(one, other):
    ours, theirs = one.model.state_dict(), other.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert [row | {"seconds": 0} for row in one.history] == [row | {"seconds": 0} for row in other.history]
    assert one.results.splits == other.results.splits
    assert one.config.fingerprints == other.config.fingerprints


@pytest.mark.parametrize(("method", "optimizer"), RUNS)
def test_images_in_a_file_end_in_the_same_run(photos, monkeypatch, method, optimizer):
    monkeypatch.setattr("evenly.models.standardised.MOST", 5)  # no part stands for all of them
    how = {"model": "convnet_3", "augment": "basic", "normalise": "data"}
    held, stored = (
        trained(photos, method, optimizer, data_options={"groups": "label,place", "memory": memory}, **how)
        for memory in (1.0, 0.0)
    )
    assert isinstance(load(photos, memory=0.0).train.inputs, MappedRows)
    assert_same(held, stored)


@pytest.mark.parametrize(("method", "optimizer"), RUNS)
def test_a_table_in_a_file_ends_in_the_same_run(people, monkeypatch, method, optimizer):
    how = {"model": "mlp", "data_options": {"groups": "label,place"}}
    held = trained(people, method, optimizer, **how)
    monkeypatch.setattr(mapped, "_free_memory", lambda: 100.0)
    monkeypatch.setattr(columns, "PIECE", 100)  # a few rows at a time
    assert isinstance(load(people).train.inputs, MappedRows)
    assert_same(held, trained(people, method, optimizer, **how))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="anonymous memory is read from /proc")
def test_a_run_under_a_limit_takes_a_part_of_what_it_reads(tmp_path):
    """At full size in .ci/full. What torch alone takes is about 0.25 GB."""
    size = ["--gigabytes", "0.2", "--side", "64", "--hold", "0.1", "--memory", "0.65", "--most", "0.55"]
    subprocess.run([sys.executable, SCRIPT, "limit", "--out", tmp_path, *size], check=True)
    results = json.loads((tmp_path / "streaming-limit.json").read_text())
    assert results["steps"] == results["images"] * 0.6 // 64 + 1
