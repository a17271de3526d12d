"""What methods, metrics, selection rules and settings are called on pages."""

from __future__ import annotations

from collections.abc import Sequence

from evenly.runs.arms import Arm, point_name
from evenly.runs.results import RunResult
from evenly.runs.summary import Summary

METRIC_NAMES = {
    "accuracy": "accuracy",
    "worst_group": "worst-group accuracy",
    "train_weighted": "train-weighted accuracy",
    "worst_class": "worst-class accuracy",
}
METRIC_COLUMNS = {
    "accuracy": "accuracy, %",
    "worst_group": "worst group, %",
    "train_weighted": "train-weighted, %",
    "worst_class": "worst class, %",
}
RULES = {
    "last": "last epoch",
    "average": "epoch with the best validation accuracy",
    "worst-group": "epoch with the best validation accuracy, of those with a worst group within one standard error of "
    "the best",
    "worst-group-argmax": "epoch with the best validation worst-group accuracy",
    "worst-class": "epoch with the best validation worst-class accuracy",
    "worst-inferred-group": "epoch with the best validation accuracy, of those with a worst inferred group within one "
    "standard error of the best",
    "worst-inferred-group-argmax": "epoch with the best validation accuracy in the worst inferred group",
}
"""Whose weights a selection rule uses."""
METHODS = {"erm": "plain training", "random_upsample": "random upsampling"}
"""Methods whose name in a sentence is not the one that is typed."""
SETTINGS = {
    "lr": "learning rate",
    "rho": "SAM's rho",
    "patience": "patience, in epochs",
    "evaluate_every": "epochs between evaluations",
    "augment": "augmentation",
    "normalise": "normalisation",
    "infer": "groups inferred by",
}
"""Settings whose name on a page is not the one that is typed."""


def arm_label(arm: Arm) -> str:
    """An arm in a sentence: "useful with sgd", in a sweep "useful with sgd at batch_size 256"."""
    name = f"{METHODS.get(arm.method, arm.method)} with {arm.optimizer}"
    return f"{name} at {point_name(arm.swept)}" if arm.swept else name


def run_label(result: RunResult) -> str:
    """A run's method where a sentence begins with it: "useful with sgd", "Plain training (ERM) with sgd"."""
    return with_abbreviation(arm_label(Arm(result.method, result.optimizer))).replace("plain", "Plain", 1)


def with_abbreviation(text: str) -> str:
    """A text that names plain training for the first time."""
    return text.replace(METHODS["erm"], f"{METHODS['erm']} (ERM)", 1)


def setting_name(name: str) -> str:
    """A setting, or an option of a method, on a page: "batch size", "useful's factor"."""
    method, _, setting = name.rpartition(".")
    words = SETTINGS.get(setting, setting.replace("_", " "))
    return f"{method}'s {words}" if method else words


def group_name(names: Sequence[str], group: int) -> str:
    """A group's name; its number where it has none."""
    return names[group] if group < len(names) else f"group {group}"


def has_metric(summaries: Sequence[Summary], metric: str) -> bool:
    """Whether any arm has a metric."""
    return any(metric in each.metrics for each in summaries)
