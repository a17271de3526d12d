"""SIGKILL at random moments, resume, kill again, and damaged files: the run that ends has the weights of one that was
never touched, or the damaged file is named.

EVENLY_KILLS=67 pytest tests/engine/test_kill.py does 201 of each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import evenly
from evenly.files import read_json

STAGES = {"erm": ["final"], "useful": ["early", "final"], "pde": ["final"]}
KILLS = int(os.environ.get("EVENLY_KILLS", "7"))
"""Kills, and damaged files, for each of the three methods: 21."""
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    threads["JE_ARROW_MALLOC_CONF"] = "background_thread:false"  # of pyarrow, which comes with pandas
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kill_server.py")), str(folder), *map(str, (KILLS, KILLS, 17))],
        env={**os.environ, **threads, "PYTHONPATH": str(Path(evenly.__file__).parents[1])},
        capture_output=True, text=True, timeout=60 + 30 * KILLS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.mark.parametrize("method", STAGES)
def test_the_kills_landed_while_training(killed, method):
    """Most of the blows hit a run under way, at different places, in every stage."""
    told = killed[1][method]
    print(told)
    assert len(told["hits"]) == KILLS > told["attempts"] / 2
    assert len(set(told["hits"])) > min(KILLS, 20) // 2
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
    spoiled = (folder / f"spoiled{run}" for run in range(KILLS))
    for out in (*(folder / f"killed{run}" for run in range(runs)), *spoiled):
        weights = torch.load(out.with_suffix(".weights"), weights_only=True)
        assert weights.keys() == whole.keys()
        assert all(torch.equal(weights[key], whole[key]) for key in whole)
        assert (out / "metrics.jsonl").read_bytes() == metrics
        ours, theirs = (read_json(path / "results.json") for path in (out, folder / "whole"))
        assert ours | {"seconds": 0} == theirs | {"seconds": 0}


@pytest.mark.parametrize("method", STAGES)
def test_a_damaged_file_that_is_refused_is_named(killed, method):
    spoiled = killed[1][method]["spoiled"]
    print(*spoiled, sep="\n")
    assert len(spoiled) == KILLS
    for each in spoiled:
        if each["refused"]:
            assert each["file"] in each["refused"]
            assert "\n" not in each["refused"]
