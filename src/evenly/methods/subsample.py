"""Subsample: train on a group-balanced subset only, every group cut down to the size of the smallest."""

from __future__ import annotations

import torch

from evenly.data import Data, ProgressiveExpansion
from evenly.engine import Fit, Selection, Trained
from evenly.methods.registry import Factory, method


@method(needs_groups=True)
def subsample(model: Factory, data: Data, fit: Fit) -> Trained:
    """Train on a group-balanced subset only."""
    balanced = ProgressiveExpansion(data.train.groups, warmup_epochs=fit.epochs, seed=fit.seed)
    trained = fit(model(), data, sampler=balanced)
    balanced.set_epoch(0)
    used = balanced.members().sort().values
    trained.selection = Selection(used, torch.ones_like(used), "drawn so that every group is as large as the smallest")
    return trained
