"""The audit: everything that can be measured of a trained model, in one call.

>>> audit = evenly.audit(model, data)
>>> audit.verdict()                                        # sentences computed from the numbers
>>> evenly.write_report(audit, "audit.html")
>>> evenly.write_report([audit, evenly.audit(other, data)], "both.html")
"""

from __future__ import annotations

import time
import warnings
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
from evenly.diagnose.importance import importance_weights
from evenly.diagnose.probing import Probe, probes, unprobeable
from evenly.diagnose.saliency import grad_cam
from evenly.diagnose.samples import check_real, part_of, tensor_of
from evenly.diagnose.sizes import sizes_within
from evenly.diagnose.spectrum import hessian_spectrum
from evenly.engine.evaluation import check_model, evaluated, in_chunks, logits_of
from evenly.engine.losses import losses, predictions, probabilities, single
from evenly.errors import EvenlyError
from evenly.models import encoded
from evenly.randomness import derive, isolated
from evenly.settings import checked, settings_of

BATCH = 128
"""Examples whose gradient SAM's step uphill follows, where no run says otherwise: the default of training."""
Show = Callable[[float, str], None]


def audit(
    model: nn.Module,
    data: Data,
    *,
    name: str | None = None,
    forgetting: Any = None,
    progress: Show = lambda share, note: None,
    **settings: Any,
) -> Audit:
    """Measure what a model has learned.

    Args:
        model: gives logits (N, K), (N, 1) or (N,). It is evaluated in eval mode on its own device, and not changed.
        data: with attributes and groups where there are any; clusters stand in for them where there are none.
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
    _check(model, data, ask)
    data = encoded(data, model)
    scores = None if forgetting is None else _scores(forgetting, len(data.train))
    judged = data.splits[ask.split or next(part for part in ("test", "validation", "train") if part in data.splits)]
    name = name or type(model).__name__
    missing: dict[str, str] = {}

    progress(0.0, "outputs")
    logits = evaluated(model, in_chunks(model, judged), lambda b: logits_of(model, b.x, b.y).double().cpu())
    labels = judged.labels.cpu()
    each, predicted = losses(logits, labels), predictions(logits)
    if not bool(each.isfinite().all()):
        raise EvenlyError(
            f"the loss of {name} on {judged.name} example {int((~each.isfinite()).nonzero()[0])} is not finite; "
            "audit a checkpoint before it diverged"
        )
    right = predicted == labels
    overall = Share("all", int(right.sum()), len(labels), float(each.mean()))

    progress(0.15, "groups")
    by, members = _groups(model, judged, data, logits, ask.seed, missing)
    members = {key: index for key, index in members.items() if len(index)}
    groups = [
        Share(
            key,
            int(right[index].sum()),
            len(index),
            float(each[index].mean()),
            None if by == "group" else int(labels[index[0]]),
        )
        for key, index in members.items()
    ]
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
    shares = probabilities(logits)
    result = Audit(
        name, judged, data, overall, by, groups, members, labels, predicted, shares, each.double(), ask.rho, batch_size,
        real, phantom, probed, spectrum, scores, missing, shrunk,
    )  # fmt: skip
    progress(0.9, "heat maps")
    result.heat = _heat(model, judged, result)
    result.seconds = time.perf_counter() - started
    progress(1.0, "done")
    return result


def _check(model: nn.Module, data: Data, ask: AuditSettings) -> None:
    check_model(model)
    if not isinstance(data, Data):
        raise EvenlyError(f"data is a {type(data).__name__}; give an evenly.Data, e.g. evenly.Data(train=(x, y))")
    if ask.split is not None and ask.split not in data.splits:
        raise EvenlyError(f"there is no {ask.split} split; the data has {', '.join(data.splits)}")
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


def _groups(
    model: nn.Module, split: Split, data: Data, logits: Tensor, seed: int, missing: dict[str, str]
) -> tuple[str, dict[str, Tensor]]:
    """What the groups are and their members, by name: the data's, label by attribute, or clusters of each class."""
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
    try:
        features = representations(model, split)
    except EvenlyError as error:
        features, missing["features"] = logits.reshape(len(split), -1), f"{error}; its outputs are clustered instead"
    return "cluster", _clusters(features.numpy(), split, class_names, seed)


def _clusters(features: np.ndarray, split: Split, class_names: list[str], seed: int) -> dict[str, Tensor]:
    """Two clusters of each class by the model's features (N, D)."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    clusters = {}
    for k, name in enumerate(class_names):
        members = np.flatnonzero(split.labels.cpu().numpy() == k)
        if len(members) < 4 or bool((features[members] == features[members][0]).all()):
            clusters[name] = torch.from_numpy(members)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # points so close together that they are one cluster
            side = KMeans(2, n_init=4, random_state=derive(seed, "audit", k) % 2**32).fit_predict(features[members])
        if (side == 0).sum() < (side == 1).sum():
            side = 1 - side
        clusters[f"{name}, larger cluster"] = torch.from_numpy(members[side == 0])
        clusters[f"{name}, smaller cluster"] = torch.from_numpy(members[side == 1])
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
