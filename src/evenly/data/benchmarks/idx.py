"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017): idx files, packed with gzip or not.

An idx file is two zero bytes, a byte for the type (8: unsigned bytes), a byte for the number of dimensions, each
dimension as a big-endian 32-bit number, then the values.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch

from evenly.data.benchmarks.places import Folder, find_layout
from evenly.data.images.parts import FEW_STROKES, ImageData, Images, benchmark
from evenly.errors import EvenlyError

FASHION_CLASSES = (
    *("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
_FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
_LAYOUTS = {".gz": ("", tuple(f"{file}.gz" for file in _FILES)), "": ("", _FILES)}
MOST_BYTES = 1 << 32


def mnist(folder: Folder = None, validation: float = 0.0, n: int | None = None, seed: int = 0) -> ImageData:
    """MNIST, uint8 (N, 1, 28, 28), 60,000 training and 10,000 test images, from `folder` or EVENLY_DATA/mnist.

    Args:
        folder: holds the four idx files, packed (.gz) or not.
        validation, n: as in `cifar10`.
    """
    about = "MNIST: handwritten digits of 28 x 28."
    return _read("mnist", about, [str(digit) for digit in range(10)], folder, validation, n, seed)


def fashion_mnist(folder: Folder = None, validation: float = 0.0, n: int | None = None, seed: int = 0) -> ImageData:
    """Fashion-MNIST, uint8 (N, 1, 28, 28), as MNIST, from `folder` or EVENLY_DATA/fashion-mnist.

    The arguments are those of `mnist`.
    """
    about = "Fashion-MNIST: articles of clothing of 28 x 28 in ten classes."
    return _read("fashion-mnist", about, FASHION_CLASSES, folder, validation, n, seed)


def _read(
    name: str, about: str, classes: Any, folder: Folder, validation: float, n: int | None, seed: int
) -> ImageData:
    packed, place = find_layout(name, folder, _LAYOUTS)
    train, test = (_images(place, part, packed) for part in ("train", "t10k"))
    return benchmark(name, about, train, test, classes, validation=validation, n=n, seed=seed, recipe=FEW_STROKES)


def _images(place: Path, part: str, packed: str) -> Images:
    pixels = read_idx(place / f"{part}-images-idx3-ubyte{packed}", 3)
    labels = read_idx(place / f"{part}-labels-idx1-ubyte{packed}", 1)
    if len(pixels) != len(labels) or len(labels) == 0:
        raise EvenlyError(f"{part} in {place} has {len(pixels)} images and {len(labels)} labels; get these files again")
    if labels.max() >= 10:
        raise EvenlyError(f"{part} in {place} has the label {labels.max()}, not 0..9; get these files again")
    return Images(torch.from_numpy(pixels)[:, None], labels.astype(np.int64))


def read_idx(path: Path, dimensions: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The unsigned bytes in an idx file of that many dimensions; writable, in the file's order."""
    try:
        with _opened(path) as file:
            header = file.read(4 + 4 * dimensions)
            if header[:4] != bytes((0, 0, 8, dimensions)) or len(header) < 4 + 4 * dimensions:
                raise EvenlyError(f"{path} is not an idx file of bytes in {dimensions} dimensions; get it again")
            shape = struct.unpack(f">{dimensions}I", header[4:])
            if (size := math.prod(shape)) > MOST_BYTES:
                raise EvenlyError(f"{path} claims {size} bytes ({shape}); get it again")
            values = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise EvenlyError(f"{path} cannot be read ({error}); get it again") from None
    if len(values) != size:
        raise EvenlyError(
            f"{path} holds {'more' if len(values) > size else 'fewer'} than its {size} values; get it again"
        )
    return np.frombuffer(bytearray(values), np.uint8).reshape(shape)


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")
