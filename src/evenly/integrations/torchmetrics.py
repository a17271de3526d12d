"""torchmetrics: the accuracy of the worst group, synchronised over processes.

>>> worst = WorstGroupAccuracy(num_groups=4)
>>> worst.update(outputs, labels, groups)       # in every process, for every batch
>>> worst.compute()                             # over all of them
>>> worst.result.per_group                      # evenly.group_accuracy's answer for the same examples
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor

from evenly.data.contract import as_groups
from evenly.engine.accuracy import GroupAccuracy, accuracy_from_counts, hits
from evenly.errors import EvenlyError
from evenly.integrations.hosts import missing
from evenly.settings import at_least, checks_options

try:
    from torchmetrics import Metric
except ModuleNotFoundError as error:
    raise missing("torchmetrics", error) from error


class WorstGroupAccuracy(Metric):
    """The accuracy of the group where it is lowest; groups without an example are left out.

    The whole of :func:`evenly.group_accuracy` is in :attr:`result` after ``compute``. torchmetrics counts what a
    distributed sampler repeats, so that all processes have as many examples, as often as it is seen.

    Args:
        num_groups: G; groups are 0..G-1. All processes add up their counts, so it has to be known.
        train_groups: of the training set, for the average weighted by them: integers (N,), or boolean (N, G).
        options: of torchmetrics, as ``dist_sync_on_step``.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound, plot_upper_bound = 0.0, 1.0

    right: Tensor
    counts: Tensor
    examples: Tensor

    @checks_options
    def __init__(self, num_groups: Annotated[int, at_least(1)], train_groups: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self.num_groups = num_groups
        self.result: GroupAccuracy | None = None
        """Accuracy of every group and both averages, of the last ``compute``."""
        self._train_counts = None if train_groups is None else self._totals(train_groups, "train_groups")
        self.add_state("right", torch.zeros(num_groups, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("counts", torch.zeros(num_groups, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("examples", torch.zeros(2, dtype=torch.long), dist_reduce_fx="sum")  # right, all

    def update(self, outputs: Tensor, labels: Tensor, groups: Tensor) -> None:
        """Count a batch.

        Args:
            outputs: logits (n, K), (n, 1) or (n,); whole numbers (n,) are predicted classes.
            labels: (n,).
            groups: integers (n,), or boolean (n, G) where groups overlap.
        """
        if not len(labels):
            return
        right = hits(outputs, labels)
        groups = torch.as_tensor(groups, device=right.device)
        if len(groups) != len(right):
            raise EvenlyError(f"there are groups of {len(groups)} examples and outputs of {len(right)}; give as many")
        self.counts += self._totals(groups, "groups").to(self.counts.device)
        self.right += self._totals(groups[right], "groups").to(self.right.device)
        self.examples += torch.stack([right.sum(), torch.ones_like(right).sum()]).to(self.examples.device)

    def compute(self) -> Tensor:
        """The worst group's accuracy, a scalar in float64."""
        right, examples = self.examples.tolist()
        if not examples:
            raise EvenlyError("WorstGroupAccuracy has seen no examples; call update first")
        self.result = accuracy_from_counts(self.right, self.counts, right / examples, self._train_counts)
        return torch.tensor(self.result.worst, dtype=torch.float64, device=self.right.device)

    def _totals(self, groups: Any, name: str) -> Tensor:
        """(G,) the examples in each group."""
        if not len(groups):
            return torch.zeros(self.num_groups, dtype=torch.long)
        if isinstance(groups, Tensor) and groups.dtype == torch.bool and groups.ndim == 2:
            totals = groups.sum(0)  # of which a batch may have no member
        else:
            totals = torch.bincount(as_groups(groups, name, len(groups)))
        if len(totals) > self.num_groups:
            raise EvenlyError(f"{name} has {len(totals)} groups and num_groups is {self.num_groups}; give num_groups=")
        return torch.nn.functional.pad(totals, (0, self.num_groups - len(totals)))
