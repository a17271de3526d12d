"""Misclassification: repeat what the early network gets wrong. A rival of USEFUL's clusters (Nguyen, Haddad, Gan,
Mirzasoleiman 2024, Table 6): easy features need not be learned in full by then, so it mistakes some easy examples.

1. Train for a few epochs, until the drop in training loss has shrunk.
2. Take the examples whose predicted class is not their label.
3. Repeat them and train again from the start.
"""

from __future__ import annotations

from torch import Tensor

from evenly.data import Data
from evenly.engine import Fit, Trained, predictions
from evenly.methods.early import Factor, SeparatingEpoch, check_separating_epoch, retrain_repeating, train_early
from evenly.methods.registry import Factory, method


@method(control="random_upsample", check=check_separating_epoch)
def misclassification(
    model: Factory, data: Data, fit: Fit, *, separating_epoch: SeparatingEpoch = None, factor: Factor = 2
) -> Trained:
    """Repeat the examples that an early network gets wrong, retrain."""
    early = train_early(model, data, fit, separating_epoch)
    wrong = early.choose(fit, lambda: misclassified(early.outputs(), data.train.labels))
    why, why_none = "misclassified early in training", "the early network made no errors"
    return retrain_repeating(model, fit, early, wrong, factor, why=why, why_none=why_none)


def misclassified(logits: Tensor, labels: Tensor) -> Tensor:
    """Indices, ascending, of the examples whose prediction from logits (N, K), (N, 1) or (N,) is not their label."""
    return (predictions(logits) != labels.to(logits.device)).nonzero().flatten()
