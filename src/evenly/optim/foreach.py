"""Lists of tensors as torch's fused list operations want them: one device and one dtype at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor


def alike(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors parted by device and dtype, each part in the given order."""
    parts: defaultdict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        parts[tensor.device, tensor.dtype].append(tensor)
    return list(parts.values())


def norm(parts: Iterable[list[Tensor]]) -> Tensor:
    """The l2 norm of all tensors together, 0-d, on the first one's device.

    Squares are summed in double precision: in single precision they would vanish for gradients under
    1e-23 and overflow over 1e19, so that here the norm is 0 only where all is 0 and finite where all is.
    """
    norms: list[Tensor] = []
    for part in parts:
        precision = torch.float32 if part[0].device.type == "mps" else torch.float64  # mps has no float64
        norms += torch._foreach_norm(part, 2, dtype=precision)
    total: Tensor = torch.linalg.vector_norm(torch.stack([each.to(norms[0].device) for each in norms]))
    return total


def divided(tensors: list[Tensor], by: Tensor) -> list[Tensor]:
    """Each tensor divided by the 0-d tensor ``by``, which may lie on another device."""
    return list(torch._foreach_div(tensors, by.to(tensors[0])))
