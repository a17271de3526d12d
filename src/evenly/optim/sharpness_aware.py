"""The step that SAM, ASAM and LSAM share: the first gradient sets the perturbation, the second one is descended.

g   = grad L(w)                    first pass
eps = eps(w, g)                    defined by the method
w  <- base(w, grad L(w + eps))     second pass
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.amp import GradScaler
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from evenly.errors import EvenlyError
from evenly.optim.perturbed import Loss, PerturbedOptimizer, Rounding, check_parameters
from evenly.optim.shards import gradient_shards, is_split
from evenly.optim.snapshot import Snapshot

RUNNING_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class SharpnessAware(PerturbedOptimizer):
    """Two passes per step; a subclass gives the perturbation between them.

    Each pass draws its own dropout masks. Code that runs on every forward pass (a counter, a moving average of your
    own) runs twice; the running statistics of normalization layers are updated once.

    Args:
        base: the optimizer that steps.
        model: the network whose running statistics (BatchNorm, InstanceNorm) the second pass leaves unchanged. Without
            it, every module called in the first pass of the first step is included: a network that is first called
            later is missed, and a compiled one runs that one pass uncompiled.
        local: under DistributedDataParallel, perturb each replica by the gradient of its own part of the batch
            (m-sharpness, m examples per replica) instead of the whole batch's. ``model`` must then be the
            DistributedDataParallel that the closure calls. Refused under fully_shard.
        check_finite: raise if a gradient is not finite.
        rounding: of the perturbed weights, "nearest" or "stochastic", where they are stored in half precision; see
            :class:`~evenly.optim.perturbed.PerturbedOptimizer`.
    """

    local: bool
    local_if_replicated = False
    """Be `local` as soon as `model` is a DistributedDataParallel, for a loop that wraps the network later."""
    _model: nn.Module | None
    _models: list[nn.Module] | None
    _normalizing: list[tuple[nn.Module, str]] | None
    """The layers with running statistics and the buffers' names, found once: walking a deep network is slow."""
    _buffers: list[tuple[nn.Module, str, Tensor]]

    def __init__(
        self,
        base: Optimizer,
        *,
        model: nn.Module | None,
        local: bool,
        check_finite: bool,
        rounding: Rounding,
        **settings: float,
    ) -> None:
        self.local = local
        self.model = model
        if local and isinstance(base, Optimizer):
            refuse_local(p for group in base.param_groups for p in group["params"])
        super().__init__(base, check_finite=check_finite, rounding=rounding, **settings)

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Loss] | None = None, *, scaler: GradScaler | None = None) -> Loss:
        if self.is_to_make_state(closure):
            return cast(Loss, self.base.step())
        closure, scaler = self.begin(closure, scaler)
        with self._unsynced(), self._recording_models():
            loss = self.evaluate(closure)
        if isinstance(loss, Tensor):
            loss = cast(Loss, loss.clone())  # a captured or compiled closure may overwrite it in its second run
        if (scaler is not None or self.check_finite) and not self._first_gradients_are_finite():
            if scaler is None:
                self.refuse_gradient("first")
            self._skip(scaler)
            return loss
        with self.perturbed():
            self.evaluate(closure)
        self.descend(scaler, "second")
        return loss

    @_disable_dynamo
    @torch.no_grad()
    def ascend(self) -> None:
        """Move the weights from w to w + eps, given the gradient at w in ``.grad``.

        The running statistics of ``model`` are copied; :meth:`restore` puts them back.
        """
        if self._normalizing is None and self._models is not None:
            check_parameters(self.param_groups)  # FullyShardedDataParallel may have come after the base
            modules = [module for model in self._models for module in model.modules()]
            self._normalizing = [
                (module, name)
                for module in modules
                for name, buffer in module.named_buffers(recurse=False)
                if name in RUNNING_STATISTICS and buffer is not None
            ]
        super().ascend()
        self._buffers = [(module, name, getattr(module, name)) for module, name in self._normalizing or ()]
        self._statistics.take(buffer for *_, buffer in self._buffers)

    @_disable_dynamo
    @torch.no_grad()
    def restore(self) -> None:
        """Move the weights back from w + eps to w, bit for bit, and the running statistics with them."""
        super().restore()
        for module, name, buffer in self._buffers:
            if getattr(module, name) is not buffer:  # a custom layer may have replaced its buffer by a new tensor
                setattr(module, name, buffer)
        self._buffers = []
        self._statistics.put_back()

    @property
    def model(self) -> nn.Module | None:
        """The network, as in the arguments; it can be replaced: ``opt.model = model``."""
        return self._model

    @model.setter
    def model(self, model: nn.Module | None) -> None:
        if self.local_if_replicated:
            self.local = isinstance(model, DistributedDataParallel)
        if self.local and isinstance(model, nn.Module):
            refuse_local(model.parameters())
        if self.local and not isinstance(model, DistributedDataParallel):
            kind = "None" if model is None else f"a {type(model).__name__}"
            raise EvenlyError(
                f"with local=True `model` must be the DistributedDataParallel that the closure calls, got {kind}"
            )
        if self.local and getattr(model, "static_graph", False):
            raise EvenlyError(
                "local=True does not work with static_graph=True, as only the second pass synchronizes gradients; "
                "leave static_graph out"
            )
        if model is not None and not isinstance(model, nn.Module):
            raise EvenlyError(f"`model` must be a torch.nn.Module or None, got a {type(model).__name__}")
        self._model = model
        self._models = None if model is None else [model]
        self._normalizing = None

    def keep_statistics_of(self, model: nn.Module) -> None:
        """Leave this network's running statistics unchanged in the second pass, without setting `model`."""
        self._models, self._normalizing = [model], None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self.model = self.model  # the group may belong to a new network

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "_model": self.model,
            "local": self.local,
            "local_if_replicated": self.local_if_replicated,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._statistics, self._buffers = Snapshot(), []
        self.model = self._model

    def _unsynced(self) -> AbstractContextManager[None]:
        if not self.local:
            return nullcontext()
        assert isinstance(self.model, DistributedDataParallel)
        return self.model.no_sync()

    def _first_gradients_are_finite(self) -> Tensor:
        finite = self.gradients_are_finite()
        if self.local:
            # Replicas must take the second pass together or not at all: its gradients are synchronized.
            assert isinstance(self.model, DistributedDataParallel)
            all_finite = finite.int()
            torch.distributed.all_reduce(all_finite, torch.distributed.ReduceOp.MIN, group=self.model.process_group)
            finite = all_finite.bool()
        return finite

    def _skip(self, scaler: GradScaler) -> None:
        # The scaler skips the step and lowers its scale only for an infinity on its own replica; with local gradients
        # the infinity may be on another one.
        for part in self.gradients():
            torch._foreach_mul_(gradient_shards(part.params), float("nan"))
        scaler.step(self.base)

    @contextmanager
    def _recording_models(self) -> Iterator[None]:
        if self._models is not None:
            yield
            return
        models: list[nn.Module] = []
        seen: set[nn.Module] = set()

        def record(module: nn.Module, _: object) -> None:
            if module not in seen:
                models.append(module)
                seen.update(module.modules())

        # Compiled code fails under a global hook, and torch warns about it: this one pass runs uncompiled.
        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")
            hook = register_module_forward_pre_hook(record)
            try:
                yield
            finally:
                hook.remove()
        self._models = models


def refuse_local(params: Iterable[Tensor]) -> None:
    """Refuse local=True where one process's gradient is never whole."""
    for index, p in enumerate(params):
        if is_split(p):
            raise EvenlyError(
                f"local=True perturbs each process's weights by its own gradient, and parameter {index} is split over "
                "processes (fully_shard); leave local=True out, or use DistributedDataParallel"
            )
