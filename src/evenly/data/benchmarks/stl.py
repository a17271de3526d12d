"""STL-10 (Coates, Ng & Lee 2011): 5,000 training and 8,000 test images of 96 x 96 in ten classes, binary files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from evenly.data.benchmarks.places import Folder, find_layout
from evenly.data.images.parts import PHOTOGRAPHS, ImageData, Images, benchmark
from evenly.errors import EvenlyError

CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
SHAPE = (3, 96, 96)
_FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")


def stl10(folder: Folder = None, validation: float = 0.0, n: int | None = None, seed: int = 0) -> ImageData:
    """STL-10's labelled images, uint8 (N, 3, 96, 96), from `folder` or EVENLY_DATA/stl10.

    Args:
        folder: holds train_X.bin, train_y.bin, test_X.bin, test_y.bin, itself or in its stl10_binary.
        validation, n: as in `cifar10`.
    """
    _, place = find_layout("stl10", folder, {"binary": ("stl10_binary", _FILES)})
    about = "STL-10: photographs of 96 x 96 in ten classes of animals and vehicles."
    train, test = (_images(place, name) for name in ("train", "test"))
    return benchmark("stl10", about, train, test, CLASSES, validation=validation, n=n, seed=seed, recipe=PHOTOGRAPHS)


def _images(place: Path, name: str) -> Images:
    """Images are stored channel by channel, each column by column; labels count from 1."""
    size = int(np.prod(SHAPE))
    raw = np.fromfile(place / f"{name}_X.bin", dtype=np.uint8)
    labels = np.fromfile(place / f"{name}_y.bin", dtype=np.uint8).astype(np.int64) - 1
    if len(raw) != len(labels) * size or len(raw) == 0:
        raise EvenlyError(
            f"{place / f'{name}_X.bin'} has {len(raw)} bytes for {len(labels)} labels, not {size} for each; "
            "unpack its archive again"
        )
    if labels.min() < 0 or labels.max() >= len(CLASSES):
        raise EvenlyError(f"labels in {place / f'{name}_y.bin'} are not all in 1..10; unpack its archive again")
    pixels = raw.reshape(-1, *SHAPE).transpose(0, 1, 3, 2)
    return Images(torch.from_numpy(np.ascontiguousarray(pixels)), labels)
