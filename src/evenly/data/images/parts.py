"""Images in splits: the same shares within every class, drawn from the seed, and the `Data` they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenly.data.contract import Data, Places, Split
from evenly.errors import EvenlyError
from evenly.randomness import derive

Integers = np.ndarray[Any, np.dtype[np.int64]]

PHOTOGRAPHS = {"model": "preact_resnet18", "augment": "basic", "normalise": "data"}
"""The recipe of small photographs (Nguyen et al. 2024, App. C; CIFAR-100 with a pre-activation ResNet-34)."""

FEW_STROKES = {"model": "convnet_3", "augment": "none", "normalise": "data"}
"""The recipe of digits and clothes, where a mirrored or shifted image may be another class."""

GROUPED = {
    "model": "resnet18", "normalise": "data", "batch_size": 128, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4,
    "schedule": "cosine",
}  # fmt: skip
"""The recipe of photographs with groups or domains (Springer et al. 2024, App. B, who start from ImageNet's weights and
choose lr from 0.0005 to 0.01)."""

SMALL_SIDE = 64


def own_images(shape: tuple[int, int, int]) -> dict[str, Any]:
    """The recipe of the user's own images (C, H, W). Only their size is known."""
    small = max(shape[1:]) <= SMALL_SIDE
    return {"model": "convnet_3" if small else "resnet18", "augment": "none", "normalise": "data"}


@dataclass
class ImageData(Data):
    """A data set of images, uint8 (N, C, H, W), that keeps the names of its attributes' values.

    Args:
        attribute_names: for each attribute, how value k is called.
    """

    attribute_names: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass
class Images:
    """Images (N, C, H, W) uint8 in memory with labels (N,) and attributes (N,): a benchmark's train or test set."""

    pixels: Tensor
    labels: Integers
    attributes: Mapping[str, Integers] = field(default_factory=dict)

    def part(self, index: Integers, name: str) -> Split:
        """The examples at these indices, in the order of storage."""
        attributes = {key: column[index] for key, column in self.attributes.items()}
        places = Places(index, "image")
        return Split(rows(self.pixels, index), self.labels[index], None, attributes, name=name, places=places)


def benchmark(
    name: str,
    about: str,
    train: Images,
    test: Images,
    class_names: Sequence[str],
    *,
    validation: float,
    n: int | None,
    seed: int,
    recipe: Mapping[str, Any],
    attribute_names: Mapping[str, Sequence[str]] | None = None,
) -> ImageData:
    """A benchmark's data set: its training images, a share of them held out on request, and its test images.

    Args:
        validation: the share of the training images held out, the same of every class.
        n: use that many training and at most that many test images, the same share of every class.
        recipe: settings of `evenly.train` that suit it.
    """
    used = _limited(train.labels, n, len(class_names), seed, "train")
    share_of(validation, "validation")
    labels = train.labels[used]
    is_held_out = held_out(labels, validation, seed)
    if validation and not set(labels) == set(labels[is_held_out]) == set(labels[~is_held_out]):
        raise EvenlyError(
            f"validation {validation} of {len(used)} {name} images leaves a class without an image; "
            "hold out another share, or use more images"
        )
    return ImageData(
        train.part(used[~is_held_out], "train"),
        train.part(used[is_held_out], "validation") if validation else None,
        test.part(_limited(test.labels, n, len(class_names), seed, "test"), "test"),
        name=name,
        about=about,
        class_names=list(class_names),
        attribute_names=attribute_names or {},
        recipe=recipe,
        options={"validation": validation, "n": n, "seed": seed},
    )


def ranks(strata: Integers, seed: int, purpose: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(N,) in (0, 1): each example's place in a random order of its stratum, (i + 1/2) / size.

    Those with a rank in [a, b) are a share b - a of every stratum, to within one example.
    """
    random = np.random.default_rng(derive(seed, purpose))
    rank = np.empty(len(strata))
    ends = np.unique(strata, return_counts=True)[1].cumsum()
    for members in np.split(np.argsort(strata, kind="stable"), ends[:-1]):
        rank[random.permutation(members)] = (np.arange(len(members)) + 0.5) / len(members)
    return rank


def held_out(strata: Integers, share: float, seed: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """(N,) True for a share of the examples, exact in total and to within one example in every stratum."""
    is_held_out = np.zeros(len(strata), dtype=np.bool_)
    order = np.argsort(ranks(strata, seed, "validation"), kind="stable")
    is_held_out[order[len(strata) - round(share * len(strata)) :]] = True
    return is_held_out


def rows(images: Tensor, index: Integers) -> Tensor:
    """Rows of a tensor; a range of them is a view, which keeps an array mapped from a file where it is."""
    if len(index) and np.array_equal(index, np.arange(index[0], index[0] + len(index))):
        return images[int(index[0]) : int(index[0]) + len(index)]
    return images[torch.from_numpy(index)]


def share_of(value: float, what: str) -> float:
    """A share in [0, 1), or an error that names it."""
    if not 0 <= value < 1:
        raise EvenlyError(f"{what} {value} is not a share to hold out; give a number from 0 to below 1")
    return value


def _limited(labels: Integers, n: int | None, classes: int, seed: int, name: str) -> Integers:
    if n is None:
        return np.arange(len(labels))
    if n < classes or (name == "train" and n > len(labels)):
        raise EvenlyError(f"n {n} cannot be used: there are {classes} classes and {len(labels)} {name} images")
    return np.sort(np.argsort(ranks(labels, seed, f"first {name}"), kind="stable")[:n])
