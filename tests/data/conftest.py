"""Property tests draw the same cases every time; tests leave nothing in the user's own cache and find no published data
but what they write."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("evenly", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("evenly")


@pytest.fixture(autouse=True)
def _own_cache_and_no_data(monkeypatch, tmp_path_factory, request):
    monkeypatch.setenv("EVENLY_CACHE", str(tmp_path_factory.mktemp("user-cache")))
    if Path(request.path).name != "test_real.py":
        monkeypatch.delenv("EVENLY_DATA", raising=False)


@pytest.fixture
def refused(refused_call):
    return refused_call
