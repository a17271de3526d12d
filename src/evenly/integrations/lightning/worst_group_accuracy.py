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
from torch.utils.data import SequentialSampler

from evenly.engine.accuracy import GroupAccuracy, group_accuracy
from evenly.errors import EvenlyError


class WorstGroupAccuracy(pl.Callback):
    """Logs ``val_worst_group_accuracy``, ``val_mean_accuracy`` and, given ``train_groups``, ``val_weighted_accuracy``.

    ``validation_step`` must return a dict with ``"outputs"`` (n, K), (n, 1) or (n,) and ``"labels"`` (n,). The
    :class:`~evenly.engine.accuracy.GroupAccuracy` of the last validation is :attr:`result`.

    Args:
        groups: of the validation set, (N,) integers or boolean (N, G), in the order of storage, which the loader must
            keep. Without it, and always with several processes, ``validation_step`` must return ``"groups"`` too.
        train_groups: of the training set, for the average weighted by them.
    """

    result: GroupAccuracy | None = None

    def __init__(self, groups: Any = None, train_groups: Any = None) -> None:
        self.groups = None if groups is None else torch.as_tensor(groups)
        self.train_groups = train_groups
        self._batches: list[dict[str, Tensor]] = []

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._batches = []
        loader = trainer.val_dataloaders
        if isinstance(loader, list | tuple | dict):
            if len(loader) > 1:
                raise EvenlyError(f"WorstGroupAccuracy needs one validation loader, got {len(loader)}")
            loader = next(iter(loader.values() if isinstance(loader, dict) else loader))
        if self.groups is None:
            return
        if trainer.world_size > 1:
            raise EvenlyError(
                f"with {trainer.world_size} processes, each of which sees only some examples, groups= cannot be used; "
                'let validation_step return "groups" instead'
            )
        if not isinstance(getattr(loader, "sampler", None), SequentialSampler):
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
        self._batches.append({name: torch.as_tensor(outputs[name]).detach().cpu() for name in names})

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        batches = self._gathered(trainer)
        self._batches = []
        results = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
        # fewer than all with limit_val_batches or fast_dev_run
        groups = results["groups"] if self.groups is None else self.groups[: len(results["labels"])]
        self.result = group_accuracy(results["outputs"], results["labels"], groups, self.train_groups)
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
