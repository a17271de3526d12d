"""Upweight: count the loss of USEFUL's hard examples more instead of repeating them (Nguyen, Haddad, Gan,
Mirzasoleiman 2024, Table 5: the loss of all examples in the difficult clusters is doubled).

1. and 2. As in USEFUL: the higher-loss of two clusters of early outputs in each class is hard.
3. Multiply their losses by a factor and train again from the start, every example once per epoch.

The loss of a batch is the mean of weight times loss: the sum is divided by the number of examples, not by the sum of
their weights. The gradients of easy examples are ERM's own, those of hard ones `factor` times ERM's. USEFUL on the full
batch is the same but for a smaller step: it divides by the number of examples seen, repeats included.
"""

from __future__ import annotations

from typing import Annotated

import torch

from evenly.data import Data
from evenly.data.samplers import MOST
from evenly.engine import Fit, Objective, Trained
from evenly.methods.early import SeparatingEpoch, train_early
from evenly.methods.registry import Factory, method
from evenly.methods.useful import ALL_ALIKE, check, higher_loss_clusters
from evenly.settings import at_least, at_most


@method(check=check)
def upweight(
    model: Factory,
    data: Data,
    fit: Fit,
    *,
    separating_epoch: SeparatingEpoch = None,
    factor: Annotated[float, at_least(1), at_most(MOST)] = 2.0,
) -> Trained:
    """Find the examples without easy features early, weigh their losses up, retrain."""
    early = train_early(model, data, fit, separating_epoch)
    hard = early.choose(fit, lambda: higher_loss_clusters(early, "probabilities", fit.seed))
    weights = torch.ones(len(data.train))
    weights[hard] = factor
    trained = fit(model(), data, objective=Objective(weights=weights), spent=early.cost)
    why = f"the higher-loss of two clusters of early probabilities in each class; their losses count {factor:g} times"
    trained.selection = early.selection(hard, 1, why, weight=factor)
    if not len(hard):
        trained.remarks = (f"nothing was weighed up: {ALL_ALIKE}",)
    return trained
