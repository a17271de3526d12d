"""One optimizer step on a batch, counted: what it cost, and the losses and hits seen in its first pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import field, frozen
from torch import Tensor, nn
from torch.optim import Optimizer

from evenly.engine.batches import Batch
from evenly.engine.losses import losses, predictions
from evenly.engine.precision import autocast, whole

State = dict[str, Tensor]
PerExampleLoss = Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From a network, inputs and labels to the losses that the objective gets and the predicted labels (B,). Losses are
(B,), or (B, m) where several networks learn at once; the last column is then reported as the training loss."""
SUMMED_TOGETHER = 64
"""Batches whose losses and hits are summed at once on the CPU, where an operation on one batch costs more than its
arithmetic."""


def mean(losses: Tensor, batch: Batch, state: State) -> Tensor:
    """Plain training: the mean loss."""
    return losses.mean()


def per_example_loss(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each example (B,) and its predicted label (B,)."""
    outputs = whole(model(x))
    return losses(outputs, y), predictions(outputs.detach())


@frozen(eq=False)
class Objective:
    """What training minimises; the mean loss where nothing is given.

    Args:
        function: from the losses (B,) of a batch, the batch and the state to the scalar to minimise.
        state: tensors that the function keeps between steps; checkpointed with the run.
        weights: (N,) factors on the losses of the training examples.
        per_example_loss: how losses come about, where that is not one network's cross-entropy.
        gradients: example-gradients that the loss of one example costs.
    """

    function: Callable[[Tensor, Batch, State], Tensor] = mean
    state: State = field(factory=dict)
    weights: Tensor | None = None
    per_example_loss: PerExampleLoss = per_example_loss
    gradients: float = 1.0


class Step:
    """An optimizer's step on a batch: losses, weights, objective, gradient; as often as the optimizer asks for them.

    Args:
        precision: "bf16" or "float32".
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, objective: Objective, precision: str, device: torch.device
    ) -> None:
        self.model, self.optimizer, self.objective = model, optimizer, objective
        self.precision, self.device = precision, device
        self.per_example_loss = objective.per_example_loss
        self.state = {name: value.to(device) for name, value in objective.state.items()}
        self.weights = None if objective.weights is None else objective.weights.to(device)
        self.seen = torch.zeros(2, dtype=torch.float64, device=device)
        """Summed loss and number right in the first passes since the last `read`, less those in `_unsummed`."""
        self._unsummed: list[tuple[Tensor, Tensor, Tensor]] = []
        self.cost = 0.0
        """Example-gradients since the start."""

    def __call__(self, batch: Batch) -> None:
        batch.first = True

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            with autocast(self.precision, self.device):
                each, predicted = self.per_example_loss(self.model, batch.x, batch.y)
            if batch.first:
                self._count(each.detach(), predicted, batch.y)
            if self.weights is not None:
                each = each * self.weights[batch.index]
            if self.objective.function is mean:
                loss = each
                each.backward(torch.full_like(each, 1 / each.numel()))  # as of the mean, with fewer operations
            else:
                loss = self.objective.function(each, batch, self.state)
                loss.backward()
            batch.first = False
            self.cost += self.objective.gradients * len(batch.y)
            return loss

        self.optimizer.step(closure)  # type: ignore[arg-type]

    def read(self) -> list[float]:
        """What was seen since the last reading; waits for the device."""
        self._sum()
        seen: list[float] = self.seen.tolist()
        self.seen.zero_()
        return seen

    def _count(self, losses: Tensor, predicted: Tensor, labels: Tensor) -> None:
        """Add the losses (B,) or (B, m) and the hits of a first pass."""
        if losses.ndim == 2 or losses.device.type != "cpu":
            reported = losses if losses.ndim == 1 else losses[:, -1]
            self.seen += torch.stack([reported.sum().double(), (predicted == labels).sum().double()])
            return
        if len(self._unsummed) == SUMMED_TOGETHER or (self._unsummed and len(self._unsummed[0][0]) != len(losses)):
            self._sum()
        self._unsummed.append((losses, predicted, labels))

    def _sum(self) -> None:
        if not self._unsummed:
            return
        losses, predicted, labels = map(torch.stack, zip(*self._unsummed, strict=True))
        self._unsummed = []
        loss, right = self.seen.tolist()
        for value in losses.sum(1).tolist():  # one by one, so that how many are summed at once changes no bit
            loss += value
        self.seen.copy_(torch.tensor([loss, right + int((predicted == labels).sum())], dtype=torch.float64))
