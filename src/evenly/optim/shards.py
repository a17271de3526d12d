"""Parameters that ``fully_shard`` (FSDP2) or tensor parallelism splits over processes: DTensors.

Each process holds a shard of every such parameter, of its gradient and of its perturbation. What acts element by
element acts on the shard. A sum over elements is taken over the shard and then over the processes, by one all-reduce.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, distributed

from evenly.errors import EvenlyError
from evenly.optim.foreach import group_tensors, norm


def is_split(tensor: Tensor) -> bool:
    """Whether it is a DTensor."""
    return isinstance(tensor, _dtensor())


def any_split(tensors: Iterable[Tensor]) -> bool:
    """Whether any of them is a DTensor. It costs little where none is: a step asks often."""
    return any(issubclass(kind, _dtensor()) for kind in set(map(type, tensors)))


def shards(tensors: list[Tensor]) -> list[Tensor]:
    """What this process holds of each: its shard, maybe an empty one, of a DTensor, and any other tensor itself.

    A shard shares its memory with the DTensor. It is not to be kept: fully_shard may replace it in a forward pass.
    """
    if not any_split(tensors):
        return tensors
    return [_shard(tensor) if is_split(tensor) else tensor for tensor in tensors]


def gradient_shards(params: list[Tensor]) -> list[Tensor]:
    """The gradients of parameters that have one, split as the parameters are."""
    if not any_split(params):
        return [g for p in params if (g := p.grad) is not None]
    return [_gradient_shard(p, g) if is_split(g) else g for p in params if (g := p.grad) is not None]


def whole_norm(parts: Iterable[tuple[list[Tensor], list[Tensor]]]) -> Tensor:
    """The l2 norm of tensors in the shapes of parameters, over all processes: 0-d, the same on each of them.

    A part is a list of parameters, of one device and dtype, and for each of them this process's shard of the tensor.
    """
    parts = list(parts)
    if not any(any_split(params) for params, _ in parts):
        return norm(values for _, values in parts)
    processes = Processes(chain.from_iterable(params for params, _ in parts))
    by_copies: dict[int, list[Tensor]] = {}
    for params, values in parts:
        for p, value in zip(params, values, strict=True):
            by_copies.setdefault(processes.copies(p), []).append(value)
    squares = [norm(group_tensors(values)).square() / copies for copies, values in by_copies.items()]
    return processes.sum(torch.stack(squares).sum()).sqrt()


class Processes:
    """The processes over which these parameters are split, and how many of them hold the same shard of each."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        layouts = {(p.device_mesh, p.placements) for p in params if is_split(p)}  # type: ignore[attr-defined]
        groups = {}
        for mesh, placements in layouts:
            for dim in _split_dims(mesh, placements):
                group = mesh.get_group(dim)
                groups[group.group_name] = group
        self.device = next((mesh.device_type for mesh, _ in layouts), "cpu")
        self.group = next(iter(groups.values()), None)
        if len(groups) > 1:  # two dimensions of a mesh, as with tensor parallelism: one reduction over both
            self.group = distributed.group.WORLD
            largest, world = max(mesh.size() for mesh, _ in layouts), distributed.get_world_size()
            if largest != world:
                raise EvenlyError(
                    f"the parameters are split over {len(groups)} dimensions of a mesh of {largest} of {world} "
                    "processes, and evenly takes their norm over all processes or over one dimension; "
                    "use fully_shard alone there, or a mesh of all processes"
                )
        self.size = 1 if self.group is None else self.group.size()

    def copies(self, param: Tensor) -> int:
        """How many of the processes hold what this one holds of the parameter."""
        if self.group is None or not is_split(param):
            return self.size
        mesh, placements = param.device_mesh, param.placements  # type: ignore[attr-defined]
        distinct: int = math.prod(mesh.size(dim) for dim in _split_dims(mesh, placements))
        return self.size // distinct

    def sum(self, value: Tensor) -> Tensor:
        """The sum of the processes' values."""
        if self.group is None:
            return value
        value = value.to(self.device)  # NCCL reduces no tensors of the CPU, where fully_shard may offload the shards
        distributed.all_reduce(value, group=self.group)
        return value


def forget_gathered_weights() -> None:
    """Let the next forward pass under fully_shard gather the weights again, because their shards have moved.

    A forward pass without a backward one (validation) leaves the weights of the outermost module gathered, and so does
    every pass with ``reshard_after_backward=False``.
    """
    from torch.distributed._composable_state import _module_state_mapping
    from torch.distributed.fsdp import FSDPModule

    for module in list(_module_state_mapping):
        if isinstance(module, FSDPModule):
            module.reshard()


def _dtensor() -> Any:
    """The class DTensor, or no class: importing it takes half a second, and who has a DTensor has imported it."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())


def _shard(tensor: Any) -> Tensor:
    shard: Tensor = tensor._local_tensor  # to_local() makes another tensor object of a parameter's
    return shard


def _gradient_shard(param: Any, grad: Any) -> Tensor:
    """Tensor parallelism may leave a gradient as one summand on each process: then it is summed first."""
    return _shard(grad if grad.placements == param.placements else grad.redistribute(placements=param.placements))


def _split_dims(mesh: Any, placements: Iterable[Any]) -> list[int]:
    return [dim for dim, placement in enumerate(placements) if not placement.is_replicate() and mesh.size(dim) > 1]
