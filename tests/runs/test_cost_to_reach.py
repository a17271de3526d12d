"""Cost to reach a worst group: by hand, the median over seeds, and the reasons where it is not known."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from evenly.errors import EvenlyError
from evenly.runs.cost_to_reach import ABOVE_ERM, cost_to_reach, levels_reached, reason_for_none

INFERRED = {"worst_inferred_group": 0.5}


def run(*values, cost=100.0, total=None):
    """What a run has of this: worst groups on validation epoch by epoch (None: no evaluation), and its costs."""
    history = [
        {"cost": cost * epoch}
        | ({} if value is None else {"validation": value if value is INFERRED else {"worst_group": value}})
        for epoch, value in enumerate(values, 1)
    ]
    return SimpleNamespace(history=history, results=SimpleNamespace(cost=total or cost * len(values), unit=100.0))


@pytest.mark.parametrize(
    ("level", "cost"), [(0.0, 20), (0.3, 20), (0.31, 40), (0.6, 40), (0.75, 60), (0.76, None), (1, None)]
)
def test_by_hand(level, cost):
    history = run(None, 0.3, 0.25, 0.6, 0.1, 0.15 + 0.6, cost=10.0).history  # 0.1 + 0.2 is not 0.3 either
    assert cost_to_reach(history, level) == cost
    assert cost_to_reach([{"cost": 1.0, "validation": {"accuracy": 1.0}}], level) is None  # there are no groups


@pytest.mark.parametrize("level", [75, -0.1, float("nan")])
def test_a_level_that_is_no_share(level):
    with pytest.raises(EvenlyError, match="worst_group must be a share from 0 to 1, got"):
        cost_to_reach([], level)


@pytest.mark.parametrize(
    ("costs", "median", "reached"),
    [
        ((10.0, 20.0, 90.0), 20, 3),
        ((10.0, None, 90.0), 90, 2),  # of those that reached it, it would be 50
        ((None, None, 10.0), None, 1),
        ((10.0, None), None, 1),
        ((None,), None, 0),
    ],
)
def test_a_seed_that_never_reaches_a_level_is_the_most_expensive(costs, median, reached):
    pairs = [(run(0.4) if cost is None else run(0.5, cost=cost), run(0.5)) for cost in costs]
    levels = levels_reached(pairs)
    assert [level.above_erm for level in levels] == list(ABOVE_ERM)
    assert levels[0].costs == costs
    assert (levels[0].seeds, levels[0].seeds_reached) == (len(costs), reached)
    assert levels[0].median_cost == median
    assert levels[0].median_cost_multiple == (None if median is None else median / 100)
    assert levels[1].seeds_reached == 0


def test_reasons():
    erm, inferred = run(0.5), run(INFERRED)
    for pair, reason in (
        ((run(0.5, total=150.0), erm), "its weights were changed after the last epoch"),
        ((inferred, erm), "validation was measured by inferred groups"),
        ((run(0.5), inferred), "validation was measured by inferred groups"),
        ((run(None), erm), ""),
        ((None, erm), ""),
        ((run(0.5), None), ""),
    ):
        assert levels_reached([pair]) == ()
        assert reason_for_none([pair]) == reason
