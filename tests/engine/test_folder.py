"""A run's folder: whole files or none, one configuration, nothing foreign touched, nothing in it executed."""

from __future__ import annotations

import pytest
from evenly.engine.folder import Folder

from evenly.errors import EvenlyError
from evenly.files import atomic, read_json, write_json


def contents(path):
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))


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
    assert contents(tmp_path) == ["file"]
    write(b"new", fail=False)
    assert path.read_text() == "new"
    assert contents(tmp_path) == ["file"]


def test_json_is_strict(tmp_path):
    write_json(tmp_path / "a.json", {"a": [1.5, None]})
    assert read_json(tmp_path / "a.json") == {"a": [1.5, None]}
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", float("nan"))
    assert read_json(tmp_path / "a.json") == {"a": [1.5, None]}
    assert read_json(tmp_path / "none.json") is None
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(EvenlyError, match=r"b\.json cannot be read"):
        read_json(tmp_path / "b.json")


def test_the_same_settings_continue_and_others_are_refused(tmp_path):
    config = {"lr": 0.1, "model": {"name": "mlp", "shape": (1, 2)}, "budget": None}
    folder = Folder(tmp_path / "deep/run", config)
    assert not folder.path.exists()  # it comes with the first thing to keep
    folder.make()
    before = (folder.path / "config.json").read_bytes()
    Folder(tmp_path / "deep/run", config)
    with pytest.raises(EvenlyError, match=r"holds another run \(its lr is 0\.1, not 0\.2\); choose another out"):
        Folder(tmp_path / "deep/run", config | {"lr": 0.2})
    with pytest.raises(EvenlyError, match="its seed is None, not 3"):
        Folder(tmp_path / "deep/run", config | {"seed": 3})
    with pytest.raises(EvenlyError, match="its model is 'mlp', not 'vit'"):
        Folder(tmp_path / "deep/run", config | {"model": config["model"] | {"name": "vit"}})
    assert (folder.path / "config.json").read_bytes() == before
    assert contents(folder.path) == ["checkpoint", "config.json"]


def test_what_is_not_a_run_is_left_alone(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter1.tex").write_text("dear to somebody")
    with pytest.raises(EvenlyError, match="not empty and holds no run"):
        Folder(tmp_path / "thesis", {})
    assert contents(tmp_path) == ["thesis", "thesis/chapter1.tex"]
    with pytest.raises(EvenlyError, match="is a file; give a folder"):
        Folder(tmp_path / "thesis/chapter1.tex", {})
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text('{"lr": ')
    with pytest.raises(EvenlyError, match=r"config\.json cannot be read"):
        Folder(tmp_path / "broken", {})
    (tmp_path / "empty").mkdir()
    Folder(tmp_path / "empty", {})


class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", ["evenly.engine.folder.write_json", "pathlib.Path.replace"])
def test_a_kill_while_the_folder_is_made_leaves_it_usable(tmp_path, monkeypatch, moment):
    def kill(*arguments):
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(moment, kill)
        dying.setattr("pathlib.Path.unlink", lambda *arguments, **options: None)  # the dead do not tidy up
        with pytest.raises(Killed):
            Folder(tmp_path / "run", {"lr": 0.1}).make()
    Folder(tmp_path / "run", {"lr": 0.1}).make()
    assert read_json(tmp_path / "run/config.json") == {"lr": 0.1}


def test_a_run_goes_on_where_its_data_lies_elsewhere(tmp_path):
    Folder(tmp_path / "run", {"data": {"name": "photos", "fingerprint": "ab", "folder": "/here"}}).make()
    Folder(tmp_path / "run", {"data": {"name": "photos", "fingerprint": "ab", "folder": "/there"}})
    differ = r"holds another run \(its data differ \(other rows, splits, groups or columns\)\); choose another"
    with pytest.raises(EvenlyError, match=differ):
        Folder(tmp_path / "run", {"data": {"name": "photos", "fingerprint": "cd", "folder": "/there"}})


def test_what_differs_is_said_in_the_users_words(tmp_path):
    data = {"name": "people", "fingerprint": "ab", "groups": "label,g", "mean": [0.1]}
    config = {"data": data, "method": {"name": "pde", "options": {"cap": 3}}, "model": {"fingerprint": "cd"}}
    Folder(tmp_path / "run", config).make()
    other = data | {"fingerprint": "ef", "mean": [0.2]}
    for changed, said in (
        ({"data": other}, r"its data differ \(other rows"),
        ({"data": other | {"groups": "label"}}, "its groups are 'label,g', not 'label'"),
        ({"data": other | {"name": "folk"}}, "its data is 'people', not 'folk'"),
        ({"method": {"name": "group_dro", "options": {"cap": 3}}}, "its method is 'pde', not 'group_dro'"),
        ({"method": {"name": "pde", "options": {"cap": 4}}}, "its cap is 3, not 4"),
        ({"model": {"fingerprint": "gh"}}, "its model starts from other weights"),
    ):
        with pytest.raises(EvenlyError, match=rf"holds another run \({said}"):
            Folder(tmp_path / "run", config | changed)
