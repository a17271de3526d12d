"""The progress of a graph, walked piped and on a terminal of 80 columns."""

from __future__ import annotations

import io

import pytest
from attrs import frozen
from rich.console import Console

from evenly.parallel import progress
from evenly.parallel.graph import Advanced, Began, Failed, Finished, Lost, Shared
from evenly.parallel.progress import GraphProgress


@frozen
class Named:
    id: str
    after: str | None = None

    @property
    def label(self):
        return f"method {self.id} with sgd"

    def completed(self, result):
        return self


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def happen(show, clock, events):
    for clock[0], event in events:
        show(event, Named(event.id))


def test_piped_there_is_a_line_per_run_with_the_time_left(clock, caplog):
    caplog.set_level("INFO", "evenly")
    with GraphProgress(8, slots=2) as show:
        happen(show, clock, [
            (0, Began("read 1")), (0, Finished("read 1", 1)), (0, Finished("read 2", 1)),
            (0, Began("a")), (0, Began("b")), (0, Advanced("a", 0.0)), (0, Advanced("b", 0.0)),
            (5, Advanced("a", 0.5, "epoch 1 of 2")), (10, Advanced("b", 0.5)), (10, Advanced("a", 1.0)),
            (10, Shared("control of a")),
            (10, Finished("a", 1)), (11, Failed("b", "it diverged; lower lr")), (11, Began("c")),
            (12, Lost("c", "its worker was killed")), (12, Advanced("c", 0.9)), (20, Finished("c", 1)),
            (20, Began("x" * 80)), (20, Advanced("x" * 80, 0.5)), (21, Finished("x" * 80, 1)),
            (22, Advanced("e", 0.5)), (22, Finished("e", 1)),
        ])  # fmt: skip
    assert caplog.messages == [
        "  8 runs, 2 at a time",
        "  2 runs were finished before",
        # b has 10 s to go and three wait: with 15 s each, two at a time, it takes (10 + 3 * 15) / 2
        "  method a with sgd: done in 10 s (4 of 8, 28 s left)",
        "  method b with sgd: failed: it diverged; lower lr",
        "  method c with sgd: its worker was killed; it goes on from its last checkpoint",
        "  method c with sgd: done in 8.0 s (6 of 8, 9.0 s left)",
        "  method xxxxxxxxxxxxxx…xxxxxxxxxxx with sgd: done in 1.0 s (7 of 8, 6.3 s left)",
        "  method e with sgd: done in less than 0.1 s (8 of 8)",
        "  1 control is a run that is already here",
    ]
    assert max(map(len, caplog.messages)) <= 80


def test_a_terminal_has_a_bar_and_a_line_per_run_under_way(clock, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"{n}" for n in range(10)] + ["of a name that is longer than half of the width of a terminal"]
    with GraphProgress(24, "comparing on digits", slots=11) as show:
        happen(show, clock, [(0, Advanced(name, 0.0)) for name in reversed(names)])
        happen(show, clock, [(10, Advanced(name, 0.25, "epoch 1 of 4, loss 0.123, worst 1.2%")) for name in names])
        happen(show, clock, [(20, Finished("3", 1)), (20, Failed("4", "it diverged"))])
        console = Console(width=80, record=True, file=io.StringIO())
        console.print(show)
    shown = console.export_text().splitlines()
    assert shown[0].startswith("comparing on digits ━")
    assert shown[0].endswith("2 of 24, 1 failed, 1 min 1 s left")
    assert shown[1].startswith("  method of a name tha…a terminal with sgd  25%  epoch 1 of 4")
    assert shown[1].rstrip()[-1] == "…"
    assert shown[2].startswith("  method 9 with sgd")
    assert shown[9:] == ["  and 1 more"]
    assert max(map(len, shown)) <= 80
    assert "failed: it diverged" not in capsys.readouterr().err  # the log has it
