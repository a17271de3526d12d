"""The stability card: could SGD, or SAM, stay at this minimum?

>>> card = stability_card(model, "cross-entropy", data, lr=0.1, batch_size=128, rho=0.05)
>>> print(card)
>>> judge(Hessians.rank_one(gradients), lr=0.1, batch_size=8).sgd.answer

The samples' Gauss-Newton matrices stand for their Hessians. `evenly.theory.stability` judges the linear dynamics around
the weights: exactly, in the mean square, where the samples are few, and otherwise by the theorems, which leave a range
undecided. The verdict is about plain SGD near a minimum: without momentum, and with gradients near 0 for every sample.
The card shows the loss and the gradient's norm, which tell how far the weights are from that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from attrs import frozen
from torch import Tensor, nn

from evenly.analyses import MODERATE
from evenly.diagnose.gauss_newton import GaussNewton
from evenly.diagnose.losses import Loss, curvature_of, gradient_norm, mean_loss
from evenly.diagnose.model_coherence import coherence, exact_hessians
from evenly.diagnose.results import Result, plain
from evenly.diagnose.samples import samples_of
from evenly.engine.evaluation import in_eval_mode
from evenly.errors import EvenlyError
from evenly.settings import at_least, checks_options
from evenly.theory.arguments import NotNegative, Positive, batch_size_of
from evenly.theory.factors import MEMORY
from evenly.theory.stability import (
    Hessians,
    Minimum,
    Threshold,
    Verdict,
    largest_stable_lr,
    largest_stable_rho,
    mean_square_lr,
    smallest_stable_batch_size,
    verdict,
)
from evenly.values import Value

FITTED = 0.1
"""Mean loss above which the card says that the weights do not fit every sample."""
EXACT = 400
"""Dimensions of the samples' span up to which a network is judged exactly; the time grows with their cube."""


@frozen
class Border(Value):
    """Where stability ends in the learning rate, over batch sizes: `side` is "exact", "stable" or "unstable"."""

    optimizer: str
    side: str
    points: tuple[tuple[float, float], ...]


@frozen
class CardPage(Value):
    """What the page of a card shows, as `stability.json` has it.

    Args:
        name: of what was judged.
        borders: for SGD and, where there is a rho, for SAM.
    """

    name: str
    sentences: tuple[str, ...]
    limits: tuple[tuple[str, str], ...]
    numbers: tuple[tuple[str, str], ...]
    lr: float
    batch_size: int
    borders: tuple[Border, ...]


