"""Images through the command line: one method, a comparison, and both again, which reads back what is there.

On a folder of small pictures made here, and on Fashion-MNIST where the environment variable EVENLY_DATA names a folder
that holds it.
"""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import evenly as package
from evenly.experiment.training import data_of
from evenly.runs.arms import Arm

DATA = os.environ.get("EVENLY_DATA")
HAS_FASHION = DATA is not None and (Path(DATA) / "fashion-mnist").is_dir()
MINUTE = 60.0


@pytest.fixture
def pictures(tmp_path):
    """A folder per class: bright squares to the left or to the right, most of them in the class's own colour."""
    draw, folder = np.random.default_rng(0), tmp_path / "pictures"
    for label, name in enumerate(("left", "right")):
        (folder / name).mkdir(parents=True)
        for number in range(30):
            pixels = draw.integers(0, 60, (10, 12, 3), dtype=np.uint8)
            start = 1 + 6 * label + draw.integers(0, 2)
            colour = label if number % 5 else 1 - label
            pixels[3:7, start : start + 4, colour] += 180
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def test_on_a_cpu_large_images_are_made_small_and_the_network_fits_them(evenly, done, pictures, tmp_path):
    for path in pictures.rglob("*.png"):
        Image.open(path).resize((90, 75)).save(path)
    code, _, err = evenly("train", pictures, "--device", "cpu", "--epochs", "1", "--out", "run")
    assert code == 0
    assert max(map(len, err.splitlines())) <= 80
    lines = [line.strip() for line in err.splitlines()]
    assert lines[:2] == [
        "images are brought to 64 x 64 for the CPU",
        "for others: -d size=224, and --model resnet18 for a larger network",
    ]
    assert lines[2:6] == [
        "pictures: 36 training, 12 validation, 12 test examples",
        "3 x 64 x 64 each, 2 classes",
        "convnet_3 (111,170 weights), erm with sgd",
        "1 epoch, batches of 100, on the CPU, 1 thread",
    ]
    assert lines[6].startswith("epoch 1 of 1, loss ")
    run = package.load("run")
    assert data_of(run).train.example_shape == (3, 64, 64)
    assert evenly("train", pictures, "--device", "cpu", "--epochs", "1", "--out", "run")[2].endswith("is finished\n")
    done(f"train {pictures} -d size=20 --device cpu --epochs 1 --out small")
    done(f"train {pictures} --model convnet --device cpu --epochs 1 --out own")
    assert [package.load(name).plan.data.options for name in ("run", "small", "own")] == [
        {"size": 64},
        {"size": 20},
        {},
    ]
    Image.new("RGB", (9, 9)).save(pictures / "left" / "odd.png")
    error = evenly("train", pictures, "--model", "convnet", "--device", "cpu")[2]
    assert error.endswith("9 x 9; bring all to one size with e.g. -d size=64\n")


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def train_twice(done, request):
    """`evenly train` with USEFUL, and again: its run and the seconds of the first time."""
    command = f"train {request} --method useful --out run"
    started = time.perf_counter()
    out = done(command)
    took = time.perf_counter() - started
    before = contents(Path("run"))
    assert done(command) == out
    assert json.loads(done(f"{command} --json")) == package.load("run").results.to_dict()
    assert contents(Path("run")) == before
    assert "<html" in Path("run/report.html").read_text()
    return package.load("run"), took


def compare_twice(done, request, *, methods, epochs, seeds, n):
    """`evenly compare` of methods with two optimizers, and again: the seconds of the first time."""
    command = f"compare {request} --optimizers sgd,sam --epochs {epochs} --seeds {seeds} --out table"
    command += f" --methods {','.join(methods)}"
    started = time.perf_counter()
    done(command)
    took = time.perf_counter() - started
    before = contents(Path("table"))
    done(command)
    assert contents(Path("table")) == before
    table = package.load_comparison("table")
    rows = {(row.arm, row.seed): row for row in table.rows}
    arms = {(Arm(method, optimizer), k) for method in methods for optimizer in ("sgd", "sam") for k in range(seeds)}
    assert arms <= set(rows)
    for (arm, seed), row in rows.items():
        if arm.method == "erm" and arm.control_of is None:
            assert row.result.cost == (2 if arm.optimizer == "sam" else 1) * epochs * n
        if row.control is not None:  # of equal cost, to within a step
            assert rows[row.control, seed].result.cost == pytest.approx(row.result.cost, rel=0.25), arm.name
    assert rows[Arm("erm", "sam"), 0].control is not None
    assert len(list(Path("table/runs").iterdir())) == len(rows)
    return took


def test_train_on_a_folder_of_pictures(done, pictures):
    run, _ = train_twice(done, f"{pictures} --batch-size 8 --augment basic --epochs 4")
    settings = run.plan.settings
    assert (run.plan.model.name, settings.normalise, settings.augment) == ("convnet_3", "data", "basic")
    assert run.results.chosen > 0
    assert set(run.results.splits) == {"train", "validation", "test"}
    assert "1 example" in done(f"predict run {pictures / 'left' / '0.png'}")
    assert "60 examples" in done(f"predict run {pictures}")


def test_the_number_of_workers_and_the_place_of_the_pixels_change_nothing(done, pictures):
    """In memory, and read picture by picture by two processes."""
    for name, options in (("memory", ""), ("disk", "-d memory=0 --workers 2")):
        done(f"train {pictures} --epochs 2 --augment basic+trivial --out {name} {options}")
    for file in ("metrics.jsonl", "model.safetensors"):
        assert Path("memory", file).read_bytes() == Path("disk", file).read_bytes()
    ours, theirs = (package.load(name).results for name in ("memory", "disk"))
    assert ours.splits == theirs.splits


def test_compare_on_a_folder_of_pictures(done, pictures):
    request = f"{pictures} --batch-size 8 --model mlp --augment basic"
    compare_twice(done, request, methods=("erm", "useful"), epochs=2, seeds=1, n=36)
    assert package.load_comparison("table").data == "pictures"


@pytest.mark.skipif(not HAS_FASHION, reason="needs fashion-mnist in the folder that EVENLY_DATA names")
def test_fashion_mnist_within_a_minute(done):
    run, training = train_twice(done, "fashion-mnist -d n=2000 --epochs 4")
    assert run.plan.model.name == "convnet_3"
    assert run.results.splits["test"].accuracy > 0.6
    assert 0.05 < run.results.chosen / 2000 < 0.7
    three = ("erm", "useful", "random_upsample")
    comparing = compare_twice(done, "fashion-mnist -d n=1000", methods=three, epochs=3, seeds=2, n=1000)
    print(f"train {training:.1f} s, compare {comparing:.1f} s")
    assert max(training, comparing) < MINUTE
