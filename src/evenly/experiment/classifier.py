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
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d
from torch import nn
from torch.optim import Optimizer

from evenly.data import Data, Split
from evenly.data.examples import Examples
from evenly.data.images.parts import ranks
from evenly.data.preprocessing import TablePreprocessing
from evenly.engine.losses import probabilities
from evenly.errors import EvenlyError, shortened, unknown
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


Array = np.ndarray[Any, Any]
OWN = ("standardise", "validation_fraction", "random_state")
"""Parameters that `evenly.train` does not have."""
FRACTION = Option("validation_fraction", float, (at_least(0), below(1)))
ONE_FIT = threading.RLock()
"""Training seeds the global random states and puts them back, so that two threads must not train at once."""


class InputError(EvenlyError, ValueError):
    """An input that cannot be learned from; a ValueError as well, which scikit-learn expects."""


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
        vars(self).update(options)

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
        vars(self).update(params)
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
        encoder = LabelEncoder().fit(y)
        if len(encoder.classes_) < 2:
            raise InputError(f"y has one class only, {encoder.classes_[0]!r}; there is nothing to tell apart")
        seed = self._seed()
        parts = self._parts(X, y, groups, validation_data, seed)
        data = _as_data(parts, encoder, self._scale(parts[0][0]))
        arguments = {name: value for name, value in self.get_params(deep=False).items() if name not in OWN}
        with ONE_FIT:
            run = train(data, seed=seed, **_checked(arguments, data))
        self.run_: Run = run
        self.network_: nn.Module = run.model.cpu()
        self.classes_: Array = encoder.classes_
        return self

    def predict(self, X: Any) -> Array:
        """The most probable class of each example, (N,)."""
        chosen = self.predict_proba(X).argmax(axis=1)
        return self.classes_[chosen]

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, (N, K) in the order of `classes_`."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, allow_nd=True)
        config, preprocessing = self.run_.config, self.run_.preprocessing
        if X.shape[1:] != (shape := config.network.input_shape):
            raise InputError(f"X has shape {X.shape} and the network takes (N, {', '.join(map(str, shape))}); give that")
        table = preprocessing if isinstance(preprocessing, TablePreprocessing) else None
        network, inputs = self.network_, torch.from_numpy(_inputs(X, table))
        if inputs.ndim == 2 and not config.network.own:
            # in float32 a row's outputs depend on how many rows are beside it, by more than scikit-learn allows
            network, inputs = copy.deepcopy(network).double(), inputs.double()
        device, precision = device_named(self.device), config.plan.settings.precision
        outputs = outputs_on_examples(network, preprocessing, Examples(inputs), None, device, precision)
        return probabilities(outputs.double()).numpy()

    def _seed(self) -> int:
        state = self.random_state
        return state if isinstance(state, int) else int(check_random_state(state).randint(2**31 - 1))

    def _parts(self, X: Array, y: Array, groups: Any, validation_data: Any, seed: int) -> list[tuple[Any, ...]]:
        """(X, y, groups) of training and, where there is one, of validation."""
        train = (X, y, None if groups is None else _as_groups(groups, X))
        share = FRACTION.checked(self.validation_fraction)
        if validation_data is None:
            return _held_out(*train, share, seed) if share else [train]
        if share:
            raise InputError(f"validation_data is given and validation_fraction is {share}; give one of them")
        if not isinstance(validation_data, Sequence) or len(validation_data) not in (2, 3):
            raise InputError(f"validation_data must be (X, y) or (X, y, groups), got {shortened(validation_data)}")
        others, labels, its_groups = (*validation_data, None)[:3]
        others = validate_data(self, others, reset=False, allow_nd=True)
        labels = column_or_1d(labels)
        check_consistent_length(others, labels)
        return [train, (others, labels, None if its_groups is None else _as_groups(its_groups, others))]

    def _scale(self, X: Array) -> TablePreprocessing | None:
        """What gives the columns of training (N, F) mean 0 and standard deviation 1; of images None."""
        if X.ndim != 2 or not self.standardise:
            return None
        mean, std = X.mean(0, dtype=np.float64), X.std(0, dtype=np.float64)
        std[std <= 1e-12 * np.abs(mean)] = 1.0  # constant but for rounding
        names = [str(name) for name in getattr(self, "feature_names_in_", [f"x{j}" for j in range(X.shape[1])])]
        label = next(name for name in ("label", *(f"label_{k}" for k in range(len(names)))) if name not in names)
        return TablePreprocessing(tuple(names), tuple(mean.tolist()), tuple(std.tolist()), label=label)


