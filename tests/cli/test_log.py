"""`evenly log`, and `--log` of the verbs that train."""

import json
import sys

import pytest

pytest.importorskip("tensorboard")


@pytest.fixture
def run(done, mine):
    done(f"train {mine} --epochs 2 --model mlp --out a")
    return "a"


def test_a_run_is_logged_once(done, run):
    first = done("log a --to tensorboard").splitlines()
    assert first[0].startswith("a: ")
    assert first[0].endswith(" numbers added, 2 epochs logged in a/events.out.tfevents.0.evenly")
    assert first[1] == "Next: tensorboard --logdir a"
    second = done("log a --to tensorboard").splitlines()
    assert second[0] == "a: nothing to add, 2 epochs logged in a/events.out.tfevents.0.evenly"
    assert json.loads(done("log a --to tensorboard --json")) == {
        "to": "tensorboard",
        "runs": [{"folder": "a", "rows": 2, "added": 0, "where": "a/events.out.tfevents.0.evenly", "reason": ""}],
    }
    assert "a: done" in done("status a")


def test_a_run_that_is_logged_as_it_goes_has_nothing_to_add(done, mine):
    done(f"train {mine} --epochs 2 --model mlp --out a --log tensorboard")
    assert "nothing to add, 2 epochs" in done("log a --to tensorboard")


def test_one_of_several_runs_that_is_damaged_is_named_and_the_others_are_logged(evenly, run, mine, done, tmp_path):
    done(f"train {mine} --epochs 2 --model mlp --seed 1 --out b")
    (tmp_path / "a/metrics.jsonl").write_bytes(b"damage\n")
    code, out, _ = evenly("log", ".", "--to", "tensorboard")
    assert code == 1
    assert out.splitlines()[0].startswith("a: a/metrics.jsonl is damaged (line 1: ")
    assert out.splitlines()[1].startswith("b: ")
    assert (tmp_path / "b/events.out.tfevents.0.evenly").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("log a --to tensorbord", "'tensorbord'"),
        ("log a", "(?i)missing option.*--to"),
        ("log nowhere --to tensorboard", "nowhere does not exist; give a folder"),
        ("log . --to tensorboard", r"\. holds no run or comparison; give a folder"),
        ("train shortcut-digits --log x", "--log must be one of tensorboard, wandb, mlflow, got 'x'"),
    ],
)
def test_what_cannot_be_logged_is_refused_in_one_line(refused, command, message):
    refused(command, message)


def test_a_missing_library_is_one_line(refused, run, mine, monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.startswith(("wandb", "evenly.integrations.loggers.wandb"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "wandb", None)
    message = r"logging to wandb needs wandb, which is not installed; run: pip install 'evenly\[wandb\]'"
    refused("log a --to wandb", message)
    refused(f"train {mine} --log wandb --out b", message)
    assert not (tmp_path / "b").exists()
