"""LfF: learning from failure (Nam, Cha, Ahn, Lee, Shin 2020, Algorithm 1).

Two networks learn from the same batches. The biased one, f_B, minimises the generalised cross-entropy

    GCE(p) = (1 - p_y^q) / q,   which counts what is easy already more (the authors' code has q times that),

the debiased one, f_D, the cross-entropy weighted by the relative difficulty

    W(x) = CE_B(x) / (CE_B(x) + CE_D(x)),

large where f_B fails and f_D does not. As in the paper's experiments, W is taken of moving averages of each example's
losses, divided by the largest of the example's class. An average starts at the first loss, as in the authors' code.
There, too, each network starts from a draw of its own: f_D from the one that ERM has at that seed. A module or weights
given are where both start. SAM and ASAM perturb both at once, their radius spans the two.

W feeds on itself: what f_D comes to fail at weighs less from then on. Where the training loss, which is f_D's on all
examples, rises from epoch to epoch, f_D is giving up what f_B knows; a lower learning rate and a rule that selects an
early epoch help.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from evenly.data import Data
from evenly.engine import Batch, Fit, Objective, State, Trained
from evenly.engine.losses import losses, predictions
from evenly.engine.precision import whole
from evenly.methods.registry import Factory, method
from evenly.settings import at_least, at_most, below

TINY = 1e-8
"""Added to what is divided by."""

UNSEEN = -1.0
"""In the place of an average of losses: the example has had none yet."""

LEAST_Q = 1e-4
"""Below it the generalised cross-entropy is the cross-entropy to within rounding, and lost to rounding itself."""


class Pair(nn.Module):
    """Both networks: in training the outputs of each, in eval mode the debiased one's."""

    def __init__(self, biased: nn.Module, debiased: nn.Module) -> None:
        super().__init__()
        self.biased, self.debiased = biased, debiased

    def forward(self, x: Tensor) -> Any:
        return (self.biased(x), self.debiased(x)) if self.training else self.debiased(x)


@method()
def lff(
    model: Factory,
    data: Data,
    fit: Fit,
    *,
    q: Annotated[float, at_least(LEAST_Q), at_most(1)] = 0.7,
    average: Annotated[float, at_least(0), below(1)] = 0.7,
) -> Trained:
    """Train two networks at once, one on what is easy, the other on what the first fails at.

    `q` is that of the generalised cross-entropy, `average` the share of the past in the losses' moving averages.
    """
    labels = data.train.labels.to(fit.device)
    unseen = torch.full((len(labels), 2), UNSEEN, dtype=torch.float64)

    def both_objectives(losses: Tensor, batch: Batch, state: State) -> Tensor:
        if batch.first:
            now = losses.detach().double()
            past = state["losses"][batch.index]
            averaged = torch.where(past == UNSEEN, now, average * past + (1 - average) * now)
            state["losses"] = state["losses"].index_copy(0, batch.index, averaged)
        weight = relative_difficulty(state["losses"], labels, data.classes)[batch.index].to(losses)
        biased, debiased = losses.unbind(1)
        return generalised(biased, q).mean() + (weight * debiased).mean()

    if (observe := data.observe) is not None:
        data = replace(data, observe=lambda _: observe(pair.debiased))
    pair = Pair(model(1), model())
    objective = Objective(both_objectives, {"losses": unseen}, per_example_loss=losses_of_both, gradients=2)
    trained = fit(pair, data, objective=objective)
    trained.model = pair.debiased
    return trained


def losses_of_both(pair: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropies (B, 2) of the biased and the debiased network, and what the debiased one predicts (B,)."""
    biased, debiased = (whole(outputs) for outputs in pair(x))
    return torch.stack([losses(biased, y), losses(debiased, y)], 1), predictions(debiased.detach())


def generalised(cross_entropies: Tensor, q: float) -> Tensor:
    """(1 - p^q) / q of cross-entropies -log p."""
    return -torch.expm1(-q * cross_entropies) / q


def relative_difficulty(averages: Tensor, labels: Tensor, classes: int) -> Tensor:
    """W (N,) of the moving averages (N, 2) of both networks' losses, each divided by its largest in the class.

    An example that is `UNSEEN` does not count in its class, and its own W means nothing.
    """
    rows = labels[:, None].expand_as(averages)
    largest = torch.zeros(classes, 2, dtype=averages.dtype, device=averages.device).scatter_reduce(
        0, rows, averages, "amax"
    )
    biased, debiased = (averages / (largest[labels] + TINY)).unbind(1)
    return biased / (biased + debiased + TINY)
