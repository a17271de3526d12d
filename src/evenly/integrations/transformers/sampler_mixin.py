"""A Trainer whose training examples come from one of evenly's samplers, in one process or in several.

>>> sampler = evenly.ProgressiveExpansion(groups, warmup_epochs=6, every=1, add=20)
>>> trainer = SampledTrainer(model, args, train_dataset=data, train_sampler=sampler)

Trainer takes the number of steps in an epoch from the first one; an epoch of PDE is longer than the one before. So the
number of steps is worked out for every epoch: it sets the end of the run, the learning-rate schedule, and where a run
resumes.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer
from transformers import __version__ as transformers_version

from evenly.data.samplers import EpochSampler
from evenly.data.sharding import Sharded
from evenly.errors import EvenlyError
from evenly.files import atomic

TRAINING_VALUES = 7
"""How many numbers `Trainer.set_initial_training_values` returns."""
STATE = "sampler.json"
"""The file of a checkpoint with the sampler's state."""


class SamplerMixin:
    """Put before ``Trainer`` or one of its subclasses: ``class SampledSeq2Seq(SamplerMixin, Seq2SeqTrainer)``.

    - Several processes: each has every W-th index, as in :class:`evenly.Sharded`, so that a step sees the examples that
      one process would see in a batch of the same total size. An epoch whose length is no multiple of W has its first
      indices once more, W - 1 of them at most. :meth:`padding` tells which.
    - ``num_train_epochs`` are epochs of the sampler. ``max_steps`` and the schedule count the steps of all of them.
    - A run resumes at the index where it stopped, with any number of processes. The examples per step (processes x
      ``per_device_train_batch_size`` x ``gradient_accumulation_steps``) must be those of the checkpoint.
    - What would change how often an example is seen is refused: streaming data sets, other sampling strategies,
      ``dataloader_drop_last``, ``dispatch_batches``, ``split_batches``, ``ignore_data_skip``, and processes that share
      a batch (tensor, context or sequence parallelism).

    Args:
        train_sampler: an Upsample, ProgressiveExpansion or GroupBalanced, with the same arguments in every process, or
            a function that makes one of ``train_dataset``. It sets the order of the examples, too: ``data_seed`` has
            no effect.
    """

    args: Any
    accelerator: Any
    state: Any
    train_dataset: Any

    def __init__(self, *args: Any, train_sampler: EpochSampler | Callable[[Any], EpochSampler], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._check_host()
        if not isinstance(train_sampler, EpochSampler) and callable(train_sampler):
            self._check_dataset()
            train_sampler = train_sampler(self.train_dataset)
        self.set_train_sampler(train_sampler)

    def set_train_sampler(self, sampler: EpochSampler) -> None:
        """Use this sampler from the next ``train()`` on."""
        self._sharded = Sharded(sampler, self.args.process_index, self.args.world_size)

    @property
    def train_sampler(self) -> EpochSampler:
        """The sampler of all processes together."""
        return self._sharded.sampler

    def padding(self, epoch: int) -> list[int]:
        """The indices that an epoch has once more than the sampler says, so that all processes have as many."""
        self._sharded.set_epoch(epoch)
        indices: list[int] = self._sharded.padding().tolist()
        return indices

    def get_train_dataloader(self) -> DataLoader[Any]:
        self._check_dataset()
        self._check_indices()
        loader: DataLoader[Any] = super().get_train_dataloader()  # type: ignore[misc]
        shard = loader.batch_sampler
        if isinstance(shard, BatchSamplerShard):  # the indices are divided already; Trainer does so for its own, too
            shard.num_processes, shard.process_index, shard.even_batches = 1, 0, False
        return loader

    def _get_train_sampler(self, *_: Any) -> Sharded:
        return self._sharded

    def set_initial_training_values(self, args: Any, dataloader: DataLoader[Any]) -> tuple[Any, ...]:
        values = list(super().set_initial_training_values(args, dataloader))  # type: ignore[misc]
        if len(values) != TRAINING_VALUES:
            raise EvenlyError(
                f"Trainer of transformers {transformers_version} counts its steps in another way than evenly knows; "
                "run: pip install 'evenly[transformers]'"
            )
        epochs, max_steps = self._epochs_and_steps()
        values[0], values[3], values[6] = epochs, sum(map(self._length, range(epochs))), max_steps
        return tuple(values)

    def _epochs_and_steps(self) -> tuple[int, int]:
        """How many epochs a run begins, and how many steps it takes; the last epoch may not be whole."""
        if self.args.max_steps > 0:
            epochs, left = self._position(self.args.max_steps)
            return epochs + (left > 0), self.args.max_steps
        whole = int(self.args.num_train_epochs)
        share = self.args.num_train_epochs - whole
        steps = sum(map(self._updates, range(whole)))
        return (whole + 1, steps + math.ceil(share * self._updates(whole))) if share else (whole, steps)

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, checkpoint: Any, trial: Any
    ) -> tuple[int, int]:
        super()._init_training_state(max_steps, num_update_steps_per_epoch, num_train_epochs, checkpoint, trial)  # type: ignore[misc]
        if checkpoint is None:
            return 0, 0
        epoch, updates = self._position(self.state.global_step)
        self._check_checkpoint(Path(checkpoint) / STATE, epoch)
        if updates and self.args.ignore_data_skip:
            raise EvenlyError(
                f"ignore_data_skip=True would show the first {updates * self._global_batch} examples of epoch {epoch} "
                "once more than the sampler says; resume without it, or from a checkpoint at the end of an epoch"
            )
        return epoch, updates * self.args.gradient_accumulation_steps

    def _run_epoch(self, *, epoch: int, train_dataloader: Any, **values: Any) -> None:
        self._sharded.set_epoch(epoch)  # accelerate does not reach it in a loader that skips batches
        values["steps_in_epoch"] = len(train_dataloader)
        values["num_update_steps_per_epoch"] = self._updates(epoch)
        super()._run_epoch(epoch=epoch, train_dataloader=train_dataloader, **values)  # type: ignore[misc]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"  # type: ignore[attr-defined]
        self._save_sampler(folder)  # before trainer_state.json, without which Trainer does not resume
        super()._save_checkpoint(model, trial)  # type: ignore[misc]

    def _save_sampler(self, folder: Path) -> None:
        """Write what a checkpoint needs beside Trainer's own files; every process calls this."""
        if self.args.should_save:
            folder.mkdir(parents=True, exist_ok=True)
            epoch, _ = self._position(self.state.global_step)
            with atomic(folder / STATE) as file:
                file.write(json.dumps(self._state_of(epoch)).encode())

    def _state_of(self, epoch: int) -> dict[str, Any]:
        """What an epoch's draws and its place in the run depend on; `digest` is of its indices in their order."""
        sampler, current = self.train_sampler, self.train_sampler.epoch
        sampler.set_epoch(epoch)
        digest = zlib.crc32(sampler.indices().numpy().tobytes())
        sampler.set_epoch(current)
        name, size = type(sampler).__name__, self._global_batch
        return {"epoch": epoch, "sampler": name, "seed": sampler.seed, "global_batch": size, "digest": digest}

    @property
    def _global_batch(self) -> int:
        """Examples per step in all processes."""
        size: int = self.get_total_train_batch_size(self.args)  # type: ignore[attr-defined]
        return size

    def _length(self, epoch: int) -> int:
        """Examples in an epoch, without padding."""
        sampler, current = self.train_sampler, self.train_sampler.epoch
        sampler.set_epoch(epoch)
        length = len(sampler)
        sampler.set_epoch(current)
        return length

    def _updates(self, epoch: int) -> int:
        """Steps of the optimizer in an epoch; the same for any number of processes."""
        return -(-self._length(epoch) // self._global_batch)

    def _position(self, global_step: int) -> tuple[int, int]:
        """The epoch after so many steps, and how many of them were taken in it."""
        epoch, left = 0, global_step
        while left >= (updates := self._updates(epoch)):
            left, epoch = left - updates, epoch + 1
        return epoch, left

    def _check_host(self) -> None:
        if not hasattr(Trainer, "_run_epoch"):
            raise EvenlyError(
                f"samplers need transformers 5.3 or later, and this is {transformers_version}; run: pip install -U "
                "transformers"
            )
        args, config = self.args, self.args.accelerator_config
        refused = {
            f"train_sampling_strategy={args.train_sampling_strategy!r}": args.train_sampling_strategy != "random",
            "dataloader_drop_last=True": args.dataloader_drop_last,
            "dispatch_batches=True": config.dispatch_batches,
            "split_batches=True": config.split_batches,
        }
        for name, given in refused.items():
            if given:
                raise EvenlyError(
                    f"{name} would change which examples are seen, and how often; leave it out, as train_sampler sets "
                    "both"
                )
        sizes = (self.get_tp_size(), self.get_cp_size(), self.get_sp_size())  # type: ignore[attr-defined]
        if math.prod(sizes) > 1:
            raise EvenlyError(
                f"train_sampler gives each process examples of its own, and {math.prod(sizes)} processes share a batch "
                "(tensor, context or sequence parallelism); use DDP alone"
            )

    def _check_dataset(self) -> None:
        data = self.train_dataset
        if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            raise EvenlyError(
                f"a {type(data).__name__} is read in its own order, so train_sampler cannot choose from it; give a "
                "data set with __getitem__ and __len__"
            )

    def _check_indices(self) -> None:
        members, data = self.train_sampler.members(), self.train_dataset
        if not len(members):
            raise EvenlyError("an epoch of train_sampler has no examples; give it a data set that has some")
        total = self.train_sampler.total
        if int(members.max()) >= len(data) or (total is not None and total != len(data)):
            raise EvenlyError(
                f"train_sampler is of {total or int(members.max()) + 1} examples, and train_dataset has {len(data)}; "
                "make the sampler from this data set"
            )

    def _check_checkpoint(self, path: Path, epoch: int) -> None:
        if not path.is_file():
            raise EvenlyError(
                f"{path.parent} has no {path.name}, so it is not of a trainer with train_sampler; to start from its "
                "weights, load the model from it and train without resume_from_checkpoint"
            )
        saved, now = json.loads(path.read_text()), self._state_of(epoch)
        if saved["global_batch"] != now["global_batch"]:
            raise EvenlyError(
                f"{path.parent} had {saved['global_batch']} examples per step and this run has {now['global_batch']}, "
                "so steps do not end at the same examples; set per_device_train_batch_size x accumulation steps "
                f"x processes to {saved['global_batch']}"
            )
        if saved != now:
            raise EvenlyError(
                f"the {saved['sampler']} of {path.parent} (seed {saved['seed']}) draws other examples than this run's "
                f"{now['sampler']} (seed {now['seed']}); make the sampler with the same arguments"
            )


class SampledTrainer(SamplerMixin, Trainer):
    """``transformers.Trainer`` with one of evenly's samplers: see :class:`SamplerMixin`."""
