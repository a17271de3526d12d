"""Property tests draw the same cases every time; tests leave nothing in the user's own cache and find no published data
but what they write."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("evenly", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("evenly")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("user-cache")))


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if Path(request.path).name != "test_real.py":
        monkeypatch.delenv("EVENLY_DATA", raising=False)
