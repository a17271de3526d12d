"""What all tests share."""

import pytest


@pytest.fixture(autouse=True)
def _checkpoint_after_every_epoch(monkeypatch):
    """Epochs of a test take milliseconds and would share checkpoints; where a run stopped would be chance."""
    monkeypatch.setattr("evenly.engine.loop.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("evenly.engine.loop.CHECKPOINT_SHARE", float("inf"))
