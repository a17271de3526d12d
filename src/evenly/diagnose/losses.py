"""Losses by name, as torch's modules and functions, or of the user's own: sums over samples, and the Gauss-Newton form.

The loss of sample i is that of a batch of this sample alone, with outputs f (c,):

    "squared"         1/2 sum_c (f_c - y_c)^2
    "mse"             torch's mean over outputs of (f_c - y_c)^2: the above times 2 / outputs; also nn.MSELoss()
    "cross-entropy"   -log softmax(f)_y; also nn.CrossEntropyLoss()
    "logistic"        log(1 + exp(-±f)), the mean over outputs; also nn.BCEWithLogitsLoss()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenly.engine.evaluation import called, in_eval_mode, like_of
from evenly.errors import EvenlyError, unknown

Loss = Callable[[Tensor, Tensor], Tensor]

CHUNK = 1024
"""Samples whose loss is computed at once."""
FUNCTIONS: dict[Any, str] = {
    F.mse_loss: "squared",
    F.cross_entropy: "cross-entropy",
    F.binary_cross_entropy_with_logits: "logistic",
}
MODULES: dict[type, str] = {
    nn.MSELoss: "squared",
    nn.CrossEntropyLoss: "cross-entropy",
    nn.BCEWithLogitsLoss: "logistic",
}


class Curvature:
    """B = d^2 loss / d f^2 of one sample's outputs f (c,): a root R (k, c) with R^T R = B, and what outputs must be."""

    def __init__(self, name: str, mean: bool = True, half: bool = False) -> None:
        self.name, self.mean, self.half = name, mean, half

    def rank(self, outputs: int) -> int:
        return outputs - 1 if self.name == "cross-entropy" else outputs

    def root(self, f: Tensor) -> Tensor:
        if self.name == "cross-entropy":
            return softmax_root(f)
        scale = (1.0 if self.half else 2.0) if self.name == "squared" else 1.0
        scale /= len(f) if self.mean else 1
        if self.name == "squared":
            return math.sqrt(scale) * torch.eye(len(f), dtype=f.dtype, device=f.device)
        return torch.diag(math.sqrt(scale) * (0.5 * (F.logsigmoid(f) + F.logsigmoid(-f))).exp())

    def check(self, outputs: int, y: Tensor) -> None:
        """Refuse outputs and targets that this loss cannot bring together."""
        if self.name == "cross-entropy":
            if outputs < 2:
                raise EvenlyError(
                    "cross-entropy needs two outputs or more and the model has 1; take the loss 'logistic'"
                )
            if y.is_floating_point() or y.numel() != len(y):
                raise EvenlyError(
                    f"targets are {y.dtype} of shape {tuple(y.shape)}; cross-entropy takes integer labels (N,) from 0"
                )
            if int(y.min()) < 0 or int(y.max()) >= outputs:
                worst = int(y.min()) if int(y.min()) < 0 else int(y.max())
                raise EvenlyError(
                    f"label {worst} is not among the model's {outputs} outputs; number the labels 0..{outputs - 1}"
                )
            return
        if y[0].numel() != outputs:
            raise EvenlyError(
                f"the model has {outputs} outputs and targets of shape {tuple(y.shape)}; the {self.name} loss takes "
                "a target for each output"
            )
        if self.name == "logistic" and (float(y.min()) < 0 or float(y.max()) > 1):
            raise EvenlyError(
                f"targets reach from {float(y.min()):g} to {float(y.max()):g}; the logistic loss takes 0 and 1"
            )


def softmax_root(f: Tensor) -> Tensor:
    """R (c - 1, c) with R^T R = diag(p) - p p^T, p = softmax(f): the LDL^T factors, in logarithms so that none is lost.

    With tails q_a = p_a + ... + p_{c-1}, row a is sqrt(p_a q_{a+1} / q_a) (e_a - sum_{b > a} (p_b / q_{a+1}) e_b).
    """
    log_p = f.log_softmax(0)
    log_q = log_p.flip(0).logcumsumexp(0).flip(0)
    rest = (log_p[None, :] - log_q[1:, None]).clamp(max=0).exp()
    row = torch.eye(len(f), dtype=f.dtype, device=f.device)[:-1] - rest.triu(1)
    return (0.5 * (log_p[:-1] + log_q[1:] - log_q[:-1])).exp()[:, None] * row


def curvature_of(loss: str | Loss) -> Curvature:
    """The Gauss-Newton form of a loss; refused by name where it is not known."""
    if isinstance(loss, str):
        named = {
            "squared": Curvature("squared", mean=False, half=True),
            "mse": Curvature("squared"),
            "cross-entropy": Curvature("cross-entropy"),
            "logistic": Curvature("logistic"),
        }
        if loss not in named:
            raise unknown("loss", loss, named)
        return named[loss]
    kind = MODULES.get(type(loss)) if isinstance(loss, nn.Module) else FUNCTIONS.get(loss)
    name = type(loss).__name__ if isinstance(loss, nn.Module) else getattr(loss, "__name__", repr(loss))
    if kind is None:
        raise EvenlyError(
            f"the Gauss-Newton form of the loss {name} is not known; give 'squared', 'mse', 'cross-entropy' or "
            "'logistic', or hessian='exact'"
        )
    if (ignored := getattr(loss, "ignore_index", -100)) != -100:
        raise EvenlyError(f"{name} ignores the label {ignored}; leave those samples out of the data instead")
    if any(getattr(loss, attribute, None) is not None for attribute in ("weight", "pos_weight")):
        raise EvenlyError(f"{name} has weights, and H would not be the mean of the samples' Hessians; leave them out")
    reduction = getattr(loss, "reduction", "mean")
    if reduction == "none" and kind != "cross-entropy":
        raise EvenlyError(f"{name} has reduction 'none' and so no single loss for a sample; take 'mean' or 'sum'")
    return Curvature(kind, mean=reduction == "mean")


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
        outputs = called(model, inputs.to(like.device, dtype, copy=True))  # a model may write into its input
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


class SummedLoss:
    """A loss as the sum over a batch's samples."""

    def __init__(self, loss: str | Loss) -> None:
        self.loss: Any = loss
        is_known = isinstance(loss, str) or type(loss) in MODULES or loss in FUNCTIONS
        self.curvature = curvature_of(loss) if is_known else None

    def check(self, outputs: Tensor, y: Tensor) -> None:
        """Refuse all samples' targets where they do not go with outputs of this shape."""
        if self.curvature is not None:
            self.curvature.check(outputs[0].numel(), y)

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        if self.curvature is not None:
            return summed(self.loss, outputs.reshape(len(outputs), -1), y)
        y = y.to(outputs) if y.is_floating_point() else y
        try:
            value: Any = self.loss(outputs, y.reshape(outputs.shape) if y.numel() == outputs.numel() else y)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            name = getattr(self.loss, "__name__", type(self.loss).__name__)
            raise EvenlyError(
                f"the loss {name} cannot take outputs {tuple(outputs.shape)} and targets {tuple(y.shape)} "
                f"({first_line(error)}); give a loss that goes with them, e.g. 'cross-entropy'"
            ) from error
        if not isinstance(value, Tensor) or (value.ndim and len(value) != len(outputs)):
            shape = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise EvenlyError(f"the loss is {shape}; it must be the batch's mean loss or one number for each sample")
        mean = value.ndim == 0 and getattr(self.loss, "reduction", "mean") == "mean"
        return value * len(outputs) if mean else value.sum()


def first_line(error: Exception) -> str:
    """The first line of an error's message, shortened."""
    return str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
