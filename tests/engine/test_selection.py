"""The four selection rules on a validation curve made for the purpose: the first best epoch, and its weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evenly.data import Data
from evenly.engine import RULES
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
        (1, "last", 7), (1, "average", 3), (1, "worst-group", 5), (1, "worst-class", 5),
        (2, "last", 7), (2, "average", 6), (2, "worst-group", 6), (2, "worst-class", 6),
        (3, "last", 7), (3, "average", 3), (3, "worst-group", 6), (3, "worst-class", 6),
        (9, "last", 7), (9, "average", 7), (9, "worst-group", 7), (9, "worst-class", 7),
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
    if rule == "worst-group":
        with pytest.raises(EvenlyError, match="needs groups"):
            fit(optimizer=Count, select=rule)(Scripted(), data)
    else:
        run = fit(epochs=7, optimizer=Count, select=rule, batch_size=None)(Scripted(), data)
        assert run.selected_epoch == {"average": 3, "worst-class": 5}[rule]
