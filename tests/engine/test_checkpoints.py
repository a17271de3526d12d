"""Checkpoints: whole files or none, nothing in them executed, and metrics that agree with them."""

from __future__ import annotations

import copy
import json
import os
import pickle
import time

import numpy as np
import pytest
import torch

from evenly.engine import Checkpoints, Selection
from evenly.errors import EvenlyError, EvenlyWarning
from evenly.files import sealed


def test_the_folder_is_prepared_once_before_the_first_use(tmp_path):
    asked = []
    checkpoints = Checkpoints(tmp_path / "run", lambda: asked.append((tmp_path / "run").exists()))
    assert checkpoints.rows() == asked == []
    checkpoints.append({"stage": "final", "epoch": 1})
    checkpoints.save("final", {"epoch": 1})
    checkpoints.load("final")
    assert asked == [False]


def test_checkpoints_hold_tensors_and_plain_values(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load("final") is None
    state = {"epoch": 2, "model": {"w": torch.randn(3)}, "best": None}
    checkpoints.save("final", state)
    loaded = torch.load(tmp_path / "checkpoint/final.pt", weights_only=True)
    assert torch.equal(loaded["model"]["w"], state["model"]["w"])
    assert checkpoints.load("final")["epoch"] == 2
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == ["checkpoint", "checkpoint/final.pt"]


class Bomb:
    def __reduce__(self):
        return os.mkdir, (os.environ["BOMB"],)


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "pickle"])
def test_a_checkpoint_that_is_none_is_refused_in_one_line_and_not_executed(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("BOMB", str(tmp_path / "exploded"))
    checkpoints = Checkpoints(tmp_path / "run")
    checkpoints.save("final", {"w": torch.randn(100)})
    path = tmp_path / "run/checkpoint/final.pt"
    whole = path.read_bytes()
    path.write_bytes(
        {"cut": whole[:-100], "noise": b"\x07" * 300, "empty": b"", "pickle": pickle.dumps(Bomb())}[damage]
    )
    with pytest.raises(EvenlyError, match=r"final\.pt is damaged \(.*\), and there is none before it; remove") as error:
        checkpoints.load("final")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "exploded").exists()


