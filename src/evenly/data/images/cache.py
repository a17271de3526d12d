"""Decoded images cached as one array, checked against the files they came from.

The cache is an .npy file, mapped into memory when it is read again, and a JSON manifest beside it with every file's
name, size and modification time, how the files were decoded, and the array's checksum. If any of these differs, the
files are decoded again. The cache lies in the user's cache folder (`cache_folder`), never beside the images; if that
cannot be written, there is none. Both files are written whole or not at all, the manifest last, so that several
processes at once each read an array that fits their files, or decode them themselves.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import shutil
import sys
import tempfile
import threading
import time
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from attrs import frozen

from evenly.data.mapped import fits_memory
from evenly.errors import EvenlyError, EvenlyWarning

log = logging.getLogger("evenly")

VERSION = 4
MANY = 1000
"""Images whose decoding takes long enough to say so."""
GIB = 1 << 30
DAY = 86400.0
WRITE = 0o222  # the mode bits that let anybody write

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Room = Callable[[tuple[int, ...]], Pixels | None]
"""From a shape to an array to decode into; None where there is no space for it."""


@dataclass
class DecodedFiles:
    """The images of a list of files.

    Args:
        shape: (N, C, H, W) of all images that could be read.
        array: uint8 of that shape, a `numpy.memmap` where it stays in its file; None where it can be had nowhere.
        bad: for each file that could not be read, by its index in the list, why.
    """

    shape: tuple[int, ...]
    array: Pixels | None
    bad: dict[int, str] = field(default_factory=dict)


def load_or_decode(
    root: Path,
    files: Sequence[str],
    how: Mapping[str, Any],
    make: Callable[[Room], DecodedFiles],
    memory: float = math.inf,
    repaired: Callable[[int], bool] = lambda i: False,
) -> DecodedFiles:
    """The array of these files: from the cache where it is theirs and whole, else made and put there.

    Args:
        root: the folder that the names in `files` start from.
        how: what else decides the array, as JSON; there is an array for each.
        make: decodes the files, in an array that `room` gives for its shape or one of its own.
        memory: GiB that the array may take; a larger one stays in the file.
        repaired: whether file i, which could not be read, can be now; rights change without the file.
    """
    folder = os.path.realpath(root)
    stats = [[file, *_stat(root / file)] for file in files]
    manifest = {"version": VERSION, "folder": folder, "how": dict(how), "files": stats}
    name = hashlib.sha256(json.dumps([folder, dict(how)]).encode()).hexdigest()[:16]
    place = cache_folder() / "images" / f"{name}.json"
    if (stored := _read(place, manifest, memory)) is not None and not any(map(repaired, stored.bad)):
        return stored
    if len(files) >= MANY:
        log.info("decoding %s images of %s", f"{len(files):,}", root)
    partial = place.with_name(f".{place.stem}-{os.getpid()}-{threading.get_ident()}.partial")
    try:
        decoded = make(lambda shape: _room(partial, shape, memory))
        try:
            _write(place, manifest, decoded)
        except OSError as error:
            warnings.warn(_unkept(place.parent, error), EvenlyWarning, stacklevel=2)
            return decoded
    finally:
        with contextlib.suppress(OSError):  # it was given its name, or was never made
            partial.unlink()
    if isinstance(decoded.array, np.memmap):
        decoded.array = np.load(place.with_suffix(".npy"), mmap_mode="r", allow_pickle=False)
    return decoded


def _unkept(folder: Path, error: OSError) -> str:
    return (
        f"decoded images cannot be kept in {folder} ({error.strerror}) and are decoded anew each time; free space, or "
        "name another folder in the environment variable EVENLY_CACHE"
    )


def is_held(size: int, memory: float) -> bool:
    """Whether so many bytes are held in memory, which may take up to `memory` GiB; always where that is infinite."""
    return memory == math.inf or (size <= memory * GIB and fits_memory(size))


def _room(partial: Path, shape: tuple[int, ...], memory: float) -> Pixels | None:
    """An array of this shape: in memory or, where it is to stay in a file, there; None if there is no space for it."""
    if is_held(math.prod(shape), memory):
        return np.empty(shape, dtype=np.uint8)
    try:
        _prepare(partial.parent)
        array: Pixels = np.lib.format.open_memmap(partial, "w+", np.uint8, shape)
        with partial.open("r+b") as file:
            reserve(file)
    except OSError as error:
        warnings.warn(_unkept(partial.parent, error), EvenlyWarning, stacklevel=2)
        return None
    return array


def reserve(file: IO[bytes]) -> None:
    """Reserve the space of a file that has holes: to write into a mapped one on a full disk ends the process."""
    size = os.fstat(file.fileno()).st_size
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    elif shutil.disk_usage(file.name).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def cache_folder() -> Path:
    """The folder for what can be made again: `$EVENLY_CACHE`, or the system's own place for it."""
    if own := os.environ.get("EVENLY_CACHE"):
        return Path(own)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or "~/AppData/Local").expanduser() / "evenly" / "Cache"
    system = "~/Library/Caches" if sys.platform == "darwin" else os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with contextlib.suppress(RuntimeError):
        return Path(system).expanduser() / "evenly"
    return Path(os.devnull)  # a user without a home keeps nothing


