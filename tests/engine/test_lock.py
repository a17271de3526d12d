"""Two processes and one folder: the second is told, and a process that dies takes its hold and its workers with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from evenly.engine.folder import Folder

from evenly.errors import EvenlyError

HOLD = """
import sys
from evenly.engine.folder import Folder
folder = Folder(sys.argv[1], {"seed": 0})
folder.make()
print("held", flush=True)
sys.stdin.read()
"""
COMPARE = """
import sys
import evenly
if __name__ == "__main__":
    evenly.compare(None, "shortcut-digits", ["erm"], seeds=2, jobs=2, epochs=5000, out=sys.argv[1])
"""


@pytest.mark.skipif(os.name != "posix", reason="folders are held by POSIX locks")
def test_a_folder_in_use_is_refused_until_its_holder_is_gone(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "run")], **pipes) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(EvenlyError, match="in use by another process"):
            Folder(tmp_path / "run", {"seed": 0}).make()
        holder.kill()
    Folder(tmp_path / "run", {"seed": 0}).make()


def workers_in(out: Path) -> list[str]:
    """Processes, other than this one, that have a file under `out` open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = [os.readlink(link) for link in (process / "fd").iterdir()]
        except OSError:  # it ended while we looked
            continue
        if process.name != str(os.getpid()) and any(link.startswith(str(out)) for link in links):
            found.append(process.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_workers_end_with_a_parent_that_was_killed(tmp_path):
    (tmp_path / "script.py").write_text(COMPARE)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, str(tmp_path / "script.py"), str(tmp_path / "out")], **quiet) as parent:
        deadline = time.monotonic() + 120
        while len(workers_in(tmp_path / "out")) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert len(workers_in(tmp_path / "out")) == 2
        parent.kill()
    deadline = time.monotonic() + 20
    while workers_in(tmp_path / "out") and time.monotonic() < deadline:
        time.sleep(0.2)
    assert workers_in(tmp_path / "out") == []
