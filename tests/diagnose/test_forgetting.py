"""Forgetting against a count by hand in plain Python; the tracker against the table of the same history."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from evenly import EvenlyError, Split
from evenly.diagnose.forgetting import ForgettingTracker, forgetting_scores
from evenly.diagnose.norms import l1_norm

INF = float("inf")


def by_hand(history: list[list[bool]]) -> list[float]:
    scores = []
    for answers in zip(*history, strict=True):
        count = sum(before and not after for before, after in pairwise(answers))
        scores.append(float(count) if any(answers) else INF)
    return scores


def test_the_cases_by_name() -> None:
    always, late, once, twice, never = [1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 1, 0, 0, 0], [1, 0, 1, 0, 1], [0] * 5
    history = torch.tensor([always, late, once, twice, never]).T
    scores = forgetting_scores(history)
    assert scores.dtype == torch.float64
    assert scores.tolist() == [0, 0, 1, 2, INF]
    assert scores.argsort().tolist()[-1] == 4  # what was never right counts as the hardest
    assert forgetting_scores(history[:1]).tolist() == [0, INF, INF, 0, INF]


tables = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1, max_size=8)
)


@settings(max_examples=60, deadline=None)
@given(tables)
def test_tables_and_trackers_agree_with_the_count(history: list[list[bool]]) -> None:
    expected = by_hand(history)
    for given_ in (history, torch.tensor(history), torch.tensor(history).numpy(), [torch.tensor(r) for r in history]):
        assert forgetting_scores(given_).tolist() == expected
    tracker, one_call = ForgettingTracker(len(history[0])), ForgettingTracker(len(history[0]))
    index = torch.arange(len(history[0]))
    for row in history:
        order = index.flip(0)
        tracker.update(order, torch.tensor(row)[order])
    one_call.update(index.repeat(len(history)), torch.tensor(history).flatten())  # copies count in the order they stand
    assert tracker.scores.tolist() == one_call.scores.tolist() == expected


def test_examples_are_compared_with_when_they_were_last_seen() -> None:
    tracker = ForgettingTracker(5)
    tracker.update([0, 1, 2], [True, True, False])
    tracker.update([3], [False])
    tracker.update([1, 0], [False, True])
    tracker.update([1, 1], [True, False])
    scores = tracker.scores
    assert scores[:4].tolist() == [0, 2, INF, INF]
    assert bool(scores[4].isnan())
    assert tracker.histogram() == {"0": 1, "1": 0, "2": 1, "never": 2}
    assert ForgettingTracker(2).histogram() == {"never": 0}


def test_a_tracker_goes_on_from_its_state() -> None:
    one, other = ForgettingTracker(3), ForgettingTracker(3)
    one.update([0, 1], [True, True])
    other.load_state_dict(one.state_dict())
    one.update([0], [False])
    assert other.scores[0] == 0
    other.update([0], [False])
    assert torch.equal(one.scores.nan_to_num(-1), other.scores.nan_to_num(-1))
    with pytest.raises(EvenlyError, match="not of a tracker of 4 examples"):
        ForgettingTracker(4).load_state_dict(one.state_dict())
    with pytest.raises(EvenlyError, match="is in the state or in the ForgettingTracker, not in both"):
        one.load_state_dict({})


class Sign(nn.Module):
    """Right where x and the sign agree; a dropout that would show in training mode."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.sign, self.drop = nn.Parameter(torch.tensor(sign)), nn.Dropout(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.sign * x)


def test_a_tracker_evaluates_in_eval_mode_and_has_a_row_for_each_step(refused: Any) -> None:
    x = torch.tensor([[1.0], [-1.0], [2.0]]).repeat(200, 1)
    tracker = ForgettingTracker(Split(x, torch.tensor([1, 1, 1]).repeat(200)))
    for step, sign in enumerate((1.0, -1.0, 1.0, 1.0), 3):
        assert {"step": step, **tracker(Sign(sign), step)} == tracker.history[-1]
    assert [row["step"] for row in tracker.history] == [3, 4, 5, 6]
    assert [row["accuracy"] for row in tracker.history] == pytest.approx([2 / 3, 1 / 3, 2 / 3, 2 / 3])
    assert [row["never_right"] for row in tracker.history] == pytest.approx([1 / 3, 0, 0, 0])
    assert tracker.scores.tolist() == [1, 1, 1] * 200
    refused("the tracker has 3 examples and no data; give it data, or call", ForgettingTracker(3), Sign(1.0))


def test_what_is_no_history_is_refused(refused: Any) -> None:
    update = ForgettingTracker(3).update
    refused(r"history has shape \(3,\); give \(T, N\)", forgetting_scores, torch.ones(3))
    refused("history has shape", forgetting_scores, torch.ones(0, 3))
    refused("history cannot be read as a table", forgetting_scores, [[True], [True, False]])
    refused("history cannot be read as a table", forgetting_scores, [])
    refused("history holds 2", forgetting_scores, torch.tensor([[0, 2]]))
    refused("history holds 0.5", forgetting_scores, torch.tensor([[0, 0.5]]))
    refused("data must be a training set or the number of its examples, got 0", ForgettingTracker, 0)
    refused("indices run from 1 to 3 and there are 3 examples", update, [1, 3], [True, True])
    refused("indices run from -1", update, [-1], [True])
    refused(r"indices \(2,\) of torch.int64 do not go with answers \(1,\)", update, [0, 1], [True])
    refused("of torch.bool do not go with", update, [True, False], [True, False])
    refused("right holds 3", update, [0], [3])


def test_the_l1_norm_counts_every_weight_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, -2.0], [3.0, -4.0]]))
        model[0].bias.copy_(torch.tensor([-0.5, 0.25]))
    model[2].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    assert l1_norm(model) == 10 + 0.75 + 2
    assert l1_norm(nn.ReLU()) == 0
