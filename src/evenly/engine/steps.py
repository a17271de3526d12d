"""One optimizer step on a batch, counted: what it cost, and the losses and hits seen in its first pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import torch
from attrs import field, frozen
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from evenly.engine.batches import Batch
from evenly.engine.losses import losses, predictions
from evenly.engine.precision import autocast, whole
from evenly.engine.world import ALONE, World
from evenly.optim.snapshot import Snapshot
from evenly.randomness import Stream, isolated

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
        model: the network, or the DistributedDataParallel around it where several processes share a batch.
        precision: "bf16" or "float32".
        world: the processes that share every batch.
        parts: in how many passes, one after the other, a process computes its part of a batch; gradients add up.
        least: rows that a pass needs; a batch with fewer takes fewer passes.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        objective: Objective,
        precision: str,
        device: torch.device,
        world: World = ALONE,
        parts: int = 1,
        least: int = 1,
    ) -> None:
        self.model, self.optimizer, self.objective = model, optimizer, objective
        self.precision, self.device, self.world, self.parts, self.least = precision, device, world, parts, least
        self.own_draws = Stream(device) if world.size > 1 else None
        """What this process alone draws in its forward passes; the optimizers of all processes draw alike."""
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
            passes = min(self.parts, len(batch) // self.world.size // self.least)  # as many in every process
            loss = self._in_one_pass(batch) if passes <= 1 else self._in_parts(batch, passes)
            batch.first = False
            self.cost += self.objective.gradients * len(batch)
            return loss

        self.optimizer.step(closure)  # type: ignore[arg-type]

    def _in_one_pass(self, batch: Batch) -> Tensor:
        each = self._losses(self.model, batch)
        if self.objective.function is mean:
            each.backward(self._mean_gradient(each, batch))  # as of the mean, with fewer operations
            return each
        loss = self.objective.function(self.world.whole(each, len(batch)), batch, self.state)
        (loss * self.world.size if self.world.size > 1 else loss).backward()
        return loss

    def _in_parts(self, batch: Batch, passes: int) -> Tensor:
        """The same gradient from several passes, which hold fewer activations at a time."""
        pieces = _pieces(batch, passes)
        gradients: list[Tensor] | list[None] = [None] * len(pieces)
        if self.objective.function is not mean:
            gradients = self._gradients_of_losses(batch, pieces)
        loss = torch.zeros((), device=self.device)
        for number, (piece, given) in enumerate(zip(pieces, gradients, strict=True), 1):
            replicated = self.model if isinstance(self.model, DistributedDataParallel) else None
            with nullcontext() if replicated is None or number == len(pieces) else replicated.no_sync():
                each = self._losses(self.model, piece, batch.first)
                gradient = self._mean_gradient(each, batch) if given is None else given
                each.backward(gradient)
                loss += (each.detach() * gradient).sum()
        return loss

    def _gradients_of_losses(self, batch: Batch, pieces: list[Batch]) -> list[Tensor]:
        """The objective's derivatives by the losses of every piece, from a forward pass over all of them.

        It draws what the passes that follow will draw, and leaves running statistics as they are. Like other ways to
        spend time on memory, it is not counted as cost.
        """
        network = getattr(self.model, "module", self.model)
        statistics, state = Snapshot(), None if self.own_draws is None else self.own_draws.state
        with isolated(), torch.no_grad():
            statistics.take(network.buffers())
            losses = [self._losses(network, piece, counted=False) for piece in pieces]
            statistics.put_back()
        if self.own_draws is not None and state is not None:
            self.own_draws.state = state
        own = torch.cat(losses).requires_grad_()
        with torch.enable_grad():
            loss = self.objective.function(self.world.whole(own, len(batch)), batch, self.state)
            (gradient,) = torch.autograd.grad(loss * self.world.size, own)
        return list(gradient.split([len(each) for each in losses]))

    def _losses(self, model: nn.Module, batch: Batch, counted: bool | None = None) -> Tensor:
        """The weighted losses of the rows that this process has of a batch, counted where it is the first pass."""
        labels = batch.part_of(batch.y)
        with autocast(self.precision, self.device), nullcontext() if self.own_draws is None else self.own_draws():
            each, predicted = self.per_example_loss(model, batch.x, labels)
        if batch.padding:
            kept = len(labels) - batch.padding
            each, predicted, labels = each[:kept], predicted[:kept], labels[:kept]
        if batch.first if counted is None else counted:
            self._count(each.detach(), predicted, labels)
        if self.weights is not None:
            each = each * self.weights[batch.part_of(batch.index)[: len(each)]]
        return each

    def _mean_gradient(self, each: Tensor, batch: Batch) -> Tensor:
        """The derivatives of the whole batch's mean loss; gradients are averaged over processes."""
        return torch.full_like(each, self.world.size / (len(batch) * each.shape[1:].numel()))

    def read(self) -> list[float]:
        """What all processes have seen since the last reading; waits for the device."""
        self._sum()
        seen: list[float] = self.world.summed(self.seen).tolist()
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


def _pieces(batch: Batch, count: int) -> list[Batch]:
    """What a process has of a batch in so many pieces; padding, if any, is in the last ones."""
    rows = torch.arange(len(batch), device=batch.y.device) if batch.rows is None else batch.rows
    kept, pieces = len(rows) - batch.padding, []
    for places in torch.arange(len(rows)).tensor_split(count):
        own, padding = places.to(rows.device), sum(place >= kept for place in places.tolist())
        pieces.append(replace(batch, x=batch.x[own.to(batch.x.device)], rows=rows[own], padding=padding))
    return pieces
