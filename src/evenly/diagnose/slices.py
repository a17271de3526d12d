"""Slices: where a model fails, as one or two values of columns.

>>> columns = columns_of(data.test, data)                  # attributes, and the input columns of a table
>>> search = find_slices(predicted == data.test.labels, columns)
>>> [slice.name for slice in search.slices]                # ["colour red, size 2 to 5"]
>>> members_of(search.slices[0], columns_of(data.train, data))      # the same slice of another split
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
from attrs import frozen
from torch import Tensor

from evenly.diagnose.fisher import fisher
from evenly.diagnose.slice_columns import Column, cluster_column, columns_left_out, columns_of
from evenly.engine.accuracy import wilson
from evenly.errors import EvenlyError
from evenly.values import Value

__all__ = ["Column", "Search", "Slice", "cluster_column", "columns_left_out", "columns_of", "find_slices", "members_of"]

FEWEST = 10
"""Examples of a slice at least."""
MOST_VALUES = 400
"""Pairs are searched among the first columns that have so many values together at most."""
MOST_CANDIDATES = 1000
"""Slices that are clearly worse than the rest, of which those that explain the others are listed."""
CHUNK = 1 << 16
"""Examples that pairs are counted on at a time."""

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Counts = np.ndarray[Any, np.dtype[np.int64]]


@frozen
class Slice(Value):
    """The examples that have one value of a column, or one of each of two.

    Args:
        low, high: the 95% Wilson interval of the accuracy.
        rest: the accuracy of all other examples.
        p: the exact chance of so many errors or more here if errors did not depend on the columns, times the number of
            slices that were searched.
    """

    name: str
    columns: tuple[str, ...]
    values: tuple[str, ...]
    n: int
    accuracy: float
    low: float
    high: float
    rest: float
    p: float


@frozen
class Search(Value):
    """The slices on which a model fails, the strongest evidence first.

    Args:
        searched: how many slices were tested; 0 where there is nothing to search.
        columns: how many columns they are of.
        paired: how many of these were also searched in pairs: the first ones, of a wide table.
        left_out: how many more columns there are that were not searched.
    """

    slices: tuple[Slice, ...] = ()
    searched: int = 0
    columns: int = 0
    paired: int = 0
    left_out: int = 0


def find_slices(
    right: Any,
    columns: Sequence[Column],
    *,
    pairs: bool = True,
    level: float = 0.05,
    fewest: int = FEWEST,
    most: int = 10,
    left_out: int = 0,
) -> Search:
    """The slices that have more errors than the rest, by an exact test that is corrected for all slices searched.

    Every value of a column and every pair of values of two columns is tested that at least `fewest` examples have, and
    not all. The test is Fisher's, one-sided: given the number of errors in all, the number in a slice is hypergeometric
    if errors do not depend on the columns. The levels are divided by the number of slices that were searched
    (Bonferroni), so that in this case the chance that anything is named is at most `level`. How often a value occurs
    decides what is searched; the errors do not.

    What is clearly worse than the rest is listed once:

    - A pair is listed only if it is also clearly worse than each of its two values without it. A value that fails as a
      whole is listed in place of its pairs. This test is corrected for the number of pairs with that value.
    - A value is listed only if it is clearly worse without the pairs that are listed in its place.
    - Any slice is listed only if it is clearly worse without the examples of those with stronger evidence.

    Args:
        right: (N,) whether the model is right.
        columns: of the same N examples.
        pairs: whether to search pairs of values as well.
        most: slices that are listed at most.
        left_out: how many more columns there are, for `Search.left_out`.
    """
    hit = np.asarray(right.cpu() if isinstance(right, Tensor) else right).astype(bool)
    if hit.ndim != 1 or any(column.values.shape != hit.shape for column in columns):
        shape = next((each.values.shape for each in columns if each.values.shape != hit.shape), hit.shape)
        raise EvenlyError(f"right has shape {hit.shape}, a column {shape}; give one value (N,) for each example")
    tested = _Tested.of(hit, columns, pairs, fewest)
    paired = len({tested.owner[i] for i in tested.pairable}) if pairs else 0
    searched = len(tested.n)
    candidates = tested.candidates(level)
    chosen = _explaining(tested, candidates, level, most)
    slices = tuple(_slice(tested, k) for k in chosen)
    return Search(slices, searched, len(set(tested.owner.tolist())), paired, left_out)


def members_of(slice: Slice, columns: Sequence[Column]) -> Mask:
    """Which examples a slice has (N,), by the columns of any split of the same data."""
    by_name = {column.name: column for column in columns}
    unknown = [name for name in slice.columns if name not in by_name]
    if unknown:
        known = ", ".join(list(by_name)[:12]) or "none"
        raise EvenlyError(f"there is no column {unknown[0]!r} (found: {known}); give the columns of the same data")
    mask = np.ones(len(by_name[slice.columns[0]].values), bool)
    for name, value in zip(slice.columns, slice.values, strict=True):
        column = by_name[name]
        code = column.names.index(value) if value in column.names else -2  # no example of this split has it
        mask &= column.values == code
    return mask


@dataclass
class _Tested:
    """All slices that are searched, first the V values, then the pairs.

    Args:
        hit: (N,) whether the model is right.
        columns: those that were given.
        owner, code: (V,) the column of each value, and the value.
        pairable: the values that were searched in pairs.
        first, second: (S,) the two values of each slice; the same value twice where it is one.
        n, right: (S,) examples, and how often the model is right on them.
    """

    hit: Mask
    columns: Sequence[Column]
    owner: Counts
    code: Counts
    pairable: Counts
    first: Counts
    second: Counts
    n: Counts
    right: Counts

    @classmethod
    def of(cls, hit: Mask, columns: Sequence[Column], pairs: bool, fewest: int) -> _Tested:
        values = []
        for c, column in enumerate(columns):
            known = column.values >= 0
            counts, hits = (np.bincount(column.values[known & some]) for some in (True, hit))
            hits = np.append(hits, np.zeros(len(counts) - len(hits), np.int64))
            values += [(c, code, counts[code], hits[code]) for code in np.flatnonzero(counts >= fewest)]
        values = [each for each in values if each[2] < len(hit)]
        owner, code, n, right = np.array(values, np.int64).reshape(-1, 4).T
        sizes = np.cumsum(np.bincount(owner, minlength=1))
        wide = sum(1 for _ in takewhile(lambda size: size <= MOST_VALUES, sizes.tolist()))
        pairable = np.flatnonzero(owner < wide) if pairs else np.empty(0, np.int64)
        place = np.arange(len(n))
        tested = cls(hit, columns, owner, code, pairable, place, place, n, right)
        if len(pairable):
            tested._add_pairs(fewest)
        return tested

    def _add_pairs(self, fewest: int) -> None:
        """Counted as products of matrices of 0 and 1, exact in float32 as a chunk has fewer than 2**24 examples."""
        which = self.pairable
        n, right = np.zeros((2, len(which), len(which)), np.int64)
        for start in range(0, len(self.hit), CHUNK):
            part = slice(start, start + CHUNK)
            hot = np.stack([self._value(v, part) for v in which.tolist()]).astype(np.float32)
            n += (hot @ hot.T).astype(np.int64)
            of_right = hot[:, self.hit[part]]
            right += (of_right @ of_right.T).astype(np.int64)
        i, j = np.triu_indices(len(which), 1)
        alone = np.minimum(self.n[which[i]], self.n[which[j]])
        # a pair with all examples of one of its values is that value
        kept = (self.owner[which[i]] != self.owner[which[j]]) & (n[i, j] >= fewest) & (n[i, j] < alone)
        i, j = i[kept], j[kept]
        self.first, self.second = np.append(self.first, which[i]), np.append(self.second, which[j])
        self.n, self.right = np.append(self.n, n[i, j]), np.append(self.right, right[i, j])

    def _value(self, v: int, part: slice = slice(None)) -> Mask:
        mask: Mask = self.columns[int(self.owner[v])].values[part] == self.code[v]
        return mask

    def members(self, k: int) -> Mask:
        """(N,) of slice k."""
        return self._value(int(self.first[k])) & self._value(int(self.second[k]))

    def is_pair(self, k: int) -> bool:
        return bool(self.first[k] != self.second[k])

    def chance(self, k: Counts) -> Any:
        """(S,) the exact p of slices, uncorrected."""
        total = int(self.hit.sum())
        return fisher(self.right[k], self.n[k], total - self.right[k], len(self.hit) - self.n[k])

    def candidates(self, level: float) -> list[int]:
        """The slices with a corrected p below the level, the smallest first."""
        from scipy.stats import hypergeom

        size, total = len(self.hit), int(self.hit.sum())
        worse = np.flatnonzero(self.right * size < total * self.n)
        # the probability of this very count is a part of p: what is too probable by itself needs no exact test
        exactly = hypergeom.logpmf(self.right[worse], size, total, self.n[worse])
        rare = exactly < np.log(level / max(1, len(self.n)))
        worse, exactly = worse[rare], exactly[rare]
        p = self.chance(worse)
        order = np.lexsort((worse, exactly, p))  # p of overwhelming evidence is 0 in float64
        return [int(worse[k]) for k in order if p[k] * len(self.n) < level]

    def beyond_parents(self, pairs: Counts, level: float) -> Counts:
        """Of pairs, those that are clearly worse than each of their two values without them."""
        single = len(self.owner)
        clear = np.ones(len(pairs), bool)
        for side in (self.first, self.second):
            parent = side[pairs]
            with_parent = np.bincount(np.append(self.first[single:], self.second[single:]), minlength=single)[parent]
            other, m = self.right[parent] - self.right[pairs], self.n[parent] - self.n[pairs]
            clear &= fisher(self.right[pairs], self.n[pairs], other, m) * with_parent < level
        return pairs[clear]


def _explaining(tested: _Tested, candidates: Sequence[int], level: float, most: int) -> list[int]:
    """The candidates that are not explained by another, in their order."""
    pairs = np.array([k for k in candidates if tested.is_pair(k)], np.int64)
    clear = tested.beyond_parents(pairs, level).tolist() if len(pairs) else []
    qualified = set(clear)
    listed: list[tuple[int, Mask]] = []
    for k in candidates[:MOST_CANDIDATES]:
        if len(listed) == most:
            break
        if tested.is_pair(k) and k not in qualified:
            continue
        mask, values = tested.members(k), {int(tested.first[k]), int(tested.second[k])}
        without = np.zeros(len(mask), bool)
        for other in _others(tested, k, values, listed, clear):
            without |= other
        left, rest = mask & ~without, ~mask & ~without
        p = fisher(*(int(count) for part in (left, rest) for count in (tested.hit[part].sum(), part.sum())))
        if left.any() and p * len(tested.n) < level:
            listed.append((k, mask))
    return [k for k, _ in listed]


def _others(
    tested: _Tested, k: int, values: set[int], listed: Sequence[tuple[int, Mask]], clear: Sequence[int]
) -> Iterator[Mask]:
    """What may explain slice k: slices with stronger evidence, but for the values that it is part of; and, of a value,
    its pairs that are clearly worse than it."""
    for other, mask in listed:
        is_parent = tested.is_pair(k) and not tested.is_pair(other) and int(tested.first[other]) in values
        if not is_parent:
            yield mask
    if not tested.is_pair(k):
        for pair in clear:
            if k in (tested.first[pair], tested.second[pair]):
                yield tested.members(pair)


def _slice(tested: _Tested, k: int) -> Slice:
    chosen = dict.fromkeys((int(tested.first[k]), int(tested.second[k])))
    columns = [tested.columns[int(tested.owner[v])] for v in chosen]
    values = [column.names[int(tested.code[v])] for v, column in zip(chosen, columns, strict=True)]
    n, right, size = int(tested.n[k]), int(tested.right[k]), len(tested.hit)
    rest = (int(tested.hit.sum()) - right) / (size - n)
    p = min(1.0, float(tested.chance(np.array([k]))[0]) * len(tested.n))
    name = ", ".join(f"{column.name} {value}" for column, value in zip(columns, values, strict=True))
    return Slice(name, tuple(each.name for each in columns), tuple(values), n, right / n, *wilson(right, n), rest, p)
