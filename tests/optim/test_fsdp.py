"""fully_shard with two and four processes against DistributedDataParallel and against one process on whole batches."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.distributed import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import evenly.errors
from evenly.errors import EvenlyError, EvenlyWarning
from evenly.optim import ASAM, LSAM, SAM, RandomPerturbation
from evenly.optim.shards import Processes

WORKER = Path(__file__).with_name("fsdp_worker.py")
spec = importlib.util.spec_from_file_location("fsdp_worker", WORKER)
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
# torch warns of any sharded layer whose output is a view, as a Linear's may be
pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fsdp")


@pytest.fixture(scope="module")
def by_world(folder):
    """By number of processes, what each of them saved. Four processes resume what two have saved."""
    source = Path(evenly.errors.__file__).parents[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(source), environment.get("PYTHONPATH", "")])
    results = {}
    for world in (2, 4):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        command += [str(WORKER), str(folder)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        results[world] = [torch.load(folder / f"{world}-{rank}.pt") for rank in range(world)]
    return results


@pytest.fixture(scope="module", params=[2, 4])
def processes(by_world, request):
    return by_world[request.param]


def distance(a, b):
    """The largest relative difference of any parameter."""
    return max(float((a[name].double() - b[name].double()).norm() / b[name].double().norm()) for name in b)


@pytest.mark.parametrize("wrapper", worker.WRAPPERS)
def test_the_weights_are_those_of_replicas_and_of_one_process(processes, wrapper):
    tried = {case: ends for case, ends in processes[0]["equal"].items() if case[0] == wrapper}
    assert tried
    for case, ends in tried.items():
        alone = worker.trained("alone", *case)
        sharded = ends["fsdp", torch.float32]
        assert distance(sharded, ends["ddp", torch.float32]) < 1e-6, case
        assert distance(sharded, worker.trained("alone", *case, torch.float32)) < 1e-6, case
        assert distance(alone, worker.make_model().state_dict()) > 0.1
        if ("fsdp", torch.float64) in ends:
            assert distance(ends["fsdp", torch.float64], alone) < 1e-13, case
        for other in processes[1:]:
            assert all(torch.equal(other["equal"][case]["fsdp", torch.float32][n], sharded[n]) for n in sharded)


def test_both_bases_are_tried_with_both_numbers_of_processes(by_world):
    for processes in by_world.values():
        assert {base for _, base in processes[0]["equal"]} == set(worker.BASES)


def test_the_norm_takes_one_all_reduce(processes):
    for process in processes:
        assert process["all-reduces"] == {"sam": 1, "asam": 1, "lsam": 1, "random": 0, "sam, checked": 3}


def test_other_ways_to_split_and_to_call_the_model(processes):
    model = worker.make_model()
    worker.train(model, worker.sam_on(model), worker.batches(steps=worker.FEW))
    for process in processes:
        assert "some parameters whole" in process["layouts"]
        for name, weights in process["layouts"].items():
            assert distance(weights, model.state_dict()) < 1e-13, name


def test_clipping_in_a_hook_of_the_base(by_world):
    expected = worker.clipped(worker.make_model(), worker.batches(steps=worker.FEW))
    assert distance(by_world[2][0]["clipped"], expected) < 1e-13
    assert distance(by_world[2][0]["layouts"]["root only"], expected) > 0.01


def test_shards_come_back_bit_for_bit(by_world):
    assert all(process["bits come back"] for process in by_world[4])


def test_an_infinity_on_one_process_stops_the_step_on_all(by_world):
    for process in by_world[4]:
        for name, result in zip(("first", "second"), process["refused"], strict=True):
            assert result["stayed"]
            assert f"a gradient of the {name} pass is not finite" in result["refused"]
        for result in process["skipped"]:
            assert result == {"refused": "", "stayed": True, "scale": 32.0}


def test_passes_in_bfloat16_see_the_perturbed_shards(by_world):
    """The same sums in one process: weights in single precision, the halves' gradients in bfloat16."""
    model, rho, momentum, decay, lr = worker.make_model(torch.float32), 0.3, 0.9, 0.01, 0.1
    w = {name: p.detach().clone() for name, p in model.named_parameters()}
    buffers = dict.fromkeys(w, 0.0)

    def gradient(weights, x, y):
        leaves = {name: p.to(torch.bfloat16).requires_grad_() for name, p in weights.items()}
        ends = []
        for rank in (0, 1):
            part_x, part_y = worker.part(x, rank, 2).to(torch.bfloat16), worker.part(y, rank, 2)
            loss = nn.functional.cross_entropy(torch.func.functional_call(model, leaves, (part_x,)).float(), part_y)
            ends.append(torch.autograd.grad(loss, list(leaves.values())))
        return {name: (a.float() + b.float()) / 2 for name, a, b in zip(leaves, *ends, strict=True)}

    for x, y in worker.batches(torch.float32, steps=3):
        g = gradient(w, x, y)
        length = torch.cat([d.flatten() for d in g.values()]).norm()
        g = gradient({n: w[n] + rho * g[n] / length for n in w}, x, y)
        buffers = {n: momentum * buffers[n] + g[n] + decay * w[n] for n in w}
        w = {n: w[n] - lr * buffers[n] for n in w}
    assert distance(by_world[2][0]["bfloat16"], w) < 1e-5


