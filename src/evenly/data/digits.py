"""Shortcut digits: scikit-learn's 8x8 handwritten digits, real images, with a planted easy feature.

The label is which half of the digits an image is from: 0-4 or 5-9. The shortcut is one bright edge column, left or
right. In `shortcut_digits` every image carries a shortcut, which agrees with the label on a share `rate` of the
training images. Validation and test show every image with both shortcuts, so that all four groups (label, shortcut) are
measured equally well. In `partial_digits` the shortcut is always right, but a share of the images lacks it in each
split.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenly.data.contract import Data, Places, Share, Split
from evenly.randomness import derive, generator
from evenly.settings import checks_options

TRAIN, VALIDATION = 1000, 397  # of 1,797; the rest is the test set
LEFT, RIGHT, NONE = 0, 1, 2
CLASS_NAMES = ("0-4", "5-9")


@checks_options
def shortcut_digits(rate: Share = 0.97, brightness: Share = 1.0, seed: int = 0) -> Data:
    """Digits whose bright edge agrees with the label at `rate` in training; four groups (label, edge)."""
    parts = _images(seed)
    images, labels, numbers = parts["train"]
    edge = torch.where(_drawn(1 - rate, labels, seed, "shortcut"), 1 - labels, labels)
    splits: dict[str, Any] = {"train": _split("train", images, labels, edge, brightness, numbers)}
    for name in ("validation", "test"):
        images, labels, numbers = parts[name]
        both = torch.cat([torch.full_like(labels, LEFT), torch.full_like(labels, RIGHT)])
        twice = images.repeat(2, 1, 1, 1), labels.repeat(2)
        splits[name] = _split(name, *twice, both, brightness, np.tile(numbers, 2))
    return Data(
        **splits,
        name="shortcut-digits",
        about=f"Real 8x8 images: is the digit 0-4 or 5-9? A bright edge, left or right, gives the answer away on "
        f"{rate:.0%} of the training images and is wrong on the rest. "
        "Validation and test show every image with both edges.",
        class_names=CLASS_NAMES,
        group_names=[f"{digits}, {edge} edge" for digits in CLASS_NAMES for edge in ("left", "right")],
        recipe=_RECIPE | {"select": "worst-group-argmax", "options": _OPTIONS},
        options={"rate": rate, "brightness": brightness, "seed": seed},
    )


@checks_options
def partial_digits(missing: Share = 0.1, brightness: Share = 1.0, seed: int = 0) -> Data:
    """Digits whose bright edge always agrees with the label, but a share `missing` has none, in all splits."""
    splits: dict[str, Any] = {}
    for name, (images, labels, numbers) in _images(seed).items():
        lacks = _drawn(missing, labels, seed, name)
        edge = torch.where(lacks, NONE, labels)
        splits[name] = _split(name, images, labels, edge, brightness, numbers, lacks.long())
    return Data(
        **splits,
        name="partial-digits",
        about="Real 8x8 images: is the digit 0-4 or 5-9? A bright edge, left or right, gives the answer away, but "
        f"{missing:.0%} of the images have none, in test as in training.",
        class_names=CLASS_NAMES,
        group_names=[f"{digits}, {edge}" for digits in CLASS_NAMES for edge in ("bright edge", "no edge")],
        recipe=_RECIPE,
        options={"missing": missing, "brightness": brightness, "seed": seed},
    )


_RECIPE = {"model": "mlp", "epochs": 40, "batch_size": 16, "lr": 0.05, "momentum": 0.9, "rho": 0.05}
# chosen by the worst group's validation accuracy on seeds 0-9, among settings that cost no more than ERM's 40 epochs
_OPTIONS = {
    "pde": {"epochs": 240, "weight_decay": 0.01, "decay": 0.3},
    "subsample": {"epochs": 240, "weight_decay": 0.01},
    "group_dro": {"weight_decay": 0.001, "step_size": 0.1, "C": 1.0},
}


def _images(seed: int) -> dict[str, tuple[Tensor, Tensor, np.ndarray[Any, Any]]]:
    """uint8 images (N, 1, 8, 8), labels and places in scikit-learn's set of each split, stratified by digit."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bundle = load_digits()
    images = torch.from_numpy(np.round(bundle.images * (255 / 16)).astype(np.uint8))[:, None]
    digit = bundle.target
    state = derive(seed, "digits") % 2**32
    train, rest = train_test_split(np.arange(len(digit)), train_size=TRAIN, stratify=digit, random_state=state)
    validation, test = train_test_split(rest, train_size=VALIDATION, stratify=digit[rest], random_state=state)
    half = torch.from_numpy((digit >= 5).astype(np.int64))
    return {
        name: (images[index], half[index], index)
        for name, index in (("train", train), ("validation", validation), ("test", test))
    }


def _drawn(share: float, labels: Tensor, seed: int, purpose: str) -> Tensor:
    """(N,) True for a share of the examples of each class, drawn at random; the count is exact, not only its mean."""
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        order = torch.randperm(len(members), generator=generator(seed, purpose, int(label)))
        chosen[members[order[: round(share * len(members))]]] = True
    return chosen


def _split(
    name: str,
    images: Tensor,
    labels: Tensor,
    edge: Tensor,
    brightness: float,
    numbers: np.ndarray[Any, Any],
    group: Tensor | None = None,
) -> Split:
    images = images.clone()
    bright = round(255 * brightness)
    images[edge == LEFT, :, :, 0] = bright
    images[edge == RIGHT, :, :, -1] = bright
    groups = 2 * labels + (edge if group is None else group)
    return Split(images, labels, groups, {"edge": edge}, name=name, places=Places(numbers, "image"))
