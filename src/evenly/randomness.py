"""One seed decides everything: every draw has a seed of its own, derived from the run's seed and what it is for.

No random state has to be saved for a run to resume exactly, and the global random state is left as it was found.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
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
    """Run a block on the global random states (torch's, numpy's, Python's) and leave no trace; seed them if asked."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=devices):
            if seed is not None:
                reseed(seed)
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002


def reseed(seed: int) -> None:
    """Seed the global generators, which a user's Dataset may draw from.

    `torch.manual_seed` would queue a call for every kind of device that is not there.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
