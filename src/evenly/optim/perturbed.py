"""An optimizer around another: the base steps from w with the gradient taken at w + eps.

A subclass says what eps is (:meth:`PerturbedOptimizer.perturbation`) and how a step goes. Held here is what
they share: ``param_groups``, ``state`` and ``defaults`` are the base's own, so that schedulers and
checkpoints see one optimizer; eps is added and taken away exactly; broken closures are refused.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar, cast

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.amp import GradScaler
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from evenly.errors import EvenlyError
from evenly.optim.foreach import add_divided, alike, norm
from evenly.optim.snapshot import Snapshot

Loss = TypeVar("Loss")
HALF = (torch.float16, torch.bfloat16)


class Part(NamedTuple):
    """Parameters of one group, device and dtype, with their gradients."""

    group: dict[str, Any]
    params: list[Tensor]
    grads: list[Tensor]

    @property
    def rho(self) -> float | Tensor:
        """The group's radius; negative where the base maximizes, whose worst neighbour lies downhill."""
        rho: float | Tensor = self.group["rho"]
        return -rho if self.group.get("maximize") else rho

    def over_rho(self, norm: Tensor) -> Tensor:
        """norm / rho; infinite where rho is the number 0, with which a schedule may begin."""
        rho = self.group["rho"]
        if isinstance(rho, Tensor) or rho > 0:
            return norm / self.rho
        if rho != 0:
            raise EvenlyError(f"rho={rho} in a parameter group: the ascent would go downhill; give a number from 0")
        return torch.full_like(norm, torch.inf)


class Shift(NamedTuple):
    """What `ascend` adds to some parameters: directions / by, and nothing where ``by`` is 0."""

    params: list[Tensor]
    directions: list[Tensor]
    by: Tensor


def wrappable(base: Optimizer) -> Optimizer:
    """``base``, or the reason why no perturbation can be put around it."""
    if isinstance(base, type):
        raise EvenlyError(
            f"base is the class {base.__name__}, not an optimizer made from it; "
            f"give an instance: torch.optim.{base.__name__}(model.parameters(), ...)"
        )
    if not isinstance(base, Optimizer):
        raise EvenlyError(
            f"base is a {type(base).__name__}, not a torch optimizer; "
            "give an instance such as torch.optim.SGD(model.parameters(), lr=0.1)"
        )
    if isinstance(base, PerturbedOptimizer):
        raise EvenlyError(
            f"base is itself a {type(base).__name__} and perturbs already; give a {type(base.base).__name__} of its own"
        )
    if isinstance(base, torch.optim.LBFGS):
        raise EvenlyError("base is LBFGS, which runs the closure by itself; use SGD, Adam or another first-order base")
    refuse_parameters(base.param_groups)
    return base


def refuse_parameters(groups: Iterable[dict[str, Any]]) -> None:
    """Refuse parameters that have no perturbation: complex ones, and parts of ones that are split over devices."""
    for g, group in enumerate(groups):
        for i, p in enumerate(group["params"]):
            if p.is_complex():
                raise EvenlyError(
                    f"parameter {i} of group {g} is complex; hold it as real numbers (torch.view_as_real) in the model"
                )
            if hasattr(p, "device_mesh") or getattr(p, "_is_flat_param", False):
                raise EvenlyError(
                    f"parameter {i} of group {g} is split over devices (FSDP, DTensor), and the norm would be that of "
                    "a part; use DistributedDataParallel"
                )


