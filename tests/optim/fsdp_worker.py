"""Run by test_fsdp.py under torchrun: trains with fully_shard and with DistributedDataParallel, saves both results.

EVENLY_FSDP=all runs every case with every number of processes, instead of most cases with one of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.amp import GradScaler
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from evenly.errors import EvenlyError
from evenly.optim import ASAM, LSAM, SAM, RandomPerturbation, noise
from evenly.optim.perturbed import PerturbedOptimizer
from evenly.optim.shards import shards

STEPS, FEW, BATCH = 20, 5, 8
ALL = os.environ.get("EVENLY_FSDP") == "all"
WRAPPERS: dict[str, Callable[..., PerturbedOptimizer]] = {
    "sam": lambda base, model, **options: SAM(base, rho=0.3, **options),
    "asam": lambda base, model, **options: ASAM(base, rho=0.7, model=model, **options),
    "lsam": lambda base, model, **options: LSAM(base, params=model[-1].parameters(), rho=0.3, **options),
    "random": lambda base, model, **options: RandomPerturbation(base, sigma=0.1, **options),
}
BASES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": partial(torch.optim.Adam, lr=0.01, eps=1e-4),
}


def make_model(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Of the last layer's three rows, one of two processes holds one, and one of four holds none."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 8), nn.Tanh(), nn.Linear(8, 3)).to(
        dtype
    )


def batches(dtype: torch.dtype = torch.float64, steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(BATCH, 5, generator=draw, dtype=torch.float64).to(dtype),
            torch.randint(3, (BATCH,), generator=draw),
        )
        for _ in range(steps)
    ]


def part(batch: Tensor, rank: int | None = None, world: int | None = None) -> Tensor:
    world = world or distributed.get_world_size()
    return batch.chunk(world)[distributed.get_rank() % world if rank is None else rank]


def shard(model: nn.Sequential, **options: Any) -> nn.Sequential:
    fully_shard(model[3], **options)
    return fully_shard(model, **options)


def train(
    model: nn.Module,
    opt: PerturbedOptimizer,
    data: Iterable[tuple[Tensor, Tensor]],
    *,
    backward: Callable[[Tensor, Tensor], Tensor] | None = None,
    before: Callable[[], object] = lambda: None,
    scaler: GradScaler | None = None,
) -> None:
    """A step per batch; ``backward(x, y)`` replaces the forward and backward pass, ``before`` runs before each step."""
    torch.manual_seed(2)  # the noise of a random perturbation: the same on all processes
    for x, y in data:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            opt.zero_grad()
            if backward is not None:
                return backward(x, y)
            loss = nn.functional.cross_entropy(model(x), y)
            (loss if scaler is None else scaler.scale(loss)).backward()
            return loss

        before()
        opt.step(closure, scaler=scaler)
        if scaler is not None:
            scaler.update()


def parts(data: list[tuple[Tensor, Tensor]], rank: int | None = None, world: int | None = None) -> Any:
    return [(part(x, rank, world), part(y, rank, world)) for x, y in data]


def whole(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in model.state_dict().items()
    }


def trained(kind: str, wrapper: str, base: str, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """The weights after training: fully sharded, with replicas, or in one process on whole batches."""
    model, data = make_model(dtype), batches(dtype)
    called: nn.Module = shard(model) if kind == "fsdp" else DistributedDataParallel(model) if kind == "ddp" else model
    opt = WRAPPERS[wrapper](BASES[base](model.parameters()), model)
    train(called, opt, data if kind == "alone" else parts(data))
    return whole(model)


def sam_on(model: nn.Module, base: str = "momentum", **options: Any) -> SAM:
    return SAM(BASES[base](model.parameters()), rho=0.3, **options)


def layouts(world: int) -> dict[str, dict[str, Tensor]]:
    """SAM's weights where the model is split or called in other ways: all must be those of one process."""
    results = {}

    def run(name: str, model: nn.Module, world: int = world, rank: int | None = None, **options: Any) -> None:
        train(options.pop("called", model), sam_on(model), parts(batches(steps=FEW), rank, world), **options)
        results[name] = whole(model)

    if world == 2 or ALL:
        run("root only", fully_shard(make_model()))
        run("gathered until backward", shard(make_model(), reshard_after_forward=False))

        model = shard(make_model())
        model.set_reshard_after_backward(False)
        run("gathered after backward", model)

        model = shard(make_model())
        run("compiled", model, called=torch.compile(model, backend="aot_eager"))

        model = shard(make_model())

        def accumulate(x: Tensor, y: Tensor, model: Any = model) -> Tensor:
            for i in (0, 1):
                model.set_requires_gradient_sync(i == 1)
                loss = nn.functional.cross_entropy(model(x[i::2]), y[i::2]) / 2
                loss.backward()
            return loss

        run("accumulated", model, backward=accumulate)

    model = make_model()
    fully_shard(model, ignored_params=set(model[5].parameters()))

    def average(x: Tensor, y: Tensor, model: nn.Module = model) -> Tensor:
        """fully_shard leaves the gradients of ignored parameters to the caller."""
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        for p in model[5].parameters():
            distributed.all_reduce(p.grad)
            p.grad /= world
        return loss

    run("some parameters whole", model, backward=average)

    if world == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        run("replicated shards", shard(make_model(), mesh=mesh))
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        run("tensor parallel", tensor_parallel(mesh), world=2, rank=distributed.get_rank() // 2)
    return results


def tensor_parallel(mesh: DeviceMesh) -> nn.Sequential:
    """One layer split by rows and one by columns, and all of them over the other processes."""
    model = make_model()
    parallelize_module(model, mesh["tp"], {"3": ColwiseParallel(), "5": RowwiseParallel()})
    return shard(model, mesh=mesh["dp"])


def clipped(model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    opt = sam_on(model)
    opt.base.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(model.parameters(), 0.05) and None)
    train(model, opt, data)
    return whole(model)


def split_parameters(mesh: DeviceMesh | None, dtype: torch.dtype) -> list[nn.Parameter]:
    """Uneven and empty shards, a parameter split by columns, one replicated, and one that is no DTensor."""
    torch.manual_seed(0)
    placements = {(7, 3): Shard(0), (2,): Shard(0), (3, 8): Shard(1), (5,): Replicate(), (6,): None}
    params = []
    for shape, placement in placements.items():
        values = torch.randn(shape).to(dtype)
        if mesh is not None and placement is not None:
            values = distribute_tensor(values, mesh, (placement,), src_data_rank=None)
        params.append(nn.Parameter(values))
    return params


def noisy(mesh: DeviceMesh | None, dtype: torch.dtype, block: int = 2**26, **options: Any) -> list[Tensor]:
    """What this process holds of the parameters after noise is added, from one seed."""
    noise.BLOCK = block
    params = split_parameters(mesh, dtype)
    opt = RandomPerturbation(torch.optim.SGD(params, lr=0.1), sigma=0.01, **options)
    torch.manual_seed(3)
    opt.ascend()
    return [p.detach().clone() for p in shards(params)]


class Collectives(TorchDispatchMode):
    """The names of the collective operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in func.namespace:
            self.names.append(func._opname.strip("_").replace("_", ""))
        return func(*args, **(kwargs or {}))


def all_reduces() -> dict[str, int]:
    """How many all-reduces a step takes."""
    counts = {}
    cases = {wrapper: {} for wrapper in WRAPPERS} | {"sam, checked": {"check_finite": True}}
    for name, options in cases.items():
        model = shard(make_model())
        opt = WRAPPERS[name.partition(",")[0]](BASES["momentum"](model.parameters()), model, **options)
        first, second = parts(batches(steps=2))
        train(model, opt, [first])
        with Collectives() as collectives:
            train(model, opt, [second])
        assert "reducescatterbase" in " ".join(collectives.names), collectives.names
        counts[name] = sum("allreduce" in name for name in collectives.names)
    return counts


def bits_come_back() -> bool:
    """Whether shards are as before after ascend and restore, and after a step whose second pass fails."""
    model = shard(make_model(torch.float32))
    opt = sam_on(model)
    data = parts(batches(torch.float32, steps=1))
    train(model, opt, data)
    copies = [[p.to_local().detach().clone() for p in model.parameters()]]
    opt.ascend()
    moved = [p.to_local().detach().clone() for p in model.parameters()]
    opt.restore()
    copies.append([p.to_local().detach().clone() for p in model.parameters()])
    runs: list[None] = []

    def backward(x: Tensor, y: Tensor) -> Tensor:
        runs.append(None)
        if len(runs) == 2:
            raise RuntimeError("the batch is broken")
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    with suppress(RuntimeError):
        train(model, opt, data, backward=backward)
    copies.append([p.to_local().detach().clone() for p in model.parameters()])
    same = all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*copies, strict=True))
    return same and len(runs) == 2 and not all(torch.equal(a, b) for a, b in zip(copies[0], moved, strict=True))


def overflow(bad_pass: int, scaler: GradScaler | None = None) -> dict[str, Any]:
    """Two steps; the last process alone sees an infinite loss in one pass of the second one."""
    model, runs, last = shard(make_model()), [], distributed.get_rank() == distributed.get_world_size() - 1
    opt = sam_on(model, check_finite=scaler is None)

    def backward(x: Tensor, y: Tensor) -> Tensor:
        runs.append(None)
        loss = nn.functional.cross_entropy(model(x), y) * (float("inf") if last and len(runs) == 2 + bad_pass else 1)
        (loss if scaler is None else scaler.scale(loss)).backward()
        return loss

    states, refused = [], ""
    for batch in parts(batches(steps=2)):
        try:
            train(model, opt, [batch], backward=backward, scaler=scaler)
        except EvenlyError as error:
            refused = str(error)
        states.append(whole(model))
    stayed = all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    return {"refused": refused, "stayed": stayed, "scale": scaler.get_scale() if scaler is not None else 0.0}


def in_bfloat16(steps: int = 3) -> dict[str, Tensor]:
    """Shards in single precision, passes in bfloat16."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    model = fully_shard(make_model(torch.float32), mp_policy=policy)
    train(model, sam_on(model), parts(batches(torch.float32, steps)))
    return whole(model)


def noise_after_validation() -> bool:
    """Whether a pass sees the noise after a validation, which leaves the outermost module's weights gathered."""
    x = torch.ones(1, 5, dtype=torch.float64)
    outputs = []
    model = fully_shard(make_model())
    opt = WRAPPERS["random"](BASES["momentum"](model.parameters()), model)
    with torch.no_grad():
        outputs.append(model(x))
        with opt.perturbed():
            outputs.append(model(x))
        outputs.append(model(x))
    return torch.equal(outputs[0], outputs[2]) and not torch.equal(outputs[0], outputs[1])


def save_halfway(folder: Path) -> dict[str, Tensor]:
    model = shard(make_model())
    opt = sam_on(model, "adam")
    data = parts(batches(steps=8))
    train(model, opt, data[:4])
    opt.param_groups[0]["rho"] = 0.2
    weights, state = get_state_dict(model, opt)
    checkpoint.save({"model": weights, "opt": state}, checkpoint_id=folder)
    train(model, opt, data[4:])
    return whole(model)


def resume(folder: Path, model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Loads what `save_halfway` saved, whatever the number of processes, and takes the other steps."""
    opt = sam_on(model, "adam")
    for p in model.parameters():
        nn.init.zeros_(p)
    weights, state = get_state_dict(model, opt)
    checkpoint.load(saved := {"model": weights, "opt": state}, checkpoint_id=folder)
    set_state_dict(model, opt, model_state_dict=saved["model"], optim_state_dict=saved["opt"])
    assert opt.param_groups[0]["rho"] == 0.2
    train(model, opt, data[4:])
    return whole(model)


def main(folder: Path) -> None:
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    results: dict[str, Any] = {"layouts": layouts(world), "all-reduces": all_reduces()}
    if world == 2:
        results["bfloat16"] = in_bfloat16()
        results["continued"] = save_halfway(folder / "checkpoint")
    else:
        results["resumed"] = resume(folder / "checkpoint", shard(make_model()), parts(batches(steps=8)))
    if world == 2 or ALL:
        results["clipped"] = clipped(shard(make_model()), parts(batches(steps=FEW)))
        results["noise after validation"] = noise_after_validation()
    if world == 4 or ALL:
        mesh = init_device_mesh("cpu", (world,))
        results["noisy"] = [noisy(mesh, torch.float32, block) for block in (32, 2**26)]
        results["rounded"] = noisy(mesh, torch.bfloat16, rounding="stochastic")
        results["bits come back"] = bits_come_back()
        results["refused"] = [overflow(bad_pass) for bad_pass in (1, 2)]
        results["skipped"] = [overflow(bad_pass, GradScaler("cpu", init_scale=64.0)) for bad_pass in (1, 2)]
    results["equal"] = {}
    for i, case in enumerate(product(WRAPPERS, BASES)):
        if ALL or world == 2 or (i + i // 2) % 2:
            kinds = [
                ("fsdp", torch.float32),
                ("ddp", torch.float32),
                *([("fsdp", torch.float64)] if ALL or i < 2 else []),
            ]
            results["equal"][case] = {kind: trained(kind[0], *case, kind[1]) for kind in kinds}
    torch.save(results, folder / f"{world}-{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
