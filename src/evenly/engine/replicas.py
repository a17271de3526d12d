"""A network whose gradients are averaged over the processes that train it together."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from evenly.engine.batches import Batch, Batches
from evenly.engine.steps import PerExampleLoss
from evenly.engine.world import World
from evenly.errors import EvenlyWarning
from evenly.randomness import isolated


class Replicas:
    """The network in every process, around which DistributedDataParallel exchanges gradients; as it was where there is
    one process.

    Args:
        model: the network, on its device. Its first process's weights hold for all.
        synchronise: compute the statistics of batch normalisation over the whole batch instead of over each process's
            part. torch does this on GPUs only.
    """

    def __init__(self, model: nn.Module, world: World, device: torch.device, synchronise: bool) -> None:
        self.model, self.world, self.device = model, world, device
        self.wrapped: nn.Module = model
        self._own_layers: list[tuple[nn.Module, str, nn.Module]] = []
        if world.size == 1:
            return
        if has_batch_norm(model):
            if synchronise and device.type == "cuda":
                self._synchronise()
            else:
                why = "torch synchronises its statistics on GPUs only" if synchronise else "sync_batchnorm is off"
                warnings.warn(
                    f"each of {world.size} processes normalises by its own part of a batch ({why}), so that the number "
                    "of processes changes results",
                    EvenlyWarning,
                    stacklevel=2,
                )

    def wrap(self, loss: PerExampleLoss, batches: Batches) -> nn.Module:
        """What a step calls in the network's place.

        Args:
            loss: of every example; parameters that take no part in it are found by a trial on two of them.
        """
        if self.world.size > 1:
            ids = [self.device.index or 0] if self.device.type == "cuda" else None
            unused = self._has_unused(loss, batches.first_ones(2))
            self.wrapped = DistributedDataParallel(self.model, device_ids=ids, find_unused_parameters=unused)
        return self.wrapped

    def share_buffers(self) -> None:
        """Give all processes the first one's buffers, as DistributedDataParallel does before a forward pass.

        Evaluation is divided among the processes, and each process's part of a batch has left other running statistics.
        """
        if self.world.size > 1:
            for buffer in self.model.buffers():
                distributed.broadcast(buffer, src=0)

    def release(self) -> None:
        """Give the network its own layers back."""
        for parent, name, layer in self._own_layers:
            setattr(parent, name, layer)
        self._own_layers, self.wrapped = [], self.model

    def _synchronise(self) -> None:
        """Put torch's synchronised layers, which share weights and statistics with them, in the place of its own."""
        for parent in list(self.model.modules()):
            for name, layer in list(parent.named_children()):
                if isinstance(layer, _BatchNorm) and not isinstance(layer, nn.SyncBatchNorm):
                    self._own_layers.append((parent, name, layer))
                    setattr(parent, name, nn.SyncBatchNorm.convert_sync_batchnorm(layer).train(layer.training))

    def _has_unused(self, loss: PerExampleLoss, batch: Batch) -> bool:
        """Whether a parameter takes no part in the loss, which DistributedDataParallel has to know; tried on a copy."""
        trial = copy.deepcopy(self.model).train()
        with isolated():
            losses, _ = loss(trial, batch.x, batch.y)
            trained = [p for p in trial.parameters() if p.requires_grad]
            gradients = torch.autograd.grad(losses.sum(), trained, allow_unused=True)
        return any(gradient is None for gradient in gradients)


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a batch's examples depend on each other in training."""
    return any(isinstance(layer, _BatchNorm) for layer in model.modules())
