"""Two processes against the same sums written out in one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed import HashStore
from torch.func import functional_call

import evenly.errors
from evenly.errors import EvenlyError
from evenly.optim import SAM

WORKER = Path(__file__).with_name("ddp_worker.py")
spec = importlib.util.spec_from_file_location("ddp_worker", WORKER)
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)


@pytest.fixture(scope="module")
def replicas(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    source = Path(evenly.errors.__file__).parents[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(source), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", WORKER, folder]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def gradient(model, w, x, y):
    leaves = {name: p.clone().requires_grad_() for name, p in w.items()}
    loss = nn.functional.cross_entropy(functional_call(model, leaves, (x,)), y)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def gradient_at_ascent(model, w, x, y):
    g = gradient(model, w, x, y)
    norm = sum(d.square().sum() for d in g.values()).sqrt()
    return gradient(model, {n: w[n] + worker.RHO * g[n] / norm for n in w}, x, y)


def in_one_process(*, local, skip=()):
    model = worker.make_model()
    w = {name: p.detach().clone() for name, p in model.named_parameters()}
    momentum = dict.fromkeys(w, 0.0)
    for step, (x, y) in enumerate(worker.batches()):
        if step in skip:
            continue
        if local:
            a, b = (gradient_at_ascent(model, w, worker.half(k, x), worker.half(k, y)) for k in (0, 1))
            g = {n: (a[n] + b[n]) / 2 for n in w}
        else:
            g = gradient_at_ascent(model, w, x, y)
        momentum = {n: worker.MOMENTUM * momentum[n] + g[n] + worker.DECAY * w[n] for n in w}
        w = {n: w[n] - worker.LR * momentum[n] for n in w}
    return w


def worst(a, b):
    return max((a[n] - b[n]).abs().max().item() for n in b)


def test_replicas_stay_the_same(replicas):
    for mode in replicas[0]:
        a, b = (replica[mode]["state"] for replica in replicas)
        for name in a:
            if "running" not in name:  # DDP shares rank 0's statistics at the next forward pass
                assert torch.equal(a[name], b[name]), (mode, name)


def test_global_is_sam_on_the_whole_batch(replicas):
    assert worst(replicas[0]["global"]["state"], in_one_process(local=False)) < 1e-12


def test_local_perturbs_each_replica_by_its_own_gradient(replicas):
    expected = in_one_process(local=True)
    assert worst(replicas[0]["local"]["state"], expected) < 1e-12
    assert worst(in_one_process(local=False), expected) > 1e-4
    assert worst(replicas[0]["scaled"]["state"], expected) < 1e-12


def test_running_statistics_move_once(replicas):
    for replica in replicas:
        for mode in ("norm", "norm local"):
            assert replica[mode]["state"]["1.num_batches_tracked"] == worker.STEPS


def test_an_overflow_on_one_replica_skips_the_step_on_all(replicas):
    for replica in replicas:
        assert worst(replica["skipped"]["state"], in_one_process(local=True, skip=[1])) < 1e-12
        assert replica["skipped"]["scale"] == 32.0


def test_a_gradient_that_is_not_finite_on_one_replica_is_refused_on_all(replicas):
    for replica in replicas:
        assert "the first pass is not finite" in replica["refused"]["refused"]
        assert worst(replica["refused"]["state"], in_one_process(local=True, skip=[1])) < 1e-12


@pytest.fixture
def process_group():
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_local_with_a_static_graph_is_refused(process_group):
    ddp = nn.parallel.DistributedDataParallel(worker.make_model(), static_graph=True)
    with pytest.raises(EvenlyError, match="leave static_graph out"):
        SAM(torch.optim.SGD(ddp.parameters(), lr=0.1), model=ddp, local=True)
    ddp = nn.parallel.DistributedDataParallel(worker.make_model())
    state = SAM(torch.optim.SGD(ddp.parameters(), lr=0.1), model=ddp, local=True).__getstate__()
    assert state["local"] is True
    assert state["_model"] is ddp
