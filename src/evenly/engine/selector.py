"""Which epoch's weights a fit ends with: the rule, the best weights so far, and how long to wait for better ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from evenly.data.contract import Data
from evenly.engine.accuracy import check_groups
from evenly.errors import EvenlyError
from evenly.settings import Settings

RULES = {
    "last": None,
    "average": "accuracy",
    "worst-group": "worst_group",
    "worst-class": "worst_class",
}
"""Selection rules: the last epoch, or the one with the best value of a validation metric; ties go to the higher
average, then to the earlier epoch."""

INFERRED = {
    "worst_group": "worst_inferred_group",
    "groups": "inferred_groups",
    "group_counts": "inferred_group_counts",
    "train_weighted": "train_weighted_inferred",
}
"""What is measured by group is called so where the groups were inferred, lest it be taken for the true ones."""


def check_selection(data: Data, settings: Settings) -> None:
    """Refuse data on which the rule cannot select. Inferred groups may lack validation examples: that is warned of."""
    if settings.select == "last":
        return
    if data.validation is None:
        raise EvenlyError(f"select {settings.select!r} needs a validation set and there is none; use select='last'")
    if settings.evaluate_every is None:
        raise EvenlyError(
            f"select {settings.select!r} needs evaluations on validation; give evaluate_every, or select='last'"
        )
    if settings.select == "worst-group" and settings.groups != "infer":
        if data.train.groups is None:
            raise EvenlyError("select 'worst-group' needs groups and there are none; use select='worst-class'")
        check_groups(data)


class Selector:
    """The best weights so far by a rule.

    Args:
        rule: a key of `RULES`.
        inferred: whether the groups were inferred.
        patience: epochs without a better value after which to stop; None: never.
        patient_from: epochs that pass before `patience` begins to count.
    """

    def __init__(self, rule: str, inferred: bool, patience: int | None, patient_from: int) -> None:
        self.inferred, self.patience, self.patient_from = inferred, patience, patient_from
        self.rule = "worst-inferred-group" if inferred and rule == "worst-group" else rule
        metric = RULES[rule]
        self.metric = INFERRED.get(metric, metric) if inferred and metric else metric
        self.best: dict[str, Any] | None = None
        """`epoch`, `value` and `model`, its weights; None where there was no evaluation or the rule is "last"."""

    def named(self, measured: Mapping[str, Any]) -> dict[str, Any]:
        """What was measured on validation, under the names that it is reported by."""
        return {INFERRED.get(key, key): value for key, value in measured.items()} if self.inferred else dict(measured)

    def out_of_patience(self, epoch: int, measured: Mapping[str, Any], model: nn.Module) -> bool:
        """Note an evaluation, keep the weights if they are better; whether it has been too long since they were."""
        if self.metric is None:
            return False
        value = [measured[self.metric], measured["accuracy"]]  # a worst group of few examples ties often
        if self.best is None or value > self.best["value"]:
            weights: dict[str, Tensor] = {key: each.detach().clone() for key, each in model.state_dict().items()}
            self.best = {"epoch": epoch, "value": value, "model": weights}
        return self.patience is not None and epoch - max(self.best["epoch"], self.patient_from) >= self.patience

    def restore(self, model: nn.Module, last: int) -> int:
        """Give the model the weights that were selected; the epoch that they are of."""
        if self.best is None:
            return last
        model.load_state_dict(self.best["model"])
        epoch: int = self.best["epoch"]
        return epoch
