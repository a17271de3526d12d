"""Lists of tensors as torch's fused list operations want them: one device and one dtype at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor


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
    parts = [part for part in parts if part]
    if all(part[0].device.type == "cpu" and part[0].dtype == torch.float32 for part in parts):
        total = _total([norm for part in parts for norm in torch._foreach_norm(part, 2)])
        if 1e-12 < total.item() < 1e18:  # far from where single precision fails; reading a number is free on the CPU
            return total
    norms: list[Tensor] = []
    for part in parts:
        precision = torch.float32 if part[0].device.type == "mps" else torch.float64  # mps has no float64
        norms += torch._foreach_norm(part, 2, dtype=precision)
    return _total(norms)


def _total(norms: list[Tensor]) -> Tensor:
    device = norms[0].device
    total: Tensor = torch.linalg.vector_norm(torch.stack([each.to(device) for each in norms]))
    return total


def add_divided(tensors: list[Tensor], directions: list[Tensor], by: Tensor) -> None:
    """tensors += directions / by, in place; nothing where the 0-d tensor ``by`` is 0. It may lie on another device."""
    if by.device.type == "cpu":  # reading a number is free here, and a fused multiply and add takes half the time
        number = by.item()
        if 1e-30 < abs(number) < 1e30:
            torch._foreach_add_(tensors, directions, alpha=1 / number)
            return
    by = by.masked_fill(by == 0, torch.inf)
    torch._foreach_add_(tensors, torch._foreach_div(directions, by.to(directions[0])))
