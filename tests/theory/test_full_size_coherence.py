"""Coherence at full size: against the definition's time, of large samples of large networks, and by its sketch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.full_size


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    """benchmarks/stability.py, under a name that a new process can import too."""
    path = Path(__file__).parents[2] / "benchmarks" / "stability.py"
    spec = importlib.util.spec_from_file_location("stability", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))
        patch.setitem(__import__("sys").modules, "stability", module)
        spec.loader.exec_module(module)
        yield module


def test_fifty_times_faster_than_the_definition(benchmark):
    rows = benchmark.against_the_definition(3)
    print(*rows, sep="\n")
    assert all(row["error"] < 1e-10 for row in rows)
    assert all(row["times faster"] >= 50 for row in rows if row["what"].endswith("model, evenly"))


@pytest.mark.parametrize("network", ["layers_of_a_hundred_thousand", "convolutions_of_a_hundred_thousand"])
def test_two_thousand_samples_of_a_hundred_thousand_parameters(benchmark, network):
    """Within 60 s and 4 GB on two cores."""
    row = benchmark.alone(2, getattr(benchmark, network))
    print(row)
    assert row["seconds"] < 60
    assert row["peak GiB"] * 2**30 < 4e9


def test_ten_thousand_samples_of_a_million_parameters(benchmark):
    """Their gradients would take 41 GB."""
    row = benchmark.alone(2, benchmark.layers_of_a_million)
    print(row)
    assert row["peak GiB"] * 2**30 < 4e9


def test_ten_classes_by_a_sketch(benchmark):
    """The largest error of five seeds is within the stated bound, and the bound says something."""
    row = benchmark.alone(2, benchmark.ten_classes)
    print(row)
    assert 0 < row["error"] < row["bound"] < 1
