"""Quantile: repeat the half with the larger early loss. A rival of USEFUL's clusters (Nguyen, Haddad, Gan,
Mirzasoleiman 2024, Table 6): a cut at a fixed share, wherever the easy examples end.

1. Train for a few epochs, until the drop in training loss has shrunk.
2. Take the examples whose loss is above the median, or above another quantile.
3. Repeat them and train again from the start.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from evenly.data import Data
from evenly.engine import Fit, Run, losses
from evenly.errors import EvenlyError
from evenly.methods.early import ALIKE, retrain_repeating, train_early
from evenly.methods.registry import Factory, method


@method(control="random_upsample")
def quantile(
    model: Factory,
    data: Data,
    fit: Fit,
    *,
    separating_epoch: int | None = None,
    factor: int = 2,
    above: float = 0.5,
) -> Run:
    """Repeat the examples whose early loss is above the median, or another quantile, retrain."""
    if not 0 < above < 1:
        raise EvenlyError(f"above {above} is no quantile that parts the examples; give a number between 0 and 1")
    early = train_early(model, data, fit, separating_epoch, factor)
    costly = early.choose(fit, lambda: above_quantile(losses(early.outputs().double(), data.train.labels.cpu()), above))
    name = "median" if above == 0.5 else f"{above:g} quantile"
    return retrain_repeating(model, fit, early, costly, factor, f"early loss above the {name}")


def above_quantile(losses: Tensor, above: float = 0.5) -> Tensor:
    """Indices, ascending, of the losses (N,) strictly above their quantile; those equal to it are left out."""
    losses = losses.double().round(decimals=ALIKE)
    # between two losses any threshold parts them alike, so the lower one serves and nothing is interpolated
    return (losses > float(np.quantile(losses.numpy(), above, method="lower"))).nonzero().flatten()
