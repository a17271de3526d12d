"""The whole of PDE in a Lightning run: warm-up, expansions, and the weights with the best worst group.

>>> pde = PDECallback(train_groups)
>>> loader = DataLoader(train_set, batch_size=32, sampler=pde.sampler)
>>> trainer = pl.Trainer(max_epochs=200, callbacks=[pde, WorstGroupAccuracy(validation_groups)])
>>> trainer.fit(net, loader, validation_loader)
>>> pde.selected_epoch, pde.selection.indices
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import lightning.pytorch as pl
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

from evenly.engine.selector import Selector
from evenly.engine.trained import Selection
from evenly.errors import EvenlyError
from evenly.integrations.lightning.sampler_callback import SamplerCallback
from evenly.integrations.lightning.worst_group_accuracy import WorstGroupAccuracy
from evenly.integrations.stages import PDESampler, validation_row
from evenly.methods.pde import forget_momentum
from evenly.settings import above, at_least, at_most, checks_options


class PDECallback(SamplerCallback):
    """PDE (Deng et al. 2023): trains on a group-balanced subset first, then adds the rest a little at a time.

    The Trainer needs a :class:`WorstGroupAccuracy` beside it, which measures every validation; after the fit the module
    has the weights that ``select`` chose, as :func:`evenly.train` does. Checkpoints have the weights of their own epoch
    and, in this callback's state, those that may still be chosen, 8 at most. A ``ModelCheckpoint`` with
    ``monitor="val_worst_group_accuracy"`` selects by the plain maximum and stays possible.

    Args:
        groups: (N,) the group of each training example.
        warmup_epochs, every, add, cap, draw: as in :class:`evenly.ProgressiveExpansion`. Where not given, the warm-up
            takes two thirds of ``max_epochs`` and the rest holds ten expansions, each a twentieth of the balanced set.
        decay: multiplies the learning rate at the end of the warm-up.
        reset_momentum: whether the optimizer forgets what it gathered in the warm-up.
        select: "worst-group" takes, of all epochs whose worst group is within one standard error of the best, the one
            with the highest average; "worst-group-argmax" the best; "last" selects nothing.
        patience: stop after this many epochs of expansion without a better one.
        seed: of the sets and the orders of visit, as in :func:`evenly.train`.
    """

    @checks_options
    def __init__(
        self,
        groups: Any,
        *,
        warmup_epochs: Annotated[int | None, at_least(1)] = None,
        every: Annotated[int | None, at_least(1)] = None,
        add: int | Sequence[int] | Literal["all"] | None = None,
        cap: Annotated[int | None, at_least(1)] = None,
        draw: Literal["even", "random"] = "even",
        decay: Annotated[float, above(0), at_most(1)] = 1.0,
        reset_momentum: bool = False,
        select: Literal["worst-group", "worst-group-argmax", "last"] = "worst-group",
        patience: Annotated[int | None, at_least(1)] = None,
        seed: int = 0,
    ) -> None:
        self.sets = PDESampler(
            groups, warmup_epochs=warmup_epochs, every=every, add=add, cap=cap, draw=draw, seed=seed
        )  # fmt: skip
        super().__init__(self.sets)
        self.decay, self.reset_momentum, self.select, self.patience = decay, reset_momentum, select, patience
        self._selector = Selector(select, False, patience, 0)
        self.selected_epoch: int | None = None
        """The epoch, from 1, whose weights the module has after the fit."""
        self.selection: Selection | None = None
        """The examples that were in the set up to that epoch, and when they entered it."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        if trainer.max_epochs is None or trainer.max_epochs < 1:
            raise EvenlyError(f"PDE's sets are counted in epochs, got max_epochs={trainer.max_epochs}; give a number")
        if self.select != "last" and trainer.val_check_interval not in (1, 1.0, None):
            raise EvenlyError(
                f"PDE selects among the weights at the ends of epochs, got val_check_interval="
                f"{trainer.val_check_interval}; leave it out, or give select='last'"
            )
        if self.select != "last" and not any(isinstance(each, WorstGroupAccuracy) for each in trainer.callbacks):
            raise EvenlyError(
                f"select {self.select!r} needs the callback WorstGroupAccuracy(validation_groups) in the Trainer; "
                "add it, or give select='last'"
            )
        if not trainer.current_epoch:
            self.selected_epoch, self.selection, self._selector.candidates = None, None, []
        self.sets.begin(trainer.max_epochs)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        if self.select != "last" and not trainer.enable_validation:
            raise EvenlyError(
                f"select {self.select!r} needs validation and there is none; give fit a validation loader and the "
                "module a validation_step, or give select='last'"
            )

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_train_epoch_start(trainer, pl_module)
        if trainer.current_epoch != self.sets.warmup_epochs:
            return
        if self.reset_momentum:
            for optimizer in trainer.optimizers:
                forget_momentum(optimizer)
        if self.decay != 1:
            for optimizer in trainer.optimizers:
                for group in optimizer.param_groups:
                    group.update({key: self.decay * group[key] for key in ("lr", "initial_lr") if key in group})
            for config in trainer.lr_scheduler_configs:
                _scale(config.scheduler, self.decay)

    def _start_next_epoch(self, trainer: pl.Trainer) -> None:
        """Do the validation first that was to come after the last batch, which Lightning would leave out."""
        super()._start_next_epoch(trainer)
        every = trainer.check_val_every_n_epoch
        if trainer.enable_validation and every is not None and (self._epoch + 1) % every == 0:
            trainer.validating = True
            trainer.fit_loop.epoch_loop.val_loop.run()
            trainer.training = True

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or self.select == "last" or trainer.state.fn != "fit":
            return
        accuracy = next(each.result for each in trainer.callbacks if isinstance(each, WorstGroupAccuracy))
        assert accuracy is not None
        self._selector.patient_from = self.sets.warmup_epochs
        if self._selector.out_of_patience(self._epoch + 1, validation_row(accuracy), pl_module):
            trainer.should_stop = True

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # not before: some checkpoints are saved when training ends, with the weights of the last epoch
        if self.select != "last" and not self._selector.candidates:
            raise EvenlyError(
                f"select {self.select!r} had no validation to go by; give a validation loader, or select='last'"
            )
        self.selected_epoch = self._selector.restore(pl_module, trainer.current_epoch)
        self.selection = self.sets.selection(trainer.current_epoch, self.selected_epoch)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"candidates": self._selector.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._selector.load_state_dict(state_dict["candidates"])


def _scale(scheduler: Any, factor: float) -> None:
    """Multiply the rates that a schedule computes from now on."""
    if isinstance(scheduler, OneCycleLR | CyclicLR):
        raise EvenlyError(f"decay={factor} with a {type(scheduler).__name__}, which sets its rates by itself; give 1")
    for each in getattr(scheduler, "_schedulers", ()):
        _scale(each, factor)
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = [factor * rate for rate in scheduler.base_lrs]
