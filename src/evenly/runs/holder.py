"""Who works in a folder: the process that `.lock` names. Reading takes no lock."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from evenly.errors import InUseError
from evenly.files import remove_partial, writing

LOCK = ".lock"


def write_holder(lock: int, folder: Path) -> None:
    """Name this process in the lock file that it holds, and where the metrics ended when it began."""
    metrics = folder / "metrics.jsonl"
    size = metrics.stat().st_size if metrics.exists() else 0
    who = {"pid": os.getpid(), "process": _process(os.getpid()), "host": platform.node()}
    _write(lock, {**who, "began": time.time(), "metrics_bytes": size})


def leave(lock: int) -> None:
    """Say that nobody writes in the folder any more; the process may live on."""
    _write(lock, {"pid": None})


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a comparison's folder against other processes while this one works there."""
    lock = locked(folder)
    remove_partial(folder)
    try:
        yield
    finally:
        if lock is not None:
            with suppress(OSError):
                (folder / LOCK).unlink(missing_ok=True)
            os.close(lock)


def locked(folder: Path) -> int | None:
    """Open and hold a folder's lock file, until it is closed; refused where another process holds it."""
    if sys.platform == "win32":
        return None  # where two processes in one folder are the user's to avoid
    import fcntl

    with writing(folder / LOCK):
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_nlink:
                write_holder(lock, folder)
                return lock
        except BlockingIOError:
            pass  # another process holds it, or held it when it was opened and has removed it since
        os.close(lock)
    pid = read_holder(folder).get("pid")
    who = "another process" if pid is None else f"another process ({pid})"
    raise InUseError(f"{folder} is in use by {who}; wait for it or choose another out")


def _write(lock: int, content: dict[str, Any]) -> None:
    os.ftruncate(lock, 0)
    os.lseek(lock, 0, os.SEEK_SET)
    os.write(lock, json.dumps(content).encode())


def read_holder(folder: Path) -> dict[str, Any]:
    """What the process that writes in a folder, or wrote there last, said of itself; empty where none did."""
    try:
        content = json.loads((folder / LOCK).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def lives(holder: Mapping[str, Any]) -> bool | None:
    """Whether the process lives; None where that cannot be seen from here."""
    if holder.get("pid", 0) is None:
        return False
    here = holder.get("host") == platform.node() and sys.platform != "win32"
    if not here or not isinstance(pid := holder.get("pid"), int):
        return None
    return (process := _process(pid)) is not None and process == holder.get("process")


def _process(pid: int) -> str | None:
    """What tells a process from a later one of the same number: when it began, where the system says so; None where
    there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]  # one that is over may wait for its parent
    except OSError:
        if Path("/proc/self").exists():
            return None
    if sys.platform == "win32":
        return ""  # where the signal 0 is Ctrl-C
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # another user's
    return ""
