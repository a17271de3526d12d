"""Group DRO: minimise the loss of the worst group (Sagawa, Koh, Hashimoto, Liang 2020, Algorithm 1).

Weights q over groups rise with the groups' losses, and the objective is the q-weighted sum of mean group losses:

    q_g <- q_g exp(step_size (l_g + C / sqrt(n_g))),  renormalised;     minimise  sum_g q_g l_g

The term in C is their adjustment for small groups. Batches are drawn with all groups equally often. A group that is
absent from a batch says nothing about its loss: its weight stays as it is, and the groups present share what they had
together. The logarithms of the weights are kept: a weight that would underflow to 0 could never rise again, and a batch
of such groups alone would have no weights at all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evenly.data import Data, Everything, GroupBalanced
from evenly.data.samplers import EpochSampler
from evenly.engine import Batch, Fit, Run, State
from evenly.engine.steps import Objective
from evenly.errors import EvenlyError
from evenly.methods.registry import Factory, method

LARGEST = 1e6
"""Of step_size and C: from here on the costliest group of a batch has all the weight at every step."""


@method(needs_groups=True)
def group_dro(model: Factory, data: Data, fit: Fit, *, step_size: float = 0.01, C: float = 0.0) -> Run:
    """Weigh the groups by their losses so that the worst one counts most."""
    objective, state = worst_group(torch.bincount(data.train.groups, minlength=data.group_count), step_size, C, fit)
    return fit(model(), data, sampler=balanced(data.train.groups, fit), objective=objective, state=state)


def worst_group(counts: Tensor, step_size: float, C: float, fit: Fit) -> tuple[Objective, State]:
    """The objective for groups of these sizes (G,), and the weights it starts from: alike for all groups there are."""
    if not step_size > 0:
        raise EvenlyError(f"step_size {step_size} never moves the groups' weights; give a number above 0")
    if C < 0:
        raise EvenlyError(f"C {C} would favour large groups; give a number from 0")
    for name, value in (("step_size", step_size), ("C", C)):
        if value > LARGEST:
            raise EvenlyError(f"{name} {value:g} gives one group all the weight; give a number up to {LARGEST:g}")
    present = counts > 0
    log_q = (present.double() / present.sum()).log()
    margin = (C / counts.clamp(min=1).double().sqrt()).to(fit.device)

    def objective(losses: Tensor, batch: Batch, state: State) -> Tensor:
        assert batch.group is not None
        group_losses, here = mean_by_group(losses, batch.group, len(counts))
        if batch.first:
            adjusted = group_losses.detach() + margin
            state["log_q"] = exponentiated(state["log_q"], adjusted, here, step_size)
        return (state["log_q"].exp().to(losses) * group_losses).sum()

    return objective, {"log_q": log_q}


def balanced(groups: Tensor, fit: Fit) -> EpochSampler:
    """All groups equally often. On the full batch every group's mean is exact, and drawing some examples twice would
    only add noise: every example once."""
    return Everything(len(groups)) if fit.batch_size is None else GroupBalanced(groups, seed=fit.seed)


def mean_by_group(losses: Tensor, group: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Mean loss of each group (G,), 0 where a group is absent, and which groups are present (G,)."""
    sums = torch.zeros(count, dtype=losses.dtype, device=losses.device).index_add(0, group, losses)
    sizes = torch.zeros(count, device=losses.device).index_add(0, group, torch.ones_like(group, dtype=torch.float32))
    return sums / sizes.to(losses.dtype).clamp(min=1), sizes > 0


def exponentiated(log_q: Tensor, group_losses: Tensor, here: Tensor, step_size: float) -> Tensor:
    """The update of log q (G,): groups present share the weight they had; the others keep theirs."""
    had, raised = (torch.where(here, each, -torch.inf) for each in (log_q, log_q + step_size * group_losses))
    return torch.where(here, raised.log_softmax(0) + had.logsumexp(0), log_q)
