"""An optimizer around another: the base steps from w with the gradient taken at w + eps.

A subclass defines eps (:meth:`PerturbedOptimizer.perturbation`) and the passes of a step. This class has what they
share. ``param_groups``, ``state`` and ``defaults`` are the base's own, so schedulers and checkpoints see one optimizer.
Restoring the weights is exact. Broken closures are refused.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, Self, TypeVar, cast, get_args

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.amp import GradScaler
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from evenly.errors import EvenlyError, EvenlyWarning
from evenly.optim.foreach import add_divided, add_rounded, group_tensors
from evenly.optim.noise import uniform
from evenly.optim.shards import Processes, any_split, forget_gathered_weights, gradient_shards, shards, whole_norm
from evenly.optim.snapshot import Snapshot

Loss = TypeVar("Loss")
Rounding = Literal["nearest", "stochastic"]
HALF = (torch.float16, torch.bfloat16)
ENOUGH = 0.95
"""The share of a perturbation below which its rounding to half precision is worth a warning."""


class Part(NamedTuple):
    """Parameters of one group, device and dtype, with their gradients: of a split one, this process's shard."""

    group: dict[str, Any]
    params: list[Tensor]
    grads: list[Tensor]

    @property
    def weights(self) -> list[Tensor]:
        """This process's shards of the parameters, in whose shapes the gradients are."""
        return shards(self.params)

    @property
    def rho(self) -> float | Tensor:
        """The group's radius; negative if the base maximizes, because its worst neighbour is downhill."""
        rho: float | Tensor = self.group["rho"]
        return -rho if self.group.get("maximize") else rho

    def divided_by_rho(self, norm: Tensor) -> Tensor:
        """norm / rho; infinite if rho is the number 0, with which a schedule may begin."""
        rho = self.group["rho"]
        if isinstance(rho, Tensor) or rho > 0:
            return norm / self.rho
        if rho != 0:
            raise EvenlyError(f"`rho` of a parameter group must be at least 0, got {rho}")
        return torch.full_like(norm, torch.inf)


class Shift(NamedTuple):
    """What `ascend` adds to this process's shards of parameters: directions / divisor, or nothing if that is 0."""

    params: list[Tensor]
    directions: list[Tensor]
    divisor: Tensor


def check_base(base: Optimizer) -> Optimizer:
    """``base``, if it can be wrapped; otherwise an error with the reason."""
    if isinstance(base, type):
        raise EvenlyError(
            f"`base` must be an optimizer, got the class {base.__name__}; "
            f"give an instance: torch.optim.{base.__name__}(model.parameters(), ...)"
        )
    if not isinstance(base, Optimizer):
        raise EvenlyError(
            f"`base` must be a torch optimizer, got a {type(base).__name__}; "
            "give an instance such as torch.optim.SGD(model.parameters(), lr=0.1)"
        )
    if isinstance(base, PerturbedOptimizer):
        raise EvenlyError(
            f"`base` is a {type(base).__name__}, which already perturbs; wrap a {type(base.base).__name__} instead"
        )
    if isinstance(base, torch.optim.LBFGS):
        raise EvenlyError("`base` is LBFGS, which runs the closure itself; use a first-order one, e.g. SGD")
    check_parameters(base.param_groups)
    return base


def check_parameters(groups: Iterable[dict[str, Any]]) -> None:
    """Refuse complex parameters and those of FullyShardedDataParallel."""
    for g, group in enumerate(groups):
        for i, p in enumerate(group["params"]):
            if p.is_complex():
                raise EvenlyError(
                    f"parameter {i} of group {g} is complex; store it as real numbers (torch.view_as_real) in the model"
                )
            if getattr(p, "_fsdp_flattened", False):
                raise EvenlyError(
                    f"parameter {i} of group {g} belongs to a FullyShardedDataParallel, whose pieces of weights have "
                    "no layout; use torch.distributed.fsdp.fully_shard, or DistributedDataParallel"
                )


