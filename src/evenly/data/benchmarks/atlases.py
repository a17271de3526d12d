"""Atlases: many small images as the tiles of one large one, row by row, with the labels in an .npy file beside it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from evenly.data.images.cache import DecodedFiles, Pixels, Room, load_or_decode
from evenly.data.images.decoding import Decoded, Squeezed, as_json, squeezed
from evenly.data.images.parts import Images, Integers
from evenly.errors import EvenlyError

LARGEST = 16383 * 16383  # what the WebP format can hold
TILE = 32
_limit = threading.Lock()


def cifar10_atlases(folder: Path) -> tuple[Images, Images]:
    """CIFAR-10's training and test images from train_0..4.webp and test.webp, tiles of 32 x 32 in official order.

    They are decoded once and cached, see `evenly.data.images.cache`.
    """
    parts = {"train": [f"train_{i}.webp" for i in range(5)], "test": ["test.webp"]}
    train, test = (
        _labelled(_tiles(folder, part, files), folder / f"{part}_labels.npy") for part, files in parts.items()
    )
    return train, test


def _tiles(folder: Path, part: str, files: Sequence[str]) -> Pixels:
    """The tiles of several atlases, one after the other."""

    def read(_: Room) -> DecodedFiles:
        with ThreadPoolExecutor() as pool:  # Pillow decodes outside the interpreter's lock
            tiles = np.concatenate(list(pool.map(read_atlas, [folder / file for file in files])))
        return DecodedFiles(tiles.shape, tiles)

    cached = load_or_decode(folder, files, {"atlases": part, "tile": TILE}, read)
    assert cached.array is not None  # there is no bound on memory
    return cached.array


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


def decode_atlases(
    folder: Path, files: Sequence[str], counts: Sequence[tuple[int, int]], classes: int, size: Squeezed
) -> tuple[Decoded, Integers]:
    """The images of several atlases, one after the other, brought to a size, with the labels of NAME_labels.npy.

    Args:
        counts: for each atlas the number of its images, which come before empty tiles, and the side of its tiles.
    """

    def read(_: Room) -> DecodedFiles:
        parts = []
        for file, (n, tile) in zip(files, counts, strict=True):
            tiles = read_atlas(folder / file, tile)
            if len(tiles) < n:
                raise EvenlyError(f"{folder / file} has {len(tiles)} tiles for {n} images; get it again")
            parts.append(_resized(tiles[:n], size))
        array = np.concatenate(parts)
        return DecodedFiles(array.shape, array)

    cached = load_or_decode(folder, files, {"atlases": [list(each) for each in counts], "size": as_json(size)}, read)
    assert cached.array is not None  # there is no bound on memory
    labels = [
        _labels(folder / f"{Path(file).stem}_labels.npy", n, classes)
        for file, (n, _) in zip(files, counts, strict=True)
    ]
    names = [f"{file}#{i}" for file, (n, _) in zip(files, counts, strict=True) for i in range(n)]
    shape = (3, size.side, size.side)
    decoded = Decoded(folder, names, np.arange(len(names)), shape, size, torch.from_numpy(cached.array))
    return decoded, np.concatenate(labels)


def _resized(tiles: Pixels, size: Squeezed) -> Pixels:
    from PIL import Image

    if (size.whole, size.whole) == tiles.shape[2:] == (size.side, size.side):
        return tiles
    pictures = [squeezed(Image.fromarray(tile.transpose(1, 2, 0)), size) for tile in tiles]
    return np.ascontiguousarray(np.stack([np.asarray(picture) for picture in pictures]).transpose(0, 3, 1, 2))


def _labelled(tiles: Pixels, path: Path) -> Images:
    return Images(torch.from_numpy(tiles), _labels(path, len(tiles), 10))


def _labels(path: Path, count: int, classes: int) -> Integers:
    try:
        labels = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise EvenlyError(f"{path} cannot be read as plain numbers ({error}); get it again") from None
    if labels.shape != (count,) or labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= classes:
        raise EvenlyError(f"{path} is not {count} labels in 0..{classes - 1}, one for each tile; get it again")
    integers: Integers = labels.astype(np.int64)
    return integers


@contextlib.contextmanager
def _raised_limit() -> Iterator[None]:
    """Raise Pillow's limit on pixels while an atlas is opened."""
    from PIL import Image

    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None if before is None else max(before, LARGEST)
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before
