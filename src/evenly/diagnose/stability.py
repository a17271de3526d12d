"""The stability card: could SGD, or SAM, stay at this minimum?

>>> card = stability_card(model, "cross-entropy", data, lr=0.1, batch_size=128, rho=0.05)
>>> print(card)
>>> judge(Hessians.rank_one(gradients), lr=0.1, batch_size=8).sgd.answer

The samples' Gauss-Newton matrices stand for their Hessians, and `evenly.theory.stability` judges the linear dynamics
around the weights: exactly, in the mean square, where the samples are few, and otherwise by the theorems, which leave a
range undecided. All of it is about plain SGD near a minimum: without momentum, and where the samples' own gradients
have gone. The card shows the loss and the gradient's norm, so that one can see how far from that the weights are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from evenly.diagnose.model_coherence import coherence, exact_hessians
from evenly.diagnose.gauss_newton import GaussNewton, curvature_of
from evenly.diagnose.losses import gradient_norm, mean_loss
from evenly.diagnose.samples import samples_of
from evenly.engine.evaluation import in_eval_mode
from evenly.errors import EvenlyError
from evenly.settings import checks_options
from evenly.theory.arguments import batch_size_of
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

SAMPLES = 2000
"""Examples that are looked at unless more are asked for."""
FITTED = 0.1
"""Mean loss above which weights are not called a minimum without a word."""
EXACT = 400
"""Dimensions of the samples' span up to which a network is judged exactly; the time grows with their cube."""


@dataclass(frozen=True)
class StabilityCard:
    """What can be said of a minimum at one learning rate and batch size.

    Attributes:
        judged: the Hessians where the answers are exact, otherwise the numbers that the theorems got.
        minimum: those numbers in either case; of the whole training set, estimated where a part was looked at.
        sgd, sam: the verdicts; `sam` at `rho`, None without one.
        lrs, batch_sizes, rhos: where stability ends as one setting moves and the others stay; the first two for SGD.
        lr_of_loaders: the same for the learning rate in batches of exactly B, where the Hessians are known. All else is
            about the batches of the theorems, which each sample joins by itself with probability B/n.
        gradient_norm: SAM's alpha, so that c = rho/alpha. For bare Hessians it is 1, and rho means c, as where the
            norm is 0 and normalization has no meaning.
        loss: the mean loss at the weights; None for bare Hessians.
        examples: how many were looked at.
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

        SAM's frozen gradient norm is no ground to say so of SAM.
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
        at = f"At lr {self.lr:g}, batch size {self.batch_size}: {_judged('SGD', self.sgd)}"
        frozen = (
            "" if self.loss is None or not self.gradient_norm else f", its gradient norm frozen at {self.alpha:.3g}"
        )
        found = [f"{at}; {_beyond(self.rhos)}{frozen}."]
        if self.stable and self.sgd.answer == "diverges":
            found.append(
                "In batches of exactly that size, as loaders make them, it is stable: there is less noise in them than "
                "in the batches of the theorems, which each sample joins by itself."
            )
        if self.sam is not None:
            found.append(f"With rho {self.rho:g}: {_judged('SAM', self.sam)}.")
        if self.sam is not None and self.sam.answer == "diverges" and self.sgd.answer == "converges":
            found.append(
                "SAM moves uphill by rho however small the gradient is, so that near a minimum it circles at a "
                "distance of the order of rho instead of arriving; that need not lead away."
            )
        if self.estimated:
            found.append(
                f"That is estimated from {self.examples:,} of {self.minimum.n:,} examples, of which the sharpest may "
                "be missing; look at all of them to be sure."
            )
        if self.loss is not None and self.loss > FITTED:
            found.append(
                f"The mean loss is {self.loss:.2g}: these weights do not fit every sample, and the verdict is about "
                "the quadratic around them."
            )
        return found

    def limits(self) -> list[tuple[str, str]]:
        """Where stability ends, as the learning rate, the batch size and rho move, in words."""
        return [
            ("learning rate", _range(self.lrs, "stable below", "unstable from")),
            *(
                [("in batches of one size", f"stable below {self.lr_of_loaders:.4g}, exactly")]
                if self.lr_of_loaders
                else []
            ),
            ("batch size", _range(self.batch_sizes, "stable from", "unstable up to", downwards=True)),
            ("rho of SAM", _range(self.rhos, "stable below", "unstable from")),
        ]

    def numbers(self) -> list[tuple[str, str]]:
        """What the verdicts rest on, in words."""
        minimum = self.minimum
        part = "" if self.examples == minimum.n else f" of {minimum.n:,}"
        seen = [("examples", f"{self.examples:,}{part}")]
        if self.loss is not None:
            seen += [("mean loss", f"{self.loss:.3g}"), ("gradient norm", f"{self.gradient_norm:.3g}")]
        top = minimum.largest_sample
        return [
            *seen,
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

    def stable_lrs(self, batch_sizes: Sequence[int], ascent: float = 0.0) -> list[Threshold]:
        """Where stability ends in the learning rate, for several batch sizes."""
        return [largest_stable_lr(self.judged, size, ascent=ascent) for size in batch_sizes]

    def __str__(self) -> str:
        lines = [*self.sentences(), ""]
        lines += [f"{name:<24}{value}" for name, value in (*self.limits(), *self.numbers())]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and words, for JSON; what is infinite is None."""
        content: dict[str, Any] = {
            "lr": self.lr, "batch_size": self.batch_size, "rho": self.rho, "ascent": self.ascent,
            "examples": self.examples, "loss": self.loss, "gradient_norm": self.gradient_norm,
            "stable": self.stable, "exact": isinstance(self.judged, Hessians), "estimated": self.estimated,
            "minimum": asdict(self.minimum), "sgd": asdict(self.sgd),
            "sam": None if self.sam is None else asdict(self.sam),
            "lr_of_loaders": self.lr_of_loaders, "lrs": asdict(self.lrs), "batch_sizes": asdict(self.batch_sizes),
            "rhos": asdict(self.rhos),
        }  # fmt: skip
        return {name: _plain(value) for name, value in content.items()}


