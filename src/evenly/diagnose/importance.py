"""Importance weights: how much each example drives the gradient (Springer, Nagarajan, Raghunathan 2024, section 6.2).

    grad L = mean_i  -y_i lambda_i grad f(x_i),     lambda_i = |d loss_i / d f| = sigma(-y_i f(x_i))        (eq. 6)

for one logit f and the logistic loss, y_i = ±1. The paper does not say what lambda_i is for K logits; here it is

    lambda_i = |d loss_i / d f_y| = 1 - softmax(f)_y,

half the l1 norm of the loss' gradient in the logits, which for two logits is the weight above of f = f_1 - f_0 (the l2
norm would be that times sqrt 2). At the phantom weights w + rho g / ||g||, where SAM takes its gradient, the paper
finds them closer together than at w, on its data while it trains (Figs 5 and 8): a finding that need not hold for any
one model. LSAM perturbs, and takes the norm over, the last layer only (eq. 5).

>>> real, phantom = importance_weights(model, data), importance_weights(model, data, rho=0.05)
>>> gini(real), gini(phantom)
>>> share_of_examples, share_of_weight = lorenz(phantom)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from evenly.data.contract import Split
from evenly.diagnose.results import Result
from evenly.diagnose.samples import check_real, split_of, tensor_of
from evenly.engine.evaluation import called, check_labels, in_chunks, in_eval_mode, last_linear, logits_of
from evenly.engine.losses import losses, single
from evenly.errors import EvenlyError
from evenly.optim.foreach import group_tensors, norm
from evenly.randomness import generator
from evenly.settings import at_least, checks_options
from evenly.theory.spiral import gini as over_last

Weights = dict[str, Tensor]


@checks_options
def importance_weights(
    model: nn.Module,
    data: Any,
    rho: Annotated[float, at_least(0)] = 0.0,
    *,
    kind: Literal["sam", "lsam"] = "sam",
    params: Iterable[Tensor] | None = None,
    batch_size: Annotated[int | None, at_least(1)] = None,
    seed: int = 0,
) -> Tensor:
    """lambda_i of every example in the order of storage, (N,) float64 on the CPU.

    In eval mode, so by the running statistics of BatchNorm and without dropout; the weights are never written to.

    Args:
        data: ``(x, y)``, an evenly Data (its training split) or Split, a DataLoader or a Dataset of ``(x, y)``.
        rho: 0 for the real weights; else the length of the ascent to the phantom ones.
        kind: perturb all trainable parameters ("sam") or those of the last layer ("lsam").
        params: LSAM's parameters; without them those of the last `nn.Linear` to run.
        batch_size: take the ascent's gradient over batches of so many examples, drawn by `seed`, and evaluate each
            batch at its own phantom weights, as a step of SAM does; without it, over all examples. A last batch of
            fewer is filled up for its gradient: along that of few examples, their own weights would rise more.
    """
    check_params(kind, params)
    split = split_of(data)
    order, size = torch.arange(len(split)), len(split)
    if batch_size is not None and rho:
        order, size = torch.randperm(len(split), generator=generator(seed, "importance")), batch_size
    importance = torch.empty(len(split), dtype=torch.float64)
    with in_eval_mode(model):
        ascended = _ascended(model, split, kind, params) if rho else {}
        for part in order.split(size):
            full = part if len(part) == size else order[-size:]
            weights = _phantom(model, split, full, ascended, rho) if rho else None
            with torch.no_grad():
                for batch in in_chunks(model, split, part):
                    importance[batch.index] = from_logits(logits_of(model, batch.x, batch.y, weights), batch.y).cpu()
    return importance


def check_params(kind: str = "sam", params: Any = None) -> None:
    """Refuse parameters for SAM, which perturbs all."""
    if params is not None and kind == "sam":
        raise EvenlyError("params are given, and SAM perturbs all parameters; leave them out or take kind='lsam'")


def from_logits(logits: Any, labels: Any) -> Tensor:
    """The importance weights (N,) float64 of logits (N, K), (N, 1) or (N,) and labels (N,) in 0..K-1.

    Accurate however small: the probability of the other classes is summed, not taken from one.
    """
    f = tensor_of(logits, "logits", "(N, K)").double()
    y = tensor_of(labels, "labels", "(N,)").long()
    if f.ndim not in (1, 2) or y.shape != f.shape[:1]:
        raise EvenlyError(f"logits {tuple(f.shape)} do not go with labels {tuple(y.shape)}; give (N, K) and (N,)")
    check_labels(f, y)
    if single(f):
        return ((1 - 2 * y) * f.reshape(len(y))).sigmoid()
    others = f.scatter(1, y[:, None], -torch.inf)
    return (others.logsumexp(1) - f.logsumexp(1)).exp()


def _ascended(model: nn.Module, split: Split, kind: str, params: Iterable[Tensor] | None) -> Weights:
    """The parameters that the ascent moves, by name."""
    trainable: Weights = {name: w for name, w in model.named_parameters() if w.requires_grad}
    if kind == "sam":
        chosen = trainable
    else:
        if params is None:
            with last_linear(model, "give params, e.g. model.fc.parameters()") as seen, torch.no_grad():
                called(model, next(in_chunks(model, split, torch.arange(1))).x)
            if "layer" not in seen:
                raise EvenlyError(
                    f"{type(model).__name__} does not run its linear layers in a forward pass; "
                    "give params, e.g. model.fc.parameters()"
                )
            params = seen["layer"].parameters()
        wanted = {id(w) for w in params}
        chosen = {name: w for name, w in trainable.items() if id(w) in wanted}
        if len(chosen) < len(wanted):
            raise EvenlyError(
                f"{len(wanted) - len(chosen)} of {len(wanted)} params are not trainable parameters of "
                f"{type(model).__name__}; give e.g. model.fc.parameters(), with requires_grad"
            )
    if not chosen:
        raise EvenlyError(
            f"{type(model).__name__} has no trainable parameter to perturb; set requires_grad, or leave rho at 0"
        )
    check_real(model, chosen)
    return chosen


def _phantom(model: nn.Module, split: Split, part: Tensor, ascended: Weights, rho: float) -> Weights:
    """w + rho g / ||g|| under the parameters' names, g the gradient of the mean loss of the examples `part`."""
    weights = list(ascended.values())
    total = [torch.zeros_like(w) for w in weights]
    with torch.enable_grad():
        for batch in in_chunks(model, split, part):
            loss = losses(logits_of(model, batch.x, batch.y), batch.y).sum() / len(part)
            if not loss.requires_grad:
                raise EvenlyError(
                    f"the outputs of {type(model).__name__} have no gradient in its parameters; take detach() and "
                    "no_grad() out of its forward pass, or leave rho at 0"
                )
            torch._foreach_add_(total, torch.autograd.grad(loss, weights, materialize_grads=True))
    length = float(norm(group_tensors(total)))
    if not math.isfinite(length):
        raise EvenlyError(f"the gradient of {type(model).__name__} is not finite; use a checkpoint before it diverged")
    step = rho / length if length else 0.0  # SAM, too, stays where there is no way up
    return {name: w.detach() + step * g for (name, w), g in zip(ascended.items(), total, strict=True)}


