"""Feature probes: how well each attribute can be read off what a network has learned (Springer, Nagarajan and
Raghunathan 2024, section 3.1).

    ProErr_a = E_bal [u . phi(x) predicts a(x) wrong],   u = argmin of the logistic loss on a set balanced alike (eq. 1)

phi is the input of the last linear layer. In a balanced set there are as many examples of each configuration of the
label and all attributes, so that an attribute which goes with another in training must be read from features of its
own. A departure from eq. 1: where some configuration is too rare for that, an attribute is balanced over the label
alone, and the label over the groups; :attr:`Probe.balanced_over` says which it was. With ``balance=False`` there is
no balancing: every example counts, and each value keeps its share, as in the domain probes of their Table 2.

>>> result = probe(model, data, "background")
>>> result.error, (result.low, result.high), result.chance
>>> probes(model, data, ["label", "background"])           # several in one pass over the network
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenly.data.contract import Split
from evenly.diagnose.features import features_at
from evenly.diagnose.probing_sets import Draw, ProbingSets
from evenly.diagnose.results import Result
from evenly.diagnose.samples import tensor_of
from evenly.engine.accuracy import wilson
from evenly.engine.losses import losses
from evenly.errors import EvenlyError
from evenly.randomness import derive
from evenly.settings import checks_options

FOLDS = 5
WORTH_THREADS = 1_000_000
"""Fewer numbers than this are fitted on one thread: on many cores, handing work round takes longer than doing it."""
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Inverse strengths C of the l2 penalty that cross-validation chooses from, for features of variance 1."""


@dataclass(frozen=True, eq=False)
class Probe(Result):
    """What a linear probe reads of one attribute.

    Attributes:
        error: share of the held-out examples that it predicts wrong.
        low, high: 95% Wilson interval of the error.
        n: how many examples were held out.
        chance: the error of always answering the value that was fitted on most often: 1 - 1 / (number of values)
            where the sets are balanced.
        values: the attribute's values, in the order of the rows of `weights`.
        C: the inverse strength of the penalty that cross-validation chose.
        balanced: whether the sets are balanced, or used as they are.
        balanced_over: with what else, by name, each of its values is equally frequent in both sets. What is not named
            there may give the attribute away.
        weights, bias: of the logits it gives to features, (V, D) and (V,); (1, D) and (1,) for two values.
        fitted, held_out: indices of its examples into the two sets (or parts of one), ascending.
    """

    attribute: str
    error: float
    low: float
    high: float
    n: int
    chance: float
    values: tuple[int, ...]
    C: float
    balanced: bool
    balanced_over: tuple[str, ...]
    weights: Tensor = field(repr=False)
    bias: Tensor = field(repr=False)
    fitted: Tensor = field(repr=False)
    held_out: Tensor = field(repr=False)

    def logits(self, features: Any) -> Tensor:
        """Of features (N, D): (N, V), or (N,) for two values, positive for the second."""
        rows = tensor_of(features, "features", "(N, D)").cpu().double().flatten(1)
        logits: Tensor = rows @ self.weights.T + self.bias
        return logits[:, 0] if len(self.values) == 2 else logits

    def contribution(self, features: Any, labels: Any) -> Tensor:
        """y (u . phi(x) + b) of features (N, D), y = ±1 for labels (N,) 1 and 0, for `evenly.importance_map`.

        Positive where the probe's answer is the label: for two values that stand for the two labels, in order.
        """
        labels = tensor_of(labels, "labels", "0 and 1, (N,)").cpu()
        if len(self.values) != 2 or not bool(((labels == 0) | (labels == 1)).all()):
            raise EvenlyError(
                f"{self.attribute} has {len(self.values)} values and labels are {sorted(set(labels.tolist()))[:3]}; "
                "a signed contribution needs two of each, labels 0 and 1"
            )
        signed: Tensor = (2 * labels.double() - 1) * self.logits(features)
        return signed


def probe(model: nn.Module, data: Any, attribute: Any, **options: Any) -> Probe:
    """The probing error of one attribute: a name among the data's attributes, "label", "group", or a column (N,).

    Data and options are as in :func:`probes`.
    """
    if isinstance(attribute, str):
        return probes(model, data, [attribute], **options)[attribute]
    return probes(model, data, {"attribute": attribute}, **options)["attribute"]


