"""Two images joined in one, a digit above a harder picture: CIFAR-MNIST (Shah et al. 2020) and Fashion-MNIST-MNIST
(Kirichenko et al. 2022), as Springer, Nagarajan and Raghunathan (2024, App. B) train on them.

The label is the picture's class. In all splits alike the digit tells it at a rate `correlation`, by default always, so
that the network may learn either. What it has learned of each is seen where they are independent: at correlation 1/K,
K classes, the same seed makes a data set of the same pictures and digits, dealt out anew within each split, to probe on
(the section's balanced distribution).

>>> run = evenly.train(data="cifar-mnist", seed=3)
>>> apart = evenly.data.load("cifar-mnist", seed=3, correlation=1 / 2)
>>> evenly.probe(run.model, apart, "cifar", against=["mnist"]), evenly.probe(run.model, apart, "mnist")
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from evenly.data.benchmarks.cifar import CIFAR10_CLASSES, cifar10
from evenly.data.benchmarks.idx import FASHION_CLASSES, fashion_mnist, mnist
from evenly.data.benchmarks.places import Folder
from evenly.data.contract import Places, Share, Split
from evenly.data.images.parts import FEW_STROKES, ImageData, Integers, share_of
from evenly.errors import EvenlyError
from evenly.randomness import derive
from evenly.settings import checks_options

SIDE = 32
RECIPE = FEW_STROKES | {
    "normalise": "mean", "epochs": 20, "batch_size": 100, "momentum": 0.9, "weight_decay": 0.0, "schedule": "cosine",
}  # fmt: skip
"""Springer et al. (2024), App. B, who choose lr among .01, .05, .1 and rho from 0 to .2.

They "normalize the images by the mean pixel value": read as a mean taken away and no more. Here each channel has its
own mean, over the training images.
"""


@checks_options
def cifar_mnist(
    folder: Folder = None, correlation: Share = 1.0, validation: float = 0.1, n: int | None = None, seed: int = 0
) -> ImageData:
    """A CIFAR-10 airplane or automobile below an MNIST 0 or 1, uint8 (N, 3, 64, 32); attributes "cifar", "mnist".

    9,000 training, 1,000 validation and 1,960 test images, none of CIFAR-10 or MNIST in two of them. Groups are
    (label, whether the digit agrees with it).

    Args:
        folder: holds cifar10 and mnist, each as its own reader takes it; without it EVENLY_DATA.
        correlation: the share of images whose digit agrees with the label, in every split; at 1/2 it tells nothing.
        validation: the share of the training images held out for validation, stratified, drawn from the seed.
        n: use only that many training images, and at most that many test images, the same of every class.
    """
    return _joined("cifar-mnist", ("cifar", CIFAR10_CLASSES[:2]), folder, correlation, validation, n, seed)


@checks_options
def fashion_mnist_mnist(
    folder: Folder = None, correlation: Share = 1.0, validation: float = 0.1, n: int | None = None, seed: int = 0
) -> ImageData:
    """Fashion-MNIST's first five classes below an MNIST 0 to 4, uint8 (N, 3, 64, 32); attributes "fashion", "mnist".

    26,290 training, 2,920 validation and 4,900 test images. The arguments are those of `cifar_mnist`: `folder` holds
    fashion-mnist and mnist, and at a correlation of 1/5 the digit tells nothing.
    """
    return _joined("fashion-mnist-mnist", ("fashion", FASHION_CLASSES[:5]), folder, correlation, validation, n, seed)


def _joined(
    name: str,
    hard: tuple[str, Sequence[str]],
    folder: Folder,
    correlation: float,
    validation: float,
    n: int | None,
    seed: int,
) -> ImageData:
    feature, classes = hard
    if n is not None and n < len(classes):
        raise EvenlyError(f"n must be at least {len(classes)}, one image for each class, got {n}")
    source, read = ("cifar10", cifar10) if feature == "cifar" else ("fashion-mnist", fashion_mnist)
    pictures, digits = (
        reader(None if folder is None else Path(folder) / inner) for inner, reader in ((source, read), ("mnist", mnist))
    )
    splits: dict[str, Any] = {}
    for part in ("train", "test"):
        upper, lower = getattr(digits, part), getattr(pictures, part)
        # row k: the members of class k in random order
        above, below = (
            [_shuffled(split.labels.numpy(), k, seed, f"{which} {part}") for k in range(len(classes))]
            for split, which in ((upper, "digits"), (lower, feature))
        )
        most = min(map(len, (*above, *below)))
        most = most if n is None else min(most, n // len(classes))
        late = round(share_of(validation, "validation") * most) if part == "train" else 0
        if late == most or (part == "train" and validation and late == 0):
            raise EvenlyError(
                f"validation {validation} of {most} images in each class leaves none for a split; "
                "hold out another share, or use more images"
            )
        cuts = {part: slice(0, most - late)} | ({"validation": slice(most - late, most)} if late else {})
        for split, cut in cuts.items():
            splits[split] = _pairs(
                (upper.inputs, [members[cut] for members in above]),
                (lower.inputs, [members[cut] for members in below]),
                correlation,
                (feature, split),
            )
    return ImageData(
        **splits,
        name=name,
        about=f"Which of {', '.join(classes)} is the lower picture? The digit above it agrees with the answer on "
        f"{correlation:.0%} of the images.",
        class_names=list(classes),
        group_names=[f"{label}, digit {fits}" for label in classes for fits in ("agrees", "differs")],
        attribute_names={feature: list(classes), "mnist": [str(k) for k in range(len(classes))]},
        recipe=RECIPE,
        options={"correlation": correlation, "validation": validation, "n": n, "seed": seed},
    )


def _pairs(
    upper: tuple[Tensor, Sequence[Integers]],
    lower: tuple[Tensor, Sequence[Integers]],
    correlation: float,
    names: tuple[str, str],
) -> Split:
    """Each lower image once, below a digit that occurs once; in the order in which the lower images are stored.

    Of the m images of class k, round(correlation m) get a digit k. The others are dealt out in turn to the classes
    k + 1, k + 2, ... (mod K): so every class of digits, too, is used m times.
    """
    (above, digits), (below, pictures) = upper, lower
    feature, part = names
    classes, m = len(pictures), len(pictures[0])
    same = round(correlation * m)
    turn = np.where(np.arange(m) < same, 0, 1 + (np.arange(m) - same) % (classes - 1))
    used = [0] * classes
    rows = []
    for k, members in enumerate(pictures):
        for picture, digit in zip(members, (k + turn) % classes, strict=True):
            rows.append((picture, k, digit, digits[digit][used[digit]]))
            used[digit] += 1
    picture, label, digit, drawn = np.array(sorted(rows), dtype=np.int64).T
    images = torch.cat([_square(above[torch.from_numpy(drawn)]), _square(below[torch.from_numpy(picture)])], 2)
    groups = 2 * label + (digit != label)
    places = Places(picture, "picture")
    return Split(images, label, groups, {feature: label, "mnist": digit}, name=part, places=places)


def _square(images: Tensor) -> Tensor:
    """Images (N, C, H, W) of at most 32 x 32 amid black (N, 3, 32, 32), gray ones in three equal channels."""
    height, width = SIDE - images.shape[2], SIDE - images.shape[3]
    padding = (width // 2, width - width // 2, height // 2, height - height // 2)
    return F.pad(images, padding).expand(-1, 3, -1, -1)


def _shuffled(labels: Integers, label: int, seed: int, purpose: str) -> Integers:
    members: Integers = np.flatnonzero(labels == label)
    return np.random.default_rng(derive(seed, purpose, label)).permutation(members)