class Lorenz(NamedTuple):
    """A Lorenz curve: the `weight` share that the lightest `examples` share of examples has, (N + 1,) each, 0 to 1."""

    examples: Tensor
    weight: Tensor


def lorenz(weights: Any) -> Lorenz:
    """The Lorenz curve of weights (N,), not negative: the diagonal where all are alike, below it elsewhere.

    From the lightest example up, as the curve is usually drawn. Springer et al. speak of "the top k points", which is
    the same curve turned about the middle: ``1 - weight.flip(0)``.
    """
    ordered = _shares(weights)
    zero = ordered.new_zeros(1)
    weight = torch.cat([zero, ordered.cumsum(0)])
    return Lorenz(torch.linspace(0, 1, len(weight), dtype=torch.float64), weight / weight[-1])


def gini(weights: Any) -> float:
    """The Gini coefficient of weights (N,), not negative: mean |w_i - w_j| over twice the mean.

    Twice the area between the Lorenz curve and the diagonal: 0 where all are alike, (N - 1)/N where one has all.
    """
    return float(over_last(_shares(weights)))


def gini_if_any(weights: Tensor) -> float:
    """The same; NaN where no example has any weight, which a model that is sure of all of them comes to."""
    return gini(weights) if bool(weights.any()) else math.nan


