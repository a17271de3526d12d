"""Quantile: repeat the half with the larger early loss. A rival of USEFUL's clusters (Nguyen, Haddad, Gan,
Mirzasoleiman 2024, Table 6): a cut at a fixed share, wherever the easy examples end.

1. Train for a few epochs, until the drop in training loss has shrunk.
2. Take the examples whose loss is above the median, or above another quantile.
3. Repeat them and train again from the start.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from torch import Tensor

from evenly import settings
from evenly.data import Data
from evenly.engine import Fit, Trained
from evenly.engine.losses import losses
from evenly.methods.early import ALIKE, Factor, SeparatingEpoch, check_separating_epoch, retrain_repeating, train_early
from evenly.methods.registry import Factory, method

Quantile = Annotated[float, settings.above(0), settings.below(1)]


@method(control="random_upsample", check=check_separating_epoch)
def quantile(
    model: Factory,
    data: Data,
    fit: Fit,
    *,
    separating_epoch: SeparatingEpoch = None,
    factor: Factor = 2,
    above: Quantile = 0.5,
) -> Trained:
    """Repeat the examples whose early loss is above the median, or another quantile, retrain."""
    early = train_early(model, data, fit, separating_epoch)
    high = early.choose(fit, lambda: above_quantile(losses(early.outputs().double(), data.train.labels.cpu()), above))
    why = f"early loss above the {'median' if above == 0.5 else f'{above:g} quantile'}"
    return retrain_repeating(model, fit, early, high, factor, why=why, why_none="no early loss is above the quantile")


def above_quantile(losses: Tensor, above: float = 0.5) -> Tensor:
    """Indices, ascending, of the losses (N,) strictly above their quantile; those equal to it are left out."""
    losses = losses.double().round(decimals=ALIKE)
    # between two losses any threshold parts them alike, so the lower one serves and nothing is interpolated
    return (losses > float(np.quantile(losses.numpy(), above, method="lower"))).nonzero().flatten()
