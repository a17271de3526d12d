"""Random numbers in the shapes of parameters, from torch's global generator of their device.

Of a parameter that is split over processes, every process draws for the whole and keeps its shard. Equal generators on
all processes so give the numbers of one process that holds it all. Different generators give independent shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from evenly.optim.shards import any_split, is_split, shards

BLOCK = 2**26
"""How many numbers are drawn at once for split parameters, whose sum of sizes may be more than one process can hold. On
the CPU, blocks whose size is a multiple of 16 are the parts of one draw."""


def normal(params: list[Tensor]) -> list[Tensor]:
    """Standard normal numbers in the shapes of this process's shards of the parameters, of one device and dtype."""
    sizes = [p.numel() for p in params]
    like: dict[str, Any] = {"device": params[0].device, "dtype": params[0].dtype}
    if not any_split(params):
        whole = torch.randn(sum(sizes), **like)
        return [part.view_as(p) for part, p in zip(whole.split(sizes), params, strict=True)]
    draws = _consecutive(sizes, like)
    return [_shard_of(draw.view(p.shape), p) for draw, p in zip(draws, params, strict=True)]


def uniform(param: Tensor) -> Tensor:
    """Numbers from [0, 1) in single precision, in the shape of this process's shard of the parameter."""
    if not is_split(param):
        return torch.rand_like(param, dtype=torch.float32)
    return _shard_of(torch.rand(param.shape, dtype=torch.float32, device=param.device), param)


def _consecutive(sizes: list[int], like: dict[str, Any]) -> Iterator[Tensor]:
    """Normal numbers, so many at a time, as if from one draw of all."""
    undrawn, block = sum(sizes), torch.empty(0, **like)
    for size in sizes:
        numbers = block[:size]
        block = block[size:]
        while len(numbers) < size:
            # A last block of its own might be too small for torch's vectorised draw.
            block = torch.randn(undrawn if undrawn < 2 * BLOCK else BLOCK, **like)
            undrawn -= len(block)
            missing = size - len(numbers)
            numbers = torch.cat([numbers, block[:missing]]) if len(numbers) else block[:missing]
            block = block[missing:]
        yield numbers


def _shard_of(whole: Tensor, param: Any) -> Tensor:
    """This process's shard of a tensor, split as the parameter is; a copy, so that the whole is freed."""
    if not is_split(param):
        return whole
    from torch.distributed.tensor import distribute_tensor

    split = distribute_tensor(whole, param.device_mesh, param.placements, src_data_rank=None)
    (shard,), (like,) = shards([split]), shards([param])
    return shard.to(like.device, copy=True)
