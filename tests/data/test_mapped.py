"""Rows that stay in a file: another machine may have another file there, and memory has limits."""

from __future__ import annotations

import os
import pickle
import sys

import numpy as np
import pytest
import torch

import evenly
from evenly.data import mapped
from evenly.data.mapped import MappedRows, fits_memory, memory_shared_by
from evenly.errors import EvenlyError


@pytest.fixture
def rows(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(12, dtype=np.float32).reshape(6, 2))
    return MappedRows(np.load(tmp_path / "rows.npy", mmap_mode="r"), [4, 1], [0, 1])


def test_a_copy_of_the_file_is_used_and_another_file_is_refused(rows, tmp_path):
    sent, path = pickle.dumps(rows), tmp_path / "rows.npy"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    assert torch.equal(pickle.loads(sent).at(torch.tensor([0])), torch.tensor([[8.0, 9.0]]))
    for other, cause in (
        (content[:-1] + b"x", "its content differs"),
        (content[:-4], f"it has {len(content) - 4} bytes, not {len(content)}"),
        (None, "No such file or directory"),
    ):
        path.unlink()
        if other is not None:
            path.write_bytes(other)
        with pytest.raises(EvenlyError, match=rf"rows\.npy on .* is not the file .* \({cause}\); put the folder"):
            pickle.loads(sent)


def test_the_file_itself_is_not_read_again(rows, monkeypatch):
    sent = pickle.dumps(rows)
    monkeypatch.setattr(mapped, "_checksum", lambda *file: pytest.fail("it was read"))
    assert len(pickle.loads(sent)) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="a colon in a line of /proc")
@pytest.mark.parametrize(("kind", "name"), [("", "memory.max"), ("cpu,memory", "memory.limit_in_bytes")])
def test_the_least_limit_up_the_tree_counts_and_processes_share_it(tmp_path, monkeypatch, kind, name):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    top = groups / "memory" if kind else groups
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 1000 kB\n")
    (proc / "self" / "status").write_text("RssAnon: 100 kB\n")
    (proc / "self" / "cgroup").write_text(f"9:freezer:/\n0:{kind}:/user/job\n")
    (top / "user" / "job").mkdir(parents=True)
    monkeypatch.setattr(mapped, "PROC", proc)
    monkeypatch.setattr(mapped, "CGROUPS", groups)
    limits = {top / "user" / "job": "max", top / "user": 500 << 10, top: 700 << 10, tmp_path: 200 << 10}
    for folder, limit in limits.items():
        (folder / name).write_text(f"{limit}{os.linesep}")
    assert mapped._free_memory() == 400 << 10
    assert fits_memory(200 << 10)
    with memory_shared_by(2):
        assert fits_memory(100 << 10)
        assert not fits_memory(101 << 10)
    (top / "user" / "job" / name).write_text(f"{300 << 10}")
    assert mapped._free_memory() == 200 << 10
    (proc / "self" / "status").write_text("VmRSS: 100 kB\n")  # what it has itself is not known everywhere
    assert mapped._free_memory() == 1000 << 10


def test_a_comparison_divides_memory_by_its_processes():
    def data(seed):
        raise EvenlyError(f"shared by {mapped._processes.get()}")

    for engine, processes in (("local", 3), ("ray", 1)):
        with pytest.raises(EvenlyError, match=f"shared by {processes}"):
            evenly.compare(data, jobs=3, engine=engine)
