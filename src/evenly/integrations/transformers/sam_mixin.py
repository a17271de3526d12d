"""A Trainer that trains with SAM, ASAM, LSAM or RandomPerturbation.

>>> trainer = SAMTrainer(model, args, train_dataset=data)                     # SAM around the optimizer of args
>>> trainer = SAMTrainer(model, args, train_dataset=data, perturb=partial(evenly.ASAM, rho=0.5, model=model))
>>> trainer = SAMTrainer(model, args, train_dataset=data, optimizers=(evenly.SAM(base, rho=0.05), None))

``Trainer`` clips and then calls ``optimizer.step()`` without a closure. So the passes run inside ``training_step``,
which leaves the gradient of the last pass and the original weights. The optimizer that Trainer clips for, steps,
schedules and saves is the base.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import Trainer

from evenly.errors import EvenlyError
from evenly.integrations.passes import replaced
from evenly.optim.perturbed import PerturbedOptimizer
from evenly.optim.sam import SAM

WHOLE = ("NO", "MULTI_CPU", "MULTI_GPU")
"""Accelerate's distributed types in which each process holds all weights."""
FUSED_WITH_BACKWARD = ("lomo", "adalomo")
"""Optimizers of TrainingArguments that change the weights during backward, as do those that end in "layerwise"."""


class SAMMixin:
    """Put before ``Trainer`` or one of its subclasses: ``class SAMSeq2Seq(SAMMixin, Seq2SeqTrainer)``.

    - Accumulation: both passes run over all batches of the step when the last one arrives, as in a closure that
      accumulates. Before that, ``on_substep_end`` finds neither gradients nor a loss.
    - Clipping (``max_grad_norm``) acts on the gradient of the second pass, and ``grad_norm`` is its norm.
    - The logged loss is that of the first pass, once per step. Side effects of ``compute_loss`` happen in both passes.
    - fp16: a gradient that is not finite in either pass skips the step and lowers the scale.
    - A checkpoint has the base optimizer's state and the perturbation's settings; one of a plain Trainer can be loaded.
    - DeepSpeed, FSDP and other ways to split the weights are refused, as are optimizers that step inside backward.

    Args:
        perturb: makes the perturbed optimizer from the base, which is Trainer's own or the first of ``optimizers``.
            Not needed if that one is already a SAM, ASAM, LSAM or RandomPerturbation.

    The perturbed optimizer is :attr:`perturbed`; ``trainer.optimizer`` is its base.
    """

    perturbed: PerturbedOptimizer
    optimizer: Any
    accelerator: Any
    args: Any

    def __init__(self, *args: Any, perturb: Callable[[Optimizer], PerturbedOptimizer] = SAM, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.perturb = perturb
        self._window: list[Any] = []
        kind = self.accelerator.distributed_type.name
        if kind not in WHOLE:
            raise EvenlyError(
                f"SAMTrainer under {kind}: the perturbation needs all weights and gradients in each process; "
                "train on one device or with torchrun (DDP)"
            )
        optim = str(getattr(self.args.optim, "value", self.args.optim))
        if optim in FUSED_WITH_BACKWARD or optim.endswith("layerwise"):
            raise EvenlyError(f"optim={optim!r} steps inside backward, between SAM's passes; give optim='adamw_torch'")

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        base: Optimizer = super().create_optimizer(*args, **kwargs)  # type: ignore[misc]
        self._window = []
        if not isinstance(base, AcceleratedOptimizer):  # as in a second train(), which continues with the first one's
            perturbed = base if isinstance(base, PerturbedOptimizer) else self.perturb(base)
            if not isinstance(perturbed, PerturbedOptimizer):
                raise EvenlyError(
                    f"perturb must return an evenly.SAM or another wrapper, got a {type(perturbed).__name__}"
                )
            _keep_settings(perturbed)
            self.perturbed = perturbed
            self.optimizer = base = perturbed.base
        return base

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        self._window.append(inputs)
        if not self.accelerator.sync_gradients:
            return torch.zeros((), device=self.args.device)
        losses: list[Tensor] = []
        scaler = self.accelerator.scaler

        def closure() -> Tensor:
            model.zero_grad()
            loss = self._accumulated(model, num_items_in_batch)
            losses.append(loss)
            if scaler is not None and scaler.is_enabled() and not self.perturbed.gradients_are_finite():
                raise _OverflowError
            return loss

        try:
            with replaced(self.perturbed.base, "step", lambda: None):  # Trainer takes this step itself, after clipping
                self.perturbed.step(closure)
        except _OverflowError:
            pass  # the scaler finds the same gradient in Trainer's step, skips it and lowers its scale
        self._window = []
        return losses[0]

    def _accumulated(self, model: nn.Module, num_items_in_batch: Any) -> Tensor:
        """The gradients of all batches of this step at the current weights, and the sum of their losses."""
        losses = []
        for position, inputs in enumerate(self._window, start=1):
            last = position == len(self._window)
            with nullcontext() if last else self.accelerator.no_sync(model):
                losses.append(super().training_step(model, inputs, num_items_in_batch))  # type: ignore[misc]
        return torch.stack(losses).sum()


class SAMTrainer(SAMMixin, Trainer):
    """``transformers.Trainer`` with SAM: see :class:`SAMMixin`."""


class _OverflowError(Exception):
    """A pass gave a gradient that is not finite, and a GradScaler is there to skip the step."""


def _keep_settings(perturbed: PerturbedOptimizer) -> None:
    """Let a checkpoint of the base alone load: it has no rho, and Trainer loads into the base."""
    current = [{name: group[name] for name in perturbed.settings} for group in perturbed.param_groups]

    def hook(base: Optimizer) -> None:
        for group, settings in zip(base.param_groups, current, strict=True):
            group.update({name: group.get(name, value) for name, value in settings.items()})

    perturbed.base.register_load_state_dict_post_hook(hook)
