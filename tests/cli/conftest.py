"""A small file of arrays, and what the command line asks of the package."""

import numpy as np
import pytest

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = np.arange(40) % 2


@pytest.fixture
def npz(tmp_path):
    """Write arrays to a file and return its name: 40 rows, two classes, four groups; or what is given."""

    def save(name="mine.npz", **columns):
        columns = {"x": X, "y": Y, "groups": Y + 2 * (np.arange(40) % 5 == 0)} | columns
        np.savez(tmp_path / name, **{key: column for key, column in columns.items() if column is not None})
        return name

    return save


@pytest.fixture
def mine(npz):
    return npz()


@pytest.fixture
def snapshot(tmp_path):
    """The bytes of every file, by name."""
    return lambda: {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.fixture
def asked(monkeypatch):
    """What the command line asks of train and compare, which do not run."""
    calls = []

    def note(*arguments, **settings):
        calls.append(settings)
        raise SystemExit

    monkeypatch.setattr("evenly.experiment.training.train", note)
    monkeypatch.setattr("evenly.experiment.comparing.compare", note)
    return calls
