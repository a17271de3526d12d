"""What a model has learned, in one look: accuracy by group, probes, importance weights, curvature, forgetting, and the
examples it finds hardest and easiest.

>>> audit = evenly.audit(model, data)
>>> audit.verdict()                                        # in words, computed from the numbers
>>> audit.report("audit.html")
>>> audit.report("both.html", against=evenly.audit(other, data))
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenly.data.contract import Data, Split
from evenly.diagnose.spectrum import MOST_STEPS, HessianSpectrum, hessian_spectrum
from evenly.diagnose.importance import check_options, gini_if_any, importance_weights
from evenly.diagnose.probing import Probe, probes, unprobeable
from evenly.diagnose.features import representations
from evenly.diagnose.samples import check_real, part_of
from evenly.engine.accuracy import wilson
from evenly.engine.evaluation import check_model, evaluated, in_chunks, logits_of
from evenly.engine.losses import losses, predictions, single
from evenly.errors import EvenlyError
from evenly.models import encoded
from evenly.randomness import derive

SHOWN = 12
"""Examples shown of the hardest, and of the easiest."""


@dataclass(frozen=True)
class Share:
    """Right on a share of `n` examples, with its 95% Wilson interval; all of one class where it has a `label`."""

    name: str
    right: int
    n: int
    loss: float
    label: int | None = None

    @property
    def accuracy(self) -> float:
        return self.right / self.n

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.right, self.n)


@dataclass
class Audit:
    """What was found. Indices are into the split looked at.

    Args:
        split: which one, by name, and how often the model is right on it.
        by: what the groups are: "group", "label and ATTRIBUTE", or "cluster" where the data knows of none: two parts of
            each class in the model's own features.
        labels, predicted, losses: (N,) of every example.
        probes: the probing error of the label and of every attribute, where there are attributes.
        importance, phantom: (M,) importance weights of training examples, at the weights and at SAM's phantom ones.
        spectrum: of the Hessian of the training loss.
        forgetting: (M,) how often each training example was forgotten, where that was recorded.
        missing: what could not be looked at, and why.
    """

    name: str
    split: Split
    data: Data
    overall: Share
    by: str
    groups: list[Share]
    labels: Tensor
    predicted: Tensor
    losses: Tensor
    rho: float
    importance: Tensor
    phantom: Tensor
    probes: dict[str, Probe] = field(default_factory=dict)
    spectrum: HessianSpectrum | None = None
    forgetting: Tensor | None = None
    missing: dict[str, str] = field(default_factory=dict)
    looked_at: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    heat: Tensor | None = None

    @property
    def worst(self) -> Share:
        """The group it is right on least often."""
        return min(self.groups, key=lambda group: (group.accuracy, group.name))

    @property
    def hardest(self) -> Tensor:
        """Indices of the examples with the largest losses."""
        return self.losses.argsort(descending=True, stable=True)[:SHOWN]

    @property
    def easiest(self) -> Tensor:
        """Indices of the examples with the smallest losses."""
        return self.losses.argsort(stable=True)[:SHOWN]

    def whole_class(self, label: int | None, leave_out: Share | None = None) -> Share | None:
        """The groups of one class taken together, without one of them; None where none are left."""
        left = [group for group in self.groups if group.label == label and group is not leave_out]
        if not left or label is None:
            return None
        n = sum(group.n for group in left)
        loss = sum(group.n * group.loss for group in left) / n
        return Share(class_names_of(self.data)[label], sum(group.right for group in left), n, loss, label)

    def below(self, share: Share, of: int) -> bool:
        """Whether a share, one of so many, lies below the average: its exact upper bound at 1 - .025 / of (Clopper and
        Pearson 1934) does. Wilson's would say so too often of many small groups near 100%."""
        from scipy.stats import beta

        if share.right == share.n:
            return False
        return bool(beta.ppf(1 - 0.025 / of, share.right + 1, share.n - share.right) < self.overall.accuracy)

    def verdict(self) -> list[str]:
        """What the numbers say, in words."""
        from evenly.report.audit_words import verdict

        return verdict(self)

    def compared(self, other: Audit) -> list[str]:
        """This model against another one on the same examples, in words."""
        from evenly.report.audit_words import compared

        check_pair(self, other)
        return compared(self, other)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the examples' own arrays, as JSON takes it."""
        return {
            "name": self.name, "data": self.data.name, "split": self.split.name, "verdict": self.verdict(),
            "overall": _share(self.overall), "by": self.by, "groups": [_share(group) for group in self.groups],
            "probes": {
                name: {"error": p.error, "low": p.low, "high": p.high, "n": p.n, "chance": p.chance,
                       "balanced_over": list(p.balanced_over)}
                for name, p in self.probes.items()
            },
            "importance": {"gini": _number(gini_if_any(self.importance)),
                           "gini_phantom": _number(gini_if_any(self.phantom)), "rho": self.rho,
                           "half_of_the_weight": _number(half_of_the_weight(self.importance))},
            "spectrum": None if self.spectrum is None else {
                "eigenvalues": self.spectrum.eigenvalues.tolist(), "residuals": self.spectrum.residuals.tolist(),
                "converged": [bool(c) for c in self.spectrum.converged],
            },
            "forgetting": None if self.forgetting is None else _histogram(self.forgetting),
            "hardest": [self._example(int(i)) for i in self.hardest],
            "easiest": [self._example(int(i)) for i in self.easiest],
            "missing": self.missing, "looked_at": self.looked_at, "seconds": round(self.seconds, 2),
        }  # fmt: skip

    def _example(self, i: int) -> dict[str, Any]:
        return {
            "index": i, "label": int(self.labels[i]), "predicted": int(self.predicted[i]), "loss": float(self.losses[i])
        }  # fmt: skip

    def report(self, path: str | Path, against: Audit | None = None) -> None:
        """Write the page, of this audit alone or beside another one."""
        from evenly.report.audit_pages import audit_page

        if against is not None and not isinstance(against, Audit):
            raise EvenlyError(
                f"against is a {type(against).__name__}; give another audit, e.g. evenly.audit(other, data)"
            )
        path = Path(path)
        if path.is_dir() or not path.parent.is_dir():
            what = "a folder" if path.is_dir() else f"in {path.parent}, which is not there"
            raise EvenlyError(f"{path} is {what}; give a file to write, e.g. audit.html")
        audit_page([self] if against is None else [self, against], path)


