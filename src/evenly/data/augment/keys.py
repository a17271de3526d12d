"""Random numbers by key: each is an integer hash of (seed, epoch, index, draw), with no state to keep or to advance.

The hash is the finaliser of SplitMix64 (Steele, Lea & Flood 2014, with Stafford's constants 13), taken once for each
part of the key and once for each draw. It is built of wrapping multiplications, exclusive ors and shifts of int64
tensors, so the CPU and CUDA give the same bits, and a captured graph draws anew whenever `index` or `epoch` changes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from evenly.errors import EvenlyError


def _signed(value: int) -> int:
    """The int64 whose bits are those of `value` modulo 2^64."""
    return (value + 2**63) % 2**64 - 2**63


GOLDEN = _signed(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: SplitMix64's step from one draw to the next
FIRST, SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def keyed(seed: int | Tensor, epoch: int | Tensor, index: Tensor) -> Tensor:
    """(N,) int64 keys of the examples `index` (N,) in this epoch under this seed.

    Args:
        seed, epoch: integers, or integer tensors, () or (N,), on the device of `index`. Under capture an integer is
            a constant of the graph.
        index: (N,) integers, the examples' places in the training set.
    """
    if not isinstance(index, Tensor) or index.ndim != 1 or not _whole(index):
        raise EvenlyError(f"index must be an integer tensor (N,), the examples' places, got {_described(index)}")
    key = _mix(_part(seed, "seed", index) + GOLDEN)
    key = _mix(key + _part(epoch, "epoch", index))
    return _mix(key + index.long())


def generated_keys(count: int, device: torch.device | str = "cpu", generator: torch.Generator | None = None) -> Tensor:
    """(count,) int64 keys from a generator instead, the device's own by default (it is safe under capture)."""
    return torch.empty(count, dtype=torch.int64, device=device).random_(generator=generator)


def split(keys: Tensor, part: int) -> Tensor:
    """(N,) keys for one part of the work, so that parts draw independently of each other."""
    return _mix(keys + _signed(GOLDEN * (part + 1)))


def integers(keys: Tensor, draw: int, below: int | Tensor) -> Tensor:
    """(N,) int64 uniform on 0..below-1: the `draw`-th number of each key; `below` is a number or (N,), under 2^31.

    The top 32 bits are scaled, not taken modulo: no value is likelier than another by more than below / 2^32.
    """
    return (_shifted(split(keys, draw), 32) * below) >> 32


def uniform(keys: Tensor, draw: int) -> Tensor:
    """(N,) float64 uniform on [0, 1) in steps of 2^-53: the `draw`-th number of each key."""
    return _shifted(split(keys, draw), 11).double() * 2.0**-53


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _shifted(bits, 30)) * FIRST
    bits = (bits ^ _shifted(bits, 27)) * SECOND
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """A shift to the right that brings in zeros; torch's own brings in the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _part(value: object, name: str, index: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        if not _whole(value) or (value.ndim and value.shape != index.shape):
            raise EvenlyError(
                f"{name} must be an integer, or a tensor () or ({len(index)},) of integers, got {_described(value)}"
            )
        return value.long()
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise EvenlyError(f"{name} must be an integer, got {value!r}")
    return torch.full((), _signed(int(value)), dtype=torch.int64, device=index.device)


def _whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
