"""Per-example losses and predictions: cross-entropy over K logits, logistic for a single one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from evenly.errors import EvenlyError


def single(outputs: Tensor) -> bool:
    """Whether outputs (N,) or (N, 1) are one logit per example."""
    return outputs.ndim == 1 or (outputs.ndim == 2 and outputs.shape[1] == 1)


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of each example (N,): ``-log softmax(outputs)[label]``, or ``log(1 + exp(-±output))`` for one logit."""
    if len(outputs) != len(labels):
        raise EvenlyError(f"{len(outputs)} outputs for {len(labels)} labels; the model must return one row per example")
    if single(outputs):
        flat = outputs.reshape(len(outputs))
        return F.binary_cross_entropy_with_logits(flat, labels.to(flat.dtype), reduction="none")
    return F.cross_entropy(outputs, labels, reduction="none")


def predictions(outputs: Tensor) -> Tensor:
    """The predicted label of each example (N,)."""
    return (outputs.reshape(len(outputs)) > 0).long() if single(outputs) else outputs.argmax(1)


def probabilities(outputs: Tensor) -> Tensor:
    """Class probabilities (N, K); (N, 2) for one logit."""
    if not single(outputs):
        return outputs.softmax(1)
    p = outputs.reshape(len(outputs)).sigmoid()
    return torch.stack([1 - p, p], dim=1)
