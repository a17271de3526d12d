"""Image files decoded once into one uint8 array, kept in a cache that is checked against the files.

The cache is an .npy file, mapped into memory when it is read again, and a JSON manifest beside it with every file's
name, size and time of change, and the array's checksum. Where any of them is not as it was, the files are decoded
again. It lies in `.evenly-cache` in the images' own folder; where that cannot be written, in the user's cache folder;
where neither can, there is none. Images too many for memory are decoded one by one, as they are asked for.

Every image is turned upright by its EXIF orientation. Gray images stay gray (C = 1) if all are; else all become RGB,
transparency dropped. 16-bit images keep their upper 8 bits.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from evenly.data.images.parts import Integers, rows
from evenly.data.images.places import whole_file
from evenly.errors import EvenlyError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # none of these starts another program
GRAY = ("L", "LA", "La", "1", "I", "I;16", "I;16L", "I;16B", "I;16N")
CACHE = ".evenly-cache"
VERSION = 1
GIB = 1 << 30
DAY = 86400.0

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Header = tuple[int, int, bool]  # width and height as seen upright, whether gray
Seen = TypeVar("Seen")


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """Images that stay on disk: item i is decoded when asked for, as (uint8 (C, H, W), label)."""

    def __init__(
        self, root: Path, files: Sequence[str], labels: Integers, shape: tuple[int, int, int], size: int | None
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
            raise EvenlyError(f"image {self.root / self.files[i]} cannot be read ({why}); mend it or remove it")
        return torch.from_numpy(pixels), int(self.targets[i])


@dataclass
class Decoded:
    """What became of a list of files: which were read, as one array in memory or one by one, and which were not.

    Args:
        kept: (M,) indices into the list of files, in its order.
        shape: (C, H, W) of every image.
        pixels: (M, C, H, W) uint8, or None where images stay on disk.
        bad: names and causes of the files that could not be read.
    """

    root: Path
    files: Sequence[str]
    kept: Integers
    shape: tuple[int, int, int]
    size: int | None
    pixels: Tensor | None
    bad: list[tuple[str, str]] = field(default_factory=list)

    def part(self, index: Integers, labels: Integers) -> Tensor | ImageFiles:
        """The images at these places among those kept."""
        if self.pixels is not None:
            return rows(self.pixels, index)
        return ImageFiles(self.root, [self.files[i] for i in self.kept[index]], labels, self.shape, self.size)


def decode(
    root: Path,
    files: Sequence[str],
    *,
    size: int | None = None,
    channels: int | None = None,
    memory: float = 4.0,
    skip_bad: bool = False,
) -> Decoded:
    """Decode image files to one shape.

    Args:
        root: the folder that the names in `files` start from, and that the cache lies in.
        size: cut the middle square and bring it to `size` x `size`; without it all images must have one size.
        channels: 1 or 3; without it 1 if all images are gray.
        memory: GiB that the array may take; beyond it images stay on disk.
        skip_bad: leave out files that cannot be read or are larger than Pillow's limit, instead of refusing them.
    """
    if size is not None and size < 1:
        raise EvenlyError(f"size {size} cannot be used; give the side of the images in pixels, 1 or more")
    stats = [_stat(root / file) for file in files]
    manifest: dict[str, Any] = {
        "version": VERSION,
        "size": size,
        "channels": channels,
        "files": [[file, *stat] for file, stat in zip(files, stats, strict=True)],
    }
    places = _places(root, size, channels)
    for place in places:
        if (known := _read_cache(place, manifest, memory)) is not None:
            shape, bad, array = known
            break
    else:
        shape, bad, array = _decode_all(root, files, size, channels, memory)
        _write_cache(places, manifest, shape, bad, array)
    named = [(files[i], why) for i, why in bad.items()]
    if named and not skip_bad:
        raise EvenlyError(
            f"{len(named)} of {len(files)} images in {root} cannot be read: {_listed(named)}; "
            "mend or remove them, or leave them out with skip_bad=True"
        )
    kept = np.array([i for i in range(len(files)) if i not in bad], dtype=np.int64)
    pixels = None if array is None else torch.from_numpy(array)
    return Decoded(root, files, kept, shape, size, pixels, named)


def _decode_all(
    root: Path, files: Sequence[str], size: int | None, channels: int | None, memory: float
) -> tuple[tuple[int, int, int], dict[int, str], Pixels | None]:
    """The one shape, the causes of the files that could not be read, and the array of the others if memory holds it."""
    headers = _over(len(files), lambda i: _attempt(lambda: _header(root / files[i])))
    bad = {i: header for i, header in enumerate(headers) if isinstance(header, str)}
    good = {i: header for i, header in enumerate(headers) if not isinstance(header, str)}
    if not good:
        named = [(files[i], why) for i, why in bad.items()]
        raise EvenlyError(f"none of the {len(files)} images in {root} can be read: {_listed(named)}; mend them")
    if channels is None:
        channels = 1 if all(gray for _, _, gray in good.values()) else 3
    first = next(iter(good))
    width, height = good[first][:2] if size is None else (size, size)
    if size is None:
        for i, header in good.items():
            if header[:2] != (width, height):
                raise EvenlyError(
                    f"images in {root} differ in size: {files[first]} is {width} x {height}, "
                    f"{files[i]} {header[0]} x {header[1]}; give size=..., the side to bring them all to"
                )
    shape = (channels, height, width)
    if len(good) * math.prod(shape) > memory * GIB:
        return shape, bad, None
    array = np.empty((len(good), *shape), dtype=np.uint8)
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
        array = array[[row for row in range(len(members)) if row not in failed]]
        if len(array) == 0:
            named = [(files[i], why) for i, why in sorted(bad.items())]
            raise EvenlyError(f"none of the {len(files)} images in {root} can be read: {_listed(named)}; mend them")
    return shape, dict(sorted(bad.items())), array


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


def _header(path: Path) -> Header:
    from PIL import Image

    with Image.open(path, formats=FORMATS) as image:
        width, height = image.size
        turned = _orientation(image) in (5, 6, 7, 8)  # those on their side
        if image.mode == "F":
            raise ValueError("its pixels are floats, whose range is not known")
        return (height, width, image.mode in GRAY) if turned else (width, height, image.mode in GRAY)


def _orientation(image: Picture) -> int:
    """The EXIF orientation, 1 to 8; of a PNG what stands before its pixels, since Pillow decodes all to look behind."""
    if image.format == "PNG" and not image.info.keys() & {"exif", "Raw profile type exif", "xmp"}:
        return 1
    return int(image.getexif().get(0x0112, 1))


def _decode(path: Path, channels: int, size: int | None) -> Pixels:
    """One image, uint8 (C, H, W)."""
    from PIL import Image, ImageOps

    with Image.open(path, formats=FORMATS) as image:
        upright: Picture = image if _orientation(image) == 1 else ImageOps.exif_transpose(image)
        if upright.mode.startswith("I"):
            upright = Image.fromarray((np.clip(np.asarray(upright), 0, 0xFFFF) >> 8).astype(np.uint8))
        upright = upright.convert("L" if channels == 1 else "RGB")
        if size is not None and upright.size != (size, size):
            upright = ImageOps.fit(upright, (size, size), method=Image.Resampling.BICUBIC)
        pixels = np.asarray(upright)
    return np.array(pixels[None] if channels == 1 else pixels.transpose(2, 0, 1), order="C")


def _listed(named: Sequence[tuple[str, str]]) -> str:
    shown = ", ".join(f"{file!r} ({why})" for file, why in named[:3])
    return shown + (f" and {len(named) - 3} more" if len(named) > 3 else "")


def _stat(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return -1, -1
    return stat.st_size, stat.st_mtime_ns


def _places(root: Path, size: int | None, channels: int | None) -> list[Path]:
    """The manifests that may hold these images, the best place first."""

    def name(*key: Any) -> str:
        return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16] + ".json"

    places = []
    if not (root / CACHE).is_symlink():  # which could lead out of the folder
        places.append(root / CACHE / name(size, channels))
    with contextlib.suppress(RuntimeError):  # a user without a home
        shared = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
        user = Path(shared) if shared else Path.home() / ".cache"
        places.append(user / "evenly" / "images" / name(str(root), size, channels))
    return places


def _read_cache(
    place: Path, manifest: dict[str, Any], memory: float
) -> tuple[tuple[int, int, int], dict[int, str], Pixels | None] | None:
    """What the cache holds, or None where it is absent, damaged, or of other files than these."""
    try:
        kept = json.loads(place.read_bytes())
        if {key: kept[key] for key in manifest} != manifest:
            return None
        bad = {int(i): str(why) for i, why in kept["bad"]}
        count = len(manifest["files"]) - len(bad)
        channels, height, width = (int(side) for side in kept["shape"])
        shape = (channels, height, width)
        if count * math.prod(shape) > memory * GIB:
            return shape, bad, None
        array: Pixels = np.load(place.with_suffix(".npy"), mmap_mode="c", allow_pickle=False)
        whole = array.dtype == np.uint8 and array.shape == (count, *shape) and array.flags.c_contiguous
        if not whole or zlib.crc32(array.data) != kept["crc32"]:
            return None
        return shape, bad, np.asarray(array)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError):
        return None


def _write_cache(
    places: Sequence[Path],
    manifest: dict[str, Any],
    shape: tuple[int, int, int],
    bad: dict[int, str],
    array: Pixels | None,
) -> None:
    """Write the array and then its manifest in the first place that takes them; without one nothing is kept."""
    crc32 = None if array is None else zlib.crc32(array.data)
    content = manifest | {"shape": list(shape), "bad": list(bad.items()), "crc32": crc32}
    for place in places:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            for left in place.parent.glob(".*.partial"):  # by a process that was killed
                if time.time() - left.stat().st_mtime > DAY:
                    left.unlink()
            if array is not None:
                with whole_file(place.with_suffix(".npy")) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
            with whole_file(place) as file:
                file.write(json.dumps(content).encode())
        except OSError:
            continue
        return
