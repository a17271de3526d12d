"""EIIL: environment inference for invariant learning (Creager, Jacobsen, Zemel 2021, section 3), here with GroupDRO as
the invariant learner, as in the comparison of Deng et al. 2023.

1. Train a reference model by ERM.
2. Infer environments: soft assignments q in [0, 1]^N that maximise the IRMv1 penalty of the fixed reference model,

       C(q) = (d/dw mean_i q_i l(w f(x_i), y_i))^2 + (d/dw mean_i (1 - q_i) l(w f(x_i), y_i))^2     at w = 1.

3. Minimise the worst loss over the groups (class, environment).

With g_i the derivative of example i's loss, C(q) = mean(q g)^2 + mean((1 - q) g)^2 is convex in mean(q g), so it is
largest where that is largest or smallest: at q_i = 1 for g_i > 0 and 0 for the rest, or the other way round, which
names the same two environments. No ascent is needed to find them. Where there are two classes g_i > 0 says that the
reference model is wrong.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from evenly.data import Data
from evenly.engine import Batch, Fit, Objective, State, Trained
from evenly.engine.losses import single
from evenly.methods.early import SeparatingEpoch, check_separating_epoch, train_early
from evenly.methods.group_dro import Adjustment, StepSize, balanced, worst_group
from evenly.methods.registry import Factory, method


@method(check=check_separating_epoch)
def eiil(
    model: Factory,
    data: Data,
    fit: Fit,
    *,
    separating_epoch: SeparatingEpoch = None,
    step_size: StepSize = 0.01,
    C: Adjustment = 0.0,
) -> Trained:
    """Infer environments from a reference model's scale, then weigh (class, environment) by their losses.

    `separating_epoch` is how long the reference model is trained; where not given, until the drop in training loss
    has shrunk. `step_size` and `C` are GroupDRO's.
    """
    labels = data.train.labels
    reference = train_early(model, data, fit, separating_epoch)
    second = reference.choose(fit, lambda: second_environment(reference.outputs(), labels))
    groups = 2 * labels
    groups[second] += 1
    dro, group_of = worst_group(torch.bincount(groups), step_size, C, fit.device), groups.to(fit.device)

    def by_environment(losses: Tensor, batch: Batch, state: State) -> Tensor:
        return dro.function(losses, replace(batch, group=group_of[batch.index]), state)

    sampler, objective = balanced(groups, fit), Objective(by_environment, dro.state)
    trained = fit(model(), data, sampler=sampler, objective=objective, spent=reference.cost)
    sampler.set_epoch(len(trained.history) - 1)
    why = "in the environment where a larger scale of the outputs raises the loss"
    trained.selection = reference.selection(second, 1, why, none="the groups are the classes")
    trained.selection.times = torch.bincount(sampler.members(), minlength=len(groups))[second]
    if not len(second):
        trained.remarks = ("no example is in a second environment: the groups are the classes",)
    return trained


def second_environment(logits: Tensor, labels: Tensor) -> Tensor:
    """Indices, ascending, of the examples that the largest penalty puts apart: those of positive derivative."""
    return (scale_derivatives(logits.double(), labels.to(logits.device)) > 0).nonzero().flatten()


def scale_derivatives(logits: Tensor, labels: Tensor) -> Tensor:
    """d/dw of each example's loss l(w logits, label) at w = 1 (N,), of logits (N, K), (N, 1) or (N,)."""
    if single(logits):
        z = logits.reshape(len(logits))
        return (z.sigmoid() - labels) * z
    return (logits.softmax(1) * (logits - logits.gather(1, labels[:, None]))).sum(1)


def penalty(q: Tensor, derivatives: Tensor) -> Tensor:
    """C(q) of assignments q (N,) and the examples' derivatives (N,)."""
    return (q * derivatives).mean() ** 2 + ((1 - q) * derivatives).mean() ** 2