class PerturbedOptimizer(Optimizer):
    """The base class of SAM, ASAM, LSAM and RandomPerturbation.

    Args:
        base: the optimizer that steps. The settings below are added to its ``defaults`` and ``param_groups``; a group
            with a value of its own (``{"params": ..., "rho": 0.1}``) keeps it. Weight decay does not enter the
            perturbation. To clip gradients in any precision, register a step pre-hook on the base: it runs on the
            unscaled gradients, after the last pass.
        check_finite: raise on a gradient that is not finite. Reads one number per pass from the device.
        rounding: of w + eps where the weights are stored in bfloat16 or float16. "nearest" loses what is below half
            the distance between two such numbers, which in a large network is most of eps; the first step warns with
            the share that is left. "stochastic" rounds up or down at random, with mean w + eps. It draws from torch's
            global generator of the device, as dropout does.
        settings: the method's settings, each > 0, with the names in :attr:`settings`.
    """

    settings: ClassVar[tuple[str, ...]]
    base: Optimizer
    check_finite: bool
    rounding: Rounding
    ascended: bool
    """Whether the weights are perturbed now."""

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        given = (*args[1:], *settings.values())
        if kind := next((each for each in given if isinstance(each, type) and issubclass(each, Optimizer)), None):
            own = "".join(f", {name}={value}" for name, value in settings.items() if name in cls.settings)
            rest = {name: value for name, value in settings.items() if isinstance(value, int | float)}
            of_base = "".join(
                f", {name}={value}" for name, value in rest.items() if name not in (*cls.settings, "adaptive")
            )
            raise EvenlyError(
                f"{cls.__name__} wraps an optimizer, got the class {kind.__name__}; "
                f"write {cls.__name__}(torch.optim.{kind.__name__}(model.parameters(){of_base}){own})"
            )
        return super().__new__(cls)

    def __init__(
        self, base: Optimizer, *, check_finite: bool, rounding: Rounding = "nearest", **settings: float
    ) -> None:
        base = check_base(base)
        if rounding not in get_args(Rounding):
            raise EvenlyError(f"`rounding` must be nearest or stochastic, got {rounding!r}")
        for name, value in settings.items():
            self._refuse_unless_positive(name, value)
            if name in base.defaults:
                raise EvenlyError(
                    f"{type(base).__name__} already has a setting {name!r}, its own or an earlier wrapper's; "
                    f"give {type(self).__name__} a new optimizer, or one of another class"
                )
            for group in base.param_groups:
                self._refuse_unless_positive(name, group.get(name, value))
        base.defaults.update(settings)
        for group in base.param_groups:
            group.update({name: group.get(name, value) for name, value in settings.items()})
        # Not Optimizer.__init__: it would make groups and a state of its own.
        self.__setstate__({"base": base, "check_finite": check_finite, "rounding": rounding})

    @abstractmethod
    def perturbation(self) -> Iterable[Shift]:
        """eps, as the shifts that :meth:`ascend` adds to the parameters."""

    @_disable_dynamo
    @torch.no_grad()
    def ascend(self) -> None:
        """Move the weights from w to w + eps. Except for random noise, eps needs the gradients in ``.grad``."""
        if self.ascended:
            raise EvenlyError("ascend() called twice: the weights are already perturbed; call restore() first")
        self._forget_gathered_weights()
        shifts = list(self.perturbation())
        self._weights.take(param for shift in shifts for param in shift.params)
        self.ascended = True
        for params, directions, divisor in shifts:
            if self.rounding == "stochastic" and params[0].dtype in HALF:
                add_rounded(shards(params), directions, divisor, map(uniform, params))
            else:
                add_divided(shards(params), directions, divisor)
        if not self._share_is_known:
            self._warn_if_rounded_away(shifts)
        # Autocast around the whole step would reuse its half-precision copies of the old weights in the next pass.
        torch.clear_autocast_cache()

    @_disable_dynamo
    @torch.no_grad()
    def restore(self) -> None:
        """Move the weights back from w + eps to w, bit for bit."""
        if not self.ascended:
            raise EvenlyError("restore() called without ascend(): the weights are not perturbed; call ascend() first")
        self._weights.put_back()
        self.ascended = False
        self._forget_gathered_weights()
        torch.clear_autocast_cache()

    def _forget_gathered_weights(self) -> None:
        if any(any_split(group["params"]) for group in self.param_groups):
            forget_gathered_weights()

    def _warn_if_rounded_away(self, shifts: list[Shift]) -> None:
        """Once: the share <moved, eps> / <eps, eps> of eps that is left where the weights are in half precision."""
        half = [shift for shift in shifts if shift.params[0].dtype in HALF]
        self._share_is_known = self.rounding == "stochastic" or not half
        if self._share_is_known or (half[0].params[0].is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        processes = Processes(param for shift in half for param in shift.params)
        products = []
        for params, directions, divisor in half:
            for param, weight, direction in zip(params, shards(params), directions, strict=True):
                eps = direction.float() / divisor.to(direction.device, torch.float32)
                moved = weight.float() - self._weights.copy_of(param).float()
                products.append(torch.stack([(moved * eps).sum(), (eps * eps).sum()]).cpu() / processes.copies(param))
        left, whole = processes.sum(torch.stack(products).sum(0)).tolist()
        share = left / whole if whole else math.nan
        self._share_is_known = math.isfinite(share)  # at a gradient of 0 there is no share
        if share < ENOUGH:
            dtype = str(half[0].params[0].dtype).removeprefix("torch.")
            warnings.warn(
                f"{share:.0%} of the perturbation of {type(self).__name__} is left when rounded to weights in {dtype}; "
                "keep the weights in float32 under autocast, or give rounding='stochastic'",
                EvenlyWarning,
                stacklevel=2,
            )

    @contextmanager
    def perturbed(self) -> Iterator[None]:
        """:meth:`ascend` before and :meth:`restore` after, also if the block raises."""
        try:
            self.ascend()
            yield
        finally:
            if self.ascended:
                self.restore()

    def gradients(self, subset: Container[Tensor] | None = None) -> list[Part]:
        """The parameters (all, or those in ``subset``) that have a gradient, with their gradients' shards.

        Half-precision gradients are converted to single precision, because their norm may overflow half precision.
        """
        parts = []
        for index, group in enumerate(self.param_groups):
            grads = {p: g for p in group["params"] if (g := p.grad) is not None and (subset is None or p in subset)}
            if any(g.layout is not torch.strided for g in grads.values()):
                self._refuse_sparse(index, set(grads))
            for params in group_tensors(grads):
                held = gradient_shards(params)
                parts.append(Part(group, params, [g.float() for g in held] if params[0].dtype in HALF else held))
        if not parts:
            kind = "parameter of the optimizer" if subset is None else "parameter chosen for the perturbation"
            raise EvenlyError(
                f"no {kind} has a gradient; call loss.backward() first, on a loss that depends on them, "
                "and let at least one of them require a gradient"
            )
        return parts

    @abstractmethod
    def step(self, closure: Callable[[], Loss] | None = None, *, scaler: GradScaler | None = None) -> Loss:
        """One update of the weights.

        Args:
            closure: zeroes the gradients, computes the loss, calls backward (once, or several times to
                accumulate) and returns the loss.
            scaler: with a scaler the closure calls ``scaler.scale(loss).backward()``, and the caller calls
                ``scaler.update()`` after the step. A gradient that is not finite, in any pass, skips the whole step.

        Returns:
            What the closure returned in its first run; a tensor is returned as a detached copy.
        """

    def is_to_make_state(self, closure: Callable[[], Loss] | None) -> bool:
        """Whether the step is torch.distributed.checkpoint's, which makes a new optimizer's state in order to fill it.

        It has no closure, every gradient is 0 and so is every learning rate: the base may take it.
        """
        if closure is not None or self.state or self.ascended:
            return False
        if any(group.get("lr", 1) != 0 for group in self.param_groups):
            return False
        grads = [g for group in self.param_groups for g in gradient_shards(group["params"])]
        return bool(grads) and not any(g.any() for g in grads)

    def begin(
        self, closure: Callable[[], Loss] | None, scaler: GradScaler | None
    ) -> tuple[Callable[[], Loss], GradScaler | None]:
        """The checked arguments of :meth:`step`; a disabled scaler becomes None."""
        if not callable(closure):
            raise EvenlyError(
                f"{type(self).__name__}.step runs the passes itself and needs a closure, got {closure!r}; "
                "pass a function that zeroes the gradients, calls loss.backward() and returns the loss"
            )
        if self.ascended:
            raise EvenlyError("step() called after ascend(): the weights are already perturbed; call restore() first")
        return closure, scaler if scaler is not None and scaler.is_enabled() else None

    def evaluate(self, closure: Callable[[], Loss]) -> Loss:
        """Run the closure at the current weights. The gradients are in ``.grad``; the loss is returned detached."""
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
        """Whether every gradient is finite: a 0-d boolean tensor on the device, the same for all shards."""
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        values = (g if g.layout is torch.strided else g.coalesce().values() for g in gradient_shards(params))
        grads = [g.float() if g.dtype in HALF else g for g in values]
        parts = group_tensors(grads)
        if len(parts) == 1:
            return whole_norm([(params, grads)]).isfinite()
        owners = dict(zip(grads, params, strict=True))
        return whole_norm(([owners[g] for g in part], part) for part in parts).isfinite()

    def descend(self, scaler: GradScaler | None, pass_name: str) -> None:
        """Let the base step with the gradients of the named pass."""
        if scaler is not None:
            if self._is_unscaled(scaler, self):
                raise EvenlyError(
                    "the closure called scaler.unscale_(opt), and the step would unscale again; remove that call and "
                    "clip in a step pre-hook of the base"
                )
            if not self._is_unscaled(scaler, self.base):  # a fused base would do it later, after the clipping hooks
                scaler.unscale_(self.base)
            scaler.step(self.base)
            return
        if self.check_finite and not self.gradients_are_finite():
            self.refuse_gradient(pass_name)
        self.base.step()

    @staticmethod
    def _is_unscaled(scaler: GradScaler, optimizer: Optimizer) -> bool:
        return id(optimizer) in scaler._per_optimizer_states and (
            scaler._per_optimizer_states[id(optimizer)]["stage"] is not OptState.READY
        )

    def refuse_gradient(self, pass_name: str) -> NoReturn:
        raise EvenlyError(
            f"a gradient of the {pass_name} pass is not finite, so no step was taken; lower the learning rate, "
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
        check_parameters(self.param_groups)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The base's state, whose groups include this wrapper's settings."""
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`, or of the base alone: then the settings stay as they are."""
        current = [{name: group[name] for name in self.settings} for group in self.param_groups]
        self.base.load_state_dict(state_dict)
        for group, settings in zip(self.param_groups, current, strict=True):
            group.update({name: group.get(name, value) for name, value in settings.items()})

    def __getstate__(self) -> dict[str, Any]:
        return {"base": self.base, "check_finite": self.check_finite, "rounding": self.rounding}

    def __setstate__(self, state: dict[str, Any]) -> None:
        base = state["base"]
        super().__setstate__({**state, "defaults": base.defaults})
        # state_dict() and load_state_dict() are the base's, so their hooks must be the base's too.
        for moment in ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post"):
            setattr(self, f"_optimizer_{moment}_hooks", getattr(base, f"_optimizer_{moment}_hooks"))
        self._weights = Snapshot()
        self.ascended = self._share_is_known = False

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={self.defaults[name]}" for name in self.settings)
        return f"{type(self).__name__}({settings}, base={self.base!r})"

    def _refuse_unless_positive(self, name: str, value: Any) -> None:
        number = isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
        if not number or isinstance(value, bool) or not 0 < abs(value) < math.inf or value < 0:
            raise EvenlyError(
                f"`{name}` of {type(self).__name__} must be a finite number above 0, got {value}; "
                "for no perturbation use the base optimizer alone"
            )

    def _refuse_sparse(self, group: int, subset: Container[Tensor]) -> NoReturn:
        params = self.param_groups[group]["params"]
        index = next(i for i, p in enumerate(params) if p in subset and p.grad.layout != torch.strided)
        raise EvenlyError(
            f"parameter {index} of group {group}, of shape {tuple(params[index].shape)}, has a sparse "
            "gradient, but a perturbation is dense; build its layer with sparse=False"
        )
