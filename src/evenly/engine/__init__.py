"""One fit: loop, step, captured step, checkpoints, selection; a network's outputs, features and accuracy by group."""

from evenly.engine.accuracy import GroupAccuracy, group_accuracy, measure
from evenly.engine.batches import Batch
from evenly.engine.checkpoints import Checkpoints, Row
from evenly.engine.fit import Fit
from evenly.engine.losses import predictions, probabilities
from evenly.engine.selector import RULES, check_selection
from evenly.engine.steps import Objective, State
from evenly.engine.trained import FORWARD, Observer, Selection, Trained

__all__ = [
    "FORWARD",
    "RULES",
    "Batch",
    "Checkpoints",
    "Fit",
    "GroupAccuracy",
    "Objective",
    "Observer",
    "Row",
    "Selection",
    "State",
    "Trained",
    "check_selection",
    "group_accuracy",
    "measure",
    "predictions",
    "probabilities",
]
