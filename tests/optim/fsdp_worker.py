"""Run by test_fsdp.py under torchrun: trains with fully_shard and with DistributedDataParallel, saves both results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.amp import GradScaler
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from evenly.errors import EvenlyError
from evenly.optim import ASAM, LSAM, SAM, RandomPerturbation
from evenly.optim.perturbed import PerturbedOptimizer

STEPS, BATCH = 20, 8
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
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def batches(dtype: torch.dtype = torch.float64, steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [
        (torch.randn(BATCH, 5, generator=draw, dtype=torch.float64).to(dtype), torch.randint(3, (BATCH,), generator=draw))
        for _ in range(steps)
    ]


def part(batch: Tensor, rank: int | None = None, world: int | None = None) -> Tensor:
    world = world or distributed.get_world_size()
    return batch.chunk(world)[distributed.get_rank() % world if rank is None else rank]


def shard(model: nn.Sequential, **options: Any) -> nn.Sequential:
    for layer in (model[0], model[3]):
        fully_shard(layer, **options)
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


def trained(kind: str, wrapper: str, base: str, dtype: torch.dtype = torch.float64, **options: Any) -> dict[str, Tensor]:
    """The weights after training: fully sharded, with replicas, or in one process on whole batches."""
    model, data, calls = make_model(dtype), batches(dtype), None
    if kind == "fsdp":
        shard(model)
    if kind == "ddp":
        calls = DistributedDataParallel(model)
    opt = WRAPPERS[wrapper](BASES[base](model.parameters()), model, **options)
    train(calls or model, opt, data if kind == "alone" else parts(data))
    return whole(model)


def sam_on(model: nn.Module, base: str = "momentum", **options: Any) -> SAM:
    return SAM(BASES[base](model.parameters()), rho=0.3, **options)


def layouts(world: int) -> dict[str, dict[str, Tensor]]:
    """SAM's weights where the model is split in other ways; all must be those of ``trained("alone", "sam", "momentum")``."""
    results = {}

    def run(name: str, model: nn.Module, world: int = world, rank: int | None = None, **options: Any) -> None:
        train(model, sam_on(model), parts(batches(), rank, world), **options)
        results[name] = whole(model)

    run("root only", fully_shard(make_model()))
    run("gathered until backward", shard(make_model(), reshard_after_forward=False))

    model = shard(make_model())
    model.set_reshard_after_backward(False)
    run("gathered after backward", model)

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

    model = shard(make_model())

    def accumulate(x: Tensor, y: Tensor, model: Any = model) -> Tensor:
        for i in (0, 1):
            model.set_requires_gradient_sync(i == 1)
            loss = nn.functional.cross_entropy(model(x[i::2]), y[i::2]) / 2
            loss.backward()
        return loss

    if world == 2:  # with four processes a part has two examples, and the halves are as right
        run("accumulated", model, backward=accumulate)
    if world == 4:
        rank = distributed.get_rank()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        run("replicated shards", shard(make_model(), mesh=mesh))
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        run("tensor parallel", tensor_parallel(mesh), world=2, rank=rank // 2)
    return results


def tensor_parallel(mesh: DeviceMesh) -> nn.Sequential:
    """The middle layer by rows, the last one by columns, the others whole in each of the tensor-parallel processes."""
    model = make_model()
    parallelize_module(model, mesh["tp"], {"3": ColwiseParallel(), "5": RowwiseParallel()})
    return shard(model, mesh=mesh["dp"])


def main(folder: Path) -> None:
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    results: dict[str, Any] = {"layouts": layouts(world)}
    for wrapper in WRAPPERS:
        for base in BASES:
            for kind in ("fsdp", "ddp", "alone"):
                for dtype in (torch.float32, torch.float64):
                    results[f"{wrapper} {base} {kind} {dtype}"] = trained(kind, wrapper, base, dtype)
    torch.save(results, folder / f"{world}-{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
