"""The sets that probes are fitted and measured on: balanced draws from one set that is cut in two, or from two sets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from evenly.data.contract import Data, Split
from evenly.diagnose.samples import split_of
from evenly.errors import EvenlyError, unknown
from evenly.randomness import generator

Columns = Mapping[str, Tensor]

LEAST = 5
"""Examples of each cell that a probe is fitted on, and as many to measure it: one for each fold at least."""
MOST = 2000
"""Examples that a probe is fitted on at most: "a small dataset" in the paper. All that are left measure it."""


@dataclass(frozen=True, eq=False)
class Draw:
    """Indices (M,) to fit one probe on and (L,) to measure it on, and what both are balanced over; None if nothing."""

    fit: Tensor
    measure: Tensor
    balanced_over: tuple[str, ...] | None


class ProbingSets:
    """A set to fit on, `first`, and one to measure on, `second`; where that is None, `first` is cut in two.

    `columns` and `held_columns` hold by name what can be probed or balanced over in the two.
    """

    def __init__(self, data: Any, attributes: Sequence[str] | Mapping[str, Any] | None, held_out: Any = None) -> None:
        self.first, self.second = _sets(data, held_out)
        own = attributes if isinstance(attributes, Mapping) else {}
        self.columns = _columns(self.first, own)
        self.held_columns = self.columns if self.second is None else _columns(self.second, {})
        self.known = tuple(name for name in self.columns if name not in ("label", "group") or self._is_attribute(name))
        self.names = ["label", *self.known] if attributes is None else list(attributes)
        if not self.names:
            raise EvenlyError("there is no attribute to probe; give one, e.g. 'label'")
        if self.second is not None and own:
            raise EvenlyError(
                f"column {self.names[0]!r} is given for one of two sets; give Splits with attributes= and the name"
            )

    def draw(self, name: str, against: str | Sequence[str] | None, balance: bool, seed: int) -> Draw:
        """The examples for the probe of one attribute, balanced over as much as the sets are large enough for."""
        if not balance:
            return self._draw([name], seed, even=False)
        *fuller, least = self._candidates(name, against)
        cells = math.prod(len(self.columns[each].unique()) for each in ("label", *self.known))
        for others in fuller if cells * LEAST <= len(self.first) else ():
            with suppress(EvenlyError):
                return self._draw([name, *others], seed)
        return self._draw([name, *least], seed)

    def _candidates(self, name: str, against: str | Sequence[str] | None) -> list[tuple[str, ...]]:
        """What an attribute is to be balanced over: the first of these for which there are enough examples."""
        if against is not None:
            return [tuple(other for other in ([against] if isinstance(against, str) else against) if other != name)]
        if name not in self.columns:
            raise unknown("attribute", name, self.columns)
        if name == "group":
            return [()]
        others = tuple(other for other in self.known if other != name)
        if name != "label":
            return [("label", *others), ("label",)]
        groups = ("group",) if "group" in self.columns and "group" not in self.known else ()
        return [each for each in (others, groups) if each] or [()]

    def _draw(self, crossed: Sequence[str], seed: int, even: bool = True) -> Draw:
        """As many examples of each configuration of the crossed columns; or all examples, if not even."""
        measure = None
        if self.second is None:
            cells = _shuffled(self.columns, crossed, 2 * LEAST, "the set", seed, even)
        else:
            _check_values(self.columns, self.held_columns, crossed, self.second.name)
            cells = _shuffled(self.columns, crossed, LEAST, f"the {self.first.name} set", seed, even)
            fewest = LEAST if even else 1
            measure = _shuffled(self.held_columns, crossed, fewest, f"the {self.second.name} set", seed, even)
        most = max(LEAST, MOST // len(cells)) if even else len(self.first)
        fit = [cell[: most if measure else min(len(cell) // 2, most)] for cell in cells]
        measure = measure or [cell[len(part) :] for cell, part in zip(cells, fit, strict=True)]
        balanced_over = tuple(crossed[1:]) if even else None
        return Draw(torch.cat(fit).sort().values, torch.cat(measure).sort().values, balanced_over)

    def _is_attribute(self, name: str) -> bool:
        return name in self.first.attributes


def _sets(data: Any, held_out: Any) -> tuple[Split, Split | None]:
    if held_out is not None:
        first, second = split_of(data), split_of(held_out)
        if first is second or _is_same(first.inputs, second.inputs):
            raise EvenlyError(
                "data and held_out are the same set, so the probe would be measured on what it was fitted on; "
                "give two sets, or leave held_out out"
            )
        return first, second
    if not isinstance(data, Data):
        return split_of(data), None
    if data.validation is not None and data.test is not None:
        return data.validation, data.test
    return data.validation or data.test or data.train, None


def _is_same(one: Any, other: Any) -> bool:
    """Whether two sets' inputs are one and the same, in memory where they are tensors."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.data_ptr() == other.data_ptr() and one.shape == other.shape
    return one is other


