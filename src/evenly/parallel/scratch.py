"""Folders of runs between machines that share no disk: written in a scratch folder there, brought back whole.

A worker that does not find the driver's token in the comparison's folder sees another disk. It then trains in a folder
under its own temporary folder, named after the comparison and the run, so that a run which is begun again on that
machine goes on from its last checkpoint.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath, PureWindowsPath
from uuid import uuid4

from attrs import frozen

from evenly.errors import EvenlyError
from evenly.files import make_folder, writing

Files = Mapping[str, bytes]
"""The files of a folder by their path in it, with / between its parts."""


@frozen
class Token:
    """What tells whether a worker sees the driver's folder: a file there that nobody else can have written."""

    folder: Path
    name: str
    comparison: str

    @property
    def seen(self) -> bool:
        """Whether the folder under this path is the driver's."""
        return (self.folder / self.name).exists()

    @property
    def scratch(self) -> Path:
        """The folder that stands for the driver's on a machine that does not see it."""
        user = os.getuid() if hasattr(os, "getuid") else "user"
        return Path(tempfile.gettempdir()) / f"evenly-{user}" / self.comparison

    def own_scratch(self) -> Path:
        """The same, in a folder that only this user can look into; refused where another one has made it."""
        own = self.scratch.parent
        with writing(own):
            own.mkdir(mode=0o700, exist_ok=True)
            there = own.lstat()
            if not stat.S_ISDIR(there.st_mode) or (hasattr(os, "getuid") and there.st_uid != os.getuid()):
                raise EvenlyError(
                    f"{own} on {platform.node()} is no folder of this user; remove it, or start Ray there with TMPDIR "
                    "set to another folder"
                )
            own.chmod(0o700)
        return self.scratch


@contextmanager
def token_in(folder: Path) -> Iterator[Token]:
    """A token in the driver's folder while the workers are at work."""
    config = folder / "config.json"
    content = config.read_bytes() if config.exists() else b""
    comparison = hashlib.sha256(str(folder.resolve()).encode() + content).hexdigest()[:16]
    token = Token(folder.resolve(), f".token-{uuid4().hex}", comparison)
    make_folder(folder)
    with writing(folder / token.name):
        (folder / token.name).touch()
    try:
        yield token
    finally:
        with suppress(OSError):
            (folder / token.name).unlink(missing_ok=True)


def packed(folder: Path) -> Files:
    """The files of a finished run; not the lock."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def unpack(files: Files, folder: Path) -> None:
    """Write the files of a folder, which is there whole or not at all; it takes the place of an unfinished one."""
    for name in files:
        if not _stays_inside(name):
            raise EvenlyError(f"a worker sent a file called {name!r}, which leaves {folder}; nothing was written")
    partial, earlier = (folder.with_name(f".{folder.name}.{kind}") for kind in ("partial", "earlier"))
    shutil.rmtree(partial, ignore_errors=True)
    with writing(folder):
        for name, content in files.items():
            path = partial / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if folder.exists():
            shutil.rmtree(earlier, ignore_errors=True)
            folder.replace(earlier)
        partial.replace(folder)
    shutil.rmtree(earlier, ignore_errors=True)


def _stays_inside(name: str) -> bool:
    """Whether a name is a plain path below a folder, on any system."""
    parts = PurePosixPath(name).parts
    windows = PureWindowsPath(name)
    return bool(parts) and not ({"..", "/"} & {*parts, *windows.parts} or windows.drive or windows.root)


def remove_scratch(folder: Path) -> None:
    """Remove a run's scratch folder, and those of the comparison that are empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        for path in list(folder.parents)[:2]:
            path.rmdir()
