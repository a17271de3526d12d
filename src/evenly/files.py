"""Files that are there whole or not at all, JSON, and the checksums in files that a run relies on.

Archives (.npz, checkpoints) have a CRC of every member by their format, weights have one among their metadata, and JSON
carries its own: the last entry of a file or of a line is the CRC of the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import zlib
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import IO, Any

from evenly.errors import EvenlyError, first_line, shortened

CHECKSUM = "crc32"
AGAIN = "copy the run's folder again, or remove it and train again"
"""The way out where a file of a finished run is damaged."""


@contextlib.contextmanager
def atomic(path: Path, sync: bool = True, previous: Path | None = None) -> Iterator[IO[bytes]]:
    """Write a file that is there whole or not at all; `sync` waits for the disk, against a loss of power.

    Args:
        previous: where the file that is replaced is kept. It is there before the new one takes its place.
    """
    partial = _partial(path)
    try:
        with writing(path), partial.open("wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        with writing(path):
            if previous is not None and path.exists():
                _keep(path, previous)
            partial.replace(path)
        if sync:
            with contextlib.suppress(OSError):  # Windows opens no folders
                folder = os.open(path.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    """Where a file is written before it takes its place; no other process or thread writes there."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial")


def remove_partial(*folders: Path) -> None:
    """Remove what a kill left half-written in folders that nobody else writes into."""
    for left in (each for folder in folders for each in folder.glob(".*.partial")):
        if left.is_file():
            with contextlib.suppress(OSError):
                left.unlink()


def _keep(path: Path, previous: Path) -> None:
    """Give a file a second name, in place of whatever has it; a copy where the disk has no links."""
    link = _partial(previous)
    try:
        link.unlink(missing_ok=True)
        os.link(path, link)
        link.replace(previous)
        link.unlink(missing_ok=True)  # two names of one file, which a kill may have left, are not moved onto each other
    except OSError:
        with path.open("rb") as file, atomic(previous) as copy:
            shutil.copyfileobj(file, copy)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file where the disk is full or it cannot be written for another reason."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__context__  # torch has an error of its own on top
        if not isinstance(cause, OSError):
            raise
        raise EvenlyError(
            f"{path} cannot be written ({cause.strerror or cause}); nothing is lost: make room and run the same "
            "command again, or choose another out"
        ) from None


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically, with a checksum where it names its format.

    NaN is refused rather than written, since no JSON reader has to take it.
    """
    content = sealed(content) if isinstance(content, Mapping) and "format" in content else content
    text = json.dumps(content, indent=2, allow_nan=False)
    with atomic(path) as file:
        file.write(text.encode() + b"\n")


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """JSON with its checksum as the last entry."""
    return {**content, CHECKSUM: f"{zlib.crc32(json.dumps(content, allow_nan=False).encode()):08x}"}


def unsealed(text: str | bytes) -> dict[str, Any]:
    """What `sealed` made into text; a ValueError where it is anything else."""
    return _unsealed(json.loads(text))


def _unsealed(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError("it holds no names and values")
    checksum = content.pop(CHECKSUM, None)
    if checksum is None or sealed(content)[CHECKSUM] != checksum:
        raise ValueError("its checksum is missing" if checksum is None else "its content does not match its checksum")
    return content


def as_path(value: Any, name: str) -> Path:
    """A path that a user gave as `name`."""
    if not isinstance(value, str | Path):
        raise EvenlyError(f"{name} must be a path, got {shortened(value)}")
    return Path(value)


def make_folder(path: Path) -> None:
    """Make a folder and those above it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EvenlyError(f"{path} cannot be made ({error.strerror}); choose another out") from None


def holds_something(path: Path) -> bool:
    """Whether a folder is there and not empty; what a kill left half-written (a dot file) does not count."""
    return path.is_dir() and any(not entry.name.startswith(".") for entry in path.iterdir())


def unused(path: Path) -> Path:
    """A path beside this one where nothing is yet: runs/a-2 for runs/a."""
    return next(other for k in count(2) if not (other := path.with_name(f"{path.name}-{k}")).exists())


def read_json(path: Path, way_out: str = "remove it or choose another out") -> Any:
    """The content of a JSON file, or None where there is none. One that names its format must have its checksum.

    Args:
        way_out: what the user can do where the file is damaged.
    """
    try:
        content = json.loads(path.read_bytes())
        return _unsealed(content) if isinstance(content, dict) and {CHECKSUM, "format"} & content.keys() else content
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EvenlyError(f"{path} cannot be read ({error.strerror}); {way_out}") from None
    except (ValueError, RecursionError) as error:
        raise EvenlyError(f"{path} is damaged ({first_line(error)}); {way_out}") from None
