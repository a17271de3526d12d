"""The loop: epochs, steps, checkpoints, metrics, and the count of what it all cost."""

from evenly.engine.accuracy import GroupAccuracy, group_accuracy, measure
from evenly.engine.batches import Batch
from evenly.engine.loop import RULES, Fit, fit
from evenly.engine.losses import losses, predictions, probabilities
from evenly.engine.run import FORWARD, Run, Selection
from evenly.engine.steps import State

__all__ = [
    "FORWARD",
    "RULES",
    "Batch",
    "Fit",
    "GroupAccuracy",
    "Run",
    "Selection",
    "State",
    "fit",
    "group_accuracy",
    "losses",
    "measure",
    "predictions",
    "probabilities",
]
