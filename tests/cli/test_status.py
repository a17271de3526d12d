"""`evenly status`: what is done, under way, failed and waiting, in 80 columns."""

import json

import pytest

from evenly.engine.checkpoints import Checkpoints
from evenly.files import write_json
from evenly.runs.folder import Config, RunFolder
from evenly.runs.holder import held
from evenly.runs.network import NetworkSpec
from evenly.runs.plan import DataSpec, MethodSpec, ModelSpec, OptimizerSpec, Plan
from evenly.settings import Settings

PLAN = Plan(DataSpec("toy", kind="named"), ModelSpec("mlp"), MethodSpec("erm"), OptimizerSpec("sgd"), Settings())
CONFIG = Config(PLAN, NetworkSpec("mlp"), {}, ("a", "b"))


@pytest.fixture
def compared(tmp_path):
    """A comparison: of 4 seeds of 3 methods, one failed, one is stopped, and the controls wait."""
    nodes = []
    for seed in range(4):
        for method in ("pde", "group_dro", "useful"):
            label = f"{method} with sgd, batch_size 256, seed {seed}"
            control = f"erm with sgd at the cost of {label}"
            nodes += [{"id": label, "label": label, "seed": seed, "after": None, "folder": f"runs/{method}-{seed}"},
                      {"id": control, "label": control, "seed": seed, "after": label, "folder": None}]  # fmt: skip
    out = tmp_path / "runs/compared"
    out.mkdir(parents=True)
    write_json(out / "config.json", {"format": 2, "compare": "toy"})
    write_json(out / "graph.json", {"format": 2, "nodes": nodes})
    failed, stopped, done = (RunFolder(out / f"runs/pde-{seed}", CONFIG) for seed in range(3))
    for each in (failed, stopped, done):
        each.prepare()
        each.close()
    (done.path / "results.json").write_text("{}")
    reason = "the training loss became NaN or infinite in epoch 3 of stage 'final' at learning rate 0.5; lower it"
    write_json(failed.path / "failed.json", {"format": 2, "reason": reason, "traceback": ""})
    return out


def test_a_comparison_is_a_table_and_the_next_command(evenly, compared, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = evenly("status", "runs/compared")
    assert (code, err) == (1, "")
    assert max(map(len, out.splitlines())) <= 80
    assert out.startswith("runs/compared: 24 runs: 1 done, 1 interrupted, 1 failed, 21 waiting\n")
    assert "the training loss became NaN" in out
    assert "  waiting      and 13 more\n" in out
    assert out.endswith("Next: the same `evenly compare ...` with --retry runs the failed run again\n")
    found = json.loads(evenly("status", "runs/compared", "--json")[1])
    assert found["counts"] == {"done": 1, "interrupted": 1, "failed": 1, "waiting": 21}
    with held(compared):
        code, out, _ = evenly("status", "runs/compared")
        assert out.startswith("runs/compared: 24 runs: 1 done, 1 interrupted, 1 failed, 21 waiting;")
        assert "`evenly compare` is running\n" in out.replace("\n  ", " ", 1)
        assert "Next" not in out
        assert max(map(len, out.splitlines())) <= 80
    (compared / "runs/pde-0/failed.json").unlink()
    code, out, _ = evenly("status", "runs/compared")
    assert code == 0
    assert out.endswith("Next: the same `evenly compare ...` goes on where it stopped\n")


def test_a_folder_of_folders_has_a_line_for_each(evenly, compared, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    RunFolder(tmp_path / "runs/one", CONFIG).prepare()
    code, out, _ = evenly("status", "runs")
    assert code == 1
    assert [line.split()[:2] for line in out.splitlines()[1:3]] == [["failed", "compared"], ["interrupted", "one"]]
    assert out.endswith("\nNext: evenly status runs/compared\n")


def test_the_command_for_an_interrupted_run_finishes_it(evenly, refused, mine, monkeypatch, tmp_path):
    save = Checkpoints.save

    def stopped(self, stage, state):
        save(self, stage, state)
        if state["epoch"] == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", stopped)
        assert evenly("train", mine, "--epochs", 4, "--batch-size", 8, "--out", "a b")[0] == 130
    code, out, _ = evenly("status", "a b")
    assert code == 0
    assert out.startswith("a b: interrupted, epoch 2 of 4, last written ")
    command = out.splitlines()[-1].removeprefix("Next: evenly ")
    assert command == "train --config 'a b/config.json' --out 'a b'"
    assert evenly("train", "--config", "a b/config.json", "--out", "a b")[0] == 0
    assert evenly("status", "a b") == (0, "a b: done\npage: a b/report.html\n", "")
    refused("status nothere", "nothere does not exist")
    (tmp_path / "empty").mkdir()
    refused("status empty", "empty holds no run or comparison")