def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path):
    """At each byte of the archive, in one of its bits."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save("final", {"epoch": 2, "w": torch.randn(50)})
    path = tmp_path / "checkpoint/final.pt"
    whole, state = path.read_bytes(), checkpoints.load("final")
    refused = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        try:
            again = checkpoints.load("final")
            assert again["epoch"] == 2
            assert torch.equal(again["w"], state["w"])
        except EvenlyError:
            refused += 1
    assert refused > len(whole) / 3


@pytest.mark.parametrize("stage", ["early", "final"])
def test_a_damaged_checkpoint_is_named_and_the_run_goes_on_from_the_one_before(fit, net, problem, tmp_path, stage):
    def run(out):
        engine = fit(epochs=4, checkpoints=Checkpoints(out))
        engine(copy.deepcopy(net), problem(), stage="early")
        return engine(copy.deepcopy(net), problem(validation=6), select="average")

    whole = run(tmp_path / "whole")
    run(tmp_path / "run")
    path = tmp_path / f"run/checkpoint/{stage}.pt"
    path.write_bytes(path.read_bytes().replace(b"model", b"modem"))
    with pytest.warns(EvenlyWarning, match=rf"{stage}\.pt is damaged \(.*; the run goes on from the one before"):
        again = run(tmp_path / "run")
    assert again.history == whole.history
    weights = zip(again.model.parameters(), whole.model.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in weights)
    metrics = [(tmp_path / each / "metrics.jsonl").read_bytes() for each in ("run", "whole")]
    assert metrics[0] == metrics[1]


def test_both_checkpoints_are_on_the_disk_before_the_older_one_goes(tmp_path, monkeypatch):
    synced = set()
    monkeypatch.setattr(os, "fsync", lambda file: synced.add(os.fstat(file).st_ino))
    checkpoints = Checkpoints(tmp_path)
    for epoch in range(3):
        checkpoints.save("final", {"epoch": epoch})
    there = {file.stat().st_ino for file in (tmp_path / "checkpoint").iterdir()}
    assert len(there) == 2
    assert there | {(tmp_path / "checkpoint").stat().st_ino} <= synced


@pytest.fixture
def saves(monkeypatch):
    """The epochs that were saved, each saving taking a while."""
    epochs, write = [], Checkpoints._write

    def slow(self, stage, state):
        epochs.append(state["epoch"])
        time.sleep(0.03)
        write(self, stage, state)

    monkeypatch.setattr(Checkpoints, "_write", slow)
    return epochs


@pytest.mark.parametrize(
    ("name", "value", "pause", "expected"),
    [
        ("CHECKPOINT_SHARE", 0.01, 0.0, [1, 6]),  # 0.03 s of writing in 3 s
        ("CHECKPOINT_SHARE", 0.9, 0.05, [1, 2, 3, 4, 5, 6]),  # long epochs save every time
        ("CHECKPOINT_SECONDS", 5.0, 0.0, [1, 6]),
    ],
)
def test_short_epochs_share_a_checkpoint(fit, net, problem, saves, monkeypatch, tmp_path, name, value, pause, expected):
    monkeypatch.setattr(f"evenly.engine.checkpoints.{name}", value)
    engine = fit(epochs=6, checkpoints=Checkpoints(tmp_path))
    engine(net, problem(), before_epoch=lambda epoch, optimizer: time.sleep(pause))
    assert saves == expected
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 6


def test_a_run_that_is_stopped_between_checkpoints_ends_in_the_same_weights(
    fit, net, problem, saves, monkeypatch, tmp_path
):
    def run(**how):
        done = fit(epochs=6, batch_size=6, **how)(copy.deepcopy(net), problem())
        return torch.cat([p.detach().flatten() for p in done.model.parameters()]), done.history

    def stop(share, note):
        if share > 0.6:
            raise InterruptedError

    monkeypatch.setattr("evenly.engine.checkpoints.CHECKPOINT_SHARE", 0.01)
    (straight, history) = run()
    with pytest.raises(InterruptedError):
        run(checkpoints=Checkpoints(tmp_path), progress=stop)
    assert saves == [1]
    weights, its_history = run(checkpoints=Checkpoints(tmp_path))
    assert saves == [1, 2, 6]
    assert torch.equal(weights, straight)
    assert its_history == history


ROWS = [{"stage": "early", "epoch": 1}, {"stage": "final", "epoch": 1, "x": 0.1}, {"stage": "final", "epoch": 2}]


@pytest.mark.parametrize(
    "tail", ["", "\n", '{"sta', json.dumps(sealed({"stage": "final", "epoch": 3})), '{"stage": "final", "epoch": 3}\n{']
)
def test_metrics_are_healed(tmp_path, tail):
    """Whatever a kill left at the end, what the checkpoint does not cover goes and the rest stays, byte for byte."""
    checkpoints = Checkpoints(tmp_path)
    for row in ROWS:
        checkpoints.append(row)
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    assert whole.decode() == "".join(json.dumps(sealed(row)) + "\n" for row in ROWS)
    (tmp_path / "metrics.jsonl").write_bytes(whole + tail.encode())
    assert checkpoints.rewind("final", 2) == ROWS
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole
    checkpoints.append({"stage": "final", "epoch": 3})
    assert checkpoints.rows() == [*ROWS, {"stage": "final", "epoch": 3}]


def test_metrics_that_fall_short_of_the_checkpoint_are_refused(fit, net, problem, tmp_path):
    fit(checkpoints=Checkpoints(tmp_path))(net, problem())
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text(lines[0])
    with pytest.raises(EvenlyError, match=r"is damaged \(it has 1 epoch of stage 'final', the checkpoint 3\)"):
        fit(checkpoints=Checkpoints(tmp_path))(net, problem())


def test_a_selection_is_kept_as_plain_arrays(tmp_path):
    indices, times = torch.tensor([3, 5]), torch.tensor([2, 3])
    chosen = Selection(indices, times, "because", {"entered": torch.tensor([0, 1])})
    assert chosen.factor == 3
    chosen.save(tmp_path / "selection.npz")
    with np.load(tmp_path / "selection.npz", allow_pickle=False) as stored:
        assert {key: stored[key].tolist() for key in stored.files} == {
            "indices": [3, 5], "times": [2, 3], "why": "because", "entered": [0, 1],
        }  # fmt: skip
    assert Selection(indices[:0], times[:0], "none").factor == 1
