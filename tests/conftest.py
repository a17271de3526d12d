"""What all tests share."""

import sys

import pytest

from evenly.cli import main


@pytest.fixture(autouse=True)
def _checkpoint_after_every_epoch(monkeypatch):
    """Epochs of a test take milliseconds and would share checkpoints; where a run stopped would be chance."""
    monkeypatch.setattr("evenly.engine.checkpoints.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("evenly.engine.checkpoints.CHECKPOINT_SHARE", float("inf"))


@pytest.fixture
def evenly(tmp_path, monkeypatch, capfd):
    """Run a command line in a folder of its own: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["evenly", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return ended.value.code or 0, out, err

    return run
