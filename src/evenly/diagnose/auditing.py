"""The audit: everything that can be measured of a trained model, in one call.

>>> audit = evenly.audit(model, data)
>>> audit = evenly.audit(predictions=probabilities, data=data)     # of a model that is not here
>>> audit.verdict()                                        # sentences computed from the numbers
>>> evenly.write_report(audit, "audit.html")
>>> evenly.write_report([audit, evenly.audit(other, data)], "both.html")
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenly.analyses import AuditSettings
from evenly.data.contract import Data, Split
from evenly.data.samplers import members_by_group
from evenly.diagnose.features import representations
from evenly.diagnose.findings import Audit, Share, class_names_of
from evenly.diagnose.given_predictions import given_predictions
from evenly.diagnose.importance import importance_weights
from evenly.diagnose.probing import Probe, probes, unprobeable
from evenly.diagnose.saliency import grad_cam
from evenly.diagnose.samples import check_real, part_of, tensor_of
from evenly.diagnose.sizes import sizes_within
from evenly.diagnose.slice_columns import cluster_column, columns_left_out, columns_of, k_means
from evenly.diagnose.slices import Search, Slice, find_slices
from evenly.diagnose.spectrum import hessian_spectrum
from evenly.engine.evaluation import check_model, evaluated, in_chunks, logits_of
from evenly.engine.losses import losses, probabilities, single
from evenly.engine.losses import predictions as predictions_of
from evenly.errors import EvenlyError
from evenly.models import encoded
from evenly.randomness import derive, isolated
from evenly.settings import checked, settings_of

BATCH = 128
"""Examples whose gradient SAM's step uphill follows, where no run says otherwise: the default of training."""
NEEDS_NETWORK = ("probes", "importance weights", "curvature", "forgetting", "heat maps", "features")
SMALLEST = 1e-7
"""The probability that a smaller one counts as in the loss of predictions; a forest of trees gives 0."""
Show = Callable[[float, str], None]


def audit(
    model: nn.Module | None = None,
    data: Data | None = None,
    *,
    predictions: Any = None,
    name: str | None = None,
    forgetting: Any = None,
    progress: Show = lambda share, note: None,
    **settings: Any,
) -> Audit:
    """Measure what a model has learned, or only where its predictions fail.

    Args:
        model: gives logits (N, K), (N, 1) or (N,). It is evaluated in eval mode on its own device, and not changed.
        data: with attributes and groups where there are any; clusters stand in for them where there are none.
        predictions: in place of a model, what it said of the split's N examples: probabilities (N, K), predicted
            classes (N,) as numbers or names, or of two classes the probability of class 1, (N,) or (N, 1). What needs
            a network is then left out, and `missing` says so. A probability below 1e-7 counts as 1e-7 in the loss.
        name: what to call the model.
        forgetting: (M,) scores of the training examples: ``run.record.forgetting_scores`` where `evenly.train`
            recorded them, the scores of an `evenly.ForgettingTracker`, or `evenly.forgetting_scores`.
        settings: of `evenly.analyses.AuditSettings`: ``split`` to judge on, by default the first of test, validation
            and train; ``rho`` and ``batch_size`` of SAM, for the phantom importance weights; ``top`` eigenvalues, 0
            for none; ``samples``, the training examples for curvature (as many of each class as far as it has them, as
            in Nguyen et al. 2024, App. C.2) and importance weights; ``within``, the seconds that the audit should
            take: where curvature and importance weights would take longer, fewer examples are used and `shrunk` says
            so; ``seed``.
    """
    started = time.perf_counter()
    ask = AuditSettings(**checked("setting", settings, settings_of(AuditSettings)))
    if (model is None) == (predictions is None):
        if model is None:
            raise EvenlyError("model is a NoneType; give an nn.Module, or what it said as predictions=")
        raise EvenlyError("both a model and predictions are given; give one of them")
    if model is not None:
        check_model(model)
    if not isinstance(data, Data):
        raise EvenlyError(f"data is a {type(data).__name__}; give an evenly.Data, e.g. evenly.Data(train=(x, y))")
    judged_split(data, ask.split)
    if model is None:
        if forgetting is not None:
            raise EvenlyError("forgetting is of a model's training, and there are predictions only; leave it out")
        result = _of_predictions(predictions, data, ask, name or "the model", progress)
    else:
        result = _of_model(model, data, ask, name or type(model).__name__, forgetting, started, progress)
    result.seconds = time.perf_counter() - started
    progress(1.0, "done")
    return result


