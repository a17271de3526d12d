"""Batches that are read ahead, where inputs do not fit the device: from a file, or from the host's memory.

Threads gather the rows of the next batches while a step runs. For a GPU they gather into pinned memory and copy on a
stream of their own. Which rows a batch has is decided before, so it has the same bits as one gathered on the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from evenly.data.mapped import MappedRows

DEVICE_SHARE = 0.5
"""The share of a GPU's free memory up to which inputs are held on it; the rest is for activations and other splits."""
AHEAD = 4
"""Batches that are read ahead, each in its own thread: a disk answers several requests as fast as one."""


def is_streamed(inputs: Any, device: torch.device, stream: str) -> bool:
    """Whether batches of these inputs are read ahead; `stream` is that of `Execution`."""
    if not isinstance(inputs, Tensor | MappedRows) or (isinstance(inputs, Tensor) and inputs.device.type != "cpu"):
        return False
    if stream != "auto":
        return stream == "always"
    if device.type != "cuda":
        return isinstance(inputs, MappedRows)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + unused
    return inputs.shape.numel() * inputs.dtype.itemsize > DEVICE_SHARE * free


def read_ahead(inputs: Tensor | MappedRows, batches: Sequence[Tensor], device: torch.device) -> Iterator[Tensor]:
    """The rows of every batch of indices (B,), in order, on the device."""
    side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def read(index: Tensor, rows: Tensor) -> tuple[Tensor, torch.Event | None]:
        if isinstance(inputs, Tensor):
            torch.index_select(inputs, 0, index, out=rows)
        else:
            inputs.at(index, rows)
        with nullcontext() if side is None else torch.cuda.stream(side):
            return rows.to(device, non_blocking=True), None if side is None else side.record_event()

    def begin(count: int) -> list[Future[tuple[Tensor, torch.Event | None]]]:
        # memory is taken here, since the system's allocator keeps what each thread has taken and freed
        sizes = ((index, (len(index), *inputs.shape[1:])) for index in islice(remaining, count))
        pin = side is not None
        return [pool.submit(read, i, torch.empty(size, dtype=inputs.dtype, pin_memory=pin)) for i, size in sizes]

    remaining, used = iter(batches), deque[torch.Event]()
    with ThreadPoolExecutor(AHEAD) as pool:
        under_way = deque(begin(AHEAD))
        try:
            while under_way:
                rows, copied = under_way.popleft().result()
                under_way.extend(begin(1))
                if copied is None:
                    yield rows
                    continue
                here = torch.cuda.current_stream(device)
                here.wait_event(copied)
                rows.record_stream(here)  # so that its memory is not used again before this stream has read it
                yield rows
                used.append(here.record_event())
                if len(used) > AHEAD:  # steps only wait in a queue, and each of them holds its batch on the device
                    used.popleft().synchronize()
        finally:  # the epoch may end early
            for reading in under_way:
                reading.cancel()
