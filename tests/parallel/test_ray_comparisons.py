"""A comparison on Ray has the results that it has here, also where workers are killed or see another disk.

EVENLY_KILLS=20 pytest tests/parallel kills 20 workers, and compares six arms with their controls on four seeds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from evenly import compare
from evenly.errors import EvenlyWarning
from evenly.parallel import on_ray
from evenly.parallel.scratch import Token
from evenly.runs.status import read_status

ray = pytest.importorskip("ray")
KILLS = int(os.environ.get("EVENLY_KILLS", "3"))
FULL = KILLS > 3


@pytest.fixture(scope="module")
def table(tmp_path_factory, write_rows) -> dict[str, Any]:
    """What is compared: six arms with their controls where all is tried, else two."""
    path = tmp_path_factory.mktemp("table") / "rows.npz"
    write_rows(path)
    methods, optimizers = (["erm", "useful", "group_dro"], ["sgd", "sam"]) if FULL else (["erm", "useful"], ["sam"])
    what = {"data": path, "model": "mlp", "methods": methods, "optimizers": optimizers, "seeds": 4 if FULL else 2}
    return {**what, "epochs": 60, "device": "cpu"}


@pytest.fixture(scope="module")
def processes(table, tmp_path_factory) -> Path:
    """The comparison in two processes."""
    folder = tmp_path_factory.mktemp("processes") / "out"
    compare(**table, jobs=2, out=folder)
    return folder


@pytest.fixture(scope="module")
def two_workers():
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def see_another_disk(monkeypatch, name: str) -> None:
    monkeypatch.setattr(on_ray, "token_in", lambda folder: nullcontext(Token(folder, "not there", name)))


@pytest.mark.parametrize("disk", ["shared", "another"])
def test_the_same_results_and_no_run_twice(two_workers, table, processes, results, tmp_path, monkeypatch, disk):
    if disk == "another":
        see_another_disk(monkeypatch, tmp_path.name)
    else:
        compare(**table, out=tmp_path / "here")
        assert results(tmp_path / "here") == results(processes)
    submitted: list[str] = []
    stored: list[Any] = []
    submit, put = on_ray.RayExecutor.submit, ray.put
    monkeypatch.setattr(
        on_ray.RayExecutor, "submit", lambda self, node: submitted.append(node.id) or submit(self, node)
    )
    monkeypatch.setattr(ray, "put", lambda value: stored.append(value) or put(value))
    compare(**table, engine="ray", out=tmp_path / "ray")
    assert results(tmp_path / "ray") == results(processes)
    files, others = (
        sorted(path.relative_to(k) for path in (k / "runs").rglob("*")) for k in (tmp_path / "ray", processes)
    )
    assert files == others
    runs = len(list((tmp_path / "ray" / "runs").iterdir()))
    assert len(submitted) == len(set(submitted)) == runs
    assert len(stored) == 1 + table["seeds"]  # the work, and what was read of the file for each seed
    compare(**table, engine="ray", out=tmp_path / "ray")
    assert len(submitted) == runs  # all is finished


def test_a_failure_on_another_disk_is_kept_here(two_workers, table, tmp_path, monkeypatch):
    """With what a retry goes on from; the next call knows of it."""
    see_another_disk(monkeypatch, tmp_path.name)
    what = {**table, "methods": ["erm"], "optimizers": ["sgd"], "seeds": 1, "epochs": 3, "engine": "ray"}
    submitted: list[str] = []
    submit = on_ray.RayExecutor.submit
    monkeypatch.setattr(
        on_ray.RayExecutor, "submit", lambda self, node: submitted.append(node.id) or submit(self, node)
    )
    for retry, runs in ((False, 2), (False, 2), (True, 3)):
        compared = compare(**what, sweep={"lr": [0.1, 1e20]}, retry=retry, out=tmp_path / "ray")
        assert len(submitted) == runs
        assert "became NaN or infinite" in compared.failures[0].reason
    (failed,) = (run for run in read_status(tmp_path / "ray").runs if run.state == "failed")
    assert {"config.json", "failed.json"} <= {path.name for path in Path(failed.folder).iterdir()}
    assert "Traceback" in (Path(failed.folder) / "failed.json").read_text()
    assert not Token(tmp_path, "", tmp_path.name).scratch.exists()


def test_a_search_and_its_comparison_have_one_connection(two_workers, table, tmp_path, monkeypatch):
    begun: list[bool] = []

    @contextmanager
    def connected(address, at_once=1):
        if any(begun):
            yield
            return
        begun.append(True)
        yield
        begun[-1] = False

    monkeypatch.setattr(on_ray, "connected", connected)
    what = {**table, "methods": ["erm"], "optimizers": ["sgd"], "seeds": 1, "epochs": 2, "engine": "ray"}
    with pytest.warns(EvenlyWarning, match="every seed splits these data anew"):
        compare(**what, search={"lr": "log:0.01:0.1"}, trials=3, out=tmp_path / "ray")
    assert begun == [False]


def workers() -> dict[int, str]:
    """The process and the task of each worker of this process's Ray."""
    found = {}
    for path in Path("/proc").iterdir():
        try:
            title = (path / "cmdline").read_bytes().decode().strip("\0")
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            grandparent = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if title.startswith("ray::") and "Agent" not in title and grandparent == os.getpid():
            found[int(path.name)] = title
    return found


class Killer(threading.Thread):
    """Kills a random worker now and then, none more than twice under one run, which is given up at the third time."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over, self.killed = threading.Event(), Counter[str]()

    def run(self) -> None:
        chance = random.Random(KILLS)
        while self.killed.total() < KILLS and not self.over.wait(chance.uniform(0.3, 1.0)):
            busy = [each for each in workers().items() if "IDLE" not in each[1] and self.killed[each[1]] < 2]
            if busy:
                process, task = chance.choice(busy)
                self.killed[task] += 1
                os.kill(process, signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
@pytest.mark.parametrize("disk", ["shared", "another"][: 1 + FULL])
def test_killed_workers_change_nothing(two_workers, table, processes, results, tmp_path, monkeypatch, disk):
    """A run that was killed goes on from its last checkpoint: no epoch is in its metrics twice."""
    if disk == "another":
        see_another_disk(monkeypatch, tmp_path.name)
    killer = Killer()
    killer.start()
    compare(**table, engine="ray", out=tmp_path / "ray")
    killer.over.set()
    killer.join()
    print(f"killed: {dict(killer.killed)}")
    assert killer.killed.total() == KILLS
    assert results(tmp_path / "ray") == results(processes)
    for metrics in (tmp_path / "ray" / "runs").glob("*/metrics.jsonl"):
        epochs = [(row["stage"], row["epoch"]) for row in map(json.loads, metrics.read_text().splitlines())]
        assert len(epochs) == len(set(epochs))
    assert not list(Path(Token(tmp_path, "", tmp_path.name).scratch).glob("*"))


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_driver_leaves_what_the_next_one_goes_on_with(two_workers, table, processes, results, tmp_path):
    """Its workers end with it; the next driver waits for the folders that they write into."""
    what = {**table, "data": str(table["data"]), "engine": "ray", "out": str(tmp_path / "ray")}
    call = f"import evenly; evenly.compare(**{what})"
    driver = subprocess.Popen([sys.executable, "-c", call])
    while not list(tmp_path.glob("ray/runs/*/checkpoint/*")) and driver.poll() is None:
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("ray/runs/*/results.json")}
    compare(**table, engine="ray", out=tmp_path / "ray")
    assert results(tmp_path / "ray") == results(processes)
    assert all(path.stat().st_mtime_ns == changed for path, changed in kept.items())
