"""A bar on a terminal, lines in the log elsewhere."""

from __future__ import annotations

import pytest

from evenly.engine import progress
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


def test_without_a_terminal_there_is_an_estimate_after_the_first_steps_and_a_line_per_epoch(monkeypatch, caplog):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock[0])
    caplog.set_level("INFO", "evenly")
    with Progress() as report:
        for clock[0], share, note in (
            (0.0, 0.0, ""),
            (1.0, 0.01, ""),  # too early
            (3.0, 0.03, ""),
            (4.0, 0.04, ""),  # said once
            (50.0, 0.5, "epoch 1"),
            (50.2, 0.6, "epoch 2, too soon after the last"),
            (100.0, 1.0, "epoch 3"),
            (110.0, 0.2, ""),  # another stage, of which a fifth was done before
            (120.0, 0.6, "epoch 1"),
        ):
            report(share, note)
    expected = ["this takes about 1 min 37 s", "epoch 1, 50 s left", "epoch 3", "epoch 1, 10 s left"]
    assert [message.strip() for message in caplog.messages] == expected
    caplog.clear()
    with Progress(show=False) as silent:
        silent(0.5, "epoch 1")
    assert not caplog.messages
