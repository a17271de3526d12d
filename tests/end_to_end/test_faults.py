"""What a machine does to a run: a full disk, too little memory, a killed reader, two starts at once. Each is one line,
and the same call then ends in the weights of a run that nothing happened to."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import evenly
from evenly import Data, EvenlyError
from evenly.engine import Checkpoints
from evenly.parallel import processes

QUICK = {"epochs": 3, "batch_size": 8, "device": "cpu"}


def data(cls=None):
    x, y = torch.randn(24, 3, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 2
    return Data(train=(x, y) if cls is None else cls(x, y), test=(x, y), name="toy")


def contents(folder):
    return {name: (folder / name).read_bytes() for name in ("model.safetensors", "metrics.jsonl", "predictions.npz")}


class Full:
    """A file on a disk with room for some bytes only."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return self.file.__exit__(*error)

    def write(self, content):
        self.room[0] -= len(content)
        if self.room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(content)


@pytest.mark.parametrize("room", [100, 2_500, 4_000, 25_000, 41_000, 60_000, 62_000, 66_000])
def test_a_full_disk_is_one_line_and_the_same_call_goes_on(tmp_path, monkeypatch, room):
    def call(out):
        return evenly.train(data(), model="mlp", method="useful", out=out, separating_epoch=1, **QUICK)

    call(tmp_path / "whole")
    left, opened = [room], Path.open

    def limited(path, mode="r", *args, **kwargs):
        file = opened(path, mode, *args, **kwargs)
        return Full(file, left) if mode in ("wb", "a") else file

    with monkeypatch.context() as full:
        full.setattr(Path, "open", limited)
        with pytest.raises(EvenlyError, match=r"cannot be written \(No space left on device\); nothing is lost"):
            call(tmp_path / "run")
    call(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    assert not [path for path in (tmp_path / "run").rglob("*") if "partial" in path.name]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError("Unable to allocate 3.6 TiB"), "the memory does not suffice at batch size 8 .*3.6 TiB"),
        (
            RuntimeError("[fail at a.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried to. Error code 12"),
            r"\(can't allocate memory: you tried to\); lower",
        ),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal"), "a process that reads data was killed"),
    ],
)
def test_lack_of_memory_in_training_is_one_line(monkeypatch, error, message):
    def fails(*_):
        raise error

    monkeypatch.setattr("evenly.engine.steps.Step.__call__", fails)
    with pytest.raises(EvenlyError, match=message) as refused:
        evenly.train(data(), model="mlp", **QUICK)
    assert "\n" not in str(refused.value)


def test_more_memory_than_there_is_is_one_line(evenly, refused, monkeypatch, tmp_path):
    np.savez(tmp_path / "own.npz", x=np.zeros((40, 3), dtype=np.float32), y=np.arange(40) % 2)
    for make in (lambda *_, **__: np.zeros(2**50), lambda *_, **__: torch.zeros(2**55)):
        monkeypatch.setattr("evenly.experiment.training.train", make)
        refused("train own.npz", "the memory does not suffice .*allocate.*; use fewer examples")


class Deadly(Dataset):
    """Kills the process that reads it."""

    def __init__(self, x, y):
        self.x, self.targets = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        if torch.utils.data.get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.x[i], int(self.targets[i])


def test_a_killed_reader_is_one_line(tmp_path):
    with pytest.raises(EvenlyError, match=r"a process that reads data was killed, .*; the same command goes on"):
        evenly.train(data(Deadly), model="mlp", workers=1, out=tmp_path / "run", **QUICK)
    evenly.train(data(Deadly), model="mlp", out=tmp_path / "run", **QUICK)


def test_workers_ignore_ctrl_c_where_the_command_was_started_to_ignore_it(monkeypatch):
    monkeypatch.setattr(processes.threading, "Thread", lambda **_: type("Thread", (), {"start": lambda self: None})())
    closed = Pipe()[0]
    closed.close()
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        processes._serve(closed, b"")
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.signal(signal.SIGINT, signal.default_int_handler)
        processes._serve(closed, b"")
        assert callable(signal.getsignal(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)


START = """
import sys, torch, evenly
print("ready", flush=True)
sys.stdin.readline()
x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
try:
    evenly.train((x, torch.arange(24) % 2), model="mlp", epochs=300, batch_size=8, out=sys.argv[1])
    print("done")
except evenly.EvenlyError as error:
    print(error)
"""


@pytest.mark.skipif(os.name != "posix", reason="folders are held by POSIX locks")
def test_of_simultaneous_starts_one_trains_and_the_others_are_one_line(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([sys.executable, "-c", START, str(tmp_path / "run")], **pipes) for _ in range(3)]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    answers = sorted(process.communicate()[0] for process in started)
    assert answers.count("done\n") == 1
    assert all(re.search("done|is in use by another process|finished by another process", each) for each in answers)
    assert evenly.load(tmp_path / "run").results.epochs == 300


def test_a_run_that_was_finished_meanwhile_is_not_written_again(tmp_path, monkeypatch):
    """Another process finishes the run between this one's first look at the folder and its lock."""
    prepare = Checkpoints._ready

    def late(self):
        monkeypatch.setattr(Checkpoints, "_ready", prepare)
        evenly.train(data(), model="mlp", out=tmp_path / "run", **QUICK)
        prepare(self)

    monkeypatch.setattr(Checkpoints, "_ready", late)
    with pytest.raises(EvenlyError, match="was finished by another process meanwhile"):
        evenly.train(data(), model="mlp", out=tmp_path / "run", **QUICK)
    assert len(evenly.load(tmp_path / "run").history) == 3
