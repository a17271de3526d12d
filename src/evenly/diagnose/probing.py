"""Feature probes: how well each attribute can be read off what a network has learned (Springer, Nagarajan and
Raghunathan 2024, section 3.1).

    ProErr_a = E_bal [u . phi(x) tells a(x) wrong],   u = argmin of the logistic loss on a set balanced alike    (eq. 1)

phi is the input of the last linear layer. In a balanced set there are as many examples of each configuration of the
label and all attributes, so that an attribute which goes with another in training must be read from features of its
own. A departure from eq. 1: where some configuration is too rare for that, an attribute is balanced over the label
alone, and the label over the groups; :attr:`Probe.balanced_over` tells which it was. With ``balance=False`` there is
no balancing: every example counts, and each value keeps its share, as in the domain probes of their Table 2.

>>> found = probe(model, data, "background")
>>> found.error, (found.low, found.high), found.chance
>>> probes(model, data, ["label", "background"])           # several in one pass over the network
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenly.data.contract import Data, Split
from evenly.diagnose.features import features_at
from evenly.diagnose.samples import split_of, tensor_of
from evenly.engine.accuracy import wilson
from evenly.engine.losses import losses
from evenly.errors import EvenlyError, unknown
from evenly.randomness import derive, generator
from evenly.settings import checks_options

Columns = Mapping[str, Tensor]

LEAST = 5
"""Examples of each cell that a probe is fitted on, and as many to measure it: one for each fold at least."""
MOST = 2000
"""Examples that a probe is fitted on at most: "a small dataset" in the paper. All that are left measure it."""
FOLDS = 5
WORTH_THREADS = 1_000_000
"""Fewer numbers than this are fitted on one thread: on many cores, handing work round takes longer than doing it."""
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Inverse strengths C of the l2 penalty that cross-validation chooses from, for features of variance 1."""


