"""A bar on a terminal, silence elsewhere."""

from __future__ import annotations

import pytest

from evenly.engine.progress import Progress


@pytest.mark.parametrize(
    ("terminal", "show", "expected"), [(False, True, False), (True, False, False), (True, True, True)]
)
def test_only_on_a_terminal(monkeypatch, capsys, terminal, show, expected):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Progress("work", show) as bar:
        bar(0.5, "half")
        bar(1.0)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("work" in err) is expected
    assert bool(err) is expected


def test_the_terminal_is_given_back_after_an_error(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(KeyError), Progress("work") as bar:
        raise KeyError
    assert bar._bar.finished is False
    assert not bar._bar.live.is_started