def judged_split(data: Data, split: str | None) -> Split:
    """The split that is judged: the one named, else the first of test, validation and train."""
    if split is not None and split not in data.splits:
        raise EvenlyError(f"there is no {split} split; the data has {', '.join(data.splits)}")
    return data.splits[split or next(part for part in ("test", "validation", "train") if part in data.splits)]


def _of_predictions(predictions: Any, data: Data, ask: AuditSettings, name: str, progress: Show) -> Audit:
    """What predictions alone show."""
    untouched = AuditSettings(split=ask.split, seed=ask.seed)
    for setting in ("rho", "batch_size", "top", "samples", "within"):
        if (value := getattr(ask, setting)) != getattr(untouched, setting):
            raise EvenlyError(f"{setting} {value} needs the network, and there are predictions only; leave it out")
    judged = judged_split(data, ask.split)
    labels = judged.labels.cpu()
    progress(0.0, "predictions")
    given = given_predictions(predictions, judged, data)
    missing = dict.fromkeys(NEEDS_NETWORK, "it needs the network, and there are predictions only")
    each = None
    if given.probabilities is None:
        missing |= dict.fromkeys(("loss", "calibration"), "there are predicted classes only, without probabilities")
    else:
        each = -given.probabilities.gather(1, labels[:, None])[:, 0].clamp(min=SMALLEST).log()
    by, members = _known_groups(judged, data) or ("class", _classes(judged, data))
    members, groups = _shares(by, members, given.predicted == labels, labels, each)
    progress(0.5, "slices")
    return Audit(
        name, judged, data, _share("all", given.predicted == labels, each), by, groups, members, labels,
        given.predicted, given.probabilities, each, 0.0, 0, None, None,
        missing=missing | _without_rates(data), slices=_slices(given.predicted == labels, judged, data),
    )  # fmt: skip


def _of_model(
    model: nn.Module, data: Data, ask: AuditSettings, name: str, forgetting: Any, started: float, progress: Show
) -> Audit:
    """What a network shows."""
    _check_network(model, ask)
    own, data = data, encoded(data, model)
    scores = None if forgetting is None else _scores(forgetting, len(data.train))
    judged = judged_split(data, ask.split)
    missing: dict[str, str] = {}

    progress(0.0, "outputs")
    logits = evaluated(model, in_chunks(model, judged), lambda b: logits_of(model, b.x, b.y).double().cpu())
    labels = judged.labels.cpu()
    each, predicted = losses(logits, labels).double(), predictions_of(logits)
    if not bool(each.isfinite().all()):
        raise EvenlyError(
            f"the loss of {name} on {judged.name} example {int((~each.isfinite()).nonzero()[0])} is not finite; "
            "audit a checkpoint before it diverged"
        )
    right = predicted == labels

    progress(0.15, "groups")
    by, members, clusters = _groups(model, judged, data, logits, ask.seed, missing)
    members, groups = _shares(by, members, right, labels, each)
    slices = _slices(right, judged_split(own, ask.split), own)
    progress(0.3, "probes")
    probed = _probes(model, data, list(judged.attributes), ask.seed, missing)

    progress(0.5, "importance weights")
    if not ask.top:
        missing["curvature"] = "it was left out"
    loss = "logistic" if single(logits) else "cross-entropy"
    sizes, shrunk = sizes_within(model, loss, data.train, ask, started, missing)
    part = part_of(data.train, sizes["importance weights"], ask.seed)
    batch_size = min(ask.batch_size or BATCH, len(part))
    real = importance_weights(model, part)
    phantom = importance_weights(model, part, rho=ask.rho, batch_size=batch_size, seed=ask.seed)
    spectrum = None
    if "curvature" in sizes:
        progress(0.6, "curvature")
        by_class = part_of(data.train, sizes["curvature"], ask.seed, stratified=True)
        spectrum = hessian_spectrum(model, loss, by_class, top=ask.top, seed=ask.seed)
    if scores is None:
        missing["forgetting"] = "it was not recorded in training (record forgetting=true)"
    result = Audit(
        name, judged, data, _share("all", right, each), by, groups, members, labels, predicted, probabilities(logits),
        each, ask.rho, batch_size, real, phantom, probed, spectrum, scores, missing | _without_rates(data), shrunk,
        slices=slices, clusters=_cluster_slices(clusters, right, predicted, data, ask.seed),
    )  # fmt: skip
    progress(0.9, "heat maps")
    result.heat = _heat(model, judged, result)
    return result


