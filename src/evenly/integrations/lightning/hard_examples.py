"""USEFUL's separation inside a Lightning run: the hard training examples after a few epochs.

>>> hard = HardExamples(train_set_without_augmentation, epoch=8, path="hard.npz")
>>> pl.Trainer(max_epochs=8, callbacks=[hard]).fit(early, train_loader)
>>> loader = DataLoader(train_set, batch_size=128, sampler=hard.sampler())
>>> pl.Trainer(max_epochs=200).fit(Net(), loader)

:class:`~evenly.integrations.lightning.UsefulCallback` does both runs in one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from torch import Tensor

from evenly.data.samplers import Upsample
from evenly.engine.trained import Selection
from evenly.errors import EvenlyError
from evenly.integrations.lightning.outputs import in_order, outputs_and_labels
from evenly.integrations.stages import processes
from evenly.methods.useful import hard_examples, reason


class HardExamples(pl.Callback):
    """Finds the hard examples at the end of an epoch and stores their indices in :attr:`hard` and in checkpoints.

    The network is called on each input in eval mode, under the Trainer's precision; its ``forward`` must return
    logits (n, K), (n, 1) or (n,). The random state is not changed. Of several processes each computes its part.

    Args:
        data: the training set, of ``(x, y)``, without augmentation: a Dataset, or a DataLoader that neither shuffles
            nor drops. Indices refer to its order.
        epoch: the separating epoch; 8 for CIFAR-10 in Nguyen et al. (USEFUL).
        factor: the upsampling factor of :meth:`sampler`.
        on: the outputs to cluster, as in :func:`evenly.hard_examples`.
        path: the file for indices, repetitions and the epoch, an ``.npz`` as in evenly's run folders.
        seed: of the clustering and of the sampler.
    """

    hard: Tensor | None = None

    def __init__(
        self,
        data: Any,
        epoch: int,
        *,
        factor: int = 2,
        on: Literal["probabilities", "logits"] = "probabilities",
        path: str | Path | None = None,
        seed: int = 0,
    ) -> None:
        self.epoch, self.factor, self.on, self.seed = int(epoch), factor, on, seed
        self.path = None if path is None else Path(path)
        if self.epoch < 1:
            raise EvenlyError(f"`epoch` must be at least 1, got {epoch}")
        self.loader = in_order(data, "HardExamples")
        self.total = len(self.loader.sampler)  # type: ignore[arg-type]
        Upsample([], self.total, factor)  # checks the factor before the run

    def sampler(self) -> Upsample:
        """A sampler for the next run: every example once per epoch, the hard ones ``factor`` times."""
        if self.hard is None:
            raise EvenlyError(f"the hard examples are not known before the end of epoch {self.epoch}; fit first")
        return Upsample(self.hard, self.total, self.factor, self.seed)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        last = trainer.max_epochs
        if last is not None and 0 <= last < self.epoch:
            epochs = f"{last} epoch{'s' * (last != 1)}"
            raise EvenlyError(f"`epoch` of HardExamples must be at most {last} in a run of {epochs}, got {self.epoch}")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch + 1 != self.epoch:
            return
        outputs, labels = outputs_and_labels(trainer, pl_module, self.loader, "HardExamples")
        # the first process's choice holds for all
        self.hard = processes().shared(lambda: hard_examples(outputs, labels, on=self.on, seed=self.seed))
        if self.path is not None and trainer.is_global_zero:
            details = {"separating_epoch": self.epoch}
            Selection(self.hard, torch.full_like(self.hard, self.factor), reason(self.on), details).save(self.path)

    def state_dict(self) -> dict[str, Any]:
        return {"hard": self.hard}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.hard = state_dict["hard"]
