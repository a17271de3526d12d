"""A connection to Ray: a cluster of its own on this machine, one at an address, or the one the process has already."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from evenly.errors import EvenlyError
from evenly.parallel.processes import cores

CONNECT = 30.0
"""Seconds in which a cluster has to answer."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # that of a process of --jobs; Ray would give way to everything else
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Set while Ray starts, where the user has not set them."""
PROBE = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


@contextmanager
def connected(address: str | None, at_once: int = 1) -> Iterator[None]:
    """Ray, until the end of the block: only what was started or connected here is ended there.

    Args:
        address: of a cluster, as host:port or "auto"; None is the one that RAY_ADDRESS names, else this machine.
        at_once: tasks that a cluster on this machine is to take at least.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    folder = None
    values: dict[str, Any] = {"address": address}
    if address == "local":
        folder = tempfile.mkdtemp(prefix="evenly-ray-", dir="/tmp" if os.path.isdir("/tmp") else None)  # short names
        values |= {"num_cpus": max(cores(), at_once), "include_dashboard": False, "_temp_dir": folder}
    with _own_signals():
        try:
            with _quiet():
                if address != "local":
                    _check_address(address)
                ray.init(**values, log_to_driver=False, logging_level=logging.ERROR)
            _end_in_order()
            _show_messages(False)
            yield
        finally:
            ray.shutdown()
            _show_messages(True)
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


def _check_address(address: str) -> None:
    """Refuse an address where no cluster answers in time. Ray would try for longer, and then end this process."""
    none = f"no Ray cluster answers at {address!r} within {CONNECT:.0f} s"
    way_out = "check the address, or start one: ray start --head"
    host, _, port = address.rpartition(":")
    if "://" in address or (address != "auto" and not (host and port.isdigit())):
        raise EvenlyError(f"address must be host:port or auto, got {address!r}; run evenly on a machine of the cluster")
    if address != "auto":
        try:
            socket.create_connection((host, int(port)), CONNECT).close()
        except (OSError, OverflowError) as error:
            raise EvenlyError(f"{none} ({error}); {way_out}") from None
    try:
        subprocess.run([sys.executable, "-c", PROBE, address], timeout=CONNECT, check=True, capture_output=True)
    except subprocess.TimeoutExpired:
        raise EvenlyError(f"{none}; {way_out}") from None
    except subprocess.CalledProcessError as error:
        text = error.stderr.decode(errors="replace").strip()
        if "AuthenticationError" in text:
            raise EvenlyError(
                f"the Ray cluster at {address!r} asks for its token; set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to it"
            ) from None
        raise EvenlyError(f"{none} ({text.splitlines()[-1] if text else error}); {way_out}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Settings of Ray while it starts; then its variables are as they were before."""
    before = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    os.environ.update(QUIET | before)
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            del os.environ[name]
        os.environ.update(before)


def _show_messages(show: bool) -> None:
    """Ray prints a paragraph on stdout for every worker that dies, which is an event here; it has no setting for it."""
    from ray._private import worker

    worker._worker_logs_enabled = show


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray replaces the handler of SIGTERM; afterwards it is the one from before."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _end_in_order() -> None:
    """At SIGTERM, leave every block, so that Ray's processes end with this one; Ray's own handler aborts."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
