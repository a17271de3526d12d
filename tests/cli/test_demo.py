"""`evenly demo`: what it refuses, and its JSON. The demo itself is run by `.ci/check_demo.py`."""

import json

import pytest

from evenly.files import write_json
from evenly.runs.demonstration import Demo


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("notes.json", "holds something else than a demo; choose another --out"),
        ("shortcut-digits/config.json", "holds a demo of an earlier version; choose another --out"),
    ],
)
def test_another_folder_is_refused_and_left_as_it_is(refused, snapshot, tmp_path, name, message):
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    write_json(tmp_path / "out" / name, {"compare": "shortcut-digits"})
    before = snapshot()
    refused("demo --out out", message)
    assert snapshot() == before


def test_json_has_both_kinds(done, monkeypatch):
    monkeypatch.setattr("evenly.experiment.demo.demo", lambda out, **settings: Demo((), (), 1.0, out))
    assert json.loads(done("demo --json")) == {"improvements": [], "comparisons": [], "seconds": 1.0}