class PerturbedOptimizer(Optimizer):
    """What SAM and its kin share.

    Args:
        base: the optimizer that steps. It gets the settings below in its ``defaults`` and ``param_groups``;
            a group that names its own (``{"params": ..., "rho": 0.1}``) keeps it. Its weight decay does not
            enter the perturbation. To clip gradients whatever the precision, register a step pre-hook on it:
            it runs on the unscaled gradients, after the last pass.
        check_finite: raise on a gradient that is not finite. Reads one number per pass from the device.
        settings: the method's numbers, each > 0, by the names in :attr:`settings`.
    """

    settings: ClassVar[tuple[str, ...]]
    base: Optimizer
    check_finite: bool
    ascended: bool
    """Whether the weights are the perturbed ones now."""

    def __init__(self, base: Optimizer, *, check_finite: bool, **settings: float) -> None:
        base = wrappable(base)
        for name, value in settings.items():
            self._refuse_unless_positive(name, value)
            if name in base.defaults:
                raise EvenlyError(
                    f"{type(base).__name__} has a setting {name!r} already, its own or an earlier wrapper's; "
                    f"give {type(self).__name__} a base of another kind or a new one"
                )
            for group in base.param_groups:
                self._refuse_unless_positive(name, group.get(name, value))
        base.defaults.update(settings)
        for group in base.param_groups:
            group.update({name: group.get(name, value) for name, value in settings.items()})
        # Not Optimizer.__init__: it would make groups and a state of its own.
        self.__setstate__({"base": base, "check_finite": check_finite})

    @abstractmethod
    def perturbation(self) -> Iterable[Shift]:
        """eps, as what :meth:`ascend` adds to the parameters."""

    @_disable_dynamo
    @torch.no_grad()
    def ascend(self) -> None:
        """Move the weights from w to w + eps, where eps may need the gradients now in ``.grad``."""
        if self.ascended:
            raise EvenlyError("ascend() was called twice: the weights are perturbed already; call restore() first")
        shifts = list(self.perturbation())
        self._weights.take(param for shift in shifts for param in shift.params)
        self.ascended = True
        for shift in shifts:
            add_divided(*shift)
        # An autocast region around the whole step would give the next pass its casts of the old weights.
        torch.clear_autocast_cache()

    @_disable_dynamo
    @torch.no_grad()
    def restore(self) -> None:
        """Move the weights back from w + eps to w, bit for bit."""
        if not self.ascended:
            raise EvenlyError("restore() without ascend(): the weights are not perturbed; call ascend() first")
        self._weights.put_back()
        self.ascended = False
        torch.clear_autocast_cache()

    @contextmanager
    def perturbed(self) -> Iterator[None]:
        """:meth:`ascend` before and :meth:`restore` after, come what may."""
        try:
            self.ascend()
            yield
        finally:
            if self.ascended:
                self.restore()

    def gradients(self, among: Container[Tensor] | None = None) -> list[Part]:
        """The parameters that have a gradient (of those in ``among``, if given) and the gradients.

        Half-precision gradients are given in single precision: their norm need not fit in theirs.
        """
        parts = []
        for index, group in enumerate(self.param_groups):
            grads = {p: g for p in group["params"] if (g := p.grad) is not None and (among is None or p in among)}
            if any(g.layout is not torch.strided for g in grads.values()):
                self._refuse_sparse(index, set(grads))
            for params in alike(grads):
                theirs = [grads[p] for p in params]
                parts.append(Part(group, params, [g.float() for g in theirs] if params[0].dtype in HALF else theirs))
        if not parts:
            which = "parameter of the optimizer" if among is None else "parameter chosen for the perturbation"
            raise EvenlyError(
                f"no {which} has a gradient; call loss.backward() first, on a loss that depends on them, "
                "and let at least one of them require gradients"
            )
        return parts

    @abstractmethod
    def step(self, closure: Callable[[], Loss] | None = None, *, scaler: GradScaler | None = None) -> Loss:
        """One update of the weights.

        Args:
            closure: zeroes the gradients, computes the loss, calls backward (once, or several times to
                accumulate) and returns the loss.
            scaler: with it the closure calls ``scaler.scale(loss).backward()``, and ``scaler.update()`` is
                the caller's, after the step. A pass with a gradient that is not finite skips the whole step.

        Returns:
            What the closure returned in its first run; a tensor comes back as a detached copy.
        """

    def begin(
        self, closure: Callable[[], Loss] | None, scaler: GradScaler | None
    ) -> tuple[Callable[[], Loss], GradScaler | None]:
        """The arguments of :meth:`step`, if it can start; a disabled scaler is none."""
        if not callable(closure):
            raise EvenlyError(
                f"{type(self).__name__}.step got {closure!r} as its closure, but must run the passes itself; "
                "pass a function that zeroes the gradients, calls loss.backward() and returns the loss"
            )
        if self.ascended:
            raise EvenlyError("step() after ascend(): the weights are perturbed already; call restore() first")
        return closure, scaler if scaler is not None and scaler.is_enabled() else None

    def evaluate(self, closure: Callable[[], Loss]) -> Loss:
        """Run the closure where the weights are now; its gradients are in ``.grad``, its loss comes back detached."""
        with torch.enable_grad():
            loss = closure()
        if loss is None:
            raise EvenlyError("the closure returned None; end it with `return loss`")
        if all(p.grad is None for group in self.param_groups for p in group["params"]):
            raise EvenlyError(
                "no parameter of the optimizer has a gradient after the closure ran; "
                "call loss.backward() in it, on a loss that depends on them"
            )
        return cast(Loss, loss.detach()) if isinstance(loss, Tensor) else loss

    def gradients_are_finite(self) -> Tensor:
        """Whether every gradient is finite: a 0-d boolean tensor on the device."""
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        values = (g if g.layout is torch.strided else g.coalesce().values() for g in grads)
        return norm(alike(g.float() if g.dtype in HALF else g for g in values)).isfinite()

    def descend(self, scaler: GradScaler | None, which: str) -> None:
        """Let the base step with the gradients of the ``which`` pass."""
        if scaler is not None:
            if self._is_unscaled(scaler, self):
                raise EvenlyError(
                    "the closure called scaler.unscale_(opt), and the step would unscale once more; leave it out and "
                    "clip in a step pre-hook of the base"
                )
            if not self._is_unscaled(scaler, self.base):  # a fused base would do it later, after the hooks that clip
                scaler.unscale_(self.base)
            scaler.step(self.base)
            return
        if self.check_finite and not self.gradients_are_finite():
            self.refuse_gradient(which)
        self.base.step()

    @staticmethod
    def _is_unscaled(scaler: GradScaler, optimizer: Optimizer) -> bool:
        return id(optimizer) in scaler._per_optimizer_states and (
            scaler._per_optimizer_states[id(optimizer)]["stage"] is not OptState.READY
        )

    def refuse_gradient(self, which: str) -> NoReturn:
        raise EvenlyError(
            f"a gradient of the {which} pass is not finite, so no step was taken; lower the learning rate, "
            "look for infinities in the batch, or pass a GradScaler, which skips such steps"
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.base.param_groups = groups

    @property
    def state(self) -> defaultdict[Tensor, Any]:
        return self.base.state

    @state.setter
    def state(self, state: defaultdict[Tensor, Any]) -> None:
        self.base.state = state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        for name in self.settings:
            self._refuse_unless_positive(name, param_group.get(name, self.defaults[name]))
        self.base.add_param_group(param_group)
        refuse_parameters(self.param_groups)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The base's, whose groups hold this wrapper's settings as well."""
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` gave, or a bare base's: then the settings stay as they are."""
        present = [{name: group[name] for name in self.settings} for group in self.param_groups]
        self.base.load_state_dict(state_dict)
        for group, settings in zip(self.param_groups, present, strict=True):
            group.update({name: group.get(name, value) for name, value in settings.items()})

    def __getstate__(self) -> dict[str, Any]:
        return {"base": self.base, "check_finite": self.check_finite}

    def __setstate__(self, state: dict[str, Any]) -> None:
        base = state["base"]
        super().__setstate__({**state, "defaults": base.defaults})
        # state_dict() and load_state_dict() are the base's, and so are the hooks on them.
        for moment in ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post"):
            setattr(self, f"_optimizer_{moment}_hooks", getattr(base, f"_optimizer_{moment}_hooks"))
        self._weights = Snapshot()
        self.ascended = False

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={self.defaults[name]}" for name in self.settings)
        return f"{type(self).__name__}({settings}, base={self.base!r})"

    def _refuse_unless_positive(self, name: str, value: float) -> None:
        if not isinstance(value, int | float | Tensor) or not (math.isfinite(value) and value > 0):
            raise EvenlyError(
                f"{name}={value} for {type(self).__name__}: it must be a finite number > 0; "
                "for no perturbation use the base optimizer alone"
            )

    def _refuse_sparse(self, group: int, among: Container[Tensor]) -> NoReturn:
        params = self.param_groups[group]["params"]
        index = next(i for i, p in enumerate(params) if p in among and p.grad.layout != torch.strided)
        raise EvenlyError(
            f"parameter {index} of group {group}, of shape {tuple(params[index].shape)}, has a sparse "
            "gradient, but a perturbation is dense; make its layer with sparse=False"
        )
