"""Files that are there whole or not at all, and JSON."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import IO, Any

from evenly.errors import EvenlyError


@contextlib.contextmanager
def atomic(path: Path, sync: bool = True) -> Iterator[IO[bytes]]:
    """Write a file that is there whole or not at all; `sync` waits for the disk, against a loss of power."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically; NaN is refused rather than written, since no JSON reader has to take it."""
    text = json.dumps(content, indent=2, allow_nan=False)
    with atomic(path) as file:
        file.write(text.encode() + b"\n")


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


def read_json(path: Path) -> Any:
    """The content of a JSON file, or None where there is none."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise EvenlyError(f"{path} cannot be read ({error}); remove it or choose another out") from None
