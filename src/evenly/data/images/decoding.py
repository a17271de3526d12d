"""Image files decoded once into one uint8 array, in a cache that is checked against the files (`cache`).

Images too many for memory stay in the cache's file (`MappedRows`). Without a cache they are decoded one by one, as they
are asked for.

Every image is turned upright by its EXIF orientation. Gray images stay gray (C = 1) if all are; else all become RGB,
transparency dropped. 16-bit images keep their upper 8 bits.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import stat
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from attrs import frozen
from torch import Tensor
from torch.utils.data import Dataset

from evenly.data.images.cache import DecodedFiles, Pixels, Room, is_held, load_or_decode
from evenly.data.images.parts import Integers, rows
from evenly.data.mapped import MappedRows
from evenly.errors import EvenlyError, SettingError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # none of these starts another program
GRAY = ("L", "LA", "La", "1", "I", "I;16", "I;16L", "I;16B", "I;16N")

MEMORY = 4.0
"""GiB of pixels up to which images are held in memory, if it is free (`HOST_SHARE`)."""

Header = tuple[int, int, bool]  # width and height as seen upright, whether gray
Seen = TypeVar("Seen")


class Squeezed(NamedTuple):
    """A size to bring images to: the whole image to `whole` x `whole`, then its middle `side` x `side` cut out."""

    side: int
    whole: int


class Fitted(NamedTuple):
    """A size to bring images to: the largest middle part of its shape, scaled. An image of that size stays as it is."""

    height: int
    width: int


Size = int | Squeezed | Fitted | None
"""The side of the middle square to bring to that size, or `Squeezed` or `Fitted`, or the size that all images have."""


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """Images that stay on disk: item i is decoded when asked for, as (uint8 (C, H, W), label)."""

    def __init__(
        self, root: Path, files: Sequence[str], labels: Integers, shape: tuple[int, int, int], size: Size
    ) -> None:
        self.root, self.files, self.shape, self.size = root, list(files), shape, size
        self.targets = torch.from_numpy(np.asarray(labels, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        with _watching():
            pixels = _attempt(lambda: _decode(self.root / self.files[i], self.shape[0], self.size))
        if isinstance(pixels, str) or pixels.shape != self.shape:
            why = pixels if isinstance(pixels, str) else f"now {pixels.shape}, was {self.shape}"
            raise EvenlyError(f"image {self.root / self.files[i]} cannot be read ({why}); replace it or remove it")
        return torch.from_numpy(pixels), int(self.targets[i])

    def fingerprint(self) -> str:
        """Sixteen hex digits of the files' names, sizes and beginnings, and of how they are decoded."""
        digest = hashlib.sha256(repr((self.shape, self.size)).encode())
        for file in self.files:
            with (self.root / file).open("rb") as opened:
                digest.update(f"{file} {os.fstat(opened.fileno()).st_size}".encode())
                digest.update(opened.read(BEGINNING))
        return digest.hexdigest()[:16]


BEGINNING = 1 << 16
"""Bytes of a file that tell it from another of its name and size."""
MOST_BYTES = 1 << 28
"""Bytes that an image in an archive may unpack to before it is decoded."""


@dataclass
class Decoded:
    """A list of files: those that can be read, as one array in memory or one by one, and those that cannot.

    Args:
        readable: (M,) indices into the list of files, in its order.
        shape: (C, H, W) of every image.
        pixels: (M, C, H, W) uint8 in memory or in the cache's file; None where they are decoded as they are asked for.
        bad: names and causes of the files that could not be read.
    """

    root: Path
    files: Sequence[str]
    readable: Integers
    shape: tuple[int, int, int]
    size: Size
    pixels: Tensor | np.memmap[Any, Any] | None
    bad: list[tuple[str, str]] = field(default_factory=list)

    def part(self, index: Integers, labels: Integers) -> Tensor | MappedRows | ImageFiles:
        """The images at these places among the readable ones."""
        if isinstance(self.pixels, Tensor):
            return rows(self.pixels, index)
        if self.pixels is not None:
            return MappedRows(self.pixels, index, labels)
        return ImageFiles(self.root, [self.files[i] for i in self.readable[index]], labels, self.shape, self.size)


