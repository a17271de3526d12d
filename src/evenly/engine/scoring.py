"""The worst group's accuracy as a metric of scikit-learn: labels and predictions of any kind, in scikit-learn's order.

worst_group = make_scorer(evenly.worst_group_accuracy).set_score_request(groups=True)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from evenly.engine.accuracy import group_accuracy
from evenly.errors import EvenlyError


def worst_group_accuracy(y_true: Any, y_pred: Any, *, groups: Any = None) -> float:
    """The accuracy of the group where it is lowest.

    Args:
        y_true: (N,) labels, numbers or names.
        y_pred: (N,) predicted labels.
        groups: (N,) numbers or names, or boolean (N, G) where groups overlap.
    """
    if groups is None:
        raise EvenlyError(
            "worst_group_accuracy was given no groups; call sklearn.set_config(enable_metadata_routing=True) and "
            "make_scorer(...).set_score_request(groups=True), then pass groups= to the search"
        )
    labels, predicted = np.asarray(y_true), np.asarray(y_pred)
    if labels.ndim != 1 or labels.shape != predicted.shape:
        raise EvenlyError(f"y_true has shape {labels.shape} and y_pred {predicted.shape}; give (N,) for both")
    groups = np.asarray(groups)
    groups = np.unique(groups, return_inverse=True)[1] if groups.ndim == 1 else groups
    right = (labels == predicted).astype(np.int64)
    return group_accuracy(right, np.ones_like(right), groups).worst
