"""Images through the command line: one method, a comparison, and both again, which reads back what is there.

On a folder of small pictures made here, and on Fashion-MNIST where the environment variable EVENLY_DATA names a folder
that holds it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

DATA = os.environ.get("EVENLY_DATA")
HAS_FASHION = DATA is not None and (Path(DATA) / "fashion-mnist").is_dir()
MINUTE = 60.0


@pytest.fixture
def evenly(evenly):
    """The same, which has to succeed; what it printed."""

    def run(*arguments):
        code, out, err = evenly(*arguments)
        assert not code, err
        return out

    return run


@pytest.fixture
def pictures(tmp_path):
    """A folder per class: bright squares to the left or to the right, most of them in the class's own colour."""
    draw, folder = np.random.default_rng(0), tmp_path / "pictures"
    for label, name in enumerate(("left", "right")):
        (folder / name).mkdir(parents=True)
        for number in range(30):
            pixels = draw.integers(0, 60, (10, 12, 3), dtype=np.uint8)
            at = 1 + 6 * label + draw.integers(0, 2)
            colour = label if number % 5 else 1 - label
            pixels[3:7, at : at + 4, colour] += 180
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def written(folder: Path) -> dict[str, bytes]:
    """What a run or a comparison leaves for its readers, file by file; checkpoints and metrics as well."""
    kept = ("results.json", "config.json", "metrics.jsonl", "selection.npz")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.name in kept or path.suffix == ".pt"
    }


def train_twice(evenly, data, *options, epochs):
    """`evenly train` with USEFUL, and again: its results and the seconds of the first time."""
    command = ("train", data, *options, "--method", "useful", "--epochs", epochs, "--out", "run")
    started = time.perf_counter()
    out = evenly(*command)
    took = time.perf_counter() - started
    assert "report.html" in out
    run = Path("run")
    assert "<html" in (run / "report.html").read_text()
    before = written(run)
    assert evenly(*command) == out
    assert written(run) == before
    assert json.loads(evenly(*command, "--json")) == json.loads((run / "results.json").read_text())
    return json.loads((run / "results.json").read_text()), took


def compare_twice(evenly, data, *options, methods, epochs, seeds, n):
    """`evenly compare` of methods with two optimizers, and again: the seconds of the first time."""
    command = (
        "compare", data, *options, "--methods", ",".join(methods), "--optimizers", "sgd,sam",
        "--epochs", epochs, "--seeds", seeds, "--out", "table",
    )  # fmt: skip
    started = time.perf_counter()
    evenly(*command)
    took = time.perf_counter() - started
    table = Path("table")
    assert "<html" in (table / "report.html").read_text()
    before = written(table)
    evenly(*command)
    assert written(table) == before
    results = json.loads((table / "results.json").read_text())
    arms = [f"{method}+{optimizer}" for optimizer in ("sgd", "sam") for method in methods]
    rows = {(row["arm"], row["seed"]): row for row in results["rows"]}
    assert {(arm, seed) for arm in arms for seed in range(seeds)} <= set(rows)
    for (arm, seed), row in rows.items():
        passes = 2 if row["optimizer"] == "sam" else 1
        if row["method"] == "erm" and row["control_of"] is None:
            assert row["cost"] == passes * epochs * n
        if row["control"] is not None:  # of equal cost, to within a step
            assert rows[row["control"], seed]["cost"] == pytest.approx(row["cost"], rel=0.25), arm
    assert rows["erm+sam", 0]["control"] is not None
    assert len(list((table / "runs").iterdir())) == len(rows)
    return took


# A folder of pictures


def test_train_on_a_folder_of_pictures(evenly, pictures):
    row, _ = train_twice(evenly, pictures, "--batch-size", 8, "--augment", "basic", epochs=4)
    config = json.loads(Path("run/config.json").read_text())
    assert config["model"]["name"] == "convnet_3"
    assert config["settings"]["normalise"] == "data"
    assert config["settings"]["augment"] == "basic"
    assert row["model"] == "convnet_3"
    assert row["chosen"] > 0
    assert {"train", "validation", "test"} <= set(row)


def test_the_number_of_workers_and_the_place_of_the_pixels_change_nothing(evenly, pictures):
    """In memory, and read picture by picture by two processes."""
    for name, options in (("memory", ()), ("disk", ("-d", "memory=0", "--workers", 2))):
        evenly("train", pictures, "--epochs", 2, "--augment", "basic+trivial", "--out", name, *options)
    ours, theirs = (json.loads(Path(name, "results.json").read_text()) for name in ("memory", "disk"))
    assert ours | {"seconds": 0} == theirs | {"seconds": 0}
    assert Path("memory/metrics.jsonl").read_bytes() == Path("disk/metrics.jsonl").read_bytes()


def test_compare_on_a_folder_of_pictures(evenly, pictures):
    options = ("--batch-size", 8, "--model", "mlp", "--augment", "basic")
    compare_twice(evenly, pictures, *options, methods=("erm", "useful"), epochs=2, seeds=1, n=36)
    assert json.loads(Path("table/results.json").read_text())["data"] == "pictures"


# Fashion-MNIST


@pytest.mark.skipif(not HAS_FASHION, reason="needs fashion-mnist in the folder that EVENLY_DATA names")
def test_fashion_mnist_within_a_minute(evenly):
    row, training = train_twice(evenly, "fashion-mnist", "-d", "n=2000", epochs=4)
    assert row["model"] == "convnet_3"
    assert row["test"]["accuracy"] > 0.6
    assert 0.05 < row["chosen"] / 2000 < 0.7
    three = ("erm", "useful", "random_upsample")
    comparing = compare_twice(evenly, "fashion-mnist", "-d", "n=1000", methods=three, epochs=3, seeds=2, n=1000)
    print(f"train {training:.1f} s, compare {comparing:.1f} s")
    assert max(training, comparing) < MINUTE
