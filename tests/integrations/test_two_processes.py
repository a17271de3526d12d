"""Under DDP a host takes the steps of one process on the whole batch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import evenly

WORKER = Path(__file__).with_name("two_processes_worker.py")
spec = importlib.util.spec_from_file_location("two_processes_worker", WORKER)
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)


def in_two_processes(host, folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(evenly.__file__).parents[1])}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launch, WORKER, host, folder]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def loss_of(net, batch):
    return nn.functional.cross_entropy(net(batch[0]), batch[1])


def in_one(plain, ranks):
    """Lightning and Trainer both divide the loss by the number of batches that a step accumulates."""
    halves = zip(*(rank["seen"] for rank in ranks), strict=True)
    batches = [[torch.cat(parts) for parts in zip(*pair, strict=True)] for pair in halves]
    assert {len(y) for _, y in batches} == {4}
    net = worker.make_net()
    clip = {"clip": lambda params: nn.utils.clip_grad_norm_(params, worker.CLIP)}
    plain.loop(net, worker.make_optimizer(net), batches, loss_of, accumulate=worker.ACCUMULATE, **clip)
    assert not near(worker.make_net().state_dict(), net)
    return net


def near(weights, net):
    return all(torch.allclose(weights[name], value, rtol=0, atol=1e-12) for name, value in net.state_dict().items())


def test_lightning(plain, tmp_path):
    pytest.importorskip("lightning.pytorch", reason="needs Lightning: pip install 'evenly[lightning]'")
    ranks = in_two_processes("lightning", tmp_path)
    net = in_one(plain, ranks)
    x, y, groups = worker.data()
    expected = evenly.group_accuracy(net(x), y, groups, groups)
    for rank in ranks:
        assert near(rank["weights"], net)
        assert torch.equal(rank["per_group"], expected.per_group)
        assert rank["logged"]["val_worst_group_accuracy"] == pytest.approx(expected.worst, abs=1e-6)


def test_transformers(plain, tmp_path):
    pytest.importorskip("transformers", reason="needs transformers: pip install 'evenly[transformers]'")
    ranks = in_two_processes("transformers", tmp_path)
    net = in_one(plain, ranks)
    for rank in ranks:
        assert near(rank["weights"], net)
