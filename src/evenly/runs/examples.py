"""What a page shows of the examples that a method selected: some of them beside some others, and how many of them are
from minority groups. A run saves this when it finishes, so that its page needs no data.

examples/examples.json   the examples and the minority shares
examples/17.png          of images: the thumbnail of training example 17
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from attrs import evolve, frozen
from torch import Tensor

from evenly.data.contract import Data, Split
from evenly.engine.trained import Selection
from evenly.errors import EvenlyError
from evenly.files import AGAIN, atomic, make_folder, read_json, sealed, write_json
from evenly.randomness import generator
from evenly.values import Value, live

FOLDER, INDEX = "examples", "examples.json"
MOST_EXAMPLES = 16
"""Examples saved at most of those selected, and of the others."""
MINORITY = 0.5
"""A group is a minority where it has less than this share of the average group."""
LARGEST_THUMBNAIL = 96
"""Pixels; larger images are made smaller, smaller ones are left to the browser to enlarge."""
LONGEST_SNIPPET = 160
"""Characters shown of a text."""


@frozen
class Example(Value):
    """One training example: an image as a PNG, or the beginning of a text."""

    index: int
    label: str
    group: str = ""
    minority: bool = False
    text: str = ""
    png: bytes | None = live()

    @property
    def description(self) -> str:
        group = f", group {self.group}" if self.group else ""
        return f"training example {self.index}, label {self.label}{group}"


@frozen
class MinorityShare(Value):
    """How many of the examples selected are from minority groups, and how many of all are.

    `grouping` says what the groups are: the data's own ("group"), or labels crossed with an attribute.
    """

    grouping: str
    selected: int
    selected_minority: int
    total: int
    total_minority: int


@frozen
class Examples(Value):
    """Examples selected beside others, both drawn at random; none where inputs are neither images nor texts."""

    selected: tuple[Example, ...] = ()
    others: tuple[Example, ...] = ()
    shares: tuple[MinorityShare, ...] = ()


def save_examples(data: Data, selection: Selection | None, folder: Path) -> None:
    """Write `examples/` into a run's folder; nothing where the method selects no examples by design."""
    if selection is None:
        return
    examples = pick_examples(data, selection)
    make_folder(folder / FOLDER)
    for example in (*examples.selected, *examples.others):
        if example.png is not None:
            with atomic(folder / FOLDER / f"{example.index}.png", sync=False) as file:
                file.write(example.png)
    write_json(folder / FOLDER / INDEX, sealed(examples.to_dict()))


def read_examples(folder: Path) -> Examples | None:
    """What `save_examples` left in a run's folder; None where there is nothing."""
    path = folder / FOLDER / INDEX
    content = read_json(path, AGAIN)
    if content is None:
        return None
    try:
        examples = Examples.from_dict(content)
    except (EvenlyError, TypeError) as error:
        raise EvenlyError(f"{path} is damaged ({error}); {AGAIN}") from None

    def with_images(kind: Iterable[Example]) -> tuple[Example, ...]:
        return tuple(evolve(each, png=_png(path.with_name(f"{each.index}.png"))) for each in kind)

    return evolve(examples, selected=with_images(examples.selected), others=with_images(examples.others))


def pick_examples(data: Data, selection: Selection, seed: int = 0) -> Examples:
    """Up to `MOST_EXAMPLES` examples that were selected and as many others, and the minority shares."""
    shares = tuple(minority_shares(data, selection))
    if not len(selection.indices) or (data.train.texts is None and not is_image(data.train.example_shape)):
        return Examples(shares=shares)
    selected = torch.zeros(len(data.train), dtype=torch.bool)
    selected[selection.indices] = True
    groups = data.train.groups
    minority = torch.zeros_like(selected) if groups is None else minorities(groups)

    def drawn(members: Tensor, purpose: str) -> tuple[Example, ...]:
        candidates = members.nonzero().flatten()
        order = torch.randperm(len(candidates), generator=generator(seed, "report", purpose))[:MOST_EXAMPLES]
        indices = candidates[order].sort().values.tolist()
        return tuple(_example(data, index, bool(minority[index])) for index in indices)

    return Examples(drawn(selected, "picked"), drawn(~selected, "others"), shares)


def minority_shares(data: Data, selection: Selection) -> Iterable[MinorityShare]:
    """Selected and present minority examples, by the groups where there are any, else by every attribute."""
    for grouping, groups in _groupings(data.train).items():
        minority = minorities(groups)
        selected = int(minority[selection.indices].sum())
        yield MinorityShare(grouping, len(selection.indices), selected, len(minority), int(minority.sum()))


def minorities(groups: Tensor) -> Tensor:
    """(N,) True where an example is in a minority group. Groups are integers (N,) or boolean (N, G)."""
    counts = groups.sum(0) if groups.ndim == 2 else torch.bincount(groups)
    small = (counts > 0) & (counts < MINORITY * counts[counts > 0].double().mean())
    return (groups & small).any(1) if groups.ndim == 2 else small[groups]


def thumbnail(image: Tensor, largest: int = LARGEST_THUMBNAIL) -> bytes:
    """An image (1 or 3, H, W), uint8 or float, as a PNG of `largest` pixels a side at most. Floats outside [0, 1] are
    stretched to fit."""
    from PIL import Image

    pixels = image.detach().cpu()
    if pixels.dtype != torch.uint8:
        pixels = pixels.double().nan_to_num()
        low, high = float(pixels.min()), float(pixels.max())
        if low < 0 or high > 1:
            pixels = (pixels - low) / (high - low if high > low else 1.0)
        pixels = (255 * pixels).round().to(torch.uint8)
    array = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous().numpy()
    picture = Image.fromarray(array)
    picture.thumbnail((largest, largest))
    stream = io.BytesIO()
    picture.save(stream, format="PNG", optimize=True)
    return stream.getvalue()


def is_image(shape: Sequence[int]) -> bool:
    """Whether an example of this shape can be shown: (1 or 3, H, W) of at least 4 x 4 pixels."""
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 4


def snippet(text: str) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_SNIPPET else f"{line[:LONGEST_SNIPPET].rstrip()} ..."


def _example(data: Data, index: int, minority: bool) -> Example:
    split = data.train
    label = int(split.labels[index])
    name = str(data.class_names[label]) if data.class_names else f"class {label}"
    if split.texts is not None:
        return Example(index, name, _group(data, index), minority, snippet(split.texts[index]))
    inputs = split.inputs
    image = inputs[index] if isinstance(inputs, Tensor) else torch.as_tensor(inputs[index][0])
    return Example(index, name, _group(data, index), minority, png=thumbnail(image))


def _group(data: Data, index: int) -> str:
    groups = data.train.groups
    if groups is None:
        return ""
    members = groups[index].nonzero().flatten().tolist() if groups.ndim == 2 else [int(groups[index])]
    return ", ".join(str(data.group_names[g]) if data.group_names else f"group {g}" for g in members)


def _groupings(split: Split) -> dict[str, Tensor]:
    if split.groups is not None:
        return {"group": split.groups}
    return {
        f"label and {name}": split.labels * (int(column.max()) + 1) + column
        for name, column in split.attributes.items()
        if int(column.min()) >= 0
    }


def _png(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None  # of texts there is none
