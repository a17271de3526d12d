"""Group DRO: minimise the loss of the worst group (Sagawa, Koh, Hashimoto, Liang 2020, Algorithm 1).

Weights q over groups rise with the groups' losses, and the objective is the q-weighted sum of mean group losses:

    q_g <- q_g exp(step_size (l_g + C / sqrt(n_g))),  renormalised;     minimise  sum_g q_g l_g

The term in C is their adjustment for small groups. Batches are drawn with all groups equally often. A group that is
absent from a batch says nothing about its loss: its weight stays as it is, and the groups present share what they had
together. The logarithms of the weights are kept: a weight that would underflow to 0 could never rise again, and a batch
of such groups alone would have no weights at all.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from evenly.data import Data, Everything, GroupBalanced
from evenly.data.samplers import EpochSampler
from evenly.engine import Batch, Fit, Objective, State, Trained
from evenly.methods.registry import Factory, method
from evenly.settings import above, at_least, at_most

LARGEST = at_most(1e6)
"""Of step_size and C: from here on the highest-loss group of a batch has all the weight at every step."""

StepSize = Annotated[float, above(0), LARGEST]
Adjustment = Annotated[float, at_least(0), LARGEST]


@method(needs_groups=True)
def group_dro(model: Factory, data: Data, fit: Fit, *, step_size: StepSize = 0.01, C: Adjustment = 0.0) -> Trained:
    """Weigh the groups by their losses so that the worst one counts most."""
    counts = torch.bincount(data.train.groups, minlength=data.group_count)
    objective = worst_group(counts, step_size, C, fit.device)
    return fit(model(), data, sampler=balanced(data.train.groups, fit), objective=objective)


def worst_group(counts: Tensor, step_size: float, C: float, device: torch.device) -> Objective:
    """The objective for groups of these sizes (G,); its weights start alike for all groups that have examples."""
    present = counts > 0
    log_q = (present.double() / present.sum()).log()
    margin = (C / counts.clamp(min=1).double().sqrt()).to(device)

    def weighted_sum(losses: Tensor, batch: Batch, state: State) -> Tensor:
        assert batch.group is not None
        group_losses, here = mean_by_group(losses, batch.group, len(counts))
        if batch.first:
            adjusted = group_losses.detach() + margin
            state["log_q"] = exponentiated(state["log_q"], adjusted, here, step_size)
        return (state["log_q"].exp().to(losses) * group_losses).sum()

    return Objective(weighted_sum, {"log_q": log_q})


def balanced(groups: Tensor, fit: Fit) -> EpochSampler:
    """All groups equally often. On the full batch every group's mean is exact, and drawing some examples twice would
    only add noise: every example once."""
    return Everything(len(groups)) if fit.settings.batch_size is None else GroupBalanced(groups, seed=fit.seed)


def mean_by_group(losses: Tensor, group: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Mean loss of each group (G,), 0 where a group is absent, and which groups are present (G,)."""
    sums = torch.zeros(count, dtype=losses.dtype, device=losses.device).index_add(0, group, losses)
    sizes = torch.zeros(count, device=losses.device).index_add(0, group, torch.ones_like(group, dtype=torch.float32))
    return sums / sizes.to(losses.dtype).clamp(min=1), sizes > 0


def exponentiated(log_q: Tensor, group_losses: Tensor, here: Tensor, step_size: float) -> Tensor:
    """The update of log q (G,): groups present share the weight they had; the others keep theirs."""
    had, raised = (torch.where(here, each, -torch.inf) for each in (log_q, log_q + step_size * group_losses))
    return torch.where(here, raised.log_softmax(0) + had.logsumexp(0), log_q)
