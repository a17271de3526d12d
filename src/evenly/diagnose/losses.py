"""The mean loss at a network's weights and its gradient, by a loss that `evenly.coherence` takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenly.engine.evaluation import called, in_eval_mode, like_of
from evenly.errors import EvenlyError

CHUNK = 1024
"""Samples whose loss is computed at once."""


def mean_loss(model: nn.Module, loss: Any, x: Tensor, y: Tensor) -> float:
    """The mean over samples x (n, ...), y (n, ...), in eval mode."""
    with in_eval_mode(model), torch.no_grad():
        return sum(float(part) for part in _sums(model, loss, x, y)) / len(x)


def gradient_norm(model: nn.Module, loss: Any, x: Tensor, y: Tensor) -> float:
    """The norm of the mean loss' gradient over the trainable parameters, in eval mode; no ``.grad`` is touched."""
    weights = [w for w in model.parameters() if w.requires_grad]
    total = [torch.zeros_like(w) for w in weights]
    with in_eval_mode(model), torch.enable_grad():
        for part in _sums(model, loss, x, y):
            torch._foreach_add_(total, torch.autograd.grad(part / len(x), weights, materialize_grads=True))
    return float(torch.stack([part.double().norm() for part in total]).norm())


def _sums(model: nn.Module, loss: Any, x: Tensor, y: Tensor) -> Iterator[Tensor]:
    """The sum of the samples' losses, a chunk of them at a time."""
    like = like_of(model)
    for inputs, targets in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
        dtype = like.dtype if inputs.is_floating_point() else inputs.dtype
        outputs = called(model, inputs.to(like.device, dtype, copy=True))  # a model may write into what it is given
        if outputs.numel() % len(inputs) or outputs.numel() < len(inputs):
            raise EvenlyError(
                f"the model gives {tuple(outputs.shape)} for {len(inputs)} samples; it must give (N,) or (N, outputs)"
            )
        yield summed(loss, outputs.reshape(len(inputs), -1), targets.to(like.device))


def summed(loss: Any, f: Tensor, y: Tensor) -> Tensor:
    """The sum over samples of the losses of outputs f (n, c)."""
    labels = not y.is_floating_point() and f.shape[1] > 1 and y.numel() == len(f)
    y = y.reshape(-1).long() if labels else y.reshape(f.shape).to(f)
    n, c = f.shape
    if loss == "squared":
        return 0.5 * (f - y).square().sum()
    if loss == "mse":
        return (f - y).square().sum() / c
    if loss == "cross-entropy":
        return F.cross_entropy(f, y, reduction="sum")
    if loss == "logistic":
        return F.binary_cross_entropy_with_logits(f, y, reduction="sum") / c
    value: Tensor = loss(f, y)
    return value.sum() * (n if getattr(loss, "reduction", "mean") == "mean" else 1)
