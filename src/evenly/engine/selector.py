"""Which epoch's weights a fit ends with: the rule, the best weights so far, and how long to wait for better ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from attrs import asdict, field, frozen
from torch import Tensor, nn

from evenly.data.contract import Data
from evenly.engine.accuracy import check_groups, standard_error
from evenly.errors import EvenlyError
from evenly.settings import BY_GROUP, Settings

RULES = {
    "last": None,
    "average": "accuracy",
    "worst-group": "worst_group",
    "worst-group-argmax": "worst_group",
    "worst-class": "worst_class",
}
"""Selection rules: the last epoch, or the one with the best value of a validation metric; ties go to the higher
average, then to the earlier epoch.

A worst group of few examples is best by chance. "worst-group" therefore takes, of all epochs whose worst group is
within one standard error of the best, the one with the highest average. "worst-group-argmax" is the rule of papers.
"""

MOST = 8
"""Epochs whose weights are kept at once. By "worst-group" each epoch within one standard error may still be chosen, if
the best one rises above the others; curves of training have two to five of them. Beyond this number, the epoch goes
whose average is the least above that of an epoch with a better worst group: no more than that difference is lost."""

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
    if settings.select in BY_GROUP and settings.groups != "infer":
        if data.train.groups is None:
            raise EvenlyError(f"select {settings.select!r} needs groups and there are none; use select='worst-class'")
        check_groups(data)


@frozen(eq=False)
class Candidate:
    """An epoch whose weights may be used.

    Args:
        value: the rule's metric on validation.
        error: the standard error that other epochs may be below it by; `widest` is that of the smallest group.
    """

    epoch: int
    value: float
    average: float
    error: float
    widest: float
    weights: dict[str, Tensor] = field(repr=False)


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
        self.rule = rule.replace("worst-group", "worst-inferred-group") if inferred else rule
        self.metric = self._name(RULES[rule] or "")
        self.tolerant = rule == "worst-group"
        self.candidates: list[Candidate] = []
        """Epochs that the rule may still choose, the average rising and the value falling; at most `MOST`, none where
        there was no evaluation or the rule is "last"."""

    def _name(self, metric: str) -> str:
        return INFERRED.get(metric, metric) if self.inferred else metric

    def named(self, measured: Mapping[str, Any]) -> dict[str, Any]:
        """What was measured on validation, under the names that it is reported by."""
        return {self._name(key): value for key, value in measured.items()}

    def out_of_patience(self, epoch: int, measured: Mapping[str, Any], model: nn.Module) -> bool:
        """Note an evaluation, keep the weights if they may be used; whether it has been too long since the best."""
        if not self.metric:
            return False
        value, average = measured[self.metric], measured["accuracy"]
        if not any(each.value >= value and each.average >= average for each in self.candidates):
            weights = {key: each.detach().clone() for key, each in model.state_dict().items()}
            new = Candidate(epoch, value, average, *self._errors(value, measured), weights)
            others = [each for each in self.candidates if each.value > value or each.average > average]
            best = self._best([*others, new])
            # no epoch to come can have a larger value and a lower limit: shares and their lower limits rise together
            close = [each for each in (*others, new) if each.value >= best.value - best.widest]
            self.candidates = sorted(close, key=lambda each: each.average)
            while len(self.candidates) > MOST:
                gaps = [after.average - before.average for before, after in pairwise(self.candidates)]
                del self.candidates[1 + gaps.index(min(gaps))]
        best = self._best(self.candidates)
        return self.patience is not None and epoch - max(best.epoch, self.patient_from) >= self.patience

    def _errors(self, value: float, measured: Mapping[str, Any]) -> tuple[float, float]:
        if not self.tolerant:
            return 0.0, 0.0
        sizes = [
            (n, share)
            for n, share in zip(*(measured[self._name(key)] for key in ("group_counts", "groups")), strict=True)
            if n
        ]
        smallest, worst = min(n for n, _ in sizes), min(n for n, share in sizes if share == value)
        return standard_error(value, worst), standard_error(value, smallest)

    @staticmethod
    def _best(candidates: Sequence[Candidate]) -> Candidate:
        return max(candidates, key=lambda each: (each.value, each.average))

    def restore(self, model: nn.Module, last: int) -> int:
        """Give the model the weights that were selected; the epoch that they are of."""
        if not self.candidates:
            return last
        best = self._best(self.candidates)
        close = [each for each in self.candidates if each.value >= best.value - best.error]
        selected = max(close, key=lambda each: each.average)
        model.load_state_dict(selected.weights)
        return selected.epoch

    def state_dict(self) -> list[dict[str, Any]]:
        return [asdict(each, recurse=False) for each in self.candidates]

    def load_state_dict(self, state: Iterable[Mapping[str, Any]]) -> None:
        self.candidates = [Candidate(**each) for each in state]
