"""One seed decides everything: every draw has a seed of its own, derived from the run's seed and what it is for.

No random state has to be saved for a run to resume exactly, and the global random state is left as it was found.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits


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
    found = random_state()
    try:
        if seed is not None:
            reseed(seed)
        yield
    finally:
        set_random_state(found)


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Compute on this many threads, whatever the environment says: sums over threads differ in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        torch.set_num_threads(before)


def random_state() -> tuple[Any, ...]:
    """The global random states: Python's, numpy's, torch's on the CPU, and on every GPU."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda  # noqa: NPY002


def set_random_state(state: tuple[Any, ...]) -> None:
    """Put back what `random_state` gave."""
    random.setstate(state[0])
    np.random.set_state(state[1])  # noqa: NPY002
    torch.set_rng_state(state[2])
    if state[3]:
        torch.cuda.set_rng_state_all(state[3])


class Stream:
    """Draws of torch's global generators that leave these as they were: for what each of several processes draws by
    itself, such as dropout, while all of them draw the rest alike."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.state = self._current()

    def reseed(self, seed: int) -> None:
        """Start anew."""
        found = self._current()
        torch.default_generator.manual_seed(seed)
        if self._device.type == "cuda":
            torch.cuda.manual_seed_all(seed)
        self.state = self._current()
        self._set(found)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Draw from here inside."""
        found = self._current()
        self._set(self.state)
        try:
            yield
        finally:
            self.state = self._current()
            self._set(found)

    def _current(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        cuda = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        return torch.get_rng_state(), cuda

    def _set(self, state: tuple[torch.Tensor, torch.Tensor | None]) -> None:
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1], self._device)


def reseed(seed: int) -> None:
    """Seed the global generators, which a user's Dataset may draw from.

    `torch.manual_seed` would queue a call for every kind of device that is not there.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