def test_a_pass_after_validation_sees_the_noise(by_world):
    assert all(process["noise after validation"] for process in by_world[2])


@pytest.mark.filterwarnings("ignore:.*torch.distributed is:UserWarning")
def test_a_checkpoint_of_two_processes_is_resumed_with_one_and_with_four(by_world, folder):
    expected = by_world[2][0]["continued"]
    assert distance(by_world[4][0]["resumed"], expected) < 1e-13
    assert (
        distance(worker.resume(folder / "checkpoint", worker.make_model(), worker.batches(steps=8)), expected) < 1e-13
    )


@pytest.mark.filterwarnings("ignore:.*of the perturbation of RandomPerturbation is left")
def test_random_numbers_for_shards_are_those_for_the_whole(by_world):
    noisy = worker.noisy(None, torch.float32)
    rounded = worker.noisy(None, torch.bfloat16, rounding="stochastic")
    for expected, name in ((noisy, 0), (noisy, 1), (rounded, "rounded")):
        by_process = [process["rounded"] if name == "rounded" else process["noisy"][name] for process in by_world[4]]
        rows, few, columns, *copies = zip(*by_process, strict=True)
        assert [len(part) for part in few] == [1, 1, 0, 0]
        for parts, dim, whole in zip((rows, few, columns), (0, 0, 1), expected, strict=False):
            assert torch.equal(torch.cat(parts, dim), whole)
        for parts, whole in zip(copies, expected[3:], strict=True):
            assert all(torch.equal(part, whole) for part in parts)


def as_process(rank, world=4):
    """Be one of several processes, without the others: nothing can be communicated."""
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)


@pytest.fixture
def leave():
    yield
    distributed.destroy_process_group()


def test_how_many_processes_hold_the_same(leave):
    as_process(0)
    mesh = init_device_mesh("cpu", (2, 2))
    tensor = torch.ones(8, 8)

    def split(*placements):
        return distribute_tensor(tensor, mesh, placements, src_data_rank=None)

    once, twice, whole = split(Shard(0), Shard(1)), split(Replicate(), Shard(0)), split(Replicate(), Replicate())
    both = Processes([once, twice, whole, tensor])
    assert (both.size, *map(both.copies, (once, twice, whole, tensor))) == (4, 1, 2, 4, 4)
    one = Processes([twice, whole, tensor])
    assert (one.size, *map(one.copies, (twice, whole, tensor))) == (2, 1, 2, 2)
    none = Processes([whole, tensor])
    assert (none.group, none.copies(whole), none.copies(tensor)) == (None, 1, 1)


