"""What a model's answers and probabilities say: which classes it confuses, whether it is right as often as it says, and
how often it finds class 1 in each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from evenly.data.contract import Data, Split
from evenly.diagnose.audit_values import Calibration, Confusion, GroupRates, Mistake, Rates, ReliabilityBin
from evenly.diagnose.slice_columns import attribute_columns
from evenly.engine.accuracy import wilson

MOST_CLASSES = 20
"""Classes up to which the whole confusion matrix is shown."""
MISTAKES = 10
"""The most frequent confusions that are listed."""
BINS = 10
"""Parts of the reliability curve at most."""


def confusion_of(labels: Tensor, predicted: Tensor, classes: int) -> Confusion:
    """How often label k (N,) was taken for each class (N,)."""
    counts = torch.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)
    wrong = counts - torch.diag(counts.diag())
    pairs = [divmod(i, classes) for i in wrong.flatten().argsort(descending=True, stable=True)[:MISTAKES].tolist()]
    mistakes = [Mistake(label, taken_for, int(wrong[label, taken_for])) for label, taken_for in pairs]
    whole = tuple(map(tuple, counts.tolist())) if classes <= MOST_CLASSES else ()
    return Confusion(whole, tuple(each for each in mistakes if each.n))


def calibration_of(labels: Tensor, predicted: Tensor, probabilities: Tensor) -> Calibration:
    """Whether a model is right as often as it says.

    The confidence of an example is the probability of its predicted class. Examples are put in order of it and cut into
    up to `BINS` bins of about equal size; those of equal confidence stay together. The expected calibration error is
    the mean over examples of the distance between accuracy and mean confidence of their bin.

    Args:
        labels, predicted: (N,).
        probabilities: (N, K).
    """
    confidence = probabilities.gather(1, predicted[:, None])[:, 0].double().numpy()
    right = (labels == predicted).numpy()
    cuts = np.unique(np.quantile(confidence, np.linspace(0, 1, BINS + 1)[1:-1], method="inverted_cdf"))
    place = np.searchsorted(cuts, confidence, side="left")
    bins = []
    for k in np.unique(place):
        members = place == k
        n, hits = int(members.sum()), int(right[members].sum())
        bins.append(ReliabilityBin(n, float(confidence[members].mean()), hits / n, *wilson(hits, n)))
    error = sum(each.n * abs(each.accuracy - each.confidence) for each in bins) / len(right)
    return Calibration(tuple(bins), error, float(confidence.mean()))


def rates_of(
    labels: Tensor,
    predicted: Tensor,
    probabilities: Tensor | None,
    by: str,
    members: Mapping[str, Tensor],
    split: Split,
    data: Data,
) -> Rates | None:
    """True and false positive rates and AUC of class 1 of two, over all and in each group; None of more classes.

    Groups of one label each have only one of the two rates. Where all groups are like that, the values of the
    attributes take their place.

    Args:
        labels, predicted: (N,).
        probabilities: (N, 2), or None where they are not known; there is no AUC then.
        by: what the groups are.
        members: the indices of each group's examples, by its name.
    """
    if data.classes != 2:
        return None
    rows = {"all": torch.arange(len(labels))}
    mixed = any(len(labels[index].unique()) > 1 for index in members.values())
    if by not in ("class", "cluster") and mixed:
        rows |= members
    else:
        by = "attribute"
        for column in attribute_columns(split, data):
            codes = np.unique(column.values[column.values >= 0])
            for code in codes if len(codes) <= MOST_CLASSES else ():
                rows[f"{column.name} {column.names[code]}"] = torch.from_numpy(np.flatnonzero(column.values == code))
    scores = None if probabilities is None else probabilities[:, 1]
    return Rates(by, tuple(_rates(name, index, labels, predicted, scores) for name, index in rows.items()))


def _rates(name: str, index: Tensor, labels: Tensor, predicted: Tensor, scores: Tensor | None) -> GroupRates:
    is_positive, called = labels[index] == 1, predicted[index] == 1
    positives, negatives = int(is_positive.sum()), int((~is_positive).sum())
    found, false = int((is_positive & called).sum()), int((~is_positive & called).sum())
    both = positives > 0 and negatives > 0
    return GroupRates(
        name,
        positives,
        negatives,
        (found / positives, *wilson(found, positives)) if positives else None,
        (false / negatives, *wilson(false, negatives)) if negatives else None,
        auc(scores[index].tolist(), is_positive.tolist()) if both and scores is not None else None,
    )


def auc(scores: Sequence[float], is_positive: Sequence[bool]) -> float:
    """The chance that a positive example has a higher score than a negative one, a tie counted half: the area under the
    ROC curve. Both are (N,)."""
    from scipy.stats import rankdata

    ranks, positive = rankdata(scores), np.asarray(is_positive)
    n, m = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m))