def _shares(weights: Any) -> Tensor:
    """The weights in ascending order, the largest 1."""
    ordered = tensor_of(weights, "weights", "one for each example, (N,)").cpu().double()
    if ordered.ndim != 1 or not len(ordered):
        raise EvenlyError(f"weights have shape {tuple(ordered.shape)}; give one number for each example, (N,)")
    if not bool(ordered.isfinite().all()) or float(ordered.min()) < 0:
        raise EvenlyError(f"weights run from {float(ordered.min())} to {float(ordered.max())}; give finite ones from 0")
    ordered = ordered.sort().values
    if not float(ordered[-1]):
        raise EvenlyError(f"all {len(ordered)} weights are 0, and nothing has a share of 0; use an earlier checkpoint")
    return ordered / ordered[-1]


@dataclass(frozen=True)
class ImportanceMap(Result):
    """Median weights over bins of two features' contributions (Springer et al. 2024, Figs 6 and 9).

    `median` (A, B), NaN where a bin is empty, and `counts` (A, B): rows are bins of the easy feature's contribution
    between `easy_edges` (A + 1,), columns those of the hard feature's between `hard_edges` (B + 1,).
    """

    median: Tensor
    counts: Tensor
    easy_edges: Tensor
    hard_edges: Tensor


@checks_options
def importance_map(
    weights: Any, easy: Any, hard: Any, bins: Annotated[int, at_least(1)] = 10, edges: tuple[Any, Any] | None = None
) -> ImportanceMap:
    """The median weight of the examples in each bin of (easy, hard) contributions.

    Args:
        weights: (N,), e.g. of :func:`importance_weights`.
        easy, hard: (N,) contributions y Phi(x), positive where the feature predicts the label right: a probe's
            :meth:`~evenly.diagnose.probing.Probe.contribution`.
        bins: how many of equal width between the least and the largest contribution of each feature.
        edges: the bins' edges (A + 1,) and (B + 1,) instead, to lay several maps over each other. Examples outside of
            them are left out.
    """
    from scipy.stats import binned_statistic_2d

    w, e, h = (_column(values, name) for values, name in ((weights, "weights"), (easy, "easy"), (hard, "hard")))
    if not len(w) == len(e) == len(h):
        raise EvenlyError(f"{len(w)} weights for {len(e)} easy and {len(h)} hard contributions; give as many of each")
    if edges is None:
        bounds = [np.histogram_bin_edges(values, bins) for values in (e, h)]
    else:
        bounds = [_column(values, "edges") for values in edges]
        if any(len(each) < 2 or (np.diff(each) <= 0).any() for each in bounds):
            raise EvenlyError("the edges of bins do not rise; give at least two numbers in ascending order")
    median = binned_statistic_2d(e, h, w, "median", bounds).statistic
    counts = np.histogram2d(e, h, bounds)[0].astype(np.int64)
    return ImportanceMap(*(torch.from_numpy(each) for each in (median, counts, *bounds)))


def _column(values: Any, name: str) -> np.ndarray:
    column = tensor_of(values, name, "finite ones (N,)").cpu().double()
    if column.ndim != 1 or not len(column) or not bool(column.isfinite().all()):
        raise EvenlyError(f"{name} of shape {tuple(column.shape)} cannot be used; give finite numbers (N,)")
    array: np.ndarray = column.numpy()
    return array