@frozen(kw_only=True)
class Reading:
    """How image files are decoded.

    Args:
        size: cut the middle square and bring it to `size` x `size`, or as `Squeezed` says; without it all images must
            have one size.
        channels: 1 or 3; without it 1 if all images are gray.
        memory: GiB that the array may take in memory; beyond it images stay on disk.
        skip_bad: leave out files that cannot be read or are larger than Pillow's limit, instead of refusing them.
    """

    size: Size = None
    channels: int | None = None
    memory: float = MEMORY
    skip_bad: bool = False

    def __attrs_post_init__(self) -> None:
        if self.size is not None and (side := min(_extent(self.size))) < 1:
            raise SettingError("size", side, "at least 1, the side of the images in pixels")


DEFAULT = Reading()


def decode(root: Path, files: Sequence[str], reading: Reading = DEFAULT, *, cache: bool = True) -> Decoded:
    """Decode image files to one shape.

    Args:
        root: the folder that the names in `files` start from.
        cache: store the array on disk for the next time.
    """
    size, channels = reading.size, reading.channels
    how = {"size": as_json(size), "channels": channels}

    def repaired(i: int) -> bool:
        return not isinstance(_attempt(lambda: _decode(root / files[i], channels or 3, size)), str)

    def read(room: Room) -> DecodedFiles:
        return _decode_all(root, files, reading, room)

    def in_memory(shape: tuple[int, ...]) -> Pixels | None:
        return np.empty(shape, dtype=np.uint8) if is_held(math.prod(shape), reading.memory) else None

    images = load_or_decode(root, files, how, read, reading.memory, repaired) if cache else read(in_memory)
    named = [(files[i], why) for i, why in images.bad.items()]
    if named and not reading.skip_bad:
        raise EvenlyError(
            f"{len(named)} of {len(files)} images in {root} cannot be read: {_listed(named)}; "
            "replace or remove them, or leave them out with skip_bad=True"
        )
    good = np.array([i for i in range(len(files)) if i not in images.bad], dtype=np.int64)
    array = images.array
    pixels = array if array is None or isinstance(array, np.memmap) else torch.from_numpy(array)
    return Decoded(root, files, good, (images.shape[1], images.shape[2], images.shape[3]), size, pixels, named)


def decode_zip(path: Path, files: Sequence[str], *, size: Size = None) -> Decoded:
    """Decode the image files of these names in a zip archive to one shape (3, H, W), all in memory."""
    Reading(size=size)  # checks it
    how = {"zip": path.name, "size": as_json(size), "files": hashlib.sha256("\n".join(files).encode()).hexdigest()}
    images = load_or_decode(path.parent, [path.name], how, lambda _: _decode_zipped(path, files, size))
    assert images.array is not None  # there is no bound on memory
    shape = (images.shape[1], images.shape[2], images.shape[3])
    return Decoded(path.parent, files, np.arange(len(files)), shape, size, torch.from_numpy(images.array))


