"""evenly improve in the shell."""

from __future__ import annotations

import json

import numpy as np
import pytest

SETTINGS = ["--model", "mlp", "--epochs", "3", "--budget", "2", "--device", "cpu"]


@pytest.fixture
def file(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    path = tmp_path / "my.npz"
    np.savez(path, x=rng.standard_normal((200, 4)).astype("float32") + y[:, None], y=y, groups=y)
    return path


def test_it_prints_the_verdict_and_where_the_model_is(file, tmp_path, monkeypatch, capsys):
    from evenly.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["evenly", "improve", str(file), *SETTINGS, "--out", "job"])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 0
    printed = capsys.readouterr().out
    assert "model: job/best" in printed
    assert max(map(len, printed.splitlines())) <= 80
    monkeypatch.setattr("sys.argv", ["evenly", "improve", str(file), *SETTINGS, "--out", "job", "--json"])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 0
    assert json.loads(capsys.readouterr().out)["seeds"] == [0, 1, 2]
    monkeypatch.setattr("sys.argv", ["evenly", "status", "job"])
    with pytest.raises(SystemExit):
        main()
    assert "done" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.npz"], "nothing.npz"),
        ([], "there is no DATA"),
        (["my.npz", "--goal", "fairness"], "--goal must be"),
        (["my.npz", "--budget", "0"], "--budget must be at least 1, got 0"),
        (["my.npz", "--seeds", "0"], "seeds must be at least 1"),
    ],
)
def test_what_is_wrong_is_one_line(file, tmp_path, monkeypatch, capsys, words, message):
    from evenly.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["evenly", "improve", *words])
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