@checks_options
def probes(
    model: nn.Module,
    data: Any,
    attributes: Sequence[str] | Mapping[str, Any] | None = None,
    *,
    held_out: Any = None,
    against: str | Sequence[str] | None = None,
    balance: bool = True,
    layer: str | None = None,
    seed: int = 0,
) -> dict[str, Probe]:
    """The probing errors of several attributes, by name, with one pass over the network.

    Features are those of the model in eval mode. The model is not changed. Its training data says least: what a probe
    reads there may be learned by heart. Of a Data with a validation and a test split, the probe is fitted on the first
    and measured on the second; with one of them, or neither, that one or the training split is cut in two: half of it
    to fit on, the rest to measure on. A balanced probe is fitted on at most `MOST` examples.

    Args:
        data: a Data, a Split, ``(x, y)``, a DataLoader or a Dataset of ``(x, y)``.
        attributes: names among the Split's attributes, "label" or "group"; or columns (N,) by name, beside a set that
            is cut in two. Without any, the label and every attribute of the set.
        held_out: another set with these attributes to measure on; `data` is then fitted on alone.
        against: what else the sets are balanced over, by name. By default an attribute is balanced over the label and
            all other attributes, or over the label alone where a configuration of these has fewer than `LEAST`
            examples to fit or to measure on; the label over all attributes, or over the groups where these are too
            many or there are none. ``()`` balances over its own values only.
        balance: false fits and measures on all examples there are, each value in its own share.
        layer: the name of a layer whose output is probed; without it the input of the last linear layer.
        seed: of the draw of balanced sets and of the folds of cross-validation.
    """
    if against is not None and not balance:
        raise EvenlyError(f"against {against!r} says what to balance over, and balance is false; give one of the two")
    sets = ProbingSets(data, attributes, held_out)
    draws = {name: sets.draw(name, against, balance, seed) for name in sets.names}
    if sets.second is None:
        features = _Features(
            model, sets.first, [part for each in draws.values() for part in (each.fit, each.measure)], layer
        )
        held_features = features
    else:
        features = _Features(model, sets.first, [each.fit for each in draws.values()], layer)
        held_features = _Features(model, sets.second, [each.measure for each in draws.values()], layer)
    return {
        name: _probed(
            name,
            draw,
            (features[draw.fit], sets.columns[name][draw.fit].numpy()),
            (held_features[draw.measure], sets.held_columns[name][draw.measure].numpy()),
            seed,
        )
        for name, draw in draws.items()
    }


def unprobeable(data: Any, attributes: Sequence[str]) -> dict[str, str]:
    """Which of these attributes the data is too small or too uniform to probe, and why; no network is needed."""
    reasons = {}
    for name in attributes:
        try:
            ProbingSets(data, [name]).draw(name, None, True, 0)
        except EvenlyError as error:
            reasons[name] = str(error)
    return reasons


class _Features:
    """Features of the examples that any probe needs, found by their index."""

    def __init__(self, model: nn.Module, split: Split, parts: Sequence[Tensor], layer: str | None) -> None:
        self.index = torch.cat(list(parts)).unique()
        self.rows = features_at(model, split, self.index, layer).double()
        if not bool(self.rows.isfinite().all()):
            raise EvenlyError(
                f"{type(model).__name__} has features that are not finite; use a checkpoint before it diverged"
            )

    def __getitem__(self, index: Tensor) -> np.ndarray:
        rows: np.ndarray = self.rows[torch.searchsorted(self.index, index)].numpy()
        return rows


Examples = tuple[np.ndarray, np.ndarray]
"""Features (M, D) and values of an attribute (M,)."""


def _probed(name: str, draw: Draw, fit: Examples, measure: Examples, seed: int) -> Probe:
    features, answers = measure
    C, weights, bias = _fitted(*fit, derive(seed, "folds", name) % 2**32)
    values, counts = np.unique(fit[1], return_counts=True)
    logits = features @ weights.T + bias
    predicted = values[(logits[:, 0] > 0).astype(int) if len(values) == 2 else logits.argmax(1)]
    wrong, n = int((predicted != answers).sum()), len(predicted)
    low, high = wilson(wrong, n)
    return Probe(
        attribute=name,
        error=wrong / n,
        low=low,
        high=high,
        n=n,
        chance=float((answers != values[counts.argmax()]).mean()),
        values=tuple(values.tolist()),
        C=C,
        balanced=draw.balanced_over is not None,
        balanced_over=draw.balanced_over or (),
        weights=torch.from_numpy(weights),
        bias=torch.from_numpy(bias),
        fitted=draw.fit,
        held_out=draw.measure,
    )


def _fitted(features: np.ndarray, answers: np.ndarray, state: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Logistic regression on features of mean 0 and variance 1, C by the log loss over folds; as weights of the
    features as they are. A feature that does not vary has the weight 0."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    mean, spread = features.mean(0), features.std(0)
    varies = spread > 1e-12 * np.abs(mean)
    scale = np.where(varies, 1 / np.where(varies, spread, 1.0), 0.0)
    x = (features - mean) * scale
    with warnings.catch_warnings(), threadpool_limits(1 if x.size < WORTH_THREADS else None):
        warnings.simplefilter("ignore", ConvergenceWarning)  # a direction with no end is good enough where it stops
        best = _strength(x, answers, state)
        final = LogisticRegression(C=best, max_iter=1000).fit(x, answers)
    weights = final.coef_ * scale
    return best, weights, final.intercept_ - weights @ mean


def _strength(x: np.ndarray, answers: np.ndarray, state: int) -> float:
    """The C with the least log loss over folds, from the strongest penalty on until a weaker one costs more.

    Each fold's fit starts from its last one, and is loose: weak penalties take longest, and few features need them.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold

    folds = list(StratifiedKFold(FOLDS, shuffle=True, random_state=state).split(x, answers))
    fits = [LogisticRegression(max_iter=1000, tol=1e-3, warm_start=True) for _ in folds]
    values = np.unique(answers)
    best, least = STRENGTHS[0], math.inf
    for C in STRENGTHS:
        cost = 0.0
        for model, (fit, left) in zip(fits, folds, strict=True):
            logits = torch.from_numpy(model.set_params(C=C).fit(x[fit], answers[fit]).decision_function(x[left]))
            cost += float(losses(logits, torch.from_numpy(np.searchsorted(values, answers[left]))).sum())
        if cost >= least:
            break
        best, least = C, cost
    return best