def audit(
    model: nn.Module,
    data: Data,
    *,
    name: str | None = None,
    split: str | None = None,
    rho: float = 0.05,
    top: int = 5,
    samples: int = 1000,
    forgetting: Any = None,
    seed: int = 0,
    progress: Callable[[float, str], None] = lambda share, note: None,
) -> Audit:
    """Look at a model from all sides.

    Args:
        model: gives logits (N, K), (N, 1) or (N,). Looked at in eval mode on the device it is on, and left as it was.
        data: with attributes and groups where there are any; clusters stand in for them where there are none.
        name: how to call the model.
        split: which split to judge it on: "test", "validation" or "train"; the first of these that is there.
        rho: SAM's radius, for the phantom importance weights.
        top: eigenvalues of the Hessian; 0 leaves curvature out, which takes the longest.
        samples: training examples that curvature and importance weights are taken over at most.
        forgetting: (M,) scores of the training examples: ``run.record.forgetting.scores`` where `evenly.train` was
            asked to record them, of an `evenly.ForgettingTracker`, or `evenly.forgetting_scores` of a history.
    """
    started = time.perf_counter()
    _check(model, data, split, rho, top, samples, name, seed)
    data = encoded(data, model)
    scores = None if forgetting is None else _scores(forgetting, len(data.train))
    judged = data.splits[split or next(part for part in ("test", "validation", "train") if part in data.splits)]
    name = name or type(model).__name__
    missing: dict[str, str] = {}

    progress(0.0, "outputs")
    logits = evaluated(model, in_chunks(model, judged), lambda b: logits_of(model, b.x, b.y).double().cpu())
    labels = judged.labels.cpu()
    each, predicted = losses(logits, labels), predictions(logits)
    if not bool(each.isfinite().all()):
        raise EvenlyError(
            f"the loss of {name} on {judged.name} example {int((~each.isfinite()).nonzero()[0])} is not finite; "
            "look at a checkpoint before it diverged"
        )
    right = predicted == labels
    overall = Share("all", int(right.sum()), len(labels), float(each.mean()))

    progress(0.15, "groups")
    by, members = _groups(model, judged, data, logits, seed, missing)
    groups = [
        Share(
            key,
            int(right[index].sum()),
            len(index),
            float(each[index].mean()),
            None if by == "group" else int(labels[index[0]]),
        )
        for key, index in members.items()
        if len(index)
    ]
    progress(0.3, "probes")
    found = _probes(model, data, list(judged.attributes), seed, missing)

    progress(0.5, "importance weights")
    part = part_of(data.train, samples, seed)
    real, phantom = importance_weights(model, part), importance_weights(model, part, rho=rho)
    spectrum = None
    if top:
        progress(0.6, "curvature")
        loss = "logistic" if single(logits) else "cross-entropy"
        spectrum = hessian_spectrum(model, loss, part, top=top, seed=seed)
    else:
        missing["curvature"] = "it was left out"
    if scores is None:
        missing["forgetting"] = "it was not recorded in training (record forgetting=true)"
    done = Audit(
        name, judged, data, overall, by, groups, labels, predicted, each.double(), rho, real, phantom, found, spectrum,
        scores, missing, {"training examples": len(part)},
    )  # fmt: skip
    progress(0.9, "heat maps")
    done.heat = _heat(model, judged, done)
    done.seconds = time.perf_counter() - started
    progress(1.0, "done")
    return done


