"""`evenly.Classifier`: `evenly.train` as a scikit-learn estimator.

evenly.Classifier(method="useful", epochs=30).fit(X, y).predict(X_new)
GridSearchCV(evenly.Classifier(epochs=20), {"method": ["erm", "useful", "jtt"], "lr": [0.01, 0.05]}).fit(X, y)
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d
from torch import nn
from torch.optim import Optimizer

from evenly.data import Data
from evenly.data.examples import Examples
from evenly.data.preprocessing import ImagePreprocessing, TablePreprocessing
from evenly.engine.losses import probabilities
from evenly.engine.selector import RULES
from evenly.errors import shortened, unknown
from evenly.experiment.classifier_data import (
    Array,
    InputError,
    Part,
    as_data,
    as_part,
    check_alike,
    held_out,
    network_inputs,
    scale_of,
)
from evenly.experiment.execute import device_named
from evenly.experiment.request import EXECUTION, SETTINGS
from evenly.experiment.training import train
from evenly.methods import METHODS
from evenly.runs.plan import Model
from evenly.runs.predictions import outputs_on_examples
from evenly.runs.run import Run
from evenly.settings import Option, at_least, below

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # scikit-learn before 1.6

    def validate_data(estimator: Any, /, *arrays: Any, **options: Any) -> Any:
        return estimator._validate_data(*arrays, **options)


OWN = ("standardise", "validation_fraction", "random_state")
"""Parameters that `evenly.train` does not have."""
FRACTION = Option("validation_fraction", float, (at_least(0), below(1)))
STANDARDISE = Option("standardise", bool)
RANDOM_STATE = Option("random_state", int)
ONE_FIT = threading.RLock()
"""Training seeds the global random states and puts them back, so that two threads must not train at once."""


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A network trained by one of evenly's methods, as a scikit-learn classifier.

    A parameter that is None has the default of `evenly.train`.

    Args:
        model: a name from `evenly models`, a function that builds a network, or a module to start from.
        method: a name from `evenly methods`.
        optimizer: a name from `evenly optimizers`, or a function from parameters to an optimizer.
        epochs, batch_size, lr, weight_decay, rho, select: as in `evenly.settings.Settings`; batch_size may be "full".
        standardise: scale each column of a table (N, F) to mean 0 and standard deviation 1 on the training rows, as
            evenly's tables do; a constant column becomes 0. Inputs of other shapes are taken as they are.
        validation_fraction: share of the examples that is held out as validation, stratified by class and group, for a
            `select` other than "last". With 0 all examples are trained on.
        random_state: the seed: a whole number, or None or a RandomState, from which one is drawn.
        device: where to train and predict: "cpu", "cuda", "cuda:1", or "auto", the GPU where there is one.
        out: the run's folder; None writes no file.
        options: options of the method (``factor=5``), and whatever else `evenly.train` takes (``momentum=0.8``,
            ``model_options={"hidden": (32,)}``, ``groups="infer"``).

    Attributes:
        run_: the `evenly.Run`, with results, history and what the method selected.
        network_: the trained network, on the CPU.
        classes_: (K,) the labels, sorted.
        n_features_in_, feature_names_in_: as in all of scikit-learn; of images (N, C, H, W), C.
    """

    __metadata_request__fit: ClassVar[Mapping[str, Any]] = {"groups": True}

    def __init__(
        self,
        *,
        model: Model = "mlp",
        method: str = "erm",
        optimizer: str | Callable[[Any], Optimizer] = "sgd",
        epochs: int | None = None,
        batch_size: int | str | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        rho: float | None = None,
        select: str | None = None,
        standardise: bool = True,
        validation_fraction: float = 0.0,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
        out: str | Path | None = None,
        **options: Any,
    ) -> None:
        self.model = model
        self.method = method
        self.optimizer = optimizer
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.rho = rho
        self.select = select
        self.standardise = standardise
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.out = out
        for name, value in options.items():
            setattr(self, name, value)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name, with the options that were given."""
        options = {name: value for name, value in vars(self).items() if not name.startswith("_") and name[-1] != "_"}
        return {**super().get_params(deep), **options}

    def set_params(self, **params: Any) -> Self:
        """Set parameters: those of the constructor, settings of `evenly.train` and options of any method."""
        options = [name for method in METHODS.values() for name in method.options]
        known = {*self.get_params(), *SETTINGS, *EXECUTION, *options, "record", "budget"}
        if strangers := [name for name in params if name not in known]:
            raise InputError(str(unknown("parameter of Classifier", strangers[0], known)))
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def fit(self, X: Any, y: Any, groups: Any = None, *, validation_data: Sequence[Any] | None = None) -> Self:
        """Train a new network.

        Args:
            X: (N, F), or images (N, C, H, W): uint8, or numbers that are taken as they are.
            y: (N,) labels, numbers or names.
            groups: (N,) numbers or names, or boolean (N, G) where groups overlap, for methods that need groups and for
                ``select="worst-group"``.
            validation_data: (X, y), or (X, y, groups), in place of `validation_fraction`.
        """
        X, y = validate_data(self, X, y, allow_nd=True)
        check_classification_targets(y)
        seed = self._seed()
        parts = self._parts(as_part(X, y, groups), validation_data, seed)
        scaling = STANDARDISE.checked(self.standardise) and X.ndim == 2
        scale = scale_of(parts[0].X, getattr(self, "feature_names_in_", None)) if scaling else None
        data, classes = as_data(parts, scale)
        arguments = _checked({name: value for name, value in self.get_params(False).items() if name not in OWN}, data)
        with ONE_FIT:
            run = train(data, seed=seed, **arguments)
        self.run_: Run = run
        self.network_: nn.Module = run.model.cpu()
        self.classes_: Array = classes
        return self

    def predict(self, X: Any) -> Array:
        """The most probable class of each example, (N,)."""
        chosen = self.predict_proba(X).argmax(axis=1)
        labels: Array = self.classes_[chosen]
        return labels

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, (N, K) in the order of `classes_`."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, allow_nd=True)
        config, preprocessing = self.run_.config, self.run_.preprocessing
        table = preprocessing if isinstance(preprocessing, TablePreprocessing) else None
        is_bytes = isinstance(preprocessing, ImagePreprocessing) or getattr(preprocessing, "dtype", "") == "uint8"
        check_alike(X, config.network.input_shape, is_bytes)
        network, inputs = self.network_, torch.from_numpy(network_inputs(X, table))
        if inputs.ndim == 2 and not config.network.own:
            # in float32 a row's outputs depend on how many rows are beside it, by more than scikit-learn allows
            network, inputs = copy.deepcopy(network).double(), inputs.double()
        device, precision = device_named(self.device), config.plan.settings.precision
        outputs = outputs_on_examples(network, preprocessing, Examples(inputs), None, device, precision)
        return probabilities(outputs.double()).numpy()

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(RANDOM_STATE.checked(self.random_state))
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _parts(self, training: Part, validation_data: Any, seed: int) -> list[Part]:
        """Training and, where it is asked for, validation."""
        share = FRACTION.checked(self.validation_fraction)
        if validation_data is None:
            return held_out(training, share, seed) if share else [training]
        if share:
            raise InputError(f"validation_data is given and validation_fraction is {share}; give one of them")
        if not isinstance(validation_data, Sequence) or len(validation_data) not in (2, 3):
            raise InputError(f"validation_data must be (X, y) or (X, y, groups), got {shortened(validation_data)}")
        X, y, groups = (*validation_data, None)[:3]
        X, y = validate_data(self, X, reset=False, allow_nd=True), column_or_1d(y)
        check_consistent_length(X, y)
        check_alike(X, training.X.shape[1:], training.X.dtype == np.uint8)
        return [training, as_part(X, y, groups)]


def _checked(arguments: dict[str, Any], data: Data) -> dict[str, Any]:
    """The arguments of `evenly.train` that are given; what it would refuse in other words is refused here."""
    given = {name: value for name, value in arguments.items() if value is not None}
    if "seed" in given:
        raise InputError(f"seed is called random_state here; give random_state={shortened(given['seed'])}")
    method = METHODS.get(str(given.get("method")))
    if method is not None and method.needs_groups and data.train.groups is None and given.get("groups") != "infer":
        raise InputError(
            f"method={method.name!r} needs groups and fit was given none; give fit(X, y, groups=...), which searches "
            "pass on after sklearn.set_config(enable_metadata_routing=True), or groups='infer', or another method"
        )
    if data.validation is None and RULES.get(given.get("select", "last")) is not None:
        raise InputError(
            f"select {given['select']!r} needs validation examples and there are none; give validation_fraction=0.2, "
            "or validation_data=(X, y) to fit"
        )
    return {"progress": _silent, **given}


def _silent(share: float, note: str = "") -> None:
    """In place of a bar of progress."""
