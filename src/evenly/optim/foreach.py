"""Lists of tensors as torch's fused list operations want them: one device and one dtype at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

SMALL, RUN = 2**14, 256
"""Tensors of at most so many elements are laid side by side, so many at a time, for one operation on all of them:
on the CPU an operation on each would cost more than the copy."""


def alike(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors parted by device and dtype, each part in the given order."""
    tensors = list(tensors)
    if not tensors:
        return []
    device, dtype = tensors[0].device, tensors[0].dtype
    if all(tensor.dtype is dtype and tensor.device == device for tensor in tensors):
        return [tensors]  # nearly always, and several times as fast
    parts: defaultdict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        parts[tensor.device, tensor.dtype].append(tensor)
    return list(parts.values())


def norm(parts: Iterable[list[Tensor]]) -> Tensor:
    """The l2 norm of all tensors together, 0-d, on the first one's device.

    Squares are summed in double precision: in single precision they would vanish for gradients under
    1e-23 and overflow over 1e19, so that here the norm is 0 only where all is 0 and finite where all is.
    """
    return _total([each for part in parts if part for each in _norms(part)])


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
    if len({each.device for each in norms}) > 1:
        norms = [each.to(device) for each in norms]
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def add_divided(tensors: list[Tensor], directions: list[Tensor], by: Tensor) -> None:
    """tensors += directions / by, in place; nothing where the 0-d tensor ``by`` is 0. It may lie on another device."""
    if by.device.type == "cpu":  # reading a number is free here, and a fused multiply and add takes half the time
        number = by.item()
        if 1e-30 < abs(number) < 1e30:
            torch._foreach_add_(tensors, directions, alpha=1 / number)
            return
    single = tensors[0].is_cuda and tensors[0].dtype == directions[0].dtype == torch.float32
    if single and [t.stride() for t in tensors] == [d.stride() for d in directions]:
        _add_scaled(tensors, directions, by)
    else:
        by = by.masked_fill(by == 0, torch.inf)
        torch._foreach_add_(tensors, torch._foreach_div(directions, by.to(directions[0])))


def _add_scaled(tensors: list[Tensor], directions: list[Tensor], by: Tensor) -> None:
    """The same in one kernel and without memory of its own: a step of fused SGD, whose length may lie on the device.

    The length is at most single precision's largest number, so that the shift is shorter where ``by`` is under 3e-39.
    """
    largest = torch.finfo(torch.float32).max
    length = -by.reciprocal().clamp(-largest, largest)
    torch._fused_sgd_(
        tensors, directions, [], weight_decay=0.0, momentum=0.0, lr=length.to(directions[0]), dampening=0.0,
        nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip
