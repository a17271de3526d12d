"""One seed decides everything: every draw has a seed of its own, derived from the run's seed and what it is for.

No random state has to be saved for a run to resume exactly, and the global random state is left as it was found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose, e.g. ``derive(seed, "order", epoch)``; a pure function of its arguments."""
    digest = hashlib.sha256(repr((int(seed), *purpose)).encode()).digest()
    return int.from_bytes(digest[:7], "big")


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


@contextmanager
def isolated(seed: int | None = None) -> Iterator[None]:
    """Run a block on torch's global random state without leaving a trace in it; seed it first if asked."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        if seed is not None:
            reseed(seed)
        yield


def reseed(seed: int) -> None:
    """Seed torch's global generators. `torch.manual_seed` would queue a call for every device that is not there."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
