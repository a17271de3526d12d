"""Rows of an array that stays in its file: read as they are asked for, never all in memory at once.

The file is mapped into memory read-only. Its pages belong to the system's cache, which drops them when memory is short.
"""

from __future__ import annotations

import math
import mmap
import os
import platform
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from evenly.errors import EvenlyError
from evenly.settings import at_least, checks_options

HOST_SHARE = 0.5
"""The share of the host's free memory up to which inputs are held in it; decoding and splitting copy them once."""
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
"""Where Linux says how much memory there is, and how much of it a group of processes may take."""
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
        """Without the array itself, which another process maps from the same file, or from a copy of it."""
        array = self.array
        file = str(array.filename), array.dtype, "r", array.offset, array.shape
        stat = _stat(file[0])
        return {**self.__dict__, "array": file, "_mapping": None, "_file": (stat, _checksum(file[0], stat))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        file = state["array"]
        _check_file(file[0], *state.pop("_file"))
        self.__dict__.update(state)
        self._map(np.memmap(*file))

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


Stat = tuple[int, int, int]
"""Size, time of the last change, and number of a file: if all are the same, so is the file, also on another machine."""


def _stat(path: str) -> Stat:
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


@cache
def _checksum(path: str, stat: Stat) -> int:
    """The CRC of a file; `stat` says of which state of it."""
    checksum = 0
    with open(path, "rb") as file:
        while part := file.read(PIECE):
            checksum = zlib.crc32(part, checksum)
    return checksum


def _check_file(path: str, stat: Stat, checksum: int) -> None:
    """Refuse a file, on another machine perhaps, that is not the one whose rows were sent."""
    try:
        here = _stat(path)
        if here == stat or (here[0] == stat[0] and _checksum(path, here) == checksum):
            return
        cause = "its content differs" if here[0] == stat[0] else f"it has {here[0]} bytes, not {stat[0]}"
    except OSError as error:
        cause = str(error.strerror)
    raise EvenlyError(
        f"{path} on {platform.node()} is not the file that these data were read into ({cause}); put the folder that "
        "EVENLY_CACHE names on a disk that all machines see"
    )


def pieces(inputs: Tensor | MappedRows, size: int | None = None) -> Iterator[Tensor]:
    """All rows in order, `size` at a time; as many as take `PIECE` bytes where not given."""
    row = max(1, inputs.shape[1:].numel() * inputs.dtype.itemsize)
    size = size or max(1, PIECE // row)
    for start in range(0, len(inputs), size):
        stop = min(start + size, len(inputs))
        yield inputs[start:stop] if isinstance(inputs, Tensor) else inputs.at(torch.arange(start, stop))


_processes: ContextVar[int] = ContextVar("processes", default=1)


@checks_options
@contextmanager
def memory_shared_by(processes: Annotated[int, at_least(1)]) -> Iterator[None]:
    """In the block, what this process reads may take its share of the memory: others read as much."""
    before = _processes.set(processes)
    try:
        yield
    finally:
        _processes.reset(before)


def fits_memory(size: int) -> bool:
    """Whether so many bytes are a small enough share of the host's free memory; True where that is not known."""
    return size <= HOST_SHARE * _free_memory() / _processes.get()


def _free_memory() -> float:
    """Bytes that can be taken: what the system has, or what the limits on this process leave."""
    free = math.inf
    with suppress(OSError, ValueError, StopIteration):
        free = _kilobytes(PROC / "meminfo", "MemAvailable")
        own = _kilobytes(PROC / "self" / "status", "RssAnon")
        free = min([free, *(limit - own for limit in _limits())])
    return free


def _limits() -> Iterator[int]:
    """The limits on this process's groups (cgroups), and on those above them, in bytes."""
    for line in (PROC / "self" / "cgroup").read_text().splitlines():
        _, kind, path = line.split(":", 2)
        if kind and "memory" not in kind.split(","):
            continue
        top = CGROUPS / "memory" if kind else CGROUPS
        folder = top / path.lstrip("/")
        for group in (folder, *folder.parents):
            limit = group / ("memory.limit_in_bytes" if kind else "memory.max")
            if limit.exists() and (text := limit.read_text().strip()).isdigit():
                yield int(text)
            if group == top:
                break


def _kilobytes(path: Path, name: str) -> float:
    """What a file of Linux says under a name, in bytes."""
    return next(1024.0 * int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(name))