def _decode_zipped(path: Path, files: Sequence[str], size: Size) -> DecodedFiles:
    try:
        with zipfile.ZipFile(path) as archive:
            here = set(archive.namelist())

            def read(i: int) -> Pixels:
                if files[i] not in here:
                    raise FileNotFoundError
                if (length := archive.getinfo(files[i]).file_size) > MOST_BYTES:
                    raise ValueError(f"{length} bytes")
                return _decode(io.BytesIO(archive.read(files[i])), 3, size)

            images = _over(len(files), lambda i: _attempt(lambda: read(i)))
    except (OSError, zipfile.BadZipFile) as error:
        raise EvenlyError(f"{path} cannot be read as a zip archive ({error}); get it again") from None
    if bad := [(file, image) for file, image in zip(files, images, strict=True) if isinstance(image, str)]:
        raise EvenlyError(f"{len(bad)} of {len(files)} images in {path} cannot be read: {_listed(bad)}; get it again")
    arrays = [image for image in images if not isinstance(image, str)]
    if strange := next((i for i, image in enumerate(arrays) if image.shape != arrays[0].shape), None):
        raise EvenlyError(
            f"images in {path} differ in size: {files[0]} is {arrays[0].shape[1:]}, {files[strange]} "
            f"{arrays[strange].shape[1:]}; bring all to one size with e.g. size=64"
        )
    array = np.stack(arrays)
    return DecodedFiles(array.shape, array)


def _decode_all(root: Path, files: Sequence[str], reading: Reading, room: Room) -> DecodedFiles:
    """The array of the files that could be read, if there is room for it, and why the others could not."""
    headers = _over(len(files), lambda i: _attempt(lambda: _header(root / files[i])))
    bad = {i: header for i, header in enumerate(headers) if isinstance(header, str)}
    good = {i: header for i, header in enumerate(headers) if not isinstance(header, str)}
    if not good:
        raise _unreadable(root, files, bad)
    size, channels = reading.size, reading.channels or (1 if all(gray for _, _, gray in good.values()) else 3)
    first = next(iter(good))
    height, width = good[first][1::-1] if size is None else _extent(size)
    if size is None:
        for i, header in good.items():
            if header[:2] != (width, height):
                raise EvenlyError(
                    f"images in {root} differ in size: {files[first]} is {width} x {height}, "
                    f"{files[i]} {header[0]} x {header[1]}; bring all to one size with e.g. size=64"
                )
    shape = (channels, height, width)
    if (free := room((len(good), *shape))) is None:
        return DecodedFiles((len(good), *shape), None, bad)
    array = free
    members = list(good)

    def place(row: int) -> str | None:
        pixels = _attempt(lambda: _decode(root / files[members[row]], channels, size))
        if isinstance(pixels, str):
            return pixels
        if pixels.shape != shape:
            return "changed while it was read"
        array[row] = pixels
        return None

    failed = {row: why for row, why in enumerate(_over(len(members), place)) if why is not None}
    if failed:
        bad |= {members[row]: why for row, why in failed.items()}
        rest = [row for row in range(len(members)) if row not in failed]
        if not rest:
            raise _unreadable(root, files, bad)
        for to, row in enumerate(rest):  # within the array, which may be a file
            array[to] = array[row]
        array = array[: len(rest)]
    return DecodedFiles(array.shape, array, dict(sorted(bad.items())))


def _unreadable(root: Path, files: Sequence[str], bad: Mapping[int, str]) -> EvenlyError:
    named = [(files[i], why) for i, why in sorted(bad.items())]
    return EvenlyError(f"none of the {len(files)} images in {root} can be read: {_listed(named)}; replace them")


def _over(count: int, work: Callable[[int], Seen]) -> list[Seen]:
    """work(i) for every i, in threads: Pillow decodes outside the interpreter's lock."""
    chunks = [range(start, min(start + 64, count)) for start in range(0, count, 64)]
    with _watching(), ThreadPoolExecutor(min(os.cpu_count() or 1, 32)) as pool:
        try:
            return [seen for chunk in pool.map(lambda part: [work(i) for i in part], chunks) for seen in chunk]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@contextlib.contextmanager
