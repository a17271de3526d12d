"""What the tests of diagnoses share."""

from __future__ import annotations

from typing import Any

import pytest

from evenly.errors import EvenlyError


@pytest.fixture
def refused():
    """Assert that a call raises an error of one line that matches."""

    def check(match: str, call: Any, *arguments: Any, **options: Any) -> None:
        with pytest.raises(EvenlyError, match=match) as error:
            call(*arguments, **options)
        assert "\n" not in str(error.value)

    return check
