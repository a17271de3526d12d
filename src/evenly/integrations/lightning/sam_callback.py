"""One step of SAM is one step of Lightning, for any number of passes.

Lightning passes a closure to ``optimizer.step``, so SAM runs without changes. But that closure also logs, clips,
accumulates and, in 16-bit, scales, and assumes that it runs once. :class:`SAMCallback` corrects that.

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
    last batch's gradient to that of the first pass.

    - Logging: only what the first pass logs, returns and feeds to torchmetrics counts, once per step. Other output of
      ``training_step`` (``print``, ``self.logger.experiment``) and the hooks around backward happen in every pass;
      ``self.optimizers().ascended`` is True in the second.
    - Clipping, by norm or by value, acts on the gradient of the last pass and never on the one that sets the
      perturbation. ``on_before_optimizer_step`` runs there too, once per step, with the weights restored.
    - ``accumulate_grad_batches``: the perturbation comes from the accumulated gradient, and the second pass accumulates
      over the same batches, which stay on the device until then. RandomPerturbation is refused.
    - ``precision="16-mixed"``: a gradient that is not finite in either pass skips the step and lowers the scale. A
      fused base is refused, since it unscales after gradients are clipped.
    - Strategies that split the weights over devices (FSDP, DeepSpeed) are refused, as the norm would be partial.
    """

    def __init__(self) -> None:
        self._window: list[tuple[Any, int]] = []
        self._installed: ExitStack | None = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        plugin = trainer.strategy.precision_plugin
        already = "optimizer_step" in vars(plugin)
        if already or not self.attach(trainer, pl_module):
            return
        self._installed = ExitStack()
        step = partial(self._step, plugin, plugin.optimizer_step)
        self._installed.enter_context(replaced(plugin, "optimizer_step", step))

    def attach(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> bool:
        """Check the Trainer's optimizers and prepare those of evenly, also when they were made anew; whether any is."""
        optimizers = [opt for opt in trainer.optimizers if isinstance(opt, PerturbedOptimizer)]
        for optimizer in optimizers:
            _check_trainer(trainer, pl_module, optimizer)
            if isinstance(optimizer, SharpnessAware) and optimizer.model is None:
                # By itself it would find running statistics only in the last of the accumulated batches.
                optimizer.keep_statistics_of(pl_module)
        return bool(optimizers)

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
        # not earlier: a GradientAccumulationScheduler may change the number in any epoch
        if trainer.accumulate_grad_batches > 1 and not isinstance(trainer.optimizers[0], SharpnessAware):
            raise EvenlyError(
                f"accumulate_grad_batches={trainer.accumulate_grad_batches} with "
                f"{type(trainer.optimizers[0]).__name__}: Lightning computes the gradients of all batches but the "
                "last before the weights are perturbed; give accumulate_grad_batches=1"
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
        if model.trainer.fit_loop._skip_backward:  # stochastic weight averaging updates BatchNorm in its last epoch
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
        """The gradients of all batches of this step, accumulated again at the current weights."""
        trainer = model.trainer
        loop = trainer.fit_loop.epoch_loop
        optimizer.zero_grad()
        for position, (batch, batch_idx) in enumerate(self._window, start=1):
            # New closures, because the original one holds the result of the first pass for on_train_batch_end.
            closure = loop.automatic_optimization._make_closure(
                loop._build_kwargs({}, batch, batch_idx), optimizer, batch_idx
            )
            last = position == len(self._window)
            with nullcontext() if last else _block_parallel_sync_behavior(trainer.strategy, block=True):
                loss = closure()
        return _loss_of(loss)


class _NoGradientError(Exception):
    """training_step returned None and no earlier batch has a gradient: Lightning's way to skip a batch."""


def _loss_of(result: Any) -> Any:
    """The result of a closure of Lightning; a manual one may return nothing."""
    return torch.zeros(()) if result is None else result


@contextmanager
def _unlogged(model: pl.LightningModule) -> Iterator[None]:
    """Inside, ``self.log`` does nothing and metrics change copies of their state."""
    states = [(metric, dict(vars(metric))) for metric in model.modules() if isinstance(metric, Metric)]
    for metric, state in states:
        vars(metric).update({name: _copy(value) for name, value in state.items()})
    try:
        with replaced(model, "log", lambda *_, **__: None):
            yield
    finally:
        for metric, state in states:
            vars(metric).update(state)


def _copy(state: Any) -> Any:
    """A metric adds to its tensors in place and appends to its lists."""
    return state.clone() if isinstance(state, Tensor) else list(state) if isinstance(state, list) else state


def _check_trainer(trainer: pl.Trainer, model: pl.LightningModule, optimizer: PerturbedOptimizer) -> None:
    name = type(optimizer).__name__
    strategy, plugin = trainer.strategy, trainer.strategy.precision_plugin
    if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
        raise EvenlyError(
            f"{name} with {type(strategy).__name__}: the perturbation needs all weights and gradients in one place; "
            "give strategy='auto' or 'ddp'"
        )
    if type(plugin).optimizer_step not in (Precision.optimizer_step, MixedPrecision.optimizer_step):
        raise EvenlyError(
            f"{name} with the precision plugin {type(plugin).__name__}, which has its own step; "
            "give precision='32-true', 'bf16-mixed' or '16-mixed'"
        )
    if getattr(plugin, "scaler", None) is not None and getattr(optimizer.base, "_step_supports_amp_scaling", False):
        raise EvenlyError(
            f"{name} in 16-mixed around a fused {type(optimizer.base).__name__}, whose gradients are still scaled "
            "when Lightning clips them; build the base with fused=False, or give precision='bf16-mixed'"
        )
    if model.automatic_optimization and "dataloader_iter" in inspect.signature(model.training_step).parameters:
        raise EvenlyError(
            f"{name} with training_step(dataloader_iter): the second pass would fetch another batch; "
            "let training_step take (batch, batch_idx)"
        )
