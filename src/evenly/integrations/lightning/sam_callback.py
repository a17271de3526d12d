"""One step of SAM is one step of Lightning, whatever it takes in passes.

Lightning hands a closure to ``optimizer.step``, so that SAM runs as it is; but Lightning's closure also logs,
clips, accumulates and, in 16-bit, scales on the understanding that it runs once. :class:`SAMCallback` puts that
right.

>>> trainer = pl.Trainer(callbacks=[SAMCallback()], precision="bf16-mixed", gradient_clip_val=1.0)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loops.utilities import _block_parallel_sync_behavior
from lightning.pytorch.plugins import MixedPrecision, Precision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor
from torchmetrics import Metric

from evenly.errors import EvenlyError
from evenly.integrations.passes import before_descent, replaced
from evenly.optim.perturbed import PerturbedOptimizer
from evenly.optim.sharpness_aware import SharpnessAware


class SAMCallback(pl.Callback):
    """Lets a Trainer step with evenly's SAM, ASAM, LSAM or RandomPerturbation; with other optimizers it does nothing.

    Without it both passes log and are clipped, 16-mixed fails, and accumulation is wrong: the second pass would add the
    last batch's gradient to the first pass'.

    - Logging: what ``training_step`` logs, returns, and feeds to torchmetrics is the first pass', once per step. What
      it does by other means (``print``, ``self.logger.experiment``) and the hooks around backward happen in every pass;
      ``self.optimizers().ascended`` is True in the second.
    - Clipping, by norm or by value, acts on the last pass' gradient and never on the one that finds the perturbation;
      ``on_before_optimizer_step`` runs at that point too, once per step, the weights being back in place.
    - ``accumulate_grad_batches``: the perturbation comes from the accumulated gradient and the second pass accumulates
      over the same batches, which are kept on the device until then. RandomPerturbation is refused.
    - ``precision="16-mixed"``: a gradient that is not finite in either pass skips the step and lowers the scale. A
      fused base is refused, since it unscales after the point where gradients are clipped.
    - Strategies that split the weights over devices (FSDP, DeepSpeed) are refused: the norm would be that of a part.
    """

    def __init__(self) -> None:
        self._window: list[tuple[Any, int]] = []
        self._installed: ExitStack | None = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        optimizers = [opt for opt in trainer.optimizers if isinstance(opt, PerturbedOptimizer)]
        plugin = trainer.strategy.precision_plugin
        already = "optimizer_step" in vars(plugin)
        if not optimizers or already:
            return
        for optimizer in optimizers:
            _refuse_what_cannot_work(trainer, pl_module, optimizer)
            if isinstance(optimizer, SharpnessAware) and optimizer.model is None:
                # By itself it would look for running statistics in the last of the accumulated batches alone.
                optimizer.keep_statistics_of(pl_module)
        self._installed = ExitStack()
        step = partial(self._step, plugin, plugin.optimizer_step)
        self._installed.enter_context(replaced(plugin, "optimizer_step", step))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._uninstall()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._uninstall()

    def _uninstall(self) -> None:
        self._window = []
        if self._installed is not None:
            self._installed.close()
            self._installed = None

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._installed is None or not pl_module.automatic_optimization:
            return
        # not before: a GradientAccumulationScheduler may change the number from epoch to epoch
        if trainer.accumulate_grad_batches > 1 and not isinstance(trainer.optimizers[0], SharpnessAware):
            raise EvenlyError(
                f"accumulate_grad_batches={trainer.accumulate_grad_batches} with "
                f"{type(trainer.optimizers[0]).__name__}: Lightning takes the gradients of all batches but the last "
                "before the step, where the weights are not perturbed; give accumulate_grad_batches=1"
            )
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._window = []
        self._window.append((batch, batch_idx))

    def _step(
        self,
        plugin: Precision,
        plain_step: Callable[..., Any],
        optimizer: Any,
        model: pl.LightningModule,
        closure: Callable[[], Any],
        **kwargs: Any,
    ) -> Any:
        """In place of ``Precision.optimizer_step``."""
        if not isinstance(optimizer, PerturbedOptimizer):
            return plain_step(optimizer, model=model, closure=closure, **kwargs)
        if model.trainer.fit_loop._skip_backward:  # stochastic weight averaging refreshes BatchNorm in its last epoch
            return closure()
        scaler = getattr(plugin, "scaler", None)
        passes = 0

        def run() -> Any:
            nonlocal passes
            passes += 1
            if passes > 1:
                with _unlogged(model):
                    return self._replay(model, optimizer) if model.automatic_optimization else _loss_of(closure())
            loss = closure()
            if loss is None and all(p.grad is None for group in optimizer.param_groups for p in group["params"]):
                raise _NoGradientError
            return _loss_of(loss)

        try:
            with before_descent(optimizer, lambda: plugin._after_closure(model, optimizer)):
                loss = optimizer.step(run, scaler=scaler, **kwargs)
        except _NoGradientError:
            return None
        if scaler is not None:
            scaler.update()
        return loss

    def _replay(self, model: pl.LightningModule, optimizer: PerturbedOptimizer) -> Any:
        """The gradients of all batches of this step, accumulated anew where the weights are now."""
        trainer = model.trainer
        loop = trainer.fit_loop.epoch_loop
        optimizer.zero_grad()
        for position, (batch, batch_idx) in enumerate(self._window, start=1):
            # Closures of their own: the given one keeps the first pass' result for on_train_batch_end.
            closure = loop.automatic_optimization._make_closure(
                loop._build_kwargs({}, batch, batch_idx), optimizer, batch_idx
            )
            last = position == len(self._window)
            with nullcontext() if last else _block_parallel_sync_behavior(trainer.strategy, block=True):
                loss = closure()
        return _loss_of(loss)


class _NoGradientError(Exception):
    """training_step returned None, and no earlier batch left a gradient: Lightning's way to skip a batch."""