@frozen
class Cached:
    """An array in the cache: the folder or archive it was decoded from, its bytes on disk, when it was written."""

    data: str
    size: int
    written: float


def cached_arrays(*, clear: bool = False) -> list[Cached]:
    """What the cache holds, the newest first; cleared if asked."""
    arrays = []
    for manifest in (cache_folder() / "images").glob("*.json"):
        files = [path for path in (manifest, manifest.with_suffix(".npy")) if path.exists()]
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError
        ):  # another process may be clearing it as well
            content = json.loads(manifest.read_bytes())
            data = str(Path(content["folder"], content["how"].get("zip", "")))
            arrays.append(Cached(data, sum(path.stat().st_size for path in files), manifest.stat().st_mtime))
    if clear:
        shutil.rmtree(cache_folder() / "images", ignore_errors=True)
    return sorted(arrays, key=lambda each: -each.written)


class Scratch:
    """A file in the cache for an array of this process, removed when nobody holds the array any more."""

    def __init__(self) -> None:
        try:
            _prepare(cache_folder() / "images")
            handle, name = tempfile.mkstemp(dir=cache_folder() / "images", prefix=".", suffix=".partial")
        except OSError as error:
            raise self._full(error) from None
        self.path, self.file = Path(name), os.fdopen(handle, "r+b")

    def write(self, part: np.ndarray[Any, Any]) -> None:
        """Write at the end."""
        try:
            self.file.write(np.ascontiguousarray(part).data)
        except OSError as error:
            raise self._full(error) from None

    def array(self, dtype: Any, shape: tuple[int, ...]) -> np.memmap[Any, Any]:
        """What was written as an array, with zeros after its end."""
        try:
            self.file.truncate(math.prod(shape) * np.dtype(dtype).itemsize)
            reserve(self.file)
        except OSError as error:
            raise self._full(error) from None
        self.file.close()
        array: np.memmap[Any, Any] = np.memmap(self.path, dtype, "r+", shape=shape)
        weakref.finalize(array, _remove, self.path, os.getpid())
        return array

    def _full(self, error: OSError) -> EvenlyError:
        return EvenlyError(
            f"the table does not fit in memory, nor in {cache_folder()} ({error.strerror}); free space, or name "
            "another folder in the environment variable EVENLY_CACHE"
        )


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:  # a forked process has the array as well
        path.unlink(missing_ok=True)


def _stat(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return -1, -1
    return stat.st_size, stat.st_mtime_ns


def _read(place: Path, manifest: Mapping[str, Any], memory: float) -> DecodedFiles | None:
    """What the cache holds, or None where it is absent, damaged, or of other files than these."""
    try:
        content = json.loads(place.read_bytes())
        if {key: content[key] for key in manifest} != manifest or content["checksum"] != _checksum(
            content["shape"], content["bad"]
        ):
            return None
        bad = {int(i): str(reason) for i, reason in content["bad"]}
        count, channels, height, width = (int(side) for side in content["shape"])
        shape = (count, channels, height, width)
        held = is_held(math.prod(shape), memory)
        array: Pixels = np.load(place.with_suffix(".npy"), mmap_mode="c" if held else "r", allow_pickle=False)
        whole = array.dtype == np.uint8 and array.shape == shape and array.flags.c_contiguous
        if not whole or zlib.crc32(array.data) != content["crc32"]:
            return None
        return DecodedFiles(shape, np.asarray(array) if held else array, bad)
    except Exception:  # a damaged file can raise anything
        return None


def _checksum(shape: Any, bad: Any) -> int:
    """A checksum of what the manifest says about the array, so that a half-changed one is not used."""
    return zlib.crc32(json.dumps([shape, bad]).encode())


def _write(place: Path, manifest: Mapping[str, Any], decoded: DecodedFiles) -> None:
    """Write the array and then its manifest."""
    if decoded.array is None:
        return
    array, shape, bad = decoded.array, list(decoded.shape), [list(item) for item in decoded.bad.items()]
    content = {**manifest, "shape": shape, "bad": bad, "checksum": _checksum(shape, bad)}
    content["crc32"] = zlib.crc32(array.data)
    _prepare(place.parent)
    if isinstance(array, np.memmap):
        _finish(array, place.with_suffix(".npy"))
    else:
        with whole_file(place.with_suffix(".npy")) as file:
            np.lib.format.write_array(file, array, allow_pickle=False)
    with whole_file(place) as file:
        file.write(json.dumps(content).encode())


def _prepare(folder: Path) -> None:
    """Make a folder of the cache, without what a process that was killed has left there."""
    if not next(above for above in (folder, *folder.parents) if above.exists()).stat().st_mode & WRITE:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))  # root could write there all the same
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".*.partial"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > DAY:
                left.unlink()


def _finish(array: np.memmap[Any, Any], path: Path) -> None:
    """Give the file of an array its name; the array may be the first rows of what was made."""
    array.flush()
    partial = Path(str(array.filename))
    with partial.open("r+b") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(file, header)  # as long as before: numpy leaves space for other counts
        os.fsync(file.fileno())
    partial.chmod(0o644)
    partial.replace(path)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that is there whole or not at all; several processes may write the same one, the last wins."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(0o644)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
