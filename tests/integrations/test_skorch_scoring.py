"""The worst group's accuracy as a score of skorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import evenly
from evenly.errors import EvenlyError

pytest.importorskip("skorch", reason="needs skorch: pip install 'evenly[skorch]'")

from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint, EpochScoring
from skorch.dataset import Dataset, ValidSplit
from skorch.helper import predefined_split

from evenly.integrations.skorch import worst_group_scorer


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Linear(4, 3)

    def forward(self, X):  # skorch's name
        return self.net(X)


X, Y = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
GROUPS = (np.arange(60) * 7) % 4
HELD_OUT = Dataset(X[40:], Y[40:])


def net(*callbacks, **options):
    settings = {"max_epochs": 3, "lr": 0.1, "verbose": 0, "criterion": nn.CrossEntropyLoss} | options
    return NeuralNetClassifier(Net, callbacks=list(callbacks), **settings)


def scoring(*arguments, name="worst", **options):
    return EpochScoring(worst_group_scorer(*arguments), lower_is_better=False, name=name, **options)


@pytest.mark.parametrize("use_caching", [True, False])
def test_the_scores_are_those_of_group_accuracy(use_caching):
    """With a validation set of its own, cached predictions and fresh ones."""
    values = ("worst", "mean", "weighted")
    groups, train_groups = GROUPS[40:], GROUPS[:40]
    callbacks = [scoring(groups, train_groups, value, name=value, use_caching=use_caching) for value in values]
    fitted = net(*callbacks, train_split=predefined_split(HELD_OUT)).fit(X[:40], Y[:40])
    outputs = fitted.module_(torch.from_numpy(X[40:]))
    result = evenly.group_accuracy(outputs, Y[40:], groups, train_groups)
    assert [fitted.history[-1, value] for value in values] == [result.worst, result.mean, result.weighted]


def test_the_groups_of_all_examples_are_divided_as_the_net_divides_them(tmp_path):
    best = Checkpoint(monitor="worst_best", dirname=str(tmp_path))
    fitted = net(scoring(GROUPS), best, train_split=ValidSplit(0.3, random_state=1)).fit(X, Y)
    _, valid = fitted.get_split_datasets(X, Y)
    chosen = np.asarray(valid.indices)
    assert set(GROUPS[chosen]) == {0, 1, 2, 3}
    assert not np.array_equal(GROUPS[chosen], GROUPS[: len(chosen)])
    outputs = fitted.module_(torch.from_numpy(X[chosen]))
    assert fitted.history[-1, "worst"] == evenly.group_accuracy(outputs, Y[chosen], GROUPS[chosen]).worst
    assert (tmp_path / "params.pt").is_file()


def test_it_scores_a_fitted_net():
    fitted = net(train_split=None).fit(X, Y)
    expected = evenly.group_accuracy(fitted.predict(X), Y, GROUPS).worst
    assert worst_group_scorer(GROUPS)(fitted, X, Y) == expected


def test_what_would_mix_up_the_groups_is_refused():
    with pytest.warns(UserWarning, match="iterator_valid__shuffle"), pytest.raises(EvenlyError, match="shuffles"):
        net(scoring(GROUPS), iterator_valid__shuffle=True).fit(X, Y)
    with pytest.raises(EvenlyError, match="the iterator shuffles"):
        net(scoring(GROUPS, on_train=True), iterator_train__shuffle=True).fit(X, Y)
    with pytest.raises(EvenlyError, match="there are 7 groups and 12 examples are scored"):
        net(scoring(GROUPS[:7])).fit(X, Y)
    with pytest.raises(EvenlyError, match="the weighted average needs train_groups"):
        net(scoring(GROUPS, None, "weighted")).fit(X, Y)
    with pytest.raises(EvenlyError, match="`value` must be 'worst', 'mean' or 'weighted', got 'best'"):
        worst_group_scorer(GROUPS, value="best")


def test_the_example_runs(plain):
    assert "worst group" in plain.example("skorch_worst_group.py")
