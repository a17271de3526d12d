"""Which examples a method singled out: how many are from minority groups, and what they look like."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenly.data.contract import Data, Split
from evenly.engine.trained import Selection
from evenly.randomness import generator
from evenly.report.figures import is_image, thumbnail

SHOWN = 16
"""Examples shown of each kind."""
MINORITY = 0.5
"""A group is a minority where it has less than this share of the average group."""


SNIPPET = 160
"""Characters shown of a text."""


@dataclass(frozen=True)
class Example:
    """One example to look at: a PNG data URI, what it is called, whether it is from a minority group.

    Of texts `source` is empty and `text` is their beginning.
    """

    source: str
    caption: str
    description: str
    minority: bool
    text: str = ""


@dataclass(frozen=True)
class Share:
    """How many of the examples picked are from minority groups, and how many of all are.

    `by` says what the groups are: the data's own, or labels crossed with an attribute.
    """

    by: str
    picked: int
    picked_minority: int
    total: int
    total_minority: int


def minorities(groups: Tensor) -> Tensor:
    """(N,) True where an example is in a minority group. Groups are integers (N,) or boolean (N, G)."""
    members = groups if groups.ndim == 2 else groups[:, None] == torch.arange(int(groups.max()) + 1)
    counts = members.sum(0)
    small = (counts > 0) & (counts < MINORITY * counts[counts > 0].double().mean())
    return (members & small).any(1)


def minority_shares(data: Data, selection: Selection) -> list[Share]:
    """Picked and present minority examples, by the groups where there are any, else by every attribute."""
    shares = []
    for by, groups in _groupings(data.train).items():
        minority = minorities(groups)
        picked = int(minority[selection.indices].sum())
        shares.append(Share(by, len(selection.indices), picked, len(minority), int(minority.sum())))
    return shares


def picked_and_others(data: Data, selection: Selection, seed: int = 0) -> tuple[list[Example], list[Example]] | None:
    """Up to `SHOWN` examples picked and as many others, drawn at random; None of inputs that are no images or texts."""
    if data.train.texts is None and not is_image(data.train.example_shape):
        return None
    picked = torch.zeros(len(data.train), dtype=torch.bool)
    picked[selection.indices] = True
    groupings = _groupings(data.train)
    minority = minorities(groupings["group"]) if "group" in groupings else torch.zeros_like(picked)
    drawn = (_draw(members, seed, purpose) for members, purpose in ((picked, "picked"), (~picked, "others")))
    first, second = ([_example(data, index, bool(minority[index])) for index in indices] for indices in drawn)
    return first, second


def _draw(members: Tensor, seed: int, purpose: str) -> list[int]:
    candidates = members.nonzero().flatten()
    order = torch.randperm(len(candidates), generator=generator(seed, "report", purpose))[:SHOWN]
    indices: list[int] = candidates[order].sort().values.tolist()
    return indices


def _example(data: Data, index: int, minority: bool) -> Example:
    split = data.train
    label = int(split.labels[index])
    name = str(data.class_names[label]) if data.class_names else f"class {label}"
    group = _group_of(data, index)
    description = f"training example {index}, label {name}" + (f", group {group}" if group else "")
    if split.texts is not None:
        return Example("", group or name, description, minority, snippet(split.texts[index]))
    inputs = split.inputs
    image = inputs[index] if isinstance(inputs, Tensor) else torch.as_tensor(inputs[index][0])
    return Example(thumbnail(image), group or name, description, minority)


def snippet(text: str) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= SNIPPET else f"{line[:SNIPPET].rstrip()} ..."


def _group_of(data: Data, index: int) -> str:
    groups = data.train.groups
    if groups is None:
        return ""
    of = groups[index].nonzero().flatten().tolist() if groups.ndim == 2 else [int(groups[index])]
    return ", ".join(str(data.group_names[g]) if data.group_names else f"group {g}" for g in of)


def _groupings(split: Split) -> dict[str, Tensor]:
    if split.groups is not None:
        return {"group": split.groups}
    return {
        f"label and {name}": split.labels * (int(column.max()) + 1) + column
        for name, column in split.attributes.items()
        if int(column.min()) >= 0
    }
