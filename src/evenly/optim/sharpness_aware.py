"""The step that SAM, ASAM and LSAM share: one gradient finds where to go up, a second one is descended.

g   = grad L(w)                    first pass
eps = eps(w, g)                    the method's own
w  <- base(w, grad L(w + eps))     second pass
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
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
from evenly.optim.perturbed import Loss, PerturbedOptimizer
from evenly.optim.snapshot import Snapshot

RUNNING_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class SharpnessAware(PerturbedOptimizer):
    """Two passes per step; a subclass gives the perturbation between them.

    Each pass draws its own dropout masks. What runs on every forward pass (a counter, a moving average of
    your own) runs twice; the running statistics of normalization layers move once.

    Args:
        base: the optimizer that steps.
        model: the network whose running statistics (BatchNorm, InstanceNorm) the second pass leaves alone.
            Without it they are those of every module called in the first pass of the first step: a network
            that comes into play later is missed, and a compiled one runs that one pass uncompiled.
        local: under DistributedDataParallel, perturb each replica by the gradient of its own part of the
            batch (m-sharpness, m examples per replica) instead of the whole batch's. ``model`` must then be
            the DistributedDataParallel that the closure calls.
        check_finite: raise if a gradient is not finite.
    """

    local: bool
    _model: nn.Module | None
    _models: list[nn.Module] | None
    _normalizing: list[tuple[nn.Module, str]] | None
    """The layers with running statistics and which, looked up once: to walk a deep network every step would be slow."""
    _buffers: list[tuple[nn.Module, str, Tensor]]

    def __init__(
        self,
        base: Optimizer,
        *,
        model: nn.Module | None,
        local: bool,
        check_finite: bool,
        **settings: float,
    ) -> None:
        self.local = local
        self.model = model
        super().__init__(base, check_finite=check_finite, **settings)

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Loss] | None = None, *, scaler: GradScaler | None = None) -> Loss:
        closure, scaler = self.begin(closure, scaler)
        with self._unsynced(), self._noting_models():
            loss = self.evaluate(closure)
        if isinstance(loss, Tensor):
            loss = cast(Loss, loss.clone())  # a second run of a captured or compiled closure may write over it
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

        The running statistics of ``model`` are kept as they are now; :meth:`restore` brings them back.
        """
        if self._normalizing is None and self._models is not None:
            modules = [module for model in self._models for module in model.modules()]
            _refuse_sharded(modules)
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
            if getattr(module, name) is not buffer:  # a layer of the user's own may put a new tensor in its place
                setattr(module, name, buffer)
        self._buffers = []
        self._statistics.put_back()

    @property
    def model(self) -> nn.Module | None:
        """The network, as in the arguments; a finished optimizer takes another one: ``opt.model = model``."""
        return self._model

    @model.setter
    def model(self, model: nn.Module | None) -> None:
        if self.local and not isinstance(model, DistributedDataParallel):
            given = "None" if model is None else f"a {type(model).__name__}"
            raise EvenlyError(
                f"local=True, but model is {given}; pass the DistributedDataParallel that the closure calls"
            )
        if self.local and getattr(model, "static_graph", False):
            raise EvenlyError(
                "local=True with static_graph=True: the passes differ in what they send; leave static_graph out"
            )
        if model is not None and not isinstance(model, nn.Module):
            raise EvenlyError(f"model is a {type(model).__name__}; give the network, a torch.nn.Module, or None")
        self._model = model
        self._models = None if model is None else [model]
        self._normalizing = None

    def keep_statistics_of(self, model: nn.Module) -> None:
        """Leave the running statistics of this network alone in the second pass; `model` and what it is for stay."""
        self._models, self._normalizing = [model], None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self.model = self.model  # a network may have come with the group

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_model": self.model, "local": self.local}

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
            on_all = finite.int()
            torch.distributed.all_reduce(on_all, torch.distributed.ReduceOp.MIN, group=self.model.process_group)
            finite = on_all.bool()
        return finite

    def _skip(self, scaler: GradScaler) -> None:
        # The scaler skips, and lowers its scale, for an infinity that it sees itself; with local gradients it
        # may be on another replica.
        for part in self.gradients():
            torch._foreach_mul_([p.grad for p in part.params if p.grad is not None], float("nan"))
        scaler.step(self.base)

    @contextmanager
    def _noting_models(self) -> Iterator[None]:
        if self._models is not None:
            yield
            return
        models: list[nn.Module] = []
        within: set[nn.Module] = set()

        def note(module: nn.Module, _: object) -> None:
            if module not in within:
                models.append(module)
                within.update(module.modules())

        # Compiled code breaks under a global hook, and torch warns of it: this one pass runs uncompiled.
        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")
            hook = register_module_forward_pre_hook(note)
            try:
                yield
            finally:
                hook.remove()
        self._models = models


def _refuse_sharded(modules: list[nn.Module]) -> None:
    for module in modules:
        if type(module).__name__ == "FullyShardedDataParallel":
            raise EvenlyError(
                "the model is a FullyShardedDataParallel: each process holds a part of the weights, and the norm would "
                "be that of a part; use DistributedDataParallel"
            )
