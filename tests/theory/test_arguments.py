"""Numbers that every theorem refuses."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from evenly.errors import EvenlyError
from evenly.theory.arguments import not_negative, positive, whole


@pytest.mark.parametrize(
    ("check", "value", "requirement"),
    [
        (positive, 0.0, "above 0"),
        (positive, -1, "above 0"),
        (positive, 1e-101, r"0 or of a size between 1e-100 and 1e\+100"),
        (positive, 1e101, r"0 or of a size between 1e-100 and 1e\+100"),
        (positive, math.nan, "a finite number"),
        (positive, math.inf, "a finite number"),
        (positive, "1", "a finite number"),
        (positive, True, "a number"),
        (not_negative, -0.1, "at least 0"),
        (lambda *pair: whole(*pair, 1), 0, "at least 1"),
        (lambda *pair: whole(*pair, 1), 2.5, "a whole number"),
        (lambda *pair: whole(*pair, 1, 4, ", the width"), 5, "at most 4, the width"),
    ],
)
def test_refusals(check, value, requirement):
    with pytest.raises(EvenlyError, match=f"^x must be {requirement}, got {re.escape(repr(value))}$"):
        check("x", value)


def test_numbers_come_back_as_python_numbers():
    for check, value, number in (
        (positive, np.float32(0.5), 0.5),
        (positive, 2, 2.0),
        (not_negative, 0, 0.0),
        (lambda *pair: whole(*pair, 1), 5.0, 5),
        (lambda *pair: whole(*pair, 1), np.int64(5), 5),
    ):
        assert (check("x", value), type(check("x", value))) == (number, type(number))