@dataclass(frozen=True, eq=False)
class Probe:
    """What a linear probe reads of one attribute.

    Attributes:
        error: share of the held-out examples that it tells wrong.
        low, high: 95% Wilson interval of the error.
        n: how many examples were held out.
        chance: the error of always answering the value that was fitted on most often: 1 - 1 / (number of values)
            where the sets are balanced.
        values: the attribute's values, in the order of the rows of `weights`.
        C: the inverse strength of the penalty that cross-validation chose.
        balanced: whether the sets are; without it they are as they were given.
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


@checks_options
def probe(
    model: nn.Module,
    data: Any,
    attribute: Any,
    *,
    held_out: Any = None,
    against: str | Sequence[str] | None = None,
    balance: bool = True,
    layer: str | None = None,
    seed: int = 0,
) -> Probe:
    """The probing error of one attribute: a name among the data's attributes, "label", "group", or a column (N,).

    The rest as in :func:`probes`.
    """
    name, asked = (attribute, [attribute]) if isinstance(attribute, str) else ("attribute", {"attribute": attribute})
    found = probes(model, data, asked, held_out=held_out, against=against, balance=balance, layer=layer, seed=seed)
    return found[name]


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

    The model is looked at in eval mode and left as it was found. Its training data says least: what a probe reads
    there may be learned by heart. Of a Data with a validation and a test split, the probe is fitted on the first and
    measured on the second; with one of them, or neither, that one or the training split is cut in two: half of it to
    fit on, the rest to measure on. A balanced probe is fitted on at most `MOST` examples.

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
    first, second, columns, held, draws, over = _drawn(data, attributes, held_out, against, balance, seed)
    parts = [part for draw in draws.values() for part in (draw if second is None else draw[:1])]
    fitted = _Features(model, first, parts, layer)
    measured = fitted if second is None else _Features(model, second, [draw[1] for draw in draws.values()], layer)
    sets = {
        name: ((fitted[a], columns[name][a]), (measured[b], held[name][b]), (a, b)) for name, (a, b) in draws.items()
    }
    return {name: _probed(name, *parts, over.get(name), seed) for name, parts in sets.items()}


def unprobeable(data: Any, attributes: Sequence[str]) -> dict[str, str]:
    """Which of these attributes the data is too small or too uniform to probe, and why; no network is asked."""
    reasons = {}
    for name in attributes:
        try:
            _drawn(data, [name], None, None, True, 0)
        except EvenlyError as error:
            reasons[name] = str(error)
    return reasons


def _drawn(
    data: Any,
    attributes: Sequence[str] | Mapping[str, Any] | None,
    held_out: Any,
    against: Any,
    balance: bool,
    seed: int,
) -> tuple[Split, Split | None, Columns, Columns, dict[str, tuple[Tensor, Tensor]], dict[str, tuple[str, ...]]]:
    """The two sets (or one to cut in two), their columns, and by attribute the indices to fit and to measure on and
    what these are balanced over, where they are."""
    if against is not None and not balance:
        raise EvenlyError(f"against {against!r} says what to balance over, and balance is false; give one of the two")
    first, second = _sets(data, held_out)
    columns = _columns(first, attributes)
    held = None if second is None else _columns(second, None)
    if attributes is None:
        wanted = [name for name in columns if name != "group" or "group" in first.attributes]
    else:
        wanted = list(attributes)
    if not wanted:
        raise EvenlyError("there is no attribute to probe; give one, e.g. 'label'")
    if second is not None and isinstance(attributes, Mapping):
        raise EvenlyError(
            f"column {wanted[0]!r} is given for one of two sets; give Splits with attributes= and the name"
        )
    draws: dict[str, tuple[Tensor, Tensor]] = {}
    over: dict[str, tuple[str, ...]] = {}
    known = tuple(name for name in columns if name != "label" and (name != "group" or name in first.attributes))
    cells = math.prod(len(columns[name].unique()) for name in ("label", *known))
    for name in wanted:
        if not balance:
            draws[name] = _draw(first, second, columns, held, [name], seed, even=False)
            continue
        *fuller, plain = _against(name, known, columns, against)
        for others in fuller if cells * LEAST <= len(first) else ():
            with contextlib.suppress(EvenlyError):
                draws[name], over[name] = _draw(first, second, columns, held, [name, *others], seed), others
                break
        else:
            draws[name], over[name] = _draw(first, second, columns, held, [name, *plain], seed), plain
    return first, second, columns, columns if held is None else held, draws, over


def _draw(
    first: Split,
    second: Split | None,
    columns: Columns,
    held: Columns | None,
    crossed: Sequence[str],
    seed: int,
    even: bool = True,
) -> tuple[Tensor, Tensor]:
    """Indices to fit and to measure on, as many of each configuration of the crossed columns; or all, if not even."""
    if second is None or held is None:
        cells = _shuffled(columns, crossed, 2 * LEAST, "the set", seed, even)
        most = max(LEAST, MOST // len(cells)) if even else len(first)
        fit = [cell[: min(len(cell) // 2, most)] for cell in cells]
        return _joined(fit), _joined([cell[len(part) :] for cell, part in zip(cells, fit, strict=True)])
    _same_values(columns, held, crossed, second.name)
    cells = _shuffled(columns, crossed, LEAST, f"the {first.name} set", seed, even)
    left = _shuffled(held, crossed, LEAST if even else 1, f"the {second.name} set", seed, even)
    return _joined([cell[: max(LEAST, MOST // len(cells)) if even else None] for cell in cells]), _joined(left)


def _sets(data: Any, held_out: Any) -> tuple[Split, Split | None]:
    if held_out is not None:
        first, second = split_of(data), split_of(held_out)
        if first is second or _same(first.inputs, second.inputs):
            raise EvenlyError(
                "data and held_out are the same set, so the probe would be measured on what it was fitted on; "
                "give two sets, or leave held_out out"
            )
        return first, second
    if isinstance(data, Data):
        if data.validation is not None and data.test is not None:
            return data.validation, data.test
        one: Split = data.validation or data.test or data.train
        return one, None
    return split_of(data), None


def _same(one: Any, other: Any) -> bool:
    """Whether two sets' inputs are one and the same, in memory where they are tensors."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.data_ptr() == other.data_ptr() and one.shape == other.shape
    return one is other


def _columns(split: Split, given: Any) -> dict[str, Tensor]:
    """What can be probed or balanced over, by name."""
    if "label" in split.attributes:
        raise EvenlyError(f"an attribute of the {split.name} set is called 'label', as the labels are; rename it")
    columns = {"label": split.labels.cpu(), **split.attributes}
    if split.groups is not None and split.groups.ndim == 1:
        columns.setdefault("group", split.groups.cpu())
    if isinstance(given, Mapping):
        columns |= Split(torch.zeros(len(split), 1), split.labels, attributes=given, name=split.name).attributes
    return columns


def _against(
    name: str, known: tuple[str, ...], columns: Columns, against: Sequence[str] | None
) -> list[tuple[str, ...]]:
    """What the attribute is to be balanced over: the first of these that the sets are large enough for."""
    if against is not None:
        return [tuple(other for other in ([against] if isinstance(against, str) else against) if other != name)]
    if name not in columns:
        raise unknown("attribute", name, columns)
    if name == "group":
        return [()]
    attributes = tuple(other for other in known if other != name)
    if name != "label":
        return [("label", *attributes), ("label",)]
    groups = ["group"] if "group" in columns and "group" not in known else []
    return [each for each in (attributes, tuple(groups)) if each] or [()]


