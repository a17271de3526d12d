"""Empirical risk minimisation: the mean loss over the training set as it is."""

from __future__ import annotations

from evenly.data.contract import Data
from evenly.engine import Fit, Trained
from evenly.methods.registry import Factory, method


@method()
def erm(model: Factory, data: Data, fit: Fit) -> Trained:
    """Train on the data as it is."""
    return fit(model(), data)
