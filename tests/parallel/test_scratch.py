from __future__ import annotations

import os
import stat
import sys

import pytest

from evenly.errors import EvenlyError
from evenly.parallel.scratch import Token, packed, remove_scratch, token_in, unpack


def test_a_folder_comes_back_whole_and_replaces_an_unfinished_one(tmp_path):
    there, here = tmp_path / "there", tmp_path / "runs" / "a"
    (there / "inner").mkdir(parents=True)
    (there / "inner" / "weights").write_bytes(bytes(range(256)))
    (there / "results.json").write_text("{}")
    (there / ".lock").touch()
    (here / "checkpoint").mkdir(parents=True)
    (here / "config.json").write_text("earlier")
    unpack(packed(there), here)
    assert packed(here) == {"inner/weights": bytes(range(256)), "results.json": b"{}"}
    assert [path.name for path in here.parent.iterdir()] == ["a"]


@pytest.mark.parametrize("name", ["../a", "/etc/a", "b/../../a", "", "C:\\a", "..\\a", "C:a"])
def test_a_file_that_would_leave_the_folder_is_refused(tmp_path, name):
    with pytest.raises(EvenlyError, match="which leaves"):
        unpack({"good": b"", name: b""}, tmp_path / "runs" / "a")
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_the_earlier_folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").touch()
    with pytest.raises(EvenlyError, match="cannot be written"):
        unpack({"a": b"", "a/b": b""}, tmp_path / "a")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["config.json"]


def test_the_token_is_seen_in_its_own_folder_only(tmp_path):
    with token_in(tmp_path) as token:
        assert token.seen
        (tmp_path / token.name).unlink()
        assert not token.seen
        assert not list(tmp_path.iterdir())
    (token.scratch / "runs" / "a").mkdir(parents=True)
    remove_scratch(token.scratch / "runs" / "a")
    assert not token.scratch.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no users by number")
def test_only_the_user_can_look_into_the_scratch_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    token = Token(tmp_path, "none", "comparison")
    own = tmp_path / f"evenly-{os.getuid()}"
    own.mkdir(mode=0o777)
    assert token.own_scratch() == own / "comparison"
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    own.rmdir()
    (tmp_path / "elsewhere").mkdir()
    own.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EvenlyError, match="is no folder of this user; remove it"):
        token.own_scratch()
    own.unlink()
    own.mkdir()
    other = os.getuid() + 1
    own.rename(tmp_path / f"evenly-{other}")
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(EvenlyError, match="is no folder of this user; remove it"):
        token.own_scratch()
