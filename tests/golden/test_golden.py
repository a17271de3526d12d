"""No number moves: every part of `make.py` gives the stored numbers. The demo's are compared where the demo is run."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("golden_make", HERE / "make.py")
make = importlib.util.module_from_spec(spec)
sys.modules["golden_make"] = make
spec.loader.exec_module(make)


@pytest.mark.golden
@pytest.mark.parametrize("part", [part for part in make.PARTS if part != "demo"])
def test_numbers_are_the_stored_ones(part):
    command = [sys.executable, HERE / "make.py", "--only", part, "--compare", HERE / "numbers.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]


def test_every_part_is_stored():
    _, numbers = make.read(HERE / "numbers.json")
    assert {key.partition("/")[0] for key in numbers} == set(make.PARTS)


def test_what_differs():
    old = {"a": 3, "b": 0.5, "c": [0.5, None], "weights": "12ab", "gone": 1}
    new = {"a": 3, "b": 0.5 + 1e-7, "c": [0.5, None], "weights": "34cd", "more": 1.0}
    missing = [("gone", 1, None), ("more", None, 1.0)]
    assert make.differences(old, old, exact=True) == []
    assert make.differences(old, new, exact=True) == [
        ("b", 0.5, 0.5 + 1e-7),
        ("weights", "12ab", "34cd"),
        *missing,
    ]
    assert make.differences(old, new, exact=False) == [missing[0], missing[1]]


@pytest.mark.parametrize(("old", "new"), [(3, 4), (0.5, 0.5001), ([0.5], [0.6]), ([0.5], [0.5, 0.5]), (True, False)])
def test_what_differs_anywhere(old, new):
    assert make.differences({"a": old}, {"a": new}, exact=False) == [("a", old, new)]


def test_a_file_is_read_as_it_was_written(tmp_path):
    numbers = {"part/erm+sgd/seed0/test.accuracy": 1 / 3, "part/erm+sgd/accuracy.mean": 0.1, "phase/diverged": [True]}
    make.write(tmp_path / "numbers.json", numbers)
    assert make.read(tmp_path / "numbers.json") == (make.here(), numbers)