def _share(name: str, right: Tensor, each: Tensor | None, label: int | None = None) -> Share:
    return Share(name, int(right.sum()), len(right), None if each is None else float(each.mean()), label)


def _shares(
    by: str, members: dict[str, Tensor], right: Tensor, labels: Tensor, each: Tensor | None
) -> tuple[dict[str, Tensor], list[Share]]:
    """The groups that have examples, and how often each is right."""
    members = {key: index for key, index in members.items() if len(index)}
    return members, [
        _share(
            key, right[index], None if each is None else each[index], None if by == "group" else int(labels[index[0]])
        )
        for key, index in members.items()
    ]


def _slices(right: Tensor, judged: Split, data: Data) -> Search:
    return find_slices(right, columns_of(judged, data), left_out=columns_left_out(judged, data))


def _cluster_slices(
    features: Tensor | None, right: Tensor, predicted: Tensor, data: Data, seed: int
) -> tuple[Slice, ...]:
    """Clusters of the model's own features (N, D) that are right less often: a list of its own, which claims
    nothing."""
    if features is None:
        return ()
    column = cluster_column(features, predicted, class_names_of(data), seed)
    return find_slices(right, [column], pairs=False).slices


def _without_rates(data: Data) -> dict[str, str]:
    if data.classes == 2:
        return {}
    return {"rates by group": f"true and false positive rates are of two classes, and there are {data.classes}"}


def _check_network(model: nn.Module, ask: AuditSettings) -> None:
    if not (ask.rho or ask.top):
        return
    trainable = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not trainable:
        raise EvenlyError(
            f"{type(model).__name__} has no parameter that requires gradients, so it has neither SAM's phantom weights "
            "nor curvature; set requires_grad, or give rho 0 and top 0"
        )
    size = sum(weight.numel() for weight in trainable.values())
    if ask.top > size:
        network = type(model).__name__
        raise EvenlyError(f"top {ask.top} exceeds the {size} trainable parameters of {network}; ask for fewer")
    check_real(model, trainable)


def _scores(forgetting: Any, count: int) -> Tensor:
    scores = tensor_of(forgetting, "forgetting", "a score for each training example").double().cpu()
    if scores.shape != (count,):
        raise EvenlyError(
            f"forgetting has shape {tuple(scores.shape)} for {count} training examples; give one for each"
        )
    odd = scores[torch.isfinite(scores) & ((scores < 0) | (scores != scores.round()) | (scores > 1e6))]
    if len(odd):
        raise EvenlyError(f"forgetting holds {float(odd[0]):g}; give how often each example was forgotten")
    return scores