@checks_options
def judge(
    judged: Minimum | Hessians,
    *,
    lr: float,
    batch_size: int,
    rho: float | None = None,
    gradient_norm: float = 1.0,
    loss: float | None = None,
    examples: int | None = None,
    minimum: Minimum | None = None,
) -> StabilityCard:
    """The card of given Hessians, exactly, or of the numbers of a minimum, by the theorems.

    Args:
        lr, batch_size: of the training that is asked about.
        rho: of SAM; without it the largest stable one is still told.
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
    loss: Any,
    data: Any,
    *,
    lr: float,
    batch_size: int,
    rho: float | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
    hessian: Literal["gauss-newton", "exact"] = "gauss-newton",
    chunk: int | None = None,
    memory: int = MEMORY,
) -> StabilityCard:
    """Judge a network's weights as a minimum of its training loss.

    Args:
        model, loss, data: as in `evenly.coherence`; the data is the training set.
        lr, batch_size, rho: as in :func:`judge`.
        samples: look at so many examples at most, drawn with `seed`. The eigenvalues and the gradient are then those of
            the draw, and sigma is taken to grow with the number of examples: an estimate, which says so.
        hessian, chunk, memory: as in `evenly.coherence`.
    """
    x, y = samples_of(data)
    total = len(x)
    if samples < 1:
        raise EvenlyError(f"samples {samples} leaves nothing to look at; give a number from 1")
    if samples < total:
        chosen = torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:samples]
        x, y = x[chosen], y[chosen]
    batch_size = batch_size_of(batch_size, total)
    found = coherence(model, loss, (x, y), hessian=hessian, chunk=chunk, memory=memory)
    if found.largest_sample_eigenvalue == 0:
        raise EvenlyError(
            "every sample's curvature is 0 at these weights, so that nothing moves; train the model first"
        )
    minimum = Minimum(
        total,
        found.measure * total / len(x),
        found.largest_hessian_eigenvalue,
        found.smallest_hessian_eigenvalue,
        found.largest_sample_eigenvalue,
    )
    return judge(
        (_hessians(model, loss, x, y, hessian, chunk, memory) if len(x) == total else None) or minimum,
        lr=lr,
        batch_size=batch_size,
        rho=rho,
        gradient_norm=gradient_norm(model, loss, x, y),
        loss=mean_loss(model, loss, x, y),
        examples=len(x),
        minimum=minimum,
    )


def _hessians(
    model: nn.Module, loss: Any, x: Tensor, y: Tensor, hessian: str, chunk: int | None, memory: int
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


def _judged(name: str, said: Verdict) -> str:
    if said.answer == "converges" and said.about == "some set":
        return f"some minima with these numbers are stable under {name}, margin {said.margin:.3g}"
    if said.answer == "undecided":
        return f"undecided under {name} (the nearest theorem came to {said.margin:.2g} of what it needs)"
    return f"{'stable' if said.answer == 'converges' else 'unstable'} under {name}, margin {said.margin:.3g}"


def _beyond(rhos: Threshold) -> str:
    """What SAM would add, as the end of a sentence."""
    if rhos.stable is None and rhos.unstable == 0:
        return "SAM would diverge with any rho"
    if not math.isfinite(rhos.unstable):
        return "no theorem says that SAM would diverge"
    return f"would diverge under SAM with rho above {rhos.unstable:.3g}"


def _range(found: Threshold, stable: str, unstable: str, downwards: bool = False) -> str:
    """Where stability ends, in words."""
    if found.exact:
        if found.stable is None:
            return "unstable at every one"
        if found.stable == math.inf or (downwards and found.stable <= 1):
            return "stable at every one"
        return f"{stable} {found.stable:.4g}, exactly"
    parts = []
    if found.stable is not None:
        parts.append("stable at every one" if found.stable == math.inf else f"{stable} {found.stable:.4g}")
    if 0 < found.unstable < math.inf:
        parts.append(f"{unstable} {found.unstable:.4g}")
    elif found.unstable == 0 and not downwards:
        parts.append("unstable at every one")
    return ", ".join(parts) or "no theorem decides"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
