"""Rows of an array that stays in its file: read as they are asked for, never all in memory at once.

The file is mapped into memory read-only. Its pages belong to the system's cache, which drops them when memory is short.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

HOST_SHARE = 0.5
"""The share of the host's free memory up to which inputs are held in it; decoding and splitting copy them once."""
PIECE = 1 << 22
"""Bytes that are read at a time where all of an array is passed over."""


class MappedRows(Dataset[tuple[Tensor, int]]):
    """Rows of an array in a file; item i is (row, label).

    Args:
        array: (M, ...) as ``numpy.load(path, mmap_mode="r")`` gives it.
        index: (N,) which of its rows these are, in this order.
        targets: (N,) their labels.
    """

    def __init__(self, array: np.memmap[Any, Any], index: Any, targets: Any) -> None:
        self.index = torch.as_tensor(index, dtype=torch.long)
        self._map(array)
        self.targets = torch.as_tensor(targets, dtype=torch.long)
        self.shape = torch.Size((len(self.index), *array.shape[1:]))
        self.dtype = torch.empty(0, dtype=getattr(torch, array.dtype.name)).dtype

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.at(torch.tensor([i]))[0], int(self.targets[i])

    def __getstate__(self) -> dict[str, Any]:
        """Without the array itself, which another process maps from the same file."""
        array = self.array
        file = str(array.filename), array.dtype, "r", array.offset, array.shape
        return {**self.__dict__, "array": file, "_mapping": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map(np.memmap(*state["array"]))

    def _map(self, array: np.memmap[Any, Any]) -> None:
        self.array, base = array, cast(Any, array.base)
        self._mapping = base if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_RANDOM") else None
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_RANDOM)  # else the system reads megabytes around every row

    def _announce(self, index: np.ndarray[Any, Any]) -> None:
        """Let the system read these rows all at once, before they are copied one by one."""
        if self._mapping is None or not len(index):
            return
        row = self.array.itemsize * math.prod(self.array.shape[1:])
        first, last = int(index.min()), int(index.max())
        together = last - first < len(index) * (1 if row > mmap.PAGESIZE else 2)  # small rows share pages
        for start, stop in [(first, last + 1)] if together else [(i, i + 1) for i in index.tolist()]:
            before = self.array.offset % mmap.ALLOCATIONGRANULARITY
            begin = (before + start * row) // mmap.PAGESIZE * mmap.PAGESIZE
            self._mapping.madvise(mmap.MADV_WILLNEED, begin, before + stop * row - begin)

    def at(self, index: Tensor, out: Tensor | None = None) -> Tensor:
        """The rows at `index` (B,), in memory; in `out` (B, ...) where it is given."""
        out = torch.empty((len(index), *self.shape[1:]), dtype=self.dtype) if out is None else out
        rows = self.index[index].numpy()
        self._announce(rows)
        # "clip" lets numpy write into `out` without a copy; an index that is out of range is refused above
        np.take(np.asarray(self.array), rows, axis=0, out=out.numpy(), mode="clip")
        return out


def pieces(inputs: Tensor | MappedRows, size: int | None = None) -> Iterator[Tensor]:
    """All rows in order, `size` at a time; as many as take `PIECE` bytes where not given."""
    row = max(1, inputs.shape[1:].numel() * inputs.dtype.itemsize)
    size = size or max(1, PIECE // row)
    for start in range(0, len(inputs), size):
        stop = min(start + size, len(inputs))
        yield inputs[start:stop] if isinstance(inputs, Tensor) else inputs.at(torch.arange(start, stop))


def fits_memory(size: int) -> bool:
    """Whether so many bytes are a small enough share of the host's free memory; True where that is not known."""
    return size <= HOST_SHARE * _free_memory()


def _free_memory() -> float:
    """Bytes that can be taken: what the system has, or what a limit on this process's group (cgroup) leaves."""
    free = float("inf")
    try:
        free, own = _kilobytes("/proc/meminfo", "MemAvailable"), _kilobytes("/proc/self/status", "RssAnon")
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kind, path = line.split(":", 2)
            if kind in ("", "memory"):
                folder = Path("/sys/fs/cgroup", kind, path.lstrip("/"))
                limit = folder / ("memory.limit_in_bytes" if kind else "memory.max")
                if limit.exists() and (text := limit.read_text().strip()).isdigit():
                    free = min(free, int(text) - own)
    except (OSError, ValueError, StopIteration):
        pass
    return free


def _kilobytes(path: str, name: str) -> float:
    """What a file of Linux says under a name, in bytes."""
    return next(1024.0 * int(line.split()[1]) for line in Path(path).read_text().splitlines() if line.startswith(name))