def _watching() -> Iterator[None]:
    """Images beyond Pillow's limit on pixels are errors, not warnings; its other warnings are not passed on."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _attempt(read: Callable[[], Seen]) -> Seen | str:
    """What a reader returns, or in words why it could not: a damaged image can raise anything."""
    from PIL import Image, UnidentifiedImageError

    try:
        return read()
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return f"more than Pillow's limit of {Image.MAX_IMAGE_PIXELS} pixels"
    except UnidentifiedImageError:
        return "not an image of a kind that is read"
    except FileNotFoundError:
        return "no such file"
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__


def _opened(path: Path | IO[bytes]) -> Picture:
    from PIL import Image

    if isinstance(path, Path) and not stat.S_ISREG(path.stat().st_mode):  # a pipe would wait for someone to write
        raise ValueError("a pipe, a socket or a device, and not a file")
    return Image.open(path, formats=FORMATS)


def _header(path: Path) -> Header:
    with _opened(path) as image:
        width, height = image.size
        turned = _orientation(image) in (5, 6, 7, 8)  # those on their side
        if image.mode == "F":
            raise ValueError("its pixels are floats, whose range is not known")
        return (height, width, image.mode in GRAY) if turned else (width, height, image.mode in GRAY)


def largest_side(path: Path) -> int:
    """The larger side of an image in pixels; 0 where it cannot be read."""
    with _watching():
        header = _attempt(lambda: _header(path))
    return 0 if isinstance(header, str) else max(header[:2])


def _orientation(image: Picture) -> int:
    """The EXIF orientation, 1 to 8; of a PNG what stands before its pixels, since Pillow decodes all to look behind."""
    if image.format == "PNG" and not image.info.keys() & {"exif", "Raw profile type exif", "xmp"}:
        return 1
    return int(image.getexif().get(0x0112, 1))


def _decode(path: Path | IO[bytes], channels: int, size: Size) -> Pixels:
    """One image file, uint8 (C, H, W)."""
    with _opened(path) as image:
        return _pixels(image, channels, size)


def pixels_of(images: Sequence[Picture], channels: int, size: Size) -> list[Pixels]:
    """Opened images, each uint8 (C, H, W), by the rules for image files."""
    with _watching():
        return [_readable(i, _attempt(partial(_pixels, image, channels, size))) for i, image in enumerate(images)]


def _readable(i: int, pixels: Pixels | str) -> Pixels:
    if isinstance(pixels, str):
        raise EvenlyError(f"image {i} cannot be read ({pixels}); replace it or leave it out")
    return pixels


def _pixels(image: Picture, channels: int, size: Size) -> Pixels:
    from PIL import Image, ImageOps

    if image.mode == "F":
        raise ValueError("its pixels are floats, whose range is not known")
    upright: Picture = image if _orientation(image) == 1 else ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):
        upright = Image.fromarray((np.clip(np.asarray(upright), 0, 0xFFFF) >> 8).astype(np.uint8))
    upright = upright.convert("L" if channels == 1 else "RGB")
    if isinstance(size, Squeezed):
        upright = squeezed(upright, size)
    elif size is not None and upright.size != (to := _extent(size)[::-1]):
        upright = ImageOps.fit(upright, to, method=Image.Resampling.BICUBIC)
    pixels = np.asarray(upright)
    return np.array(pixels[None] if channels == 1 else pixels.transpose(2, 0, 1), order="C")


def squeezed(image: Picture, size: Squeezed) -> Picture:
    """As torchvision's Resize((whole, whole)) and CenterCrop(side)."""
    from PIL import Image

    edge = round((size.whole - size.side) / 2)
    whole = image.resize((size.whole, size.whole), Image.Resampling.BILINEAR)
    return whole.crop((edge, edge, edge + size.side, edge + size.side))


def _extent(size: int | Squeezed | Fitted) -> tuple[int, int]:
    """The height and width that images are brought to."""
    if isinstance(size, Fitted):
        return size
    return (size.side, size.side) if isinstance(size, Squeezed) else (size, size)


def as_json(size: Size) -> int | list[int] | None:
    """A size as JSON has it."""
    return list(size) if isinstance(size, tuple) else size


def _listed(named: Sequence[tuple[str, str]]) -> str:
    first = ", ".join(f"{file!r} ({why})" for file, why in named[:3])
    return first + (f" and {len(named) - 3} more" if len(named) > 3 else "")