@dataclass(frozen=True)
class StabilityCard(Result):
    """Whether a minimum is stable at one learning rate and batch size.

    Attributes:
        judged: the Hessians where the answers are exact, otherwise the numbers that the theorems use.
        minimum: those numbers in either case; of the whole training set, estimated where only a part was used.
        sgd, sam: the verdicts; `sam` at `rho`, None without one.
        lrs, batch_sizes, rhos: where stability ends as one setting moves and the others stay; the first two for SGD.
        lr_of_loaders: the same for the learning rate in batches of exactly B, where the Hessians are known. All else is
            about the batches of the theorems, which each sample joins independently with probability B/n.
        gradient_norm: SAM's alpha, so that c = rho/alpha. For bare Hessians it is 1, and rho means c; so too where the
            norm is 0 and normalization has no meaning.
        loss: the mean loss at the weights; None for bare Hessians.
        examples: how many the card was computed over.
    """

    judged: Minimum | Hessians
    minimum: Minimum
    lr: float
    batch_size: int
    rho: float | None
    sgd: Verdict
    sam: Verdict | None
    lrs: Threshold
    batch_sizes: Threshold
    rhos: Threshold
    lr_of_loaders: float | None
    gradient_norm: float
    loss: float | None
    examples: int

    @property
    def alpha(self) -> float:
        """The gradient norm by which SAM divides; 1, as without normalization, where the gradient is 0."""
        return self.gradient_norm or 1.0

    @property
    def ascent(self) -> float:
        """c = rho/alpha; 0 without SAM."""
        return 0.0 if self.rho is None else self.rho / self.alpha

    @property
    def stable(self) -> bool | None:
        """Whether SGD stays, in batches of exactly B where that is known; None where it is undecided.

        It is not claimed of SAM, whose gradient norm is frozen here.
        """
        if self.lr_of_loaders is not None:
            return self.lr < self.lr_of_loaders
        return {"converges": True, "diverges": False, "undecided": None}[self.sgd.answer]

    @property
    def estimated(self) -> bool:
        """Whether a part of the training set stands for all: a single sharper sample would change the verdict."""
        return self.examples < self.minimum.n

    def sentences(self) -> list[str]:
        """The verdicts in words."""
        is_frozen = self.loss is not None and self.gradient_norm
        frozen = f", with its gradient norm frozen at {self.alpha:.3g}" if is_frozen else ""
        sentences = [
            f"At learning rate {self.lr:g} and batch size {self.batch_size}, {_stability('SGD', self.sgd)}.",
            f"{_stability_under_sam(self.rhos)}{frozen}.",
        ]
        if self.stable and self.sgd.answer == "diverges":
            sentences.append(
                "In batches of exactly that size, as loaders make them, SGD stays. They have less noise than the "
                "batches of the theorems, which each sample joins independently."
            )
        if self.stable is False and self.lrs.stable:
            sentences.append(f"To stay, give a learning rate below {self.lrs.stable:.4g}.")
        if self.sam is not None:
            sentences.append(f"With rho {self.rho:g}, {_stability('SAM', self.sam)}.")
        if self.sam is not None and self.sam.answer == "diverges" and self.sgd.answer == "converges":
            sentences.append(
                "SAM moves uphill by rho however small the gradient is. Near a minimum it therefore circles at a "
                "distance of the order of rho instead of arriving; that need not lead away."
            )
        if self.estimated:
            sentences.append(
                f"This is estimated from {self.examples:,} of {self.minimum.n:,} examples. The sharpest one may not be "
                f"among them. To be sure, use all: --samples {self.minimum.n}"
            )
        if self.loss is not None and self.loss > FITTED:
            sentences.append(
                f"The mean loss is {self.loss:.2g}: these weights do not fit every sample. The verdict is about the "
                "quadratic around them."
            )
        return sentences

    def limits(self) -> list[tuple[str, str]]:
        """Where stability ends, as the learning rate, the batch size and rho move, in words."""
        limit = self.lr_of_loaders
        return [
            ("learning rate", _range(self.lrs, "stable below", "unstable from")),
            *([("in batches of one size", f"stable below {limit:.4g}, exactly")] if limit else []),
            ("batch size", _range(self.batch_sizes, "stable from", "unstable up to", downwards=True)),
            ("rho of SAM", _range(self.rhos, "stable below", "unstable from")),
        ]

    def numbers(self) -> list[tuple[str, str]]:
        """What the verdicts are computed from, in words."""
        minimum = self.minimum
        total = "" if self.examples == minimum.n else f" of {minimum.n:,}"
        measured = [("examples", f"{self.examples:,}{total}")]
        if self.loss is not None:
            measured += [("mean loss", f"{self.loss:.3g}"), ("gradient norm", f"{self.gradient_norm:.3g}")]
        top = minimum.largest_sample
        return [
            *measured,
            ("lambda_max(H)", f"{minimum.largest:.4g}"),
            *([] if top is None else [("largest lambda_max(H_i)", f"{top:.4g}")]),
            ("coherence sigma", f"{minimum.sigma:.4g}"),
            *([("SAM", "without normalization, as the gradient is 0")] if self.gradient_norm == 0 else []),
            ("decided by", self._decided()),
        ]

    def _decided(self) -> str:
        if self.sgd.about == "this set":
            return self.sgd.theorem
        return f"{self.sgd.theorem}, for {'an estimate' if self.estimated else self.sgd.about}"

    def page(self, name: str, notes: Sequence[str] = ()) -> CardPage:
        """What the page of the card shows, under a name; notes are sentences to add."""
        sentences = (*self.sentences(), *notes)
        limits, numbers = tuple(self.limits()), tuple(self.numbers())
        return CardPage(name, sentences, limits, numbers, self.lr, self.batch_size, tuple(self._borders()))

    def _borders(self) -> Iterator[Border]:
        n = self.minimum.n
        sizes = sorted({round(n ** (k / 11)) for k in range(12)} | {self.batch_size})
        optimizers = {"SGD": 0.0} | ({} if self.rho is None else {f"SAM, rho {self.rho:g}": self.ascent})
        for optimizer, ascent in optimizers.items():
            ends = {size: largest_stable_lr(self.judged, size, ascent=ascent) for size in sizes}
            for side in ("exact",) if ends[sizes[0]].exact else ("stable", "unstable"):
                lrs = {size: each.unstable if side == "unstable" else each.stable for size, each in ends.items()}
                points = tuple((float(size), lr) for size, lr in lrs.items() if lr and math.isfinite(lr))
                if points:
                    yield Border(optimizer, side, points)

    def __str__(self) -> str:
        lines = [*self.sentences(), ""]
        lines += [f"{name:<24}{value}" for name, value in (*self.limits(), *self.numbers())]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and words, for JSON; what is infinite is None."""
        content = {name: value for name, value in vars(self).items() if name != "judged"}
        content |= {"ascent": self.ascent, "stable": self.stable, "estimated": self.estimated}
        return {name: plain(value) for name, value in content.items()} | {"exact": isinstance(self.judged, Hessians)}


@checks_options
def judge(
    judged: Minimum | Hessians,
    *,
    lr: Positive,
    batch_size: Annotated[int, at_least(1)],
    rho: Annotated[float | None, at_least(0), MODERATE] = None,
    gradient_norm: NotNegative = 1.0,
    loss: float | None = None,
    examples: Annotated[int | None, at_least(1)] = None,
    minimum: Minimum | None = None,
) -> StabilityCard:
    """The card of given Hessians, exactly, or of the numbers of a minimum, by the theorems.

    Args:
        lr, batch_size: of training.
        rho: of SAM; without it the card still has the largest stable one.
        gradient_norm: SAM's alpha.
        loss, examples, minimum: for the card alone.
    """
    alpha = gradient_norm or 1.0
    return StabilityCard(
        judged=judged,
        minimum=minimum or (judged if isinstance(judged, Minimum) else Minimum.of(judged)),
        lr=lr, batch_size=batch_size, rho=rho,
        sgd=verdict(judged, lr, batch_size),
        sam=None if rho is None else verdict(judged, lr, batch_size, ascent=rho / alpha, optimizer="sam"),
        lrs=largest_stable_lr(judged, batch_size),
        batch_sizes=smallest_stable_batch_size(judged, lr),
        rhos=largest_stable_rho(judged, lr, batch_size, gradient_norm=alpha),
        lr_of_loaders=mean_square_lr(judged, batch_size, sampling="fixed") if isinstance(judged, Hessians) else None,
        gradient_norm=gradient_norm, loss=loss, examples=judged.n if examples is None else examples,
    )  # fmt: skip


@checks_options
def stability_card(
    model: nn.Module,
    loss: str | Loss,
    data: Any,
    *,
    lr: float,
    batch_size: int,
    rho: float | None = None,
    samples: Annotated[int, at_least(1)] = 2000,
    seed: int = 0,
    **options: Any,
) -> StabilityCard:
    """Judge a network's weights as a minimum of its training loss.

    Args:
        model, loss, data: as in `evenly.coherence`; the data is the training set.
        lr, batch_size, rho: as in :func:`judge`.
        samples: use so many examples at most, drawn with `seed`. The eigenvalues and the gradient are then those of the
            draw, and sigma is taken to grow with the number of examples: an estimate, and the card says so.
        options: ``hessian``, ``chunk`` and ``memory`` of `evenly.coherence`.
    """
    x, y = samples_of(data)
    total = len(x)
    if samples < total:
        chosen = torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:samples]
        x, y = x[chosen], y[chosen]
    batch_size = batch_size_of(batch_size, total)
    result = coherence(model, loss, (x, y), **options)
    if result.largest_sample_eigenvalue == 0:
        raise EvenlyError(
            "every sample's curvature is 0 at these weights, so that nothing moves; train the model first"
        )
    minimum = Minimum(
        total,
        result.measure * total / len(x),
        result.largest_hessian_eigenvalue,
        result.smallest_hessian_eigenvalue,
        result.largest_sample_eigenvalue,
    )
    return judge(
        (_hessians(model, loss, x, y, **options) if len(x) == total else None) or minimum,
        lr=lr,
        batch_size=batch_size,
        rho=rho,
        gradient_norm=gradient_norm(model, loss, x, y),
        loss=mean_loss(model, loss, x, y),
        examples=len(x),
        minimum=minimum,
    )


def _hessians(
    model: nn.Module,
    loss: str | Loss,
    x: Tensor,
    y: Tensor,
    hessian: str = "gauss-newton",
    chunk: int | None = None,
    memory: int = MEMORY,
) -> Hessians | None:
    """The samples' Hessians, in the span of their gradients, where that has at most `EXACT` dimensions."""
    with in_eval_mode(model), torch.no_grad():
        if hessian == "exact":
            p = sum(w.numel() for w in model.parameters() if w.requires_grad)
            return Hessians.dense(exact_hessians(model, loss, x, y, chunk, memory)) if p <= EXACT else None
        factors = GaussNewton(model, curvature_of(loss), x, y, chunk=chunk, memory=memory)
        rows = factors.n * factors.k
        if min(rows, factors.p) > EXACT:
            return None
        if factors.p <= rows:
            return Hessians.factors(factors.rows(0, factors.n))
        gram = torch.empty(rows, rows, dtype=torch.float64)
        for i, j, block in factors.products(memory):
            across, down = (slice(part.start * factors.k, part.stop * factors.k) for part in (i, j))
            gram[across, down], gram[down, across] = block.cpu(), block.T.cpu()
    squares, vectors = torch.linalg.eigh(gram)
    return Hessians.factors((vectors * squares.clamp(min=0).sqrt()).reshape(factors.n, factors.k, rows))