def _inputs(X: Array, scale: TablePreprocessing | None) -> Array:
    """As the network takes them: float32, and uint8 of images. The array is a copy."""
    if scale is not None:
        return scale.encoded(X, {})
    return X.astype(np.uint8 if X.dtype == np.uint8 and X.ndim > 2 else np.float32)


def _as_groups(groups: Any, X: Array) -> Array:
    groups = check_array(groups, ensure_2d=False, dtype=None, input_name="groups")
    check_consistent_length(X, groups)
    if groups.ndim != 1 and groups.dtype != np.bool_:
        raise InputError(f"groups have shape {groups.shape}; give (N,), or boolean (N, G) where groups overlap")
    return groups


def _held_out(X: Array, y: Array, groups: Array | None, share: float, seed: int) -> list[tuple[Any, ...]]:
    """Training and validation: in each class and group, that share to within one example."""
    strata = np.unique(y, return_inverse=True)[1]
    if groups is not None and groups.ndim == 1:
        numbers = np.unique(groups, return_inverse=True)[1]
        strata = strata * (numbers.max() + 1) + numbers
    held_out = ranks(strata, seed, "validation") >= 1 - share
    for label in np.unique(y):
        if (n := len(set(held_out[y == label]))) < 2:
            where = "training" if held_out[y == label][0] else "validation"
            raise InputError(
                f"class {label!r} has {n} examples and none for {where} at validation_fraction {share}; give another "
                "fraction, or validation_data"
            )
    return [(X[part], y[part], None if groups is None else groups[part]) for part in (~held_out, held_out)]


def _as_data(parts: list[tuple[Any, ...]], encoder: LabelEncoder, scale: TablePreprocessing | None) -> Data:
    names, numbered = _numbered([groups for _, _, groups in parts])
    splits = {}
    for name, (X, y, _), groups in zip(("train", "validation"), parts, numbered, strict=False):
        if strangers := sorted(set(y.tolist()) - set(encoder.classes_.tolist())):
            raise InputError(f"label {strangers[0]!r} of the validation data never occurs in y; remove these examples")
        splits[name] = Split(_inputs(X, scale), encoder.transform(y), groups, name=name)
    class_names = [str(label) for label in encoder.classes_]
    return Data(**splits, class_names=class_names, group_names=names, preprocessing=scale)


def _numbered(parts: list[Array | None]) -> tuple[list[str] | None, list[Array | None]]:
    """The groups' names, and the groups of each part as numbers from 0; overlapping ones stay as they are."""
    given = [groups for groups in parts if groups is not None and groups.ndim == 1]
    if len(given) < len(parts):
        return None, parts
    values, numbers = np.unique(np.concatenate(given), return_inverse=True)
    names = [str(value) if values.dtype.kind in "OSU" else f"group {value}" for value in values]
    return names, np.split(numbers, np.cumsum([len(groups) for groups in given])[:-1])


def _checked(arguments: dict[str, Any], data: Data) -> dict[str, Any]:
    """The arguments of `evenly.train` that are given; what it would refuse in other words is refused here."""
    given = {name: value for name, value in arguments.items() if value is not None}
    if "seed" in given:
        raise InputError(f"seed is called random_state here; give random_state={shortened(given['seed'])}")
    if data.validation is None and given.get("select", "last") != "last":
        raise InputError(
            f"select {given['select']!r} needs validation examples and there are none; give validation_fraction=0.2, "
            "or validation_data=(X, y) to fit"
        )
    return {"progress": _silent, **given}


def _silent(share: float, note: str = "") -> None:
    """In place of a bar of progress."""
