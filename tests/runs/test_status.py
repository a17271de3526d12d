"""What a folder says of its runs, read while they go on and after they were stopped."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
from attrs import evolve

from evenly import EvenlyError
from evenly.files import sealed, write_json
from evenly.runs.folder import Config, RunFolder
from evenly.runs.holder import lives, read_holder, write_holder
from evenly.runs.network import NetworkSpec
from evenly.runs.status import read_status

DIE = """
import os, pickle, sys
from evenly.runs.folder import RunFolder
folder = RunFolder(sys.argv[1], pickle.loads(bytes.fromhex(sys.argv[2])))
folder.prepare()
os._exit(9)  # as one that is killed: it does not tidy up
"""


@pytest.fixture
def config(plan):
    return Config(plan(), NetworkSpec("mlp"), {}, ("a", "b"), fingerprints={"data": "ab", "model": "cd"})


def add_epochs(folder, *epochs, stage="final", written=None):
    """Lines of metrics, as if 10 examples had been trained on in each epoch, the last written at some time."""
    with (folder / "metrics.jsonl").open("a") as file:
        for epoch in epochs:
            row = {"stage": stage, "epoch": epoch, "examples": 10, "cost": 10.0 * epoch}
            file.write(json.dumps(sealed(row)) + "\n")
    for path in filter(lambda path: written, folder.iterdir()):
        os.utime(path, (written, written))


def held_by(folder, **changes):
    """Change what `.lock` says of its holder."""
    holder = json.loads((folder / ".lock").read_text()) | changes
    (folder / ".lock").write_text(json.dumps(holder))


def the_run(path):
    before = {each: (each.stat().st_mtime_ns, each.read_bytes()) for each in path.rglob("*") if each.is_file()}
    (run,) = read_status(path).runs
    assert {each: (each.stat().st_mtime_ns, each.read_bytes()) for each in before} == before
    return run


def test_a_run_is_under_way_then_interrupted_then_done(tmp_path, config, result):
    folder = RunFolder(tmp_path / "run", config)
    folder.prepare()
    assert the_run(folder.path).state == "under way"
    add_epochs(folder.path, 1, stage="early")
    run = the_run(folder.path)
    assert (run.epoch, run.epochs, run.seconds_left, run.reason) == (1, None, None, "stage early")
    now = time.time()
    held_by(folder.path, began=now - 200)
    add_epochs(folder.path, 1, written=now)
    run = the_run(folder.path)
    assert (run.state, run.epoch, run.epochs) == ("under way", 1, 2)
    assert run.seconds_left == pytest.approx(100, abs=5)  # two epochs of 10 examples took 200 s
    folder.close()  # as after an error, in a process that lives on
    assert the_run(folder.path).state == "interrupted"
    again = RunFolder(tmp_path / "run", config)
    again.prepare()
    held_by(again.path, began=now - 30)
    add_epochs(again.path, 2, written=now)
    assert the_run(again.path).seconds_left == pytest.approx(0)  # there is no third epoch
    again.finish(result())
    assert the_run(again.path).state == "done"


def test_a_run_that_ends_at_a_cost_has_its_time_left_by_the_cost(tmp_path, config, plan):
    folder = RunFolder(tmp_path / "run", evolve(config, plan=plan(budget=50.0)))
    folder.prepare()
    now = time.time()
    held_by(folder.path, began=now - 20)
    add_epochs(folder.path, 1, 2, written=now)
    run = the_run(folder.path)
    assert (run.epoch, run.epochs) == (2, None)
    assert run.seconds_left == pytest.approx(30, abs=2)


def test_who_holds_a_folder_is_told_without_its_lock(tmp_path, config):
    command = [sys.executable, "-c", DIE, str(tmp_path / "run"), pickle.dumps(config).hex()]
    assert subprocess.run(command, check=False).returncode == 9
    folder = tmp_path / "run"
    assert the_run(folder).state == "interrupted"
    held_by(folder, pid=os.getpid())  # another process that has its number now
    assert the_run(folder).state == "interrupted"
    held_by(folder, host="elsewhere")  # a process that cannot be seen from here
    assert the_run(folder).state == "under way"
    add_epochs(folder, 1, written=time.time() - 720)
    assert (the_run(folder).state, the_run(folder).reason) == ("interrupted", "last written 12 min 0 s ago")
    held_by(folder, began=time.time() - 1320)  # its epochs take 10 minutes
    assert (the_run(folder).state, the_run(folder).reason) == ("under way", "last written 12 min 0 s ago")
    (folder / ".lock").write_text("")  # of an older version
    assert the_run(folder).state == "interrupted"


def test_windows_asks_no_process_whether_it_lives(tmp_path, monkeypatch):
    """There the signal 0 is Ctrl-C, and there is neither pwrite nor /proc."""
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(Path, "read_text", lambda path: (tmp_path / "none").read_bytes())
    monkeypatch.setattr(Path, "exists", lambda path: False)
    monkeypatch.delattr(os, "pwrite")
    monkeypatch.setattr(os, "kill", lambda pid, sent: pytest.fail(f"sent {sent} to {pid}"))
    lock = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT)
    for _ in range(2):
        write_holder(lock, tmp_path)
    os.close(lock)
    assert read_holder(tmp_path)["pid"] == os.getpid()
    assert lives(read_holder(tmp_path)) is None


def test_a_comparison_is_told_by_its_graph(tmp_path, config, result):
    def node(id, label, folder, after=None):
        return {"id": id, "label": label, "seed": 0, "after": after, "folder": folder}

    nodes = [
        node("a", "erm with sgd, seed 0", "runs/a"), node("b", "pde with sgd, seed 0", "runs/b"),
        node("c", "the control of pde", None, "b"), node("d", "sam, seed 0", "runs/d"),
        node("e", "the control of sam", "runs/a", "d"), node("f", "lff, seed 0", "runs/f"),
        node("g", "the control of lff", None, "f"),
    ]  # fmt: skip
    (tmp_path / "out").mkdir()
    write_json(tmp_path / "out/config.json", {"format": 2, "compare": "toy"})
    write_json(tmp_path / "out/graph.json", {"format": 2, "nodes": nodes})
    folders = {name: RunFolder(tmp_path / "out/runs" / name, config) for name in "abd"}
    for each in folders.values():
        each.prepare()
    folders["a"].finish(result())
    folders["b"].close()
    write_json(folders["b"].path / "failed.json", {"format": 2, "reason": "it diverged", "traceback": "..."})
    status = read_status(tmp_path / "out")
    assert status.counts == {"done": 1, "under way": 1, "failed": 1, "waiting": 3}
    assert [(run.label[:11], run.state, run.reason) for run in status.runs] == [
        ("erm with sg", "done", ""),
        ("pde with sg", "failed", "it diverged"),
        ("the control", "waiting", "for pde with sgd, seed 0, which failed"),
        ("sam, seed 0", "under way", ""),
        ("lff, seed 0", "waiting", ""),
        ("the control", "waiting", "for lff, seed 0"),
    ]
    retried = RunFolder(folders["b"].path, config)
    retried.prepare()
    assert read_status(tmp_path / "out").counts["under way"] == 2
    for each in (*folders.values(), retried):
        each.close()
    parent = read_status(tmp_path)
    assert [(part.kind, part.folder) for part in parent.parts] == [("comparison", str(tmp_path / "out"))]
    assert parent.to_dict()["counts"] == {"done": 1, "interrupted": 2, "waiting": 3}


def test_one_damaged_folder_does_not_hide_the_others(tmp_path, config):
    RunFolder(tmp_path / "good", config).prepare()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/config.json").write_text('{"plan":')
    (tmp_path / "notes").mkdir()
    good, bad = sorted(
        (part.runs[0] for part in read_status(tmp_path).parts), key=lambda run: run.state != "interrupted"
    )
    assert good.label == "good"
    assert bad.state == "failed"
    assert "config.json is damaged" in bad.reason
    for path, message in ((tmp_path / "notes", "holds no run or comparison"), (tmp_path / "no", "does not exist"),
                          (tmp_path / "bad/config.json", "is a file")):  # fmt: skip
        with pytest.raises(EvenlyError, match=message):
            read_status(path)