def _loss_of(result: Any) -> Any:
    """What a closure of Lightning returned; a manual one need not return anything."""
    return torch.zeros(()) if result is None else result


@contextmanager
def _unlogged(model: pl.LightningModule) -> Iterator[None]:
    """Inside, ``self.log`` does nothing and metrics count on copies of their state."""
    counted = [(metric, dict(vars(metric))) for metric in model.modules() if isinstance(metric, Metric)]
    for metric, state in counted:
        vars(metric).update({name: _copy(value) for name, value in state.items()})
    try:
        with replaced(model, "log", lambda *_, **__: None):
            yield
    finally:
        for metric, state in counted:
            vars(metric).update(state)


def _copy(state: Any) -> Any:
    """A metric adds to its tensors in place and appends to its lists."""
    return state.clone() if isinstance(state, Tensor) else list(state) if isinstance(state, list) else state


def _refuse_what_cannot_work(trainer: pl.Trainer, model: pl.LightningModule, optimizer: PerturbedOptimizer) -> None:
    name = type(optimizer).__name__
    strategy, plugin = trainer.strategy, trainer.strategy.precision_plugin
    if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
        raise EvenlyError(
            f"{name} with {type(strategy).__name__}: the perturbation needs all weights and gradients in one place; "
            "give strategy='auto' or 'ddp'"
        )
    if type(plugin).optimizer_step not in (Precision.optimizer_step, MixedPrecision.optimizer_step):
        raise EvenlyError(
            f"{name} with the precision plugin {type(plugin).__name__}, which steps in its own way; "
            "give precision='32-true', 'bf16-mixed' or '16-mixed'"
        )
    if getattr(plugin, "scaler", None) is not None and getattr(optimizer.base, "_step_supports_amp_scaling", False):
        raise EvenlyError(
            f"{name} in 16-mixed around a fused {type(optimizer.base).__name__}, whose gradients are still scaled "
            "where Lightning clips them; make the base with fused=False, or give precision='bf16-mixed'"
        )
    if model.automatic_optimization and "dataloader_iter" in inspect.signature(model.training_step).parameters:
        raise EvenlyError(
            f"{name} with training_step(dataloader_iter): the second pass would fetch another batch; "
            "let training_step take (batch, batch_idx)"
        )
