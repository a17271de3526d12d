"""Atlases: many small images as the tiles of one large one, row by row, with the labels in an .npy file beside it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from evenly.data.images.cache import Kept, Pixels, kept
from evenly.data.images.parts import Images
from evenly.errors import EvenlyError

LARGEST = 16383 * 16383  # what the WebP format can hold
TILE = 32
_limit = threading.Lock()


def cifar10_atlases(folder: Path) -> tuple[Images, Images]:
    """CIFAR-10's training and test images from train_0..4.webp and test.webp, tiles of 32 x 32 in official order.

    They are decoded once and kept in a cache, see `evenly.data.images.cache`.
    """
    parts = {"train": [f"train_{i}.webp" for i in range(5)], "test": ["test.webp"]}
    train, test = (
        _labelled(_tiles(folder, part, files), folder / f"{part}_labels.npy") for part, files in parts.items()
    )
    return train, test


def _tiles(folder: Path, part: str, files: Sequence[str]) -> Pixels:
    """The tiles of several atlases, one after the other."""

    def read() -> Kept:
        with ThreadPoolExecutor() as pool:  # Pillow decodes outside the interpreter's lock
            tiles = np.concatenate(list(pool.map(read_atlas, [folder / file for file in files])))
        return Kept(tiles.shape, tiles)

    known = kept(folder, files, {"atlases": part, "tile": TILE}, read)
    assert known.array is not None  # there is no bound on memory
    return known.array


def read_atlas(path: Path, tile: int = TILE) -> Pixels:
    """All tiles of an atlas, uint8 (N, 3, tile, tile), row by row; lossless files come back bit for bit."""
    from PIL import Image

    try:
        with _limit, _raised_limit():  # only the opening is checked against the limit
            image = Image.open(path, formats=("WEBP", "PNG"))
        with image:
            if image.width % tile or image.height % tile:
                raise EvenlyError(f"{path} is {image.width} x {image.height}, not tiles of {tile}; get it again")
            pixels = np.asarray(image.convert("RGB"))
    except EvenlyError:
        raise
    except Exception as error:  # a damaged image can raise anything
        raise EvenlyError(f"{path} cannot be read as an atlas ({type(error).__name__}); get it again") from None
    rows, columns = pixels.shape[0] // tile, pixels.shape[1] // tile
    tiles = pixels.reshape(rows, tile, columns, tile, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(tiles).reshape(-1, 3, tile, tile)


def _labelled(tiles: Pixels, path: Path) -> Images:
    try:
        labels = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise EvenlyError(f"{path} cannot be read as plain numbers ({error}); get it again") from None
    if labels.shape != (len(tiles),) or labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() > 9:
        raise EvenlyError(f"{path} is not {len(tiles)} labels in 0..9, one for each tile; get it again")
    return Images(torch.from_numpy(tiles), labels.astype(np.int64))


@contextlib.contextmanager
def _raised_limit() -> Iterator[None]:
    """Pillow's limit on pixels, raised for as long as an atlas is opened and put back as it was."""
    from PIL import Image

    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None if before is None else max(before, LARGEST)
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before
