"""What all tests share."""

import re
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


@pytest.fixture
def refused(evenly):
    """Run a command that ends with exit code 2, nothing on stdout, and one line on stderr that matches."""

    def run(command, message):
        words = command.split() if isinstance(command, str) else command
        code, out, err = evenly(*words)
        assert (code, out) == (2, ""), (words, out, err)
        assert re.fullmatch(r"evenly: .*\n", err), err
        assert re.search(message, err), err

    return run


@pytest.fixture
def done(evenly):
    """Run a command that ends with exit code 0 and nothing on stderr but a warning of small groups; what it printed."""

    def run(command):
        code, out, err = evenly(*command.split())
        err = re.sub(r"evenly: select '\S+' goes by groups of validation, .*\n", "", err)
        assert (code, err) == (0, ""), err
        return out

    return run
