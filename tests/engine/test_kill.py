"""SIGKILL at random moments, resume, kill again: the run that ends has the weights of one that was never touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import evenly

STAGES = {"erm": ["final"], "useful": ["early", "final"], "pde": ["final"]}
KILLS = 7  # for each of the three methods: 21
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kill_server.py")), str(folder), str(KILLS), "17"],
        env={**os.environ, **threads, "PYTHONPATH": str(Path(evenly.__file__).parents[1])},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.mark.parametrize("method", STAGES)
def test_the_kills_landed_while_training(killed, method):
    """Most of the blows hit a run under way, at different places, in every stage."""
    told = killed[1][method]
    print(told)
    assert len(told["hits"]) == KILLS > told["attempts"] / 2
    assert len(set(told["hits"])) > KILLS // 2
    assert {hit.split()[0] for hit in told["hits"]} >= set(STAGES[method])


@pytest.mark.parametrize("method", STAGES)
def test_killed_and_resumed_is_the_same_run(killed, method):
    folder, runs = killed[0] / method, killed[1][method]["runs"]
    whole = torch.load(folder / "whole.weights", weights_only=True)
    metrics = (folder / "whole/metrics.jsonl").read_bytes()
    rows = [json.loads(line) for line in metrics.splitlines()]
    assert list(dict.fromkeys(row["stage"] for row in rows)) == STAGES[method]
    for stage in STAGES[method]:
        epochs = [row["epoch"] for row in rows if row["stage"] == stage]
        assert epochs == list(range(1, len(epochs) + 1))
    for out in (folder / f"killed{run}" for run in range(runs)):
        weights = torch.load(out.with_suffix(".weights"), weights_only=True)
        assert weights.keys() == whole.keys()
        assert all(torch.equal(weights[key], whole[key]) for key in whole)
        assert (out / "metrics.jsonl").read_bytes() == metrics
        ours, theirs = (json.loads((path / "results.json").read_text()) for path in (out, folder / "whole"))
        assert ours | {"seconds": 0} == theirs | {"seconds": 0}
