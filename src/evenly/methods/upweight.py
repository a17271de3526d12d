"""Upweight: count the loss of USEFUL's hard examples more instead of repeating them (Nguyen, Haddad, Gan,
Mirzasoleiman 2024, Table 5: the loss of all examples in the difficult clusters is doubled).

1. and 2. As in USEFUL: the costlier of two clusters of early outputs in each class is hard.
3. Multiply their losses by a factor and train again from the start, every example once per epoch.

The loss of a batch is the mean of weight times loss: the sum is divided by the number of examples, not by the sum of
their weights. The gradients of easy examples are ERM's own, those of hard ones `factor` times ERM's. USEFUL on the full
batch is the same but for a smaller step: it divides by the number of examples shown, repeats included.
"""

from __future__ import annotations

import torch

from evenly.data import Data
from evenly.data.samplers import MOST
from evenly.engine import Fit, Run
from evenly.errors import EvenlyError
from evenly.methods.early import train_early
from evenly.methods.registry import Factory, method
from evenly.methods.useful import costlier_clusters, splittable


@method()
def upweight(model: Factory, data: Data, fit: Fit, *, separating_epoch: int | None = None, factor: float = 2.0) -> Run:
    """Find the examples without easy features early, weigh their losses up, retrain."""
    if not 1 <= factor <= MOST:
        does = "weigh the hard examples down" if factor < 1 else "leave nothing of the others"
        raise EvenlyError(f"factor {factor:g} would {does}; give a number in 1..{MOST} (2 doubles them)")
    splittable(data.train.labels)
    early = train_early(model, data, fit, separating_epoch)
    hard = early.choose(fit, lambda: costlier_clusters(early, "probabilities", fit.seed))
    weights = torch.ones(len(data.train))
    weights[hard] = factor
    run = fit(model(), data, weights=weights, spent=early.cost)
    why = f"the costlier of two clusters of early probabilities in each class; their losses count {factor:g} times"
    run.selection = early.selection(hard, 1, why, weight=factor)
    return run
