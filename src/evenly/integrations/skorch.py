"""skorch: SAM, ASAM or RandomPerturbation as the optimizer of a net, and the worst group's accuracy as a score.

>>> net = SAMClassifier(Net, optimizer=sam_optimizer(torch.optim.SGD, rho=0.05), optimizer__momentum=0.9, lr=0.1)
>>> net.fit(X, y)
>>> GridSearchCV(net, {"optimizer__rho": [0.02, 0.05, 0.1]}).fit(X, y)

>>> worst = EpochScoring(worst_group_scorer(groups), lower_is_better=False, name="valid_worst_group")
>>> NeuralNetClassifier(Net, callbacks=[worst, Checkpoint(monitor="valid_worst_group_best")])

skorch gives ``optimizer.step`` a closure and records the loss of the first pass, so :func:`sam_optimizer` works with
any skorch net. With :class:`SAMMixin`, callbacks on gradients, such as clipping, see only those of the last pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.optim import Optimizer
from torch.utils.data import Dataset, Subset

from evenly.engine.accuracy import group_accuracy
from evenly.errors import EvenlyError
from evenly.integrations.hosts import missing
from evenly.integrations.passes import before_descent
from evenly.optim.lsam import LSAM
from evenly.optim.perturbed import PerturbedOptimizer
from evenly.optim.sam import SAM

try:
    from skorch import NeuralNetClassifier, NeuralNetRegressor
    from skorch.utils import TeeGenerator, data_from_dataset, is_skorch_dataset
except ModuleNotFoundError as error:
    raise missing("skorch", error) from error


@dataclass(frozen=True)
class PerturbedFactory:
    """The result of :func:`sam_optimizer`; skorch calls it with the parameters and all ``optimizer__...`` settings."""

    base: Callable[..., Optimizer]
    method: type[PerturbedOptimizer]
    settings: Mapping[str, Any]

    def __call__(self, params: Any, **settings: Any) -> PerturbedOptimizer:
        settings = {**self.settings, **settings}
        names = (*self.method.settings, "check_finite", "rounding")
        own = {name: settings.pop(name) for name in names if name in settings}
        return self.method(self.base(params, **settings), **own)


def sam_optimizer(
    base: Callable[..., Optimizer] = torch.optim.SGD, method: type[PerturbedOptimizer] = SAM, **settings: Any
) -> PerturbedFactory:
    """An ``optimizer=`` for skorch.

    Args:
        base: the class of the optimizer that steps.
        method: SAM, ASAM or RandomPerturbation. LSAM needs the parameters it perturbs: create it in the net's
            ``initialize_optimizer``.
        settings: of both (rho, check_finite, rounding, momentum, ...). The net's ``optimizer__rho=...`` etc. override
            these; ``optimizer__param_groups`` may give groups a rho of their own.
    """
    if not (isinstance(method, type) and issubclass(method, PerturbedOptimizer)):
        raise EvenlyError(f"`method` must be evenly.SAM, ASAM or RandomPerturbation, got {method!r}")
    if issubclass(method, LSAM):
        raise EvenlyError(
            "LSAM needs the parameters it perturbs, which skorch does not pass by name; override the net's "
            "initialize_optimizer and set self.optimizer_ = evenly.LSAM(base, params=...) there"
        )
    return PerturbedFactory(base, method, settings)


SAM_OVER_SGD = sam_optimizer()
"""The default optimizer of a net."""


class SAMMixin:
    """Put before a skorch net: ``class SAMBinary(SAMMixin, NeuralNetBinaryClassifier)``.

    ``on_grad_computed`` is notified once per step: after the last pass, with its gradients and restored weights. So
    ``GradientNormClipping`` does not change the gradient that sets the perturbation. The history's ``train_loss`` and
    ``y_pred`` are those of the first pass. With any other optimizer nothing changes. A net with several optimizers, and
    skorch's ``AccelerateMixin``, which calls ``optimizer.step()`` without a closure, are refused.
    """

    optimizer_: Any
    _optimizers: list[str]

    def __init__(self, *args: Any, optimizer: Any = SAM_OVER_SGD, **kwargs: Any) -> None:
        super().__init__(*args, optimizer=optimizer, **kwargs)  # type: ignore[call-arg]

    def train_step(self, batch: Any, **fit_params: Any) -> Any:
        optimizers = [getattr(self, f"{name}_") for name in self._optimizers]
        if any(isinstance(getattr(opt, "optimizer", None), PerturbedOptimizer) for opt in optimizers):
            raise EvenlyError("AccelerateMixin steps without a closure; use SAMMixin without it")
        if not any(isinstance(opt, PerturbedOptimizer) for opt in optimizers):
            return super().train_step(batch, **fit_params)  # type: ignore[misc]
        if len(optimizers) > 1:
            raise EvenlyError(
                f"the net has the optimizers {self._optimizers}, and skorch gives all the same closure; "
                "override train_step and call each optimizer's step(closure) with its own"
            )
        net: Any = self
        accumulator = net.get_train_step_accumulator()

        def closure() -> Any:
            net._zero_grad_optimizer()
            step = net.train_step_single(batch, **fit_params)
            accumulator.store_step(step)
            return step["loss"]

        def notify() -> None:
            named = TeeGenerator(net.get_all_learnable_params())
            net.notify("on_grad_computed", named_parameters=named, batch=batch, training=True)

        with before_descent(self.optimizer_, notify):
            net._step_optimizer(closure)
        return accumulator.get_step()


class SAMClassifier(SAMMixin, NeuralNetClassifier):
    """``skorch.NeuralNetClassifier`` with SAM: see :class:`SAMMixin`."""


class SAMRegressor(SAMMixin, NeuralNetRegressor):
    """``skorch.NeuralNetRegressor`` with SAM: see :class:`SAMMixin`."""


@dataclass(frozen=True, eq=False)
class GroupScorer:
    """The result of :func:`worst_group_scorer`: from a net, inputs or a data set, and labels to a share."""

    groups: Any
    train_groups: Any = None
    value: Literal["worst", "mean", "weighted"] = "worst"

    def __call__(self, net: Any, X: Any, y: Any = None) -> float:
        stored = data_from_dataset(X)[1] if isinstance(X, Dataset) and is_skorch_dataset(X) else None
        labels = np.asarray(stored if y is None else y)
        shuffles = bool(net.get_params_for("iterator_valid").get("shuffle"))
        if shuffles or (stored is not None and not np.array_equal(np.asarray(stored), labels)):
            raise EvenlyError(
                "the iterator shuffles, so groups do not go with predictions; give iterator_valid__shuffle=False, and "
                "with on_train=True iterator_train__shuffle=False or use_caching=False"
            )
        result = group_accuracy(net.predict(X), labels, self._groups_of(X, len(labels)), self.train_groups)
        share: float | None = getattr(result, self.value)
        if share is None:
            raise EvenlyError("the weighted average needs train_groups; give worst_group_scorer(groups, train_groups)")
        return share

    def _groups_of(self, data: Any, count: int) -> Any:
        """The groups of the examples that are scored, which may be some of those that the groups were given for."""
        indices = None
        while isinstance(data, Subset):
            own = np.asarray(data.indices)
            indices, data = own if indices is None else own[indices], data.dataset
        groups = np.asarray(self.groups)
        if indices is not None and len(groups) == len(data):
            return groups[indices]
        if len(groups) != count:
            raise EvenlyError(
                f"there are {len(groups)} groups and {count} examples are scored; give the groups of all examples that "
                "fit() gets, or of a validation set that train_split=predefined_split(...) sets apart"
            )
        return groups


def worst_group_scorer(
    groups: Any, train_groups: Any = None, value: Literal["worst", "mean", "weighted"] = "worst"
) -> GroupScorer:
    """A score for ``skorch.callbacks.EpochScoring``: the accuracy of the worst group on the validation set.

    The number is that of :func:`evenly.group_accuracy` on what the net predicts.

    Args:
        groups: (N,) integers or names, or boolean (N, G): of all examples that ``fit`` gets, of which the net sets some
            apart for validation, or of those of a validation set of its own.
        train_groups: of the training set, for the average weighted by them.
        value: "worst", "mean" (every example counts once) or "weighted" (by the training set's groups).
    """
    if value not in ("worst", "mean", "weighted"):
        raise EvenlyError(f"`value` must be 'worst', 'mean' or 'weighted', got {value!r}")
    return GroupScorer(groups, train_groups, value)
