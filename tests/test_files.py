"""Files that are there whole or not at all, and strict JSON."""

from __future__ import annotations

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
