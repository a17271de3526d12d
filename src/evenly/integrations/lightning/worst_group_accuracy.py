"""The worst group's accuracy and both averages, logged after every validation.

>>> def validation_step(self, batch, batch_idx):
...     x, y = batch
...     return {"outputs": self(x), "labels": y}
>>> worst = WorstGroupAccuracy(validation_groups, train_groups=train_groups)
>>> best = pl.callbacks.ModelCheckpoint(monitor="val_worst_group_accuracy", mode="max")
>>> trainer = pl.Trainer(callbacks=[worst, best])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DistributedSampler, SequentialSampler

from evenly.data.sharding import Sharded
from evenly.engine.accuracy import GroupAccuracy, group_accuracy
from evenly.errors import EvenlyError


class WorstGroupAccuracy(pl.Callback):
    """Logs ``val_worst_group_accuracy``, ``val_mean_accuracy`` and, given ``train_groups``, ``val_weighted_accuracy``.

    ``validation_step`` must return a dict with ``"outputs"`` (n, K), (n, 1) or (n,) and ``"labels"`` (n,). The
    :class:`~evenly.engine.accuracy.GroupAccuracy` of the last validation is :attr:`result`.

    Args:
        groups: of the validation set, (N,) integers or boolean (N, G), in the order of storage, which the loader must
            keep. Without it ``validation_step`` must return ``"groups"`` too.
        train_groups: of the training set, for the average weighted by them.

    With several processes every example counts once: what Lightning's ``DistributedSampler`` repeats, so that all
    processes have as many, is left out.
    """

    result: GroupAccuracy | None = None

    def __init__(self, groups: Any = None, train_groups: Any = None) -> None:
        self.groups = None if groups is None else torch.as_tensor(groups)
        self.train_groups = train_groups
        self._batches: list[dict[str, Tensor]] = []
        self._order: tuple[int, int, int] | None = None
        self._world, self._position, self._total = 1, 0, 0

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._batches = []
        loader = trainer.val_dataloaders
        if isinstance(loader, list | tuple | dict):
            if len(loader) > 1:
                raise EvenlyError(f"WorstGroupAccuracy needs one validation loader, got {len(loader)}")
            loader = next(iter(loader.values() if isinstance(loader, dict) else loader))
        self._world, self._position = trainer.world_size, 0
        self._order = _order_of(getattr(loader, "sampler", None), trainer)
        self._total = len(loader.dataset) if self._order is not None else 0
        if self.groups is None:
            return
        if self._order is None:
            raise EvenlyError(
                "groups= needs a validation loader that keeps the order of storage; give it shuffle=False, or let "
                'validation_step return "groups"'
            )
        if len(self.groups) != len(loader.dataset):
            raise EvenlyError(
                f"groups must have {len(loader.dataset)} entries, one per validation example, got {len(self.groups)}"
            )

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        names = ("outputs", "labels") if self.groups is not None else ("outputs", "labels", "groups")
        if not isinstance(outputs, Mapping) or any(name not in outputs for name in names):
            returned = sorted(outputs) if isinstance(outputs, Mapping) else f"a {type(outputs).__name__}"
            raise EvenlyError(f"validation_step returned {returned}; WorstGroupAccuracy needs a dict with {names}")
        values = {name: torch.as_tensor(outputs[name]).detach().cpu() for name in names}
        if self._order is not None:
            first, step, rank = self._order
            places = torch.arange(self._position, self._position + len(values["labels"]))
            self._position += len(places)
            index = first + step * places
            # of what every process sees, each counts its part
            kept = (index < self._total) & ((places % self._world == rank) if step < self._world else True)
            values = {name: value[kept] for name, value in values.items()}
            if self.groups is not None:
                values["groups"] = self.groups[index[kept]]
        self._batches.append(values)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        batches = self._gathered(trainer)
        self._batches = []
        results = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
        self.result = group_accuracy(results["outputs"], results["labels"], results["groups"], self.train_groups)
        logged = {
            "val_worst_group_accuracy": self.result.worst,
            "val_mean_accuracy": self.result.mean,
            "val_weighted_accuracy": self.result.weighted,
        }
        pl_module.log_dict({name: value for name, value in logged.items() if value is not None}, sync_dist=True)

    def _gathered(self, trainer: pl.Trainer) -> list[dict[str, Tensor]]:
        if trainer.world_size == 1:
            return self._batches
        parts: list[Any] = [None] * trainer.world_size
        torch.distributed.all_gather_object(parts, self._batches)
        return [batch for part in parts for batch in part]


def _order_of(sampler: Any, trainer: pl.Trainer) -> tuple[int, int, int] | None:
    """The index of the first example that this process sees, the step to the next, and the process's number; None
    where the order is not that of storage."""
    rank, world = trainer.global_rank, trainer.world_size
    if isinstance(sampler, SequentialSampler):
        return 0, 1, rank
    divided = isinstance(sampler, DistributedSampler) and not isinstance(sampler, Sharded)
    if divided and not sampler.shuffle and not sampler.drop_last and sampler.num_replicas == world:
        return sampler.rank, world, rank
    return None
