"""A comparison on Ray over two hosts that share no disk: two network namespaces, joined by a cable that is not there.

EVENLY_HOSTS=1 pytest tests/parallel/test_two_hosts.py, as root on Linux; a minute. The second host sees neither the
comparison's folder nor its data: a file system of its own is mounted over both.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
if not os.environ.get("EVENLY_HOSTS"):
    pytest.skip("it takes a minute: EVENLY_HOSTS=1", allow_module_level=True)
if shutil.which("ip") is None or os.geteuid() != 0:
    pytest.skip("network namespaces need root and `ip`", allow_module_level=True)

TOKEN = "0" * 32
"""Ray asks for a token where it finds one; here both hosts have this one."""
NAMES = [f"evenly{os.getpid()}{letter}" for letter in "ab"]
ADDRESSES = ["10.213.0.1", "10.213.0.2"]
PORT = 26379
RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", "--num-cpus=1"]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def on_host(host: int, *words: str, hidden: tuple[Path, ...] = (), **options: Any) -> subprocess.Popen[str]:
    """Begin a command on a host, on which some folders are empty."""
    mounts = "".join(f"mount -t tmpfs none {path} && " for path in hidden)
    command = ["ip", "netns", "exec", NAMES[host], "unshare", "-m", "sh", "-c", f'{mounts}exec "$@"', "sh", *words]
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    return subprocess.Popen(command, env=environment, text=True, **options)


@pytest.fixture
def hosts(tmp_path) -> Iterator[Path]:
    """A folder in which "out", "data" and "scratch" are empty on the second host."""
    hidden = tuple(tmp_path / name for name in ("out", "data", "scratch"))
    for path in hidden:
        path.mkdir()
    log = (tmp_path / "log").open("w")
    try:
        for name in NAMES:
            ip("netns", "add", name)
        ip("link", "add", "evenly0", "netns", NAMES[0], "type", "veth", "peer", "name", "evenly1", "netns", NAMES[1])
        for host, name in enumerate(NAMES):
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", f"{ADDRESSES[host]}/24", "dev", f"evenly{host}")
            ip("-n", name, "link", "set", f"evenly{host}", "up")
    except subprocess.CalledProcessError as error:
        _remove()
        pytest.skip(f"network namespaces cannot be made: {error.stderr}")
    begun = []
    try:
        with log:
            head = [*RAY, "--head", f"--port={PORT}", f"--node-ip-address={ADDRESSES[0]}", "--include-dashboard=false"]
            sockets = f"--temp-dir=/tmp/{NAMES[0]}"  # their names must be short
            begun.append(on_host(0, *head, sockets, stdout=log, stderr=log))
            time.sleep(8)
            other = [*RAY, f"--address={ADDRESSES[0]}:{PORT}", f"--node-ip-address={ADDRESSES[1]}"]
            scratch = ["env", f"TMPDIR={tmp_path / 'scratch'}"]
            begun.append(on_host(1, *scratch, *other, hidden=hidden, stdout=log, stderr=log))
            time.sleep(8)
            yield tmp_path
    finally:
        _remove()
        for process in begun:
            process.wait()
        shutil.rmtree(f"/tmp/{NAMES[0]}", ignore_errors=True)


def _remove() -> None:
    for name in NAMES:
        listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
        for process in listed.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.mark.timeout(600)
def test_two_hosts_without_a_shared_disk(hosts, results, write_rows):
    """Six arms with their controls on four seeds, of a file that only the first host has."""
    write_rows(hosts / "data" / "rows.npz")
    compare = f"""
import sys
from collections import Counter
import evenly, ray
from evenly.parallel import on_ray

where = Counter()
receive = on_ray.RayExecutor._home
on_ray.RayExecutor._home = lambda self, node, outcome: (
    where.update(["away" if outcome.files else "here"]), receive(self, node, outcome)
)[1]
evenly.compare({str(hosts / "data" / "rows.npz")!r}, model="mlp", methods=["erm", "useful", "group_dro"],
    optimizers=["sgd", "sam"], seeds=4, epochs=2, device="cpu", out={str(hosts / "out")!r} + "/" + sys.argv[1],
    **(dict(engine="ray", address=sys.argv[2]) if sys.argv[2:] else {{}}))
print(dict(where))
"""
    subprocess.run([sys.executable, "-c", compare, "here"], check=True)
    command = [sys.executable, "-c", compare, "ray", f"{ADDRESSES[0]}:{PORT}"]
    done = on_host(0, *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = done.communicate(timeout=500)
    assert done.returncode == 0, err + (hosts / "log").read_text()
    print(out)
    where = json.loads(out.splitlines()[-1].replace("'", '"'))
    assert min(where["away"], where["here"]) > 5, where
    assert results(hosts / "out" / "ray") == results(hosts / "out" / "here")
    folders = [sorted(path.name for path in (hosts / "out" / name / "runs").iterdir()) for name in ("ray", "here")]
    assert folders[0] == folders[1]
    assert len(folders[0]) == sum(where.values())  # none was trained twice
    assert not list((hosts / "out" / "ray").glob(".*"))
