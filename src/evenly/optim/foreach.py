"""Lists of tensors as torch's fused list operations want them: one device and one dtype at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

SMALL, RUN = 2**14, 256
"""Tensors of at most SMALL elements are concatenated, RUN at a time, for one operation on all of them: on the CPU an
operation on each would cost more than the copy."""


def group_tensors(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors in lists of one device and one dtype each, in their order."""
    tensors = list(tensors)
    if not tensors:
        return []
    device, dtype = tensors[0].device, tensors[0].dtype
    if all(tensor.dtype is dtype and tensor.device == device for tensor in tensors):
        return [tensors]  # nearly always, and several times as fast
    groups: defaultdict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        groups[tensor.device, tensor.dtype].append(tensor)
    return list(groups.values())


def norm(parts: Iterable[list[Tensor]]) -> Tensor:
    """The l2 norm of all tensors together, 0-d, on the first one's device.

    Squares are summed in double precision, because in single precision they vanish below 1e-23 and overflow above
    1e19. So the norm is 0 only if every element is 0, and finite if every element is.
    """
    return _total([value for part in parts if part for value in _norms(part)])


def _norms(tensors: list[Tensor]) -> list[Tensor]:
    """Norms of the tensors, or of runs of them: the norm of these norms is that of all."""
    precision = torch.float32 if tensors[0].device.type == "mps" else torch.float64  # mps has no float64
    if tensors[0].device.type != "cpu":
        return list(torch._foreach_norm(tensors, 2, dtype=precision))
    small = [t for t in tensors if t.numel() <= SMALL]
    large = [t for t in tensors if t.numel() > SMALL]
    runs = (_flatten_dense_tensors(small[i : i + RUN]) for i in range(0, len(small), RUN))
    return [torch.linalg.vector_norm(run, dtype=precision) for run in chain(runs, large)]


def _total(norms: list[Tensor]) -> Tensor:
    device = norms[0].device
    if len({value.device for value in norms}) > 1:
        norms = [value.to(device) for value in norms]
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def add_divided(tensors: list[Tensor], directions: list[Tensor], divisor: Tensor) -> None:
    """tensors += directions / divisor, in place, or nothing if the 0-d divisor, which any device may hold, is 0."""
    if divisor.device.type == "cpu":  # reading a number is free here, and a fused multiply-add takes half the time
        number = divisor.item()
        if 1e-30 < abs(number) < 1e30:
            torch._foreach_add_(tensors, directions, alpha=1 / number)
            return
    single = tensors[0].is_cuda and tensors[0].dtype == directions[0].dtype == torch.float32
    if single and [t.stride() for t in tensors] == [d.stride() for d in directions]:
        _add_scaled(tensors, directions, divisor)
    else:
        divisor = divisor.masked_fill(divisor == 0, torch.inf)
        torch._foreach_add_(tensors, torch._foreach_div(directions, divisor.to(directions[0])))


def add_rounded(tensors: list[Tensor], directions: list[Tensor], divisor: Tensor, uniform: Iterable[Tensor]) -> None:
    """As `add_divided`, for tensors in half precision: each sum is rounded up or down at random, and exact on average.

    ``uniform`` has a number from [0, 1) for each element.

    The two neighbours of a sum are the nearest number in half precision and the next one on the sum's other side. As
    16-bit integers they are one apart, since floating-point numbers are ordered as their bits are.
    """
    divisor = divisor.masked_fill(divisor == 0, torch.inf)
    for tensor, direction, chance in zip(tensors, directions, uniform, strict=True):
        exact = tensor.float() + direction.float() / divisor.to(direction.device, torch.float32)
        nearest = exact.to(tensor.dtype)
        error = exact - nearest.float()
        away_from_zero = torch.where(error.signbit() == nearest.signbit(), 1, -1).to(torch.int16)
        other = (nearest.view(torch.int16) + away_from_zero).view(tensor.dtype)
        share = (error / (other.float() - nearest.float())).nan_to_num()
        tensor.copy_(torch.where(chance < share, other, nearest))


def _add_scaled(tensors: list[Tensor], directions: list[Tensor], divisor: Tensor) -> None:
    """The same in one kernel without temporary memory: a step of fused SGD, whose learning rate may be on the device.

    The rate is clamped to the largest float32, so the shift is shorter for a divisor below 3e-39.
    """
    largest = torch.finfo(torch.float32).max
    lr = -divisor.reciprocal().clamp(-largest, largest)
    torch._fused_sgd_(
        tensors, directions, [], weight_decay=0.0, momentum=0.0, lr=lr.to(directions[0]), dampening=0.0,
        nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip
