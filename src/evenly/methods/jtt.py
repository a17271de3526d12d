"""JTT: just train twice (Liu, Haghgoo, Chen, Raghunathan, Koh, Sagawa, Liang, Finn 2021, Algorithm 1).

1. Identification: train by ERM for T epochs and take the error set, the training examples it gets wrong.
2. Upsample the error set lambda_up times, the rest once, and train again from the start by ERM.

An empty error set leaves nothing to upsample: the second stage is then plain training, and the selection says so.
"""

from __future__ import annotations

from evenly.data import Data
from evenly.engine import Fit, Trained
from evenly.methods.early import Factor, SeparatingEpoch, check_separating_epoch, retrain_repeating, train_early
from evenly.methods.misclassification import misclassified
from evenly.methods.registry import Factory, method


@method(control="random_upsample", check=check_separating_epoch)
def jtt(
    model: Factory, data: Data, fit: Fit, *, separating_epoch: SeparatingEpoch = None, factor: Factor = 20
) -> Trained:
    """Repeat many times over what a first model gets wrong, retrain.

    `separating_epoch` is T, where not given the epoch at which the drop in training loss has shrunk; `factor` is
    lambda_up. The paper tunes both per data set (T 1 to 60, lambda_up 4 to 100).
    """
    identification = train_early(model, data, fit, separating_epoch)
    errors = identification.choose(fit, lambda: misclassified(identification.outputs(), data.train.labels))
    why, why_none = "the identification model's errors", "the first model made no errors"
    return retrain_repeating(model, fit, identification, errors, factor, why=why, why_none=why_none)