def check_settings(rho: Any, top: Any, samples: Any) -> None:
    """Refuse settings that no model could be looked at by, before anything is read."""
    check_options(rho)
    if not isinstance(samples, int) or samples < 1:
        raise EvenlyError(f"samples {samples} leaves no example to look at; give a whole number from 1")
    if not isinstance(top, int) or top < 0:
        raise EvenlyError(f"top {top} is no number of eigenvalues; give a whole number, or 0 to leave curvature out")
    if top > MOST_STEPS:
        raise EvenlyError(f"top {top} is more than an audit looks for; give {MOST_STEPS} eigenvalues or fewer")


def _check(
    model: Any, data: Any, split: str | None, rho: float, top: int, samples: int, name: str | None, seed: int
) -> None:
    check_settings(rho, top, samples)
    if name is not None and not isinstance(name, str):
        raise EvenlyError(f"name {name!r} is no text; give what to call the model, or leave it out")
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool):
        raise EvenlyError(f"seed {seed!r} is no whole number; give e.g. 0")
    check_model(model)
    if not isinstance(data, Data):
        raise EvenlyError(f"data is a {type(data).__name__}; give an evenly.Data, e.g. evenly.Data(train=(x, y))")
    if (rho or top) and not any(weight.requires_grad for weight in model.parameters()):
        raise EvenlyError(
            f"{type(model).__name__} has no parameter that requires gradients, so it has neither SAM's phantom weights "
            "nor curvature; set requires_grad, or give rho 0 and top 0"
        )
    size = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    if top > size:
        raise EvenlyError(f"top {top} exceeds the {size} trainable parameters of {type(model).__name__}; ask for fewer")
    if rho or top:
        check_real(model, [name for name, weight in model.named_parameters() if weight.requires_grad])
    if split is not None and split not in data.splits:
        raise EvenlyError(f"there is no {split} split; the data has {', '.join(data.splits)}")


def check_pair(one: Audit, other: Audit) -> None:
    """Refuse to set side by side what was found on different data or splits."""
    check_same(one.data, other.data)
    if other.split.name != one.split.name:
        raise EvenlyError(
            f"the two audits are of different splits, {one.split.name} and {other.split.name}; judge both on one"
        )


def check_same(one: Data, other: Data) -> None:
    """Refuse to set side by side what was found on different data."""
    if one is not other and one.fingerprint() != other.fingerprint():
        names = "" if one.name == other.name else f", {one.name} and {other.name}"
        raise EvenlyError(f"the two models are of different data{names}; give two models on the same data")


def _probes(
    model: nn.Module, data: Data, attributes: list[str], seed: int, missing: dict[str, str]
) -> dict[str, Probe]:
    """Of the label and the attributes that the data allows, in one pass over the network."""
    if not attributes:
        missing["probes"] = "the data has no attributes"
        return {}
    cannot = unprobeable(data, wanted := ["label", *attributes])
    missing |= {f"probe of {name}": why for name, why in cannot.items()}
    try:
        return probes(model, data, left, seed=seed) if (left := [n for n in wanted if n not in cannot]) else {}
    except EvenlyError as error:
        missing["probes"] = str(error)
        return {}


def _scores(forgetting: Any, count: int) -> Tensor:
    try:
        scores: Tensor = torch.as_tensor(forgetting).detach().double().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise EvenlyError("forgetting cannot be read as numbers; give a score for each training example") from None
    if scores.shape != (count,):
        raise EvenlyError(
            f"forgetting has shape {tuple(scores.shape)} for {count} training examples; give one for each"
        )
    odd = scores[torch.isfinite(scores) & ((scores < 0) | (scores != scores.round()) | (scores > 1e6))]
    if len(odd):
        raise EvenlyError(f"forgetting holds {float(odd[0]):g}; give how often each example was forgotten")
    return scores


