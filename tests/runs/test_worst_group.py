"""Which groups may be the worst, and how a bound is corrected for their number."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from evenly.runs.worst_group import quantile, side_of


def test_a_bound_is_corrected_for_as_many_groups_as_may_be_the_worst() -> None:
    """Eight equal groups are all candidates; of eight of which one is far below, it alone is."""
    counts = np.full((1, 8), 300)
    equal, clear = side_of(np.full((1, 8), 0.8), counts), side_of(np.array([[0.4, *[0.9] * 7]]), counts)
    assert (equal.candidates, clear.candidates) == (8, 1)
    assert quantile(0.02, equal) == pytest.approx(NormalDist().inv_cdf(1 - 0.02 / 8))
    assert quantile(0.02, clear) == pytest.approx(NormalDist().inv_cdf(1 - 0.02))