def _shuffled(
    columns: Columns, crossed: Sequence[str], least: int, where: str, seed: int, even: bool = True
) -> list[Tensor]:
    """The indices of each configuration of the crossed columns in random order: all, or as many as the rarest has."""
    for name in crossed:
        if name not in columns:
            raise unknown("attribute", name, columns)
    if len(values := columns[crossed[0]].unique()) < 2:
        raise EvenlyError(
            f"{crossed[0]} has one value, {int(values[0])}, throughout {where}; there is nothing to tell apart"
        )
    cells = _cells(columns, crossed, where)
    present, member = torch.stack([columns[name] for name in crossed], 1).unique(dim=0, return_inverse=True)
    counts = dict(zip(map(tuple, present.tolist()), torch.bincount(member).tolist(), strict=True))
    total = math.prod(map(len, cells)) if isinstance(cells, list) else len(cells)
    rarest = next((cell for cell in product(*cells) if cell not in counts), None) if isinstance(cells, list) else None
    rarest = rarest or min(counts, key=lambda cell: counts[cell])
    if (count := counts.get(rarest, 0)) < least:
        lacking = ", ".join(f"{name} {value}" for name, value in zip(crossed, rarest, strict=True))
        raise EvenlyError(
            f"{where} has {count} examples of {lacking}, and a probe of {crossed[0]} needs {least} in each of {total} "
            f"cells, {least * total} in all; add examples"
            + (", or balance over less, e.g. against=()" if len(crossed) > 1 else "")
        )
    draws = []
    for i, cell in enumerate(map(tuple, present.tolist())):
        each = (member == i).nonzero()[:, 0]
        order = torch.randperm(len(each), generator=generator(seed, "probe", *crossed, *cell))
        draws.append(each[order[: count if even else None]])
    return draws


def _same_values(columns: Mapping[str, Tensor], others: Mapping[str, Tensor], crossed: Sequence[str], to: str) -> None:
    for name in crossed:
        if name not in columns:
            raise unknown("attribute", name, columns)
        if name not in others:
            raise EvenlyError(f"the {to} set has no attribute {name!r}; give it to both sets, or leave held_out out")
        mine, its = (set(each[name].tolist()) for each in (columns, others))
        if mine != its:
            raise EvenlyError(
                f"{name} has the value {min(mine ^ its)} in one of the two sets only; give sets that both have it"
            )


def _cells(columns: Mapping[str, Tensor], crossed: Sequence[str], where: str) -> list[list[int]] | set[tuple[int, ...]]:
    """The configurations that must be there: the values of each column, all of which are to meet, or a set of them.

    Groups may be made of the label, e.g. one for each (label, background); then each label has its own.
    """
    if list(crossed) != ["label", "group"]:
        return [columns[name].unique().tolist() for name in crossed]
    label, group = columns["label"], columns["group"]
    of_label = [set(group[label == value].tolist()) for value in label.unique()]
    if all(each == of_label[0] for each in of_label):
        return [columns[name].unique().tolist() for name in crossed]
    if len({len(each) for each in of_label}) > 1 or sum(map(len, of_label)) > len(set.union(*of_label)):
        raise EvenlyError(
            f"some groups in {where} lack some labels, so the label cannot be balanced over them; "
            "give against= the attributes to balance over, or ()"
        )
    return {(int(k), g) for k, each in zip(label.unique(), of_label, strict=True) for g in each}


def _joined(cells: list[Tensor]) -> Tensor:
    return torch.cat(cells).sort().values


class _Features:
    """Features of the examples that any probe asks for, looked up by their index."""

    def __init__(self, model: nn.Module, split: Split, parts: Sequence[Tensor], layer: str | None) -> None:
        self.index = torch.cat(list(parts)).unique()
        self.rows = features_at(model, split, self.index, layer).double()
        if not bool(self.rows.isfinite().all()):
            raise EvenlyError(
                f"{type(model).__name__} has features that are not finite; look at a checkpoint before it diverged"
            )

    def __getitem__(self, index: Tensor) -> np.ndarray:
        rows: np.ndarray = self.rows[torch.searchsorted(self.index, index)].numpy()
        return rows


def _probed(
    name: str,
    fit: tuple[np.ndarray, Tensor],
    measure: tuple[np.ndarray, Tensor],
    indices: tuple[Tensor, Tensor],
    over: tuple[str, ...] | None,
    seed: int,
) -> Probe:
    features, answers, asked = fit[0], fit[1].numpy(), measure[1].numpy()
    C, weights, bias = _fitted(features, answers, derive(seed, "folds", name) % 2**32)
    values, counts = np.unique(answers, return_counts=True)
    logits = measure[0] @ weights.T + bias
    told = values[(logits[:, 0] > 0).astype(int) if len(values) == 2 else logits.argmax(1)]
    wrong, n = int((told != asked).sum()), len(told)
    low, high = wilson(wrong, n)
    return Probe(
        attribute=name,
        error=wrong / n,
        low=low,
        high=high,
        n=n,
        chance=float((asked != values[counts.argmax()]).mean()),
        values=tuple(values.tolist()),
        C=C,
        balanced=over is not None,
        balanced_over=over or (),
        weights=torch.from_numpy(weights),
        bias=torch.from_numpy(bias),
        fitted=indices[0],
        held_out=indices[1],
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

    Each fold's fit starts from its last one, and is loose: weak penalties take longest, and few features ask for them.
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