def _groups(
    model: nn.Module, split: Split, data: Data, logits: Tensor, seed: int, missing: dict[str, str]
) -> tuple[str, dict[str, Tensor]]:
    """What the groups are and their members, by name: the data's, label by attribute, or clusters of each class."""
    class_names = class_names_of(data)
    if split.measured_groups is not None:
        groups, names = split.measured_groups.cpu(), [str(name) for name in data.measured_names]
        member = groups.T if groups.ndim == 2 else groups == torch.arange(len(names))[:, None]
        names = [f"{name} (group {g})" if names.count(name) > 1 else name for g, name in enumerate(names)]
        return "group", {name: row.nonzero().flatten() for name, row in zip(names, member, strict=False)}
    if split.attributes:
        attribute, column = next(iter(split.attributes.items()))
        called = getattr(data, "attribute_names", {}).get(attribute)
        return f"label and {attribute}", {
            f"{class_names[k]}, {called[v] if called else f'{attribute} {v}'}": (
                (split.labels.cpu() == k) & (column.cpu() == v)
            ).nonzero().flatten()
            for k in range(data.classes)
            for v in column.unique().tolist()
        }  # fmt: skip
    try:
        features = representations(model, split)
    except EvenlyError as error:
        features, missing["features"] = logits.reshape(len(split), -1), f"{error}; its outputs are clustered instead"
    return "cluster", _clusters(features.numpy(), split, class_names, seed)


def class_names_of(data: Data) -> list[str]:
    """The data's names of its classes, or "class K"."""
    return [str(name) for name in data.class_names] if data.class_names else [f"class {k}" for k in range(data.classes)]


def _clusters(features: np.ndarray, split: Split, class_names: list[str], seed: int) -> dict[str, Tensor]:
    """Two clusters of each class by the model's features (N, D)."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    found = {}
    for k, name in enumerate(class_names):
        members = np.flatnonzero(split.labels.cpu().numpy() == k)
        if len(members) < 4 or bool((features[members] == features[members][0]).all()):
            found[name] = torch.from_numpy(members)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # points so close together that they are one cluster
            side = KMeans(2, n_init=4, random_state=derive(seed, "audit", k) % 2**32).fit_predict(features[members])
        if (side == 0).sum() < (side == 1).sum():
            side = 1 - side
        found[f"{name}, larger cluster"] = torch.from_numpy(members[side == 0])
        found[f"{name}, smaller cluster"] = torch.from_numpy(members[side == 1])
    return found


def _heat(model: nn.Module, split: Split, found: Audit) -> Tensor | None:
    """Where the model looks in the hardest and the easiest images, (2 SHOWN, H, W); None where there are none."""
    from evenly.diagnose.saliency import grad_cam

    if len(split.example_shape) != 3:
        found.missing["heat maps"] = "the inputs are no images"
        return None
    chosen = torch.cat([found.hardest, found.easiest])
    images = torch.cat([batch.x.cpu() for batch in in_chunks(model, split, chosen)])
    try:
        return grad_cam(model, images)
    except EvenlyError as error:
        found.missing["heat maps"] = str(error)
        return None


def half_of_the_weight(weights: Tensor) -> float:
    """The smallest share of examples that has half of the weight."""
    ordered = weights.sort(descending=True).values.cumsum(0)
    if not float(ordered[-1]):
        return math.nan
    return (int((ordered < ordered[-1] / 2).sum()) + 1) / len(weights)


def fisher(right: int, n: int, other: int, m: int) -> float:
    """The chance that, of `right` + `other` right answers, a set of n has `right` or fewer where a set of m has the
    rest, if both are alike (Fisher's exact test, one-sided)."""
    from scipy.stats import hypergeom

    return float(hypergeom.cdf(right, n + m, right + other, n))


def paired(gained: int, lost: int, n: int) -> tuple[float, float]:
    """The 95% interval of (gained - lost) / n over the same n examples: that of McNemar's table with half an example
    more in each of its four cells (Agresti and Min 2005)."""
    b, c, total = gained + 0.5, lost + 0.5, n + 2
    centre = (b - c) / total
    half = NormalDist().inv_cdf(0.975) * math.sqrt(b + c - (b - c) ** 2 / total) / total
    return max(-1.0, centre - half), min(1.0, centre + half)


def _histogram(scores: Tensor) -> dict[str, int]:
    counts = torch.bincount(scores[torch.isfinite(scores)].long()).tolist()
    return {str(k): count for k, count in enumerate(counts)} | {"never right": int(torch.isinf(scores).sum())}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _share(share: Share) -> dict[str, Any]:
    low, high = share.interval
    return {"name": share.name, "n": share.n, "accuracy": share.accuracy, "low": low, "high": high, "loss": share.loss}
