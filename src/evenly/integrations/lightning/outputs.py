"""A network's outputs on the training set in the middle of a Lightning run."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler

from evenly.errors import EvenlyError
from evenly.integrations.stages import processes
from evenly.randomness import isolated


def in_order(data: Any, name: str) -> DataLoader[Any]:
    """A loader over a data set in its order: the one given, or one over the data set given."""
    loader = data if isinstance(data, DataLoader) else DataLoader(data, batch_size=1024)
    if not isinstance(loader.sampler, SequentialSampler) or loader.drop_last:
        raise EvenlyError(
            f"the loader for {name} shuffles, samples or drops, so its order is not that of the data set; "
            "give the data set itself, or a DataLoader with shuffle=False and drop_last=False"
        )
    return loader


@torch.no_grad()
def outputs_and_labels(
    trainer: pl.Trainer, model: pl.LightningModule, loader: DataLoader[Any], name: str
) -> tuple[Tensor, Tensor]:
    """Outputs and labels of all examples in the order of storage, on the CPU, in every process.

    The network is called on each input in eval mode, under the Trainer's precision. Its modes and the random state are
    left as they were. Each of several processes computes its part.
    """
    world = processes()
    own = range(world.rank, len(loader.sampler), world.size)  # type: ignore[arg-type]
    if world.size > 1:
        loader = DataLoader(
            loader.dataset, batch_size=loader.batch_size, sampler=own, num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
        )  # fmt: skip
    outputs: list[Tensor] = []
    labels: list[Tensor] = []
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with isolated(), trainer.precision_plugin.forward_context():
            for batch in loader:
                if not isinstance(batch, tuple | list) or len(batch) < 2:
                    raise EvenlyError(f"batches for {name} must be (x, y), got a {type(batch).__name__}")
                # not with the module's transfer hooks, which may augment
                x, y, *_ = move_data_to_device(trainer.precision_plugin.convert_input(batch), model.device)
                outputs.append(model(x).cpu())
                labels.append(y.cpu())
    finally:
        for module, training in modes.items():
            module.training = training
    parts = [part for part in world.gathered((torch.tensor(own), outputs, labels)) if part[1]]
    order = torch.cat([places for places, _, _ in parts]).argsort()
    outputs, labels = ([each for part in parts for each in part[column]] for column in (1, 2))
    return torch.cat(outputs)[order], torch.cat(labels)[order]
