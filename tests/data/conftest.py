"""Property tests draw the same cases every time: a failure here is a failure everywhere."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("evenly", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("evenly")
