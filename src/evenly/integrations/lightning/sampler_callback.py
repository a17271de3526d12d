"""evenly's samplers in Lightning, with one process or several.

>>> sampling = SamplerCallback(evenly.ProgressiveExpansion(groups, warmup_epochs=140))
>>> loader = DataLoader(train_set, batch_size=32, sampler=sampling.sampler)
>>> pl.Trainer(max_epochs=200, callbacks=[sampling], devices=2, strategy="ddp").fit(net, loader)

Lightning measures a loader once and ends every epoch after that many batches, so that examples which PDE adds later
would never be seen. The callback measures it before every epoch.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, cast

import lightning.pytorch as pl
from torch.utils.data import DataLoader

from evenly.data.samplers import EpochSampler
from evenly.data.sharding import Sharded
from evenly.errors import EvenlyError


class SamplerCallback(pl.Callback):
    """Trains on what a sampler says: every index exactly as often, whatever the number of processes.

    The loader of the training set must have :attr:`sampler`. With W processes and batches of b, a step sees the W b
    indices that one process would see in a batch of W b. Where an epoch's length is no multiple of W, its first
    indices, W - 1 at most, are seen once more: ``sampler.padding()`` are those of an epoch.

    A checkpoint of the end of an epoch resumes with any number of processes. One from the middle of an epoch resumes
    after the indices that were seen, if the processes together have batches of the same size as before.

    Settings of the Trainer that would change the counts are refused: ``limit_train_batches``, ``overfit_batches``, and
    loaders that drop the last batch. ``trainer.estimated_stepping_batches`` is for sets that do not grow.

    Args:
        sampler: `evenly.Upsample`, `evenly.ProgressiveExpansion`, `evenly.GroupBalanced` or another of evenly's.
    """

    def __init__(self, sampler: EpochSampler) -> None:
        self.sampler = Sharded(sampler)
        self._fresh = self.sampler.state_dict()
        self._global_batch: int | None = None
        self._epoch, self._resumed = 0, False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        self._resumed = False
        if not trainer.current_epoch:
            self.sampler.load_state_dict(self._fresh)  # it may have been in a run before
        if trainer.overfit_batches:
            raise EvenlyError(
                f"overfit_batches={trainer.overfit_batches} replaces the sampler; leave it out, or the callback"
            )
        if trainer.limit_train_batches != 1.0 and not trainer.fast_dev_run:
            raise EvenlyError(
                f"limit_train_batches={trainer.limit_train_batches} leaves out part of what the sampler says; remove it"
            )

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        loader = self._loader(trainer)
        if trainer.world_size != self.sampler.processes:
            raise EvenlyError(
                f"Lightning has {trainer.world_size} processes and torch's process group {self.sampler.processes}; "
                "use a strategy on torch.distributed, as strategy='ddp'"
            )
        assert loader.batch_size is not None
        whole = loader.batch_size * trainer.world_size
        loop = trainer.fit_loop
        if loop.restarted_mid_epoch and not loop.epoch_loop.batch_progress.is_last_batch:
            self._continue_epoch(trainer, loader, whole)
        elif loop.restarted_mid_epoch and loop.epoch_loop.restarted_on_train_batch_end:
            self._start_next_epoch(trainer)
        self._global_batch = whole

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._epoch = trainer.current_epoch
        self.sampler.set_epoch(self._epoch)
        _measure(trainer, self._loader(trainer))
        if self._resumed:
            self._resumed = False
            # Lightning made the iterator of the first epoch before it knew which epoch that is
            iter(trainer.fit_loop._data_fetcher)

    def _continue_epoch(self, trainer: pl.Trainer, loader: Any, whole: int) -> None:
        """Leave out what was seen of an epoch that a checkpoint is in the middle of."""
        done = trainer.fit_loop.epoch_loop.batch_progress.current.processed
        if whole != self._global_batch:
            raise EvenlyError(
                f"the checkpoint is from the middle of an epoch with batches of {self._global_batch} over all "
                f"processes, and now they have {whole}; keep the product of batch size and processes, or resume from "
                "a checkpoint of the end of an epoch"
            )
        self.sampler.set_epoch(trainer.current_epoch)
        self.sampler.skip(done * loader.batch_size)
        _measure(trainer, loader)
        iter(trainer.fit_loop._data_fetcher)
        self._resumed = False

    def _start_next_epoch(self, trainer: pl.Trainer) -> None:
        """Of a checkpoint saved after the last batch of an epoch: count that batch and begin a new epoch.

        Lightning would go on without `on_train_epoch_start`, and in an epoch that is longer than the one before it
        would leave out as many batches as that one had.
        """
        loop = trainer.fit_loop
        loop.epoch_loop.batch_progress.increment_completed()
        loop.epoch_loop._batches_that_stepped += 1
        loop.reset_restart_stage()
        loop.epoch_loop.reset_restart_stage()
        loop.restarting = False

    def _loader(self, trainer: pl.Trainer) -> Any:
        loader = trainer.train_dataloader
        if not isinstance(loader, DataLoader) or loader.sampler is not self.sampler:
            found = type(getattr(loader, "sampler", loader)).__name__
            raise EvenlyError(
                f"the training loader has a {found} and not the sampler of {type(self).__name__}; give one loader, "
                "DataLoader(train_set, batch_size=..., sampler=callback.sampler)"
            )
        total, examples = self.sampler.sampler.total, len(cast(Sized, loader.dataset))
        if total is not None and total != examples:
            raise EvenlyError(
                f"the sampler of {type(self).__name__} is of {total} examples and the training set has {examples}; "
                "make both of the same examples"
            )
        if loader.drop_last:
            raise EvenlyError("drop_last=True leaves out part of what the sampler says; give drop_last=False")
        return loader

    def state_dict(self) -> dict[str, Any]:
        # not the sampler's own epoch, which moves on when the last batch is drawn: Lightning compares the batches that
        # a checkpoint has counted with the length of their epoch
        return {"sampler": self.sampler.state_dict() | {"epoch": self._epoch}, "global_batch": self._global_batch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state_dict["sampler"])
        self._epoch, self._global_batch = self.sampler.epoch, state_dict["global_batch"]
        self._resumed = True


def _measure(trainer: pl.Trainer, loader: Any) -> None:
    """Let the Trainer know how many batches the epoch has that comes next."""
    loop = trainer.fit_loop
    count = min(len(loader), trainer.limit_train_batches) if trainer.fast_dev_run else len(loader)
    loop._combined_loader.limits = [count]
    loop.max_batches = count
    if trainer.val_check_batch is not None and isinstance(trainer.val_check_interval, float):
        trainer.val_check_batch = max(1, int(count * trainer.val_check_interval))
