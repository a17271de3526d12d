"""Files that are there whole or not at all, and strict JSON."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from evenly.errors import EvenlyError
from evenly.files import atomic, read_json, write_json


@pytest.mark.parametrize("sync", [True, False])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, sync):
    path = tmp_path / "file"
    path.write_text("old")

    def write(text, fail):
        with atomic(path, sync) as file:
            file.write(text)
            file.flush()
            assert path.read_text() == "old"  # nobody sees the new one half done
            if fail:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(b"half", fail=True)
    assert path.read_text() == "old"
    write(b"new", fail=False)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("links", [True, False])
def test_a_kill_at_any_step_leaves_the_current_file_whole_and_one_before_it(tmp_path, monkeypatch, links):
    path, previous, steps = tmp_path / "file", tmp_path / "file.previous", ("link", "replace", "unlink", "fsync")
    calls = []

    def write(text, kill_at=None):
        """Write; `kill_at` is the step that the process does not live to take."""
        calls.clear()

        def step(name, call):
            def taken(*args, **kwargs):
                if kill_at is not None and len(calls) >= kill_at:
                    raise KeyboardInterrupt
                calls.append(name)
                if name == "link" and not links:
                    raise PermissionError(errno.EPERM, "no links on this disk")
                return call(*args, **kwargs)

            return taken

        with monkeypatch.context() as patched:
            for name in steps:
                patched.setattr(os, name, step(name, getattr(os, name)))
            with atomic(path, previous=previous) as file:
                file.write(text)

    write(b"1")
    write(b"2")
    assert (calls[0], calls[-3:]) == ("fsync", ["replace", "fsync", "unlink"])
    for kill_at in range(len(calls)):
        for text in (b"1", b"2"):
            write(text)
        with pytest.raises(KeyboardInterrupt):
            write(b"3", kill_at)
        content = (path.read_bytes(), previous.read_bytes())
        assert content in ((b"2", b"1"), (b"2", b"2"), (b"3", b"2")), kill_at
        write(b"4")
        assert (path.read_bytes(), previous.read_bytes()) == (b"4", content[0])
        assert sorted(tmp_path.iterdir()) == [path, previous]


def test_json_is_strict(tmp_path):
    write_json(tmp_path / "a.json", {"a": [1.5, None]})
    assert read_json(tmp_path / "a.json") == {"a": [1.5, None]}
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", float("nan"))
    assert read_json(tmp_path / "a.json") == {"a": [1.5, None]}
    assert read_json(tmp_path / "none.json") is None
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(EvenlyError, match=r"b\.json is damaged"):
        read_json(tmp_path / "b.json")


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    def write(text):
        with atomic(tmp_path / "file", sync=False) as file:
            file.write(text)

    with atomic(tmp_path / "file") as file, ThreadPoolExecutor(1) as other:
        file.write(b"first")
        other.submit(write, b"second").result()
        assert (tmp_path / "file").read_bytes() == b"second"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"first"}
