"""The selection rules on validation curves made for the purpose: the epoch, and its weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from evenly.data import Data
from evenly.engine import RULES
from evenly.engine.accuracy import standard_error
from evenly.engine.selector import MOST, Selector
from evenly.errors import EvenlyError

LABELS = torch.tensor([0] * 6 + [1] * 6)
GROUPS = torch.tensor([0] * 4 + [1] * 2 + [2] * 4 + [3] * 2)
RIGHT = [  # examples right in each group, of 4, 2, 4, 2
    (4, 0, 4, 0),
    (4, 0, 4, 1),
    (4, 0, 4, 2),  # first with the best average, 10/12
    (2, 1, 2, 1),  # first with the best worst group, 1/2, but the next has the higher average
    (4, 1, 4, 1),  # first with the best worst class, 5/6; ties with the two above
    (4, 1, 4, 1),
    (1, 0, 0, 0),
]


class Scripted(nn.Module):
    """Predicts as the script says for the epoch that its one parameter counts; inputs are the examples' numbers."""

    def __init__(self):
        super().__init__()
        self.epoch = nn.Parameter(torch.zeros(()))
        table = torch.stack([1 - LABELS] * (len(RIGHT) + 1))
        for epoch, counts in enumerate(RIGHT, start=1):
            for group, count in enumerate(counts):
                table[epoch, torch.eq(GROUPS, group).nonzero().flatten()[:count]] ^= 1
        self.register_buffer("table", table)

    def forward(self, x):
        predicted = self.table[int(self.epoch), x[:, 0].long()]
        return nn.functional.one_hot(predicted, 2) * 1.0 + 0 * self.epoch


