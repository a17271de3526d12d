"""A comparison in several processes: the numbers of one, no run twice, and kills of workers and of the scheduler.

EVENLY_SCHEDULER_KILLS=20 pytest tests/experiment/test_many_runs.py kills as often.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from evenly import compare
from evenly.parallel.processes import Processes

KILLS = int(os.environ.get("EVENLY_SCHEDULER_KILLS", "3"))
ARMS = ["erm", "useful", "subsample", "group_dro", "pde", "erm+sam"]
QUICK = {"methods": ARMS, "seeds": 4, "model": "mlp", "epochs": 4, "batch_size": 8, "lr": 0.1, "device": "cpu"}
FEW = QUICK | {"methods": ["erm", "useful", "erm+sam"]}


@pytest.fixture(scope="module")
def file(tmp_path_factory, draw):
    path = tmp_path_factory.mktemp("data") / "toy.npz"
    data = draw(0)
    names, splits = {"x": "inputs", "y": "labels", "groups": "groups"}, data.splits.values()
    np.savez(path, **{key: torch.cat([getattr(split, name) for split in splits]) for key, name in names.items()})
    return path


def results(folder):
    """What results.json holds but for times."""

    def without_times(names_and_values):
        return {name: value for name, value in names_and_values if name not in ("seconds", "crc32")}

    return json.loads((folder / "results.json").read_text(), object_pairs_hook=without_times)


def compared(file, out, **ask):
    """A comparison in this process; pages have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evenly.report.pages.write_report", lambda *arguments, **options: None)
        compare(file, out=out, **ask)
    return out


@pytest.fixture(scope="module")
def few(file, tmp_path_factory):
    return compared(file, tmp_path_factory.mktemp("few") / "out", **FEW)


def folders(out):
    return {path.parent.name for path in (out / "runs").glob("*/results.json")}


@pytest.mark.timeout(300)
def test_processes_give_the_same_and_run_nothing_twice(file, tmp_path, monkeypatch):
    alone = compared(file, tmp_path / "alone", **QUICK)
    begun, submit = Counter(), Processes.submit

    def counted(self, node):
        begun[node.folder_name] += 1
        submit(self, node)

    monkeypatch.setattr(Processes, "submit", counted)
    compare(file, out=tmp_path / "out", jobs=2, **QUICK)
    assert results(tmp_path / "out") == results(alone)
    assert folders(tmp_path / "out") == folders(alone) == begun.keys()
    assert set(begun.values()) == {1}
    compare(file, out=tmp_path / "out", jobs=2, **QUICK)
    assert set(begun.values()) == {1}


COMPARE = (
    "import sys, json; from evenly.engine import checkpoints; checkpoints.CHECKPOINT_SECONDS = 0.0; "
    "from evenly import compare; compare(sys.argv[1], out=sys.argv[2], jobs=2, **json.loads(sys.argv[3]))"
)


def started(file, out):
    with (out.parent / "stderr").open("w") as stderr:
        arguments = [sys.executable, "-c", COMPARE, str(file), str(out), json.dumps(FEW)]
        heeds = signal.signal(signal.SIGINT, signal.SIG_DFL)  # perhaps inherited as ignored
        try:
            return subprocess.Popen(arguments, stderr=stderr, start_new_session=True)
        finally:
            signal.signal(signal.SIGINT, heeds)


def workers(process):
    """The ids of its worker processes."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def is_running(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_for(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    assert condition()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.timeout(120 + 60 * KILLS)
def test_killed_workers_and_schedulers_change_nothing(file, few, tmp_path):
    """Every kill lands while runs are under way: a worker's, whose run another takes, or the scheduler's own."""
    draw, out = random.Random(7), tmp_path / "out"
    total, hits = len(folders(few)), []
    process, lives = started(file, out), set()
    while process.poll() is None:
        lives.update(workers(process))
        share = len(hits) / KILLS * 0.8 + 0.05
        if len(hits) < KILLS and len(folders(out)) >= share * total and workers(process):
            time.sleep(draw.uniform(0, 0.3))
            if len(hits) % 3 == 2:
                process.kill()
                process.wait()
                wait_for(lambda: not any(map(is_running, lives)))  # workers end with their parent
                hits.append("scheduler")
                process = started(file, out)
            elif running := workers(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(draw.choice(running), signal.SIGKILL)
                    hits.append("worker")
        time.sleep(0.02)
    assert process.returncode == 0, (tmp_path / "stderr").read_text()
    print(Counter(hits))
    assert len(hits) == KILLS
    assert results(out) == results(few)
    assert folders(out) == folders(few)
    assert not list(out.rglob("failed.json"))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.timeout(120)
def test_ctrl_c_stops_all_and_the_same_call_goes_on(file, few, tmp_path):
    process = started(file, out := tmp_path / "out")
    wait_for(lambda: len(folders(out)) >= 2)
    running = workers(process)
    os.kill(process.pid, signal.SIGINT)
    process.wait(30)
    assert "KeyboardInterrupt" in (tmp_path / "stderr").read_text()
    wait_for(lambda: not any(map(is_running, running)))
    assert not (out / "results.json").exists()
    compared(file, out, **FEW)
    assert results(out) == results(few)
