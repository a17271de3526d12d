"""A run's folder: one configuration, nothing foreign touched, one process at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from attrs import evolve

from evenly.errors import EvenlyError, InUseError
from evenly.files import read_json, writing
from evenly.runs.folder import Config, RunFolder, read_failure
from evenly.runs.network import NetworkSpec
from evenly.runs.plan import DataSpec, MethodSpec, ModelSpec, OptimizerSpec, Plan
from evenly.settings import Settings

DATA = DataSpec("people", {"groups": "label,g"}, place="/here")
PLAN = Plan(DATA, ModelSpec("mlp"), MethodSpec("pde", {"cap": 3}), OptimizerSpec("sgd"), Settings())
CONFIG = Config(PLAN, NetworkSpec("mlp"), {}, ("a", "b"), fingerprints={"data": "ab", "model": "cd"})
HOLD = """
import sys, pickle
from evenly.runs.folder import RunFolder
folder = RunFolder(sys.argv[1], pickle.loads(bytes.fromhex(sys.argv[2])))
folder.prepare()
print("held", flush=True)
sys.stdin.read()
"""
COMPARE = """
import sys
import evenly
if __name__ == "__main__":
    evenly.compare("shortcut-digits", methods=["erm"], seeds=2, jobs=2, epochs=5000, out=sys.argv[1])
"""


def contents(path):
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))


def test_the_same_plan_goes_on_wherever_its_data_lies(tmp_path):
    folder = RunFolder(tmp_path / "deep/run", CONFIG)
    assert not folder.path.exists()  # it comes with the first thing to keep
    folder.prepare()
    before = (folder.path / "config.json").read_bytes()
    moved = evolve(CONFIG, plan=evolve(PLAN, data=evolve(DATA, place="/there")))
    RunFolder(tmp_path / "deep/run", moved)
    assert (folder.path / "config.json").read_bytes() == before
    assert contents(folder.path) == [".lock", "config.json"]


@pytest.mark.parametrize(
    ("plan", "fingerprints", "difference"),
    [
        ({}, {"data": "ef"}, r"its data differ \(other rows, splits, groups or columns\)"),
        ({}, {"model": "gh"}, "its model starts from other weights"),
        ({"data": evolve(DATA, options={"groups": "label"})}, {"data": "ef"}, "its groups are 'label,g', not 'label'"),
        ({"data": evolve(DATA, name="folk")}, {"data": "ef"}, "its data is 'people', not 'folk'"),
        ({"data": evolve(DATA, fingerprint="x")}, {}, r"its data differ \(other rows, splits, groups or columns\)"),
        ({"data": evolve(DATA, name="folk", fingerprint="x")}, {}, "its data is 'people', not 'folk'"),
        ({"method": MethodSpec("group_dro")}, {}, "its cap is 3, not None|its method is 'pde', not 'group_dro'"),
        ({"method": MethodSpec("pde", {"cap": 4})}, {}, "its cap is 3, not 4"),
        ({"settings": Settings(lr=0.2)}, {}, r"its lr is 0\.05, not 0\.2"),
        ({"seed": 3}, {}, "its seed is 0, not 3"),
        ({"reference_epochs": 9}, {}, "its epochs are 1, not 9"),
        ({"reference_epochs": 9, "settings": Settings(lr=0.2)}, {}, r"its lr is 0\.05, not 0\.2"),
    ],
)
def test_another_run_is_refused_by_what_differs(tmp_path, plan, fingerprints, difference):
    RunFolder(tmp_path / "run", CONFIG).prepare()
    other = evolve(CONFIG, plan=evolve(PLAN, **plan), fingerprints=CONFIG.fingerprints | fingerprints)
    with pytest.raises(EvenlyError, match=rf"holds another run \(({difference})\); give out=.*run-2"):
        RunFolder(tmp_path / "run", other)


def test_what_is_not_a_run_is_left_alone(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter1.tex").write_text("dear to somebody")
    with pytest.raises(EvenlyError, match="not empty and holds no run"):
        RunFolder(tmp_path / "thesis", CONFIG)
    assert contents(tmp_path) == ["thesis", "thesis/chapter1.tex"]
    with pytest.raises(EvenlyError, match="is a file; give a folder"):
        RunFolder(tmp_path / "thesis/chapter1.tex", CONFIG)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text('{"lr": ')
    with pytest.raises(EvenlyError, match=r"config\.json is damaged"):
        RunFolder(tmp_path / "broken", CONFIG)
    (tmp_path / "empty").mkdir()
    RunFolder(tmp_path / "empty", CONFIG)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", ["evenly.runs.folder.write_json", "pathlib.Path.replace"])
def test_a_kill_while_the_folder_is_made_leaves_it_usable(tmp_path, monkeypatch, moment):
    def kill(*arguments):
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(moment, kill)
        dying.setattr("pathlib.Path.unlink", lambda *arguments, **options: None)  # the dead do not tidy up
        with pytest.raises(Killed):
            RunFolder(tmp_path / "run", CONFIG).prepare()
    RunFolder(tmp_path / "run", CONFIG).prepare()
    assert read_json(tmp_path / "run/config.json") == CONFIG.to_dict()


def test_a_failure_that_may_pass_is_not_kept(tmp_path):
    folder = RunFolder(tmp_path, CONFIG)
    folder.prepare()
    with pytest.raises(EvenlyError) as full, writing(tmp_path):
        raise OSError(28, "No space left on device")
    for error in (full.value, OSError("lost"), InUseError("in use")):
        folder.fail(error)
        assert read_failure(tmp_path) is None
    folder.fail(ValueError("it diverged"))
    assert read_failure(tmp_path) == "ValueError: it diverged"


def test_going_on_removes_what_a_kill_left_half_written(tmp_path):
    RunFolder(tmp_path, CONFIG).prepare()
    (tmp_path / "checkpoint").mkdir()
    for name in (".model.safetensors.7-7.partial", "checkpoint/.state.pt.7-7.partial"):
        (tmp_path / name).write_bytes(b"half")
    RunFolder(tmp_path, CONFIG).prepare()
    assert contents(tmp_path) == [".lock", "checkpoint", "config.json"]


@pytest.mark.skipif(os.name != "posix", reason="folders are held by POSIX locks")
def test_a_folder_in_use_is_refused_until_its_holder_is_gone(tmp_path):
    import pickle

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run"), pickle.dumps(CONFIG).hex()]
    with subprocess.Popen(command, **pipes) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(EvenlyError, match="in use by another process"):
            RunFolder(tmp_path / "run", CONFIG).prepare()
        holder.kill()
    RunFolder(tmp_path / "run", CONFIG).prepare()


def workers_in(out: Path) -> list[str]:
    """Processes, other than this one, that have a file under `out` open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = [os.readlink(link) for link in (process / "fd").iterdir()]
        except OSError:  # it ended while we looked
            continue
        if process.name != str(os.getpid()) and any(link.startswith(str(out)) for link in links):
            found.append(process.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_workers_end_with_a_parent_that_was_killed(tmp_path):
    (tmp_path / "script.py").write_text(COMPARE)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, str(tmp_path / "script.py"), str(tmp_path / "out")], **quiet) as parent:
        try:
            deadline = time.monotonic() + 400
            while (workers := len(workers_in(tmp_path / "out/runs"))) < 2 and time.monotonic() < deadline:
                time.sleep(0.2)
            assert workers == 2
        finally:
            parent.kill()
    deadline = time.monotonic() + 20
    while workers_in(tmp_path / "out/runs") and time.monotonic() < deadline:
        time.sleep(0.2)
    assert workers_in(tmp_path / "out/runs") == []
