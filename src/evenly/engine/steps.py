"""One optimizer step on a batch, counted: what it cost, and the losses and hits seen in its first pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from evenly.engine.batches import Batch
from evenly.engine.losses import losses, predictions
from evenly.engine.precision import autocast, whole

State = dict[str, Tensor]
Objective = Callable[[Tensor, Batch, State], Tensor]
Look = Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From a network, inputs and labels to the losses that the objective gets and how many examples are right. Losses are
(B,), or (B, m) where several networks learn at once; the last column is then reported as the training loss."""


def look(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each example (B,) and how many are right ()."""
    outputs = whole(model(x))
    return losses(outputs, y), (predictions(outputs.detach()) == y).sum()


class Step:
    """An optimizer's step on a batch: losses, weights, objective, gradient; as often as the optimizer looks.

    Args:
        weights: (N,) factors on the losses of the training examples, or None.
        state: tensors that the objective keeps between steps.
        precision: "bf16" or "float32".
        look: how a batch is looked at; the cross-entropy of one network where not given.
        gradients: example-gradients that a look at one example costs.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        objective: Objective,
        state: State,
        weights: Tensor | None,
        precision: str,
        device: torch.device,
        look: Look = look,
        gradients: float = 1.0,
    ) -> None:
        self.model, self.optimizer, self.objective = model, optimizer, objective
        self.state, self.weights, self.precision, self.device = state, weights, precision, device
        self.look, self.gradients = look, gradients
        self.seen = torch.zeros(2, dtype=torch.float64, device=device)
        """Summed loss and number right in the first passes since the last `read`."""
        self.cost = 0.0
        """Example-gradients since the start."""

    def __call__(self, batch: Batch) -> None:
        batch.first = True

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            with autocast(self.precision, self.device):
                each, right = self.look(self.model, batch.x, batch.y)
            if batch.first:
                shown = each.detach() if each.ndim == 1 else each.detach()[:, -1]
                self.seen += torch.stack([shown.sum().double(), right.double()])
            if self.weights is not None:
                each = each * self.weights[batch.index]
            loss = self.objective(each, batch, self.state)
            loss.backward()
            batch.first = False
            self.cost += self.gradients * len(batch)
            return loss

        self.optimizer.step(closure)  # type: ignore[arg-type]

    def read(self) -> list[float]:
        """What was seen since the last reading; waits for the device."""
        seen: list[float] = self.seen.tolist()
        self.seen.zero_()
        return seen