def _stability(optimizer: str, verdict: Verdict) -> str:
    """Whether an optimizer stays, and by what factor of the learning rate."""
    if verdict.answer == "undecided":
        nearest = f"the nearest comes to {verdict.margin:.2g} of what it needs"
        return f"no theorem decides whether {optimizer} stays at this minimum ({nearest})"
    if verdict.answer == "diverges":
        return f"{optimizer} leaves this minimum: the learning rate is {verdict.margin:.3g} times the limit"
    where = "some minima with these numbers" if verdict.about == "some set" else "this minimum"
    return f"{optimizer} stays at {where}: the learning rate could be {verdict.margin:.3g} times as large"


def _stability_under_sam(rhos: Threshold) -> str:
    """What SAM would change."""
    if rhos.stable is None and rhos.unstable == 0:
        return "SAM would leave it with any rho"
    if not math.isfinite(rhos.unstable):
        return "No theorem says that SAM would leave it"
    return f"SAM would leave it with rho above {rhos.unstable:.3g}"


def _range(threshold: Threshold, stable: str, unstable: str, downwards: bool = False) -> str:
    """Where stability ends, in words."""
    limit, parts = threshold.stable, []
    if threshold.exact:
        if limit is None:
            return "unstable at any value"
        is_always = limit == math.inf or (downwards and limit <= 1)
        return "stable at any value" if is_always else f"{stable} {limit:.4g}, exactly"
    if limit is not None:
        parts.append("stable at any value" if limit == math.inf else f"{stable} {limit:.4g}")
    if 0 < threshold.unstable < math.inf:
        parts.append(f"{unstable} {threshold.unstable:.4g}")
    elif threshold.unstable == 0 and not downwards:
        parts.append("unstable at any value")
    return ", ".join(parts) or "no theorem decides"