class Count(torch.optim.Optimizer):
    """Adds one to every parameter."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1.0})

    def step(self, closure):
        closure()
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(1)


@pytest.fixture
def scripted():
    everything = (torch.arange(12.0)[:, None], LABELS, GROUPS)
    return Data(train=everything, validation=everything)


@pytest.mark.parametrize(
    ("every", "rule", "epoch"),
    [
        (1, "last", 7), (1, "average", 3), (1, "worst-group-argmax", 5), (1, "worst-class", 5),
        (2, "last", 7), (2, "average", 6), (2, "worst-group-argmax", 6), (2, "worst-class", 6),
        (3, "last", 7), (3, "average", 3), (3, "worst-group-argmax", 6), (3, "worst-class", 6),
        (9, "last", 7), (9, "average", 7), (9, "worst-group-argmax", 7), (9, "worst-class", 7),
        (1, "worst-group", 5), (9, "worst-group", 7),
    ],
)  # fmt: skip
def test_first_best_epoch_of_those_evaluated(fit, scripted, every, rule, epoch):
    run = fit(epochs=7, optimizer=Count, batch_size=None, select=rule, evaluate_every=every)(Scripted(), scripted)
    assert (run.rule, run.selected_epoch) == (rule, epoch)
    assert run.model.epoch == epoch
    evaluated = [row["epoch"] for row in run.history if "validation" in row]
    assert evaluated == sorted({e for e in range(1, 8) if e % every == 0} | {7})


@pytest.mark.parametrize("rule", [rule for rule, metric in RULES.items() if metric])
def test_validation_and_groups_are_asked_for_where_needed(fit, rule):
    x, y = torch.arange(12.0)[:, None], LABELS
    with pytest.raises(EvenlyError, match=f"select '{rule}' needs a validation set"):
        fit(optimizer=Count, select=rule)(Scripted(), Data(train=(x, y)))
    data = Data(train=(x, y), validation=(x, y))
    if rule.startswith("worst-group"):
        with pytest.raises(EvenlyError, match="needs groups"):
            fit(optimizer=Count, select=rule)(Scripted(), data)
    else:
        run = fit(epochs=7, optimizer=Count, select=rule, batch_size=None)(Scripted(), data)
        assert run.selected_epoch == {"average": 3, "worst-class": 5}[rule]


def select(curve: list[tuple[list[int], float]], sizes: list[int], rule: str = "worst-group", inferred: bool = False):
    """The epoch selected on a curve of (right answers by group, average), saved and resumed after each epoch."""
    selector, network = Selector(rule, inferred, None, 0), nn.Linear(1, 1)
    for epoch, (right, average) in enumerate(curve, start=1):
        shares = [k / n if n else None for k, n in zip(right, sizes, strict=True)]
        worst = min(share for share in shares if share is not None)
        measured: dict[str, Any] = {"worst_group": worst, "groups": shares, "group_counts": sizes, "accuracy": average}
        network.weight.data.fill_(epoch)
        selector.out_of_patience(epoch, selector.named(measured), network)
        resumed = Selector(rule, inferred, None, 0)
        resumed.load_state_dict(selector.state_dict())
        selector = resumed
    epoch = selector.restore(network, len(curve))
    assert network.weight.item() == epoch
    return epoch


@pytest.mark.parametrize("inferred", [False, True])
def test_an_early_epoch_that_is_best_by_chance_gives_way_to_a_better_average(inferred):
    """A group of 20: 16 right at epoch 5, 15 at the last, where the average is 18 points higher."""
    curve = [([800, 10], 0.7)] * 4 + [([930, 16], 0.73)] + [([850, 14], 0.85)] * 9 + [([910, 15], 0.91)]
    assert select(curve, [1000, 20], inferred=inferred) == 15
    assert select(curve, [1000, 20], "worst-group-argmax", inferred) == 5
    assert select(curve[:-1], [1000, 20]) == 5  # 14 of 20 are 10 points below 16, and the standard error is 9
    # the worst group of epoch 3 is small, so that an epoch which the standard error of epoch 2 excluded is close again
    assert select([([700, 8], 0.9), ([720, 9], 0.8), ([900, 8], 0.5)], [1000, 10]) == 1
    assert standard_error(0.8, 20) == pytest.approx(math.sqrt(18 / 24 * 6 / 24 / 24))


@given(data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_rule_over_all_epochs_at_once(data):
    """What is kept epoch by epoch never loses the epoch that the whole curve names."""
    sizes = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=3))
    counts = st.tuples(*(st.integers(0, n) for n in sizes))
    curve = data.draw(st.lists(st.tuples(counts, st.integers(0, 20).map(lambda k: k / 20)), min_size=1, max_size=25))
    worst = [min(k / n for k, n in zip(right, sizes, strict=True)) for right, _ in curve]
    best = max(range(len(curve)), key=lambda t: (worst[t], curve[t][1]))
    limited = min(n for k, n in zip(curve[best][0], sizes, strict=True) if k / n == worst[best])
    close = [t for t in range(len(curve)) if worst[t] >= worst[best] - standard_error(worst[best], limited)]
    expected = max(close, key=lambda t: (curve[t][1], worst[t], -t))
    assert select([(list(right), average) for right, average in curve], sizes) == expected + 1


def test_a_bounded_number_of_epochs_is_kept_and_little_of_the_average_is_lost():
    """Every epoch has one more right answer in the worst group and a lower average; all are within a standard error."""
    selector, network, n = Selector("worst-group", False, None, 0), nn.Linear(1, 1), 5000
    averages = [0.9 - 0.001 * t - 0.0004 * (t % 3) for t in range(25)]
    for t, average in enumerate(averages):
        share = (4000 + t) / n
        measured = {"worst_group": share, "groups": [share, 0.99], "group_counts": [n, n], "accuracy": average}
        selector.out_of_patience(t + 1, measured, network)
        kept = [each.average for each in selector.candidates]
        assert len(kept) == min(t + 1, MOST)
        assert kept[0] == average  # of the best worst group
        assert max(kept) >= max(averages) - 0.003
