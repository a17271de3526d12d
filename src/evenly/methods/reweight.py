"""Group reweighting: every group weighs the same in the loss, whatever its size.

With n_g of N training examples in group g, and G groups, an example's loss has the weight N / (G n_g): the mean over
the training set is then the mean over groups of their mean losses. There are two ways to that mean. By sampling, an
epoch holds every group equally often, small groups repeated (Idrissi, Arjovsky, Pezeshki, Lopez-Paz 2022 reweight so).
By loss, every example is seen once and its loss multiplied: the same in expectation, but a batch that holds one rare
example takes a step as much longer as that is rare, which learning rates that suit ERM may not survive.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from evenly.data import Data, GroupBalanced
from evenly.engine import Fit, Objective, Trained
from evenly.methods.registry import Factory, method


@method(needs_groups=True)
def reweight(model: Factory, data: Data, fit: Fit, *, by: Literal["sampling", "loss"] = "sampling") -> Trained:
    """Give every group the same weight, by drawing it as often as the others or by weighing its losses.

    A full batch has nothing to sample: it is weighed by loss.
    """
    groups = data.train.groups
    if by == "sampling" and fit.settings.batch_size is not None:
        return fit(model(), data, sampler=GroupBalanced(groups, seed=fit.seed))
    return fit(model(), data, objective=Objective(weights=inverse_size(groups)))


def inverse_size(groups: Tensor) -> Tensor:
    """N / (G n_g) for each example (N,); G counts the groups that have examples."""
    counts = torch.bincount(groups)
    return len(groups) / ((counts > 0).sum() * counts[groups]).float()
