"""The worst group's accuracy and both averages as the ``compute_metrics`` of Trainer.

>>> args = TrainingArguments(..., eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True,
...                          metric_for_best_model="worst_group")
>>> trainer = Trainer(model, args, train_dataset=train, eval_dataset=validation,
...                   compute_metrics=worst_group_metrics(validation_groups, train_groups))
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import EvalPrediction

from evenly.engine.accuracy import GroupAccuracy, group_accuracy
from evenly.errors import EvenlyError


class WorstGroupMetrics:
    """The result of :func:`worst_group_metrics`; :attr:`result` has the accuracy of every group, of the last call."""

    result: GroupAccuracy | None = None

    def __init__(self, groups: Any = None, train_groups: Any = None) -> None:
        self.groups, self.train_groups = groups, train_groups
        self._batches: list[tuple[Tensor, ...]] = []

    def __call__(self, prediction: EvalPrediction, compute_result: bool = True) -> dict[str, float]:
        self._batches.append(self._parts(prediction))
        if not compute_result:  # batch_eval_metrics: a call per batch, of which the last has the result
            return {}
        outputs, labels, *groups = (torch.cat(parts) for parts in zip(*self._batches, strict=True))
        self._batches = []
        measured = groups[0] if self.groups is None else self.groups
        self.result = group_accuracy(outputs, labels, measured, self.train_groups)
        values = {"worst_group": self.result.worst, "mean": self.result.mean, "weighted": self.result.weighted}
        return {name: value for name, value in values.items() if value is not None}

    def _parts(self, prediction: EvalPrediction) -> tuple[Tensor, ...]:
        """Outputs (n, K), labels (n,), and groups where they come with the labels."""
        outputs, labels = prediction.predictions, prediction.label_ids
        if isinstance(outputs, tuple | list):  # of a model that returns more than logits
            outputs = outputs[0]
        if self.groups is None:
            if not isinstance(labels, tuple | list) or len(labels) != 2:
                raise EvenlyError(
                    "worst_group_metrics() without groups takes them from the batches; give label_names=['labels', "
                    "'groups'] in TrainingArguments, and a data set with both"
                )
            return tuple(map(_tensor, (outputs, *labels)))
        return _tensor(outputs), _tensor(labels)


def worst_group_metrics(groups: Any = None, train_groups: Any = None) -> WorstGroupMetrics:
    """A ``compute_metrics`` that returns ``worst_group``, ``mean`` and, given ``train_groups``, ``weighted``.

    The numbers are those of :func:`evenly.group_accuracy` on the whole evaluation set. With several processes Trainer
    gathers the outputs in the order of the data set and removes its padding before the metrics are computed.

    Args:
        groups: of the evaluation set, (N,) integers or names, or boolean (N, G), in the order of its examples.
            ``train_sampling_strategy="group_by_length"`` reorders them; without ``groups`` they are the second of
            ``label_names``, in any order.
        train_groups: of the training set, for the average weighted by them.
    """
    return WorstGroupMetrics(groups, train_groups)


def _tensor(values: Any) -> Tensor:
    return values.detach().cpu() if isinstance(values, Tensor) else torch.from_numpy(np.asarray(values))