def test_two_dimensions_of_a_part_of_the_processes_are_refused(leave):
    as_process(0, world=8)
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("stage", "dp", "tp"))["dp", "tp"]
    param = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, (Shard(0), Shard(1)), src_data_rank=None))
    param.grad = torch.ones_like(param)
    with pytest.raises(EvenlyError, match="2 dimensions of a mesh of 4 of 8 processes"):
        SAM(torch.optim.SGD([param], lr=0.1)).ascend()


@pytest.fixture
def process_group():
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("kind", ["sam", "asam", "lsam"])
def test_local_perturbations_are_refused(process_group, kind):
    model = fully_shard(worker.make_model(), mesh=init_device_mesh("cpu", (1,)))
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    make = {
        "sam": lambda **options: SAM(base, **options),
        "asam": lambda **options: ASAM(base, **options),
        "lsam": lambda **options: LSAM(base, model[-1].parameters(), **options),
    }[kind]
    with pytest.raises(EvenlyError, match=r"split over processes \(fully_shard\); leave local=True out"):
        make(local=True, model=model)
    other = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    with pytest.raises(EvenlyError, match=r"split over processes \(fully_shard\); leave local=True out"):
        make(local=True, model=other)


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("make", [SAM, ASAM, RandomPerturbation])
@pytest.mark.filterwarnings("ignore")
def test_the_first_kind_of_fsdp_is_refused(process_group, make, original):
    model = FullyShardedDataParallel(worker.make_model(), device_id=torch.device("cpu"), use_orig_params=original)
    with pytest.raises(EvenlyError, match=r"FullyShardedDataParallel, .* use torch.distributed.fsdp.fully_shard"):
        make(torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.filterwarnings("ignore")
def test_the_first_kind_of_fsdp_around_a_model_that_the_base_knew_is_refused(process_group, closure_of):
    model = worker.make_model()
    opt = SAM(torch.optim.SGD(model.parameters(), lr=0.1))
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    with pytest.raises(EvenlyError, match=r"FullyShardedDataParallel, .* use torch.distributed.fsdp.fully_shard"):
        opt.step(closure_of(opt, lambda: model(torch.ones(2, 5).double()).sum()))


def test_the_share_that_rounding_leaves_is_that_of_all_shards(process_group):
    torch.manual_seed(0)
    whole = (0.02 * torch.randn(1_000_000)).bfloat16()
    grad = torch.randn(1_000_000).bfloat16()
    messages = []
    for split in (False, True):
        param = nn.Parameter(whole.clone())
        param.grad = grad.clone()
        if split:
            mesh = init_device_mesh("cpu", (1,))
            param = nn.Parameter(distribute_tensor(whole.clone(), mesh, (Shard(0),)))
            param.grad = distribute_tensor(grad.clone(), mesh, (Shard(0),))
        with pytest.warns(EvenlyWarning) as caught:
            SAM(torch.optim.SGD([param], lr=0.1), rho=0.05).ascend()
        messages.append(str(caught[0].message))
    assert messages[0] == messages[1]


def test_a_step_without_a_closure_is_only_for_an_empty_state(closure_of):
    """torch.distributed.checkpoint makes the state of a new optimizer by a step at learning rate 0 and gradient 0."""
    param = nn.Parameter(torch.ones(2))
    opt = SAM(torch.optim.Adam([param], lr=0.0))
    for grad in (None, torch.ones(2)):
        param.grad = grad
        with pytest.raises(EvenlyError, match="needs a closure"):
            opt.step()
    param.grad = torch.zeros(2)
    opt.param_groups[0]["lr"] = 0.1
    with pytest.raises(EvenlyError, match="needs a closure"):
        opt.step()
    opt.param_groups[0]["lr"] = 0.0
    opt.step()
    assert "exp_avg" in opt.state[param]
    assert param.tolist() == [1.0, 1.0]
    with pytest.raises(EvenlyError, match="needs a closure"):
        opt.step()