def _columns(split: Split, own: Mapping[str, Any]) -> dict[str, Tensor]:
    """What can be probed or balanced over, by name, with columns of the user's own."""
    if "label" in split.attributes:
        raise EvenlyError(f"an attribute of the {split.name} set is called 'label', as the labels are; rename it")
    columns = {"label": split.labels.cpu(), **split.attributes}
    if split.groups is not None and split.groups.ndim == 1:
        columns.setdefault("group", split.groups.cpu())
    if own:
        columns |= Split(torch.zeros(len(split), 1), split.labels, attributes=own, name=split.name).attributes
    return columns


def _shuffled(
    columns: Columns, crossed: Sequence[str], least: int, where: str, seed: int, even: bool = True
) -> list[Tensor]:
    """The indices of each configuration of the crossed columns in random order: all, or as many as the rarest has."""
    for name in crossed:
        if name not in columns:
            raise unknown("attribute", name, columns)
    if len(values := columns[crossed[0]].unique()) < 2:
        raise EvenlyError(
            f"{crossed[0]} has one value, {int(values[0])}, throughout {where}; give a set in which it varies"
        )
    cells = _cells(columns, crossed, where)
    present, member = torch.stack([columns[name] for name in crossed], 1).unique(dim=0, return_inverse=True)
    counts = dict(zip(map(tuple, present.tolist()), torch.bincount(member).tolist(), strict=True))
    total, rarest = len(cells), None
    if isinstance(cells, list):
        total = math.prod(map(len, cells))
        rarest = next((cell for cell in product(*cells) if cell not in counts), None)
    rarest = rarest or min(counts, key=lambda cell: counts[cell])
    if (count := counts.get(rarest, 0)) < least:
        lacking = ", ".join(f"{name} {value}" for name, value in zip(crossed, rarest, strict=True))
        raise EvenlyError(
            f"{where} has {count} examples of {lacking}, and a probe of {crossed[0]} needs {least} in each of {total} "
            f"cells, {least * total} in all; add examples"
            + (", or balance over less, e.g. against=()" if len(crossed) > 1 else "")
        )
    draws = []
    for i, cell in enumerate(map(tuple, present.tolist())):
        each = (member == i).nonzero()[:, 0]
        order = torch.randperm(len(each), generator=generator(seed, "probe", *crossed, *cell))
        draws.append(each[order[: count if even else None]])
    return draws


def _check_values(columns: Columns, others: Columns, crossed: Sequence[str], name_of_others: str) -> None:
    """Refuse two sets that do not have the same values of the crossed columns."""
    for name in crossed:
        if name not in columns:
            raise unknown("attribute", name, columns)
        if name not in others:
            raise EvenlyError(
                f"the {name_of_others} set has no attribute {name!r}; give it to both sets, or leave held_out out"
            )
        if odd := set(columns[name].tolist()) ^ set(others[name].tolist()):
            raise EvenlyError(
                f"{name} has the value {min(odd)} in one of the two sets only; give sets that both have it"
            )


def _cells(columns: Columns, crossed: Sequence[str], where: str) -> list[list[int]] | set[tuple[int, ...]]:
    """The configurations that must be there: all combinations of the values of each column, or a set of them.

    Groups may be made of the label, e.g. one for each (label, background); then each label has its own.
    """
    values = [columns[name].unique().tolist() for name in crossed]
    if list(crossed) != ["label", "group"]:
        return values
    groups = {k: set(columns["group"][columns["label"] == k].tolist()) for k in values[0]}
    every = set(values[1])
    if all(each == every for each in groups.values()):
        return values
    if len({len(each) for each in groups.values()}) > 1 or sum(map(len, groups.values())) > len(every):
        raise EvenlyError(
            f"some groups in {where} lack some labels, so the label cannot be balanced over them; "
            "give against= the attributes to balance over, or ()"
        )
    return {(k, g) for k, each in groups.items() for g in each}
