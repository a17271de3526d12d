"""Factors A_i of Gauss-Newton matrices H_i = A_i^T A_i, and products of their rows, a few samples at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from evenly.errors import EvenlyError

MEMORY = 2**30
"""Bytes of factors held at a time."""
COLUMNS = 4096
"""Columns of a float32 product that are summed before float64 takes over."""
Block = tuple[slice, slice, Tensor]
"""Samples i, samples j, and the (ik, jk) products of their rows. On the diagonal i includes j; elsewhere i and j are
disjoint."""


class Factors(Protocol):
    """H_i = A_i^T A_i with A_i (k, p), provided a few samples at a time, so that not all need be in memory."""

    @property
    def n(self) -> int: ...

    @property
    def k(self) -> int: ...

    @property
    def p(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    def rows(self, start: int, stop: int) -> Tensor:
        """A_i of the samples from `start` to before `stop`: (stop - start, k, p)."""

    def products(self, memory: int) -> Iterator[Block]:
        """Blocks of the Gram matrix of all rows, over its upper triangle; by :func:`products` if nothing is faster."""

    def times_hessian(self, v: Tensor) -> Tensor:
        """H v (p,) for v (p,), both float64."""


class InMemory:
    """Factors (n, k, p) in memory."""

    def __init__(self, factors: Tensor) -> None:
        self.factors, self.dtype, self.device = factors, factors.dtype, factors.device
        self.n, self.k, self.p = factors.shape

    def rows(self, start: int, stop: int) -> Tensor:
        return self.factors[start:stop]

    def products(self, memory: int) -> Iterator[Block]:
        return products(self, memory)

    def times_hessian(self, v: Tensor) -> Tensor:
        a = self.factors.reshape(-1, self.p)
        return (a.T @ (a @ v.to(a.dtype))).double() / self.n


def in_memory_if_it_fits(factors: Factors, memory: int) -> Factors:
    """The factors in memory if they fit, so that they are computed once."""
    fits = factors.n * factors.k * factors.p * factors.dtype.itemsize <= memory
    return InMemory(factors.rows(0, factors.n)) if fits else factors


def projected(factors: Factors, columns: int, *, memory: int = MEMORY, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    """(A_i P, A_i Q), each (n, k, columns), and A_i A_i^T (n, k, k), from one pass over the factors."""
    n, k, p = factors.n, factors.k, factors.p
    draw = torch.Generator().manual_seed(seed)
    width = -(-p // columns)
    projections = []
    for _ in range(2):
        order = torch.randperm(width * columns, generator=draw)
        signs = torch.randint(0, 2, order.shape, generator=draw, dtype=torch.int8) * 2 - 1
        padding = order >= p  # bins that the last parameters do not fill
        order[padding], signs[padding] = 0, 0
        projections.append((order.to(factors.device), signs.to(factors.device, factors.dtype)))
    sketches = [torch.empty(n, k, columns, dtype=factors.dtype, device=factors.device) for _ in projections]
    gram = torch.empty(n, k, k, dtype=torch.float64, device=factors.device)
    step = samples_within(factors, memory // 8)
    for start in range(0, n, step):
        chunk = slice(start, min(start + step, n))
        a = factors.rows(chunk.start, chunk.stop)
        gram[chunk] = (a @ a.mT).double()
        for sketch, (order, signs) in zip(sketches, projections, strict=True):
            sketch[chunk] = (a[..., order] * signs).reshape(*a.shape[:2], columns, width).sum(3)
    return sketches, gram


def _identity(rows: Tensor) -> Tensor:
    return rows


def products(
    factors: Factors,
    memory: int,
    left: Callable[[Tensor], Tensor] = _identity,
    right: Callable[[Tensor], Tensor] = _identity,
) -> Iterator[Block]:
    """The blocks (rows of samples i, rows of samples j, left(A_i) right(A_j)^T) that cover the upper triangle.

    A long block of rows is multiplied with short ones in turn: each sample is computed once for every long block before
    its own.
    """
    n, p = factors.n, factors.p
    long = samples_within(factors, memory // 2)
    short = min(samples_within(factors, memory // 8), max(1, memory // (32 * long * factors.k**2)), max(256, long // 8))
    for first in range(0, n, long):
        last = min(first + long, n)
        long_block = factors.rows(first, last)
        rows = left(long_block.reshape(-1, p))
        for start in range(first, last, short):
            stop = min(start + short, last)
            columns = right(long_block[start - first : stop - first].reshape(-1, p))
            yield slice(first, stop), slice(start, stop), product(rows[: (stop - first) * factors.k], columns)
        for start in range(last, n, short):
            stop = min(start + short, n)
            columns = right(factors.rows(start, stop).reshape(-1, p))
            yield slice(first, last), slice(start, stop), product(rows, columns)


def samples_within(factors: Factors, memory: int) -> int:
    """The number of samples whose factors fit into `memory` bytes; at least one."""
    return max(1, min(factors.n, memory // (factors.k * factors.p * factors.dtype.itemsize)))


def product(left: Tensor, right: Tensor) -> Tensor:
    """left right^T in float64 for (a, p) and (b, p); large float32 ones are added up in float64 by `COLUMNS`."""
    if torch.float64 in (left.dtype, right.dtype) or len(left) * len(right) * left.shape[1] <= 2**28:
        return left.double() @ right.double().T
    total = torch.zeros(len(left), len(right), dtype=torch.float64, device=left.device)
    for start in range(0, left.shape[1], COLUMNS):
        part = slice(start, start + COLUMNS)
        total += left[:, part] @ right[:, part].T
    return total


def refuse_infinite(factors: Tensor, first: int) -> None:
    """Refuse factors (b, k, p) that hold NaN or infinity; `first` is the index of the first sample among all."""
    if bool(torch.isfinite(factors.sum())):  # one pass; a finite tensor whose sum overflows is checked below
        return
    bad = (~torch.isfinite(factors)).flatten(1).any(1).nonzero().flatten()
    if len(bad):
        raise EvenlyError(
            f"the gradient of sample {first + int(bad[0])} holds NaN or infinity; check its input and the weights"
        )
