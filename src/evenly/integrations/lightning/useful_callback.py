"""The whole of USEFUL in one Lightning run: early stage, choice, retraining from the initial weights.

>>> useful = UsefulCallback(train_set_without_augmentation)
>>> loader = DataLoader(train_set, batch_size=128, sampler=useful.sampler)
>>> pl.Trainer(max_epochs=200, callbacks=[useful]).fit(net, loader)
>>> useful.selection.indices
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor

from evenly.engine.trained import Selection
from evenly.errors import EvenlyError
from evenly.integrations.lightning.outputs import in_order, outputs_and_labels
from evenly.integrations.lightning.sam_callback import SAMCallback
from evenly.integrations.lightning.sampler_callback import SamplerCallback
from evenly.integrations.passes import replaced
from evenly.integrations.stages import UsefulSampler

COUNT_EPOCHS = (BaseFinetuning, GradientAccumulationScheduler, StochasticWeightAveraging)
"""Callbacks that act at an epoch by its number, which the early stage would shift."""


class UsefulCallback(SamplerCallback):
    """USEFUL (Nguyen et al. 2024): finds the examples without easy features early, repeats them, trains again.

    1. Early stage: the network trains on every example, ``max_epochs`` epochs at most, until the drop in training loss
       has shrunk or the separating epoch is over. The training loss is what ``training_step`` returns, which should be
       the mean over the batch.
    2. Choice: the network's outputs on ``data``, in eval mode, are clustered in each class; the cluster with the larger
       mean loss is repeated. ``forward`` must return logits (n, K), (n, 1) or (n,).
    3. Retraining: weights and buffers go back to what they were at the start of the fit, ``configure_optimizers`` is
       called again, and ``max_epochs`` epochs follow. ``current_epoch`` and ``global_step`` count on, so that logs and
       checkpoints of the two stages stay apart; ``trainer.max_epochs`` is then that of both stages together.

    ``EarlyStopping`` pauses in the early stage, and ``ModelCheckpoint`` ranks the epochs of the retraining only:
    checkpoints of the early stage stay on disk. Callbacks that act at an epoch by its number are refused, as are
    strategies that split the weights over devices.

    The examples chosen are in :attr:`selection` and in checkpoints. A run resumes in either stage.

    Args:
        data: the training set, of ``(x, y)``, without augmentation: a Dataset, or a DataLoader that neither shuffles
            nor drops. The training loader must have the same examples in the same order of storage.
        separating_epoch: how long the early stage is; None: until the drop in training loss has shrunk.
        factor: the upsampling factor; the paper's are 2 to 5.
        on: the outputs to cluster, as in :func:`evenly.hard_examples`.
        path: the file for the selection, an ``.npz`` as in evenly's run folders.
        seed: of the orders of visit and of the clustering, as in :func:`evenly.train`.
    """

    def __init__(
        self,
        data: Any,
        *,
        separating_epoch: int | None = None,
        factor: int = 2,
        on: Literal["probabilities", "logits"] = "probabilities",
        path: str | Path | None = None,
        seed: int = 0,
    ) -> None:
        self.data = in_order(data, "UsefulCallback")
        total = len(self.data.sampler)  # type: ignore[arg-type]
        self.stages = UsefulSampler(total, separating_epoch=separating_epoch, factor=factor, on=on, seed=seed)
        super().__init__(self.stages)
        self.path = None if path is None else Path(path)
        self._initial: dict[str, Tensor] | None = None
        self._scale: dict[str, Any] = {}
        """The state of a GradScaler before the first step."""
        self._epochs: int | None = None
        self._paused = ExitStack()

    @property
    def selection(self) -> Selection | None:
        """The examples chosen, with the separating epoch and what set it; None in the early stage."""
        return self.stages.selection

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        _check_trainer(trainer)
        if not trainer.current_epoch:
            self._initial = None
        self._epochs = trainer.max_epochs
        self.stages.begin(trainer.max_epochs)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.stages.last_epoch is not None:
            trainer.fit_loop.max_epochs = self.stages.last_epoch

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        if self.selection is None:
            if self._initial is None:
                self._initial = {key: value.detach().cpu().clone() for key, value in pl_module.state_dict().items()}
                scaler = getattr(trainer.strategy.precision_plugin, "scaler", None)
                self._scale = {} if scaler is None else scaler.state_dict()
            for each in trainer.callbacks:
                if isinstance(each, EarlyStopping):
                    self._paused.enter_context(replaced(each, "_should_skip_check", lambda trainer: True))

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_train_epoch_start(trainer, pl_module)
        if self.selection is not None and trainer.current_epoch == self.stages.separated_at:
            self._start_again(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.selection is not None:
            return
        loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            if pl_module.automatic_optimization:
                loss = loss * trainer.accumulate_grad_batches  # Lightning divides by it
            size = trainer.train_dataloader.batch_size
            self.stages.observe(loss, min(size, len(self.sampler) - batch_idx * size))
        # here and not at the end of the epoch, which comes after some checkpoints of this epoch are saved
        if trainer.is_last_batch and self.stages.end_epoch():
            self._separate(trainer, pl_module)

    def _separate(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.stages.separate(*outputs_and_labels(trainer, pl_module, self.data, "UsefulCallback"))
        trainer.fit_loop.max_epochs = self.stages.last_epoch
        if self.path is not None and self.selection is not None and trainer.is_global_zero:
            self.selection.save(self.path)

    def _start_again(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Everything that has learned goes back to its start."""
        assert self._initial is not None
        pl_module.zero_grad(set_to_none=True)
        pl_module.load_state_dict(self._initial)
        self._initial = None
        both = trainer.fit_loop.max_epochs
        trainer.fit_loop.max_epochs = self._epochs  # what a schedule over the run reads
        trainer.strategy.setup_optimizers(trainer)
        trainer.fit_loop.max_epochs = both
        if (scaler := getattr(trainer.strategy.precision_plugin, "scaler", None)) is not None and self._scale:
            scaler.load_state_dict(self._scale)
        self._paused.close()
        for each in trainer.callbacks:
            if isinstance(each, SAMCallback):
                each.attach(trainer, pl_module)
            if isinstance(each, ModelCheckpoint):
                each.best_k_models, each.best_model_path, each.kth_best_model_path = {}, "", ""
                each.best_model_score = each.current_score = None
                each.kth_value = torch.tensor(torch.inf if each.mode == "min" else -torch.inf)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._leave(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._leave(trainer)

    def _leave(self, trainer: pl.Trainer) -> None:
        self._paused.close()
        if self._epochs is not None:
            trainer.fit_loop.max_epochs, self._epochs = self._epochs, None

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"initial": self._initial, "scale": self._scale}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._initial, self._scale = state_dict["initial"], state_dict["scale"]


def _check_trainer(trainer: pl.Trainer) -> None:
    if trainer.max_epochs is None or trainer.max_epochs < 1 or (trainer.max_steps != -1 and not trainer.fast_dev_run):
        raise EvenlyError(
            f"USEFUL's stages are counted in epochs, got max_epochs={trainer.max_epochs} and "
            f"max_steps={trainer.max_steps}; give max_epochs alone"
        )
    if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
        raise EvenlyError(
            f"USEFUL with {type(trainer.strategy).__name__}: the initial weights have to be in one place; "
            "give strategy='auto' or 'ddp'"
        )
    for each in trainer.callbacks:
        if isinstance(each, COUNT_EPOCHS) and not (
            isinstance(each, GradientAccumulationScheduler) and set(each.scheduling) == {0}
        ):
            raise EvenlyError(
                f"{type(each).__name__} acts at an epoch by its number, which USEFUL's early stage would shift; "
                "leave it out"
            )