def _probes(
    model: nn.Module, data: Data, attributes: list[str], seed: int, missing: dict[str, str]
) -> dict[str, Probe]:
    """Of the label and the attributes that the data allows, in one pass over the network."""
    if not attributes:
        missing["probes"] = "the data has no attributes"
        return {}
    reasons = unprobeable(data, names := ["label", *attributes])
    missing |= {f"probe of {name}": reason for name, reason in reasons.items()}
    try:
        return probes(model, data, left, seed=seed) if (left := [n for n in names if n not in reasons]) else {}
    except EvenlyError as error:
        missing["probes"] = str(error)
        return {}


def _known_groups(split: Split, data: Data) -> tuple[str, dict[str, Tensor]] | None:
    """What the groups are and their members, by name: the data's, or label by attribute; None where there are none."""
    class_names = class_names_of(data)
    if split.measured_groups is not None:
        groups, names = split.measured_groups.cpu(), [str(name) for name in data.measured_names]
        if groups.ndim == 2:
            members = dict(enumerate(column.nonzero().flatten() for column in groups.T))
        else:
            members = members_by_group(groups)
        counts, none = Counter(names), torch.empty(0, dtype=torch.long)
        names = [f"{name} (group {g})" if counts[name] > 1 else name for g, name in enumerate(names)]
        return "group", {name: members.get(g, none) for g, name in enumerate(names)}
    if split.attributes:
        attribute, column = next(iter(split.attributes.items()))
        value_names = getattr(data, "attribute_names", {}).get(attribute)
        return f"label and {attribute}", {
            f"{class_names[k]}, {value_names[v] if value_names else f'{attribute} {v}'}": (
                (split.labels.cpu() == k) & (column.cpu() == v)
            ).nonzero().flatten()
            for k in range(data.classes)
            for v in column.unique().tolist()
        }  # fmt: skip
    return None


def _classes(split: Split, data: Data) -> dict[str, Tensor]:
    labels = split.labels.cpu()
    return {name: (labels == k).nonzero().flatten() for k, name in enumerate(class_names_of(data))}


def _groups(
    model: nn.Module, split: Split, data: Data, logits: Tensor, seed: int, missing: dict[str, str]
) -> tuple[str, dict[str, Tensor], Tensor | None]:
    """What the groups are and their members: the known ones, else clusters of each class and the features (N, D) that
    they are of."""
    if (known := _known_groups(split, data)) is not None:
        return *known, None
    try:
        features = representations(model, split)
    except EvenlyError as error:
        features, missing["features"] = logits.reshape(len(split), -1), f"{error}; its outputs are clustered instead"
    return "cluster", _clusters(features.numpy(), split, data, seed), features


def _clusters(features: np.ndarray, split: Split, data: Data, seed: int) -> dict[str, Tensor]:
    """Two clusters of each class by the model's features (N, D)."""
    clusters = {}
    for k, (name, members) in enumerate(_classes(split, data).items()):
        sides = k_means(features[members.numpy()], 2, derive(seed, "audit", k))
        if sides is None:
            clusters[name] = members
            continue
        for side, size in enumerate(("larger", "smaller")):
            clusters[f"{name}, {size} cluster"] = members[torch.from_numpy(sides == side)]
    return clusters


def _heat(model: nn.Module, split: Split, audit: Audit) -> dict[int, Tensor]:
    """Grad-CAM (H, W) of the hardest and the easiest images, by their indices; none where there are no images."""
    with isolated():  # a Dataset may draw as it is read
        is_images = len(split.example_shape) == 3
    if not is_images:
        audit.missing["heat maps"] = "the inputs are no images"
        return {}
    chosen = torch.cat([audit.hardest, audit.easiest]).unique()
    images = torch.cat([batch.x.cpu() for batch in in_chunks(model, split, chosen)])
    try:
        return dict(zip(chosen.tolist(), grad_cam(model, images), strict=True))
    except EvenlyError as error:
        audit.missing["heat maps"] = str(error)
        return {}
