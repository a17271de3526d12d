"""What all tests share."""

import re
import sys

import pytest

from evenly import EvenlyError
from evenly.cli import main
from evenly.randomness import on_threads


@pytest.fixture(autouse=True)
def _checkpoint_after_every_epoch(monkeypatch):
    """Epochs of a test take milliseconds and would share checkpoints; where a run stopped would be chance."""
    monkeypatch.setattr("evenly.engine.checkpoints.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("evenly.engine.checkpoints.CHECKPOINT_SHARE", float("inf"))


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVENLY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def one_thread():
    with on_threads(1):
        yield


@pytest.fixture
def refused_call():
    """Make a call that must raise an EvenlyError of one line."""

    def check(message, call, *arguments, **options):
        with pytest.raises(EvenlyError, match=message) as refusal:
            call(*arguments, **options)
        text = str(refusal.value)
        del refusal  # whose traceback would keep what the call had open
        assert "\n" not in text

    return check


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
    """Run a command that ends with exit code 2, nothing on stdout, and a last line on stderr that matches."""

    def run(command, message):
        words = command.split() if isinstance(command, str) else command
        code, out, err = evenly(*words)
        assert (code, out) == (2, ""), (words, out, err)
        last = err.splitlines()[-1]
        assert re.match("evenly: ", last), err
        assert not re.search("^evenly: |Traceback", err.removesuffix(f"{last}\n"), re.MULTILINE), err
        assert re.search(message, last), err

    return run


@pytest.fixture
def done(evenly):
    """Run a command that ends with exit code 0 and without a warning but of small groups; what it printed."""

    def run(command):
        code, out, err = evenly(*command.split())
        assert code == 0, err
        err = re.sub(r"evenly: select '\S+' goes by groups of validation, .*\n", "", err)
        assert not re.search("evenly:|Warning", err), err
        return out

    return run
