"""Minima at which SGD, random perturbation or SAM can stay: the theorems, with the margin by which they decide.

Linear dynamics at a minimum, with c = rho/alpha from SAM's ascent, alpha the frozen gradient norm, and c = 0 for SGD:

    w <- (I - eta H_t (I + c H)) w,    H_t = (1/B) sum_i x_i H_i,    x_i ~ Bernoulli(B/n)

`diverges` decides when E||w||^2 grows without bound, `converges` when it does not, from a few numbers of the minimum:

    diverges, every set    lambda_max(H) >= (sigma/eta) (n/B - 1)^{-1/2} / (1 + c lambda_min(H))     Theorems C.7, C.8
                           lambda_max(H) >= 2/eta                                       Dexter et al. 2024, Theorem 1
    converges, some set    lambda_max(H) (1 + c lambda_max(H)) < (2 sigma/eta) (n/B - 1 + sigma)^{-1}   Theorem 3.3

and, ours, proved below:

    diverges, every set    lambda_max(H) (1 + c lambda_max(H)) >= 2/eta: the condition 2/eta for SAM, as E w follows
                           I - eta H (I + c H); the paper has no such condition for SAM, and 2/eta alone is weaker
    diverges, every set    m (1 + c max(m/n, lambda_min(H))) >= (n/eta) (n/B - 1)^{-1/2},   m = max_i lambda_max(H_i)
    converges, every set   (1 + c lambda_max(H)) (lambda_max(H) + (n/B - 1) m/n) < 2/eta

The last two need m. Since n lambda_max(H) <= lambda_max(S) = sigma m, the first of them decides wherever C.8 does, and
more often. The other requires more than Theorem 3.3, and holds for every set with these numbers.

Why they hold. In the coordinates (I + cH)^{1/2} w the dynamics are SGD's with K_i = A^{1/2} H_i A^{1/2}, A = I + c H.
E[w w^T] then follows a sum of positive maps, one of them eta^2 (n/B - 1)/n^2 sum_i K_i . K_i, so it grows at least as
fast as any K_i . K_i; and lambda_max(K_i) >= m v^T A v >= m (1 + c m/n) for the top eigenvector v of H_i, because
H >= H_i/n (and v is in the range of H). From C.8's condition the same follows with sum_i (A (x) A)(H_i (x) H_i) >=
(1 + c lambda_min(H))^2 sum_i H_i (x) H_i in spectral radius: the printed proof drops the factors A one by one inside
a trace, which single terms do not allow, but the theorem is right. Convergence: E[J_t^T J_t] <= I - eta K (2 - eta
lambda_max(K) - eta (n/B - 1) max_i lambda_max(K_i)/n), as K_i^2 <= lambda_max(K_i) K_i. Theorem 3.3's set is H_i =
(n lambda_max(H)/sigma) e_1 e_1^T for i <= sigma, 0 otherwise; with one more, scaled by the fraction, it covers a sigma
that is not whole.

The divergence theorems are printed with >=. At equality they can fail (C.3's set with n = 100, B = 50, sigma = 1, eta =
1/2 keeps its norm for ever, and so does 1 - eta lambda = -1), so a verdict requires more than equality.
All of this is about the mean square. "converges" means that E||w||^2 stays bounded; under random perturbation w
settles at a radius and does not reach the minimum.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from evenly.analyses import MODERATE
from evenly.errors import EvenlyError
from evenly.settings import Constraint
from evenly.theory.arguments import ascent_of, batch_size_of, checked, not_negative, positive, whole
from evenly.theory.coherence import Coherence
from evenly.theory.stability.hessians import Hessians
from evenly.theory.stability.mean_square import mean_square_ascent, mean_square_batch_size, mean_square_lr

Answer = Literal["diverges", "converges", "undecided"]
About = Literal["every set", "some set", "this set"]
_ROUNDING = 1e-6
_SETTLED = 1e-9
"""The relative precision of an exact threshold; closer to it than this, nothing is decided."""
_EXACT = "mean square, exact"
_MEASURE = Constraint("at least 1, as lambda_max(S) / max_i lambda_max(H_i) is", lambda value: value >= 1 - _ROUNDING)


@dataclass(frozen=True)
class Minimum:
    """The numbers of a minimum that the theorems need.

    Args:
        n: samples.
        sigma: the coherence measure lambda_max(S) / max_i lambda_max(H_i), in [1, n] for Hessians of rank one, and
            up to sqrt(k) n for rank k.
        largest: lambda_max(H).
        smallest: lambda_min(H), over the range of H if known (nothing moves outside it); 0 is always safe.
        largest_sample: m = max_i lambda_max(H_i). With it, verdicts are about every set with these numbers.
    """

    n: int
    sigma: float
    largest: float
    smallest: float = 0.0
    largest_sample: float | None = None

    def __post_init__(self) -> None:
        whole("n", self.n, 1)
        checked("sigma", self.sigma, Annotated[float, _MEASURE, MODERATE])
        not_negative("largest", self.largest)
        not_negative("smallest", self.smallest)
        if self.smallest > self.largest * (1 + _ROUNDING):
            raise EvenlyError(f"smallest must be at most largest, {self.largest:g}, got {self.smallest:g}")
        if self.largest_sample is not None:
            not_negative("largest_sample", self.largest_sample)

    @classmethod
    def of(cls, source: Coherence | Hessians) -> Minimum:
        """From a coherence, or from the Hessians themselves."""
        if isinstance(source, Hessians):
            m = float(source.sample_eigenvalues().max())
            if m == 0:
                return cls(source.n, 1.0, 0.0, 0.0, 0.0)
            h, _ = source.on_range()
            sigma = float(np.linalg.eigvalsh(source.coherence())[-1]) / m
            return cls(source.n, sigma, float(h.max()), float(h.min()), m)
        if source.ascent:
            raise EvenlyError(
                f"the coherence was computed with ascent {source.ascent:g}, which the criteria would count again; "
                "compute it with ascent 0"
            )
        smallest = max(source.smallest_hessian_eigenvalue, 0.0)
        return cls(
            source.n, source.measure, source.largest_hessian_eigenvalue, smallest, source.largest_sample_eigenvalue
        )


@dataclass(frozen=True)
class Verdict:
    """The answer of the theorems, and the margin by which they decide.

    Args:
        answer: "diverges", "converges", or "undecided" if no theorem applies.
        margin: the factor in the learning rate by which the theorem decides: lr over the lr from which minima
            diverge, or the lr up to which they converge over lr. Above 1 it decides.
        theorem: the one that decides, or that comes closest.
        about: "every set" of Hessians with these numbers, "some set" with them (Theorem 3.3 only states that one
            exists), or "this set" of Hessians, decided exactly.
    """

    answer: Answer
    margin: float
    theorem: str
    about: About


@dataclass(frozen=True)
class Threshold:
    """The limit of stability along one setting.

    Args:
        stable: stable up to this (a learning rate or rho below it, a batch size from it on); None if nowhere known.
        unstable: unstable beyond this (a learning rate or rho above it, a batch size up to it).
        about: the sets that `stable` is about, as in :class:`Verdict`; `unstable` is about every set.
        exact: whether both are the same, computed from the Hessians; otherwise nothing is known in between.
    """

    stable: float | None
    unstable: float
    about: About
    exact: bool


@dataclass(frozen=True)
class _Condition:
    """A theorem as the learning rate from which (or, for convergence, up to which) it holds."""

    lr: float
    theorem: str
    about: About = "every set"
    per_ascent: float = 0.0
    """The eigenvalue by which an ascent c lowers that learning rate: lr is proportional to 1/(1 + c per_ascent)."""


def diverges(
    minimum: Minimum | Hessians, lr: float, batch_size: int, *, ascent: float = 0.0, optimizer: str | None = None
) -> Verdict:
    """Whether E||w||^2 grows without bound: "diverges" or "undecided" (exactly, from Hessians, "converges").

    Args:
        minimum: its numbers, or its Hessians for the exact answer.
        lr: eta.
        batch_size: B, each sample is in the batch with probability B/n.
        ascent: c = rho/alpha of SAM.
        optimizer: "sgd", "random_perturbation" or "sam"; by default an ascent means SAM.
    """
    eta, B, c = _step(minimum, lr, batch_size, ascent, optimizer)
    if isinstance(minimum, Hessians):
        return _exact(minimum, eta, B, c)
    nearest = min(_divergence(minimum, B, c, optimizer), key=lambda condition: condition.lr)
    margin = eta / nearest.lr
    return Verdict("diverges" if _decides(margin) else "undecided", margin, nearest.theorem, nearest.about)


def converges(
    minimum: Minimum | Hessians, lr: float, batch_size: int, *, ascent: float = 0.0, optimizer: str | None = None
) -> Verdict:
    """Whether E||w||^2 stays bounded: "converges" or "undecided" (from Hessians "diverges"). See `about`.

    Arguments as in :func:`diverges`.
    """
    eta, B, c = _step(minimum, lr, batch_size, ascent, optimizer)
    if isinstance(minimum, Hessians):
        return _exact(minimum, eta, B, c)
    condition = _convergence(minimum, B, c)
    margin = condition.lr / eta
    return Verdict("converges" if _decides(margin) else "undecided", margin, condition.theorem, condition.about)


def verdict(
    minimum: Minimum | Hessians, lr: float, batch_size: int, *, ascent: float = 0.0, optimizer: str | None = None
) -> Verdict:
    """Both questions at once; if no theorem decides, "undecided" with the theorem that comes closest.

    Arguments as in :func:`diverges`.
    """
    divergence = diverges(minimum, lr, batch_size, ascent=ascent, optimizer=optimizer)
    if divergence.answer != "undecided":
        return divergence
    convergence = converges(minimum, lr, batch_size, ascent=ascent, optimizer=optimizer)
    decided = convergence.answer != "undecided" or convergence.margin >= divergence.margin
    return convergence if decided else divergence


def largest_stable_lr(minimum: Minimum | Hessians, batch_size: int, *, ascent: float = 0.0) -> Threshold:
    """The learning rate up to which the minimum is stable, and from which it is not; inf if H = 0."""
    if isinstance(minimum, Hessians):
        exact = mean_square_lr(minimum, batch_size, ascent=ascent)
        return Threshold(exact, exact, "this set", True)
    B, c = batch_size_of(batch_size, minimum.n), ascent_of(None, ascent)
    convergence = _convergence(minimum, B, c)
    unstable = min(condition.lr for condition in _divergence(minimum, B, c, None))
    return Threshold(convergence.lr, unstable, convergence.about, False)


def smallest_stable_batch_size(minimum: Minimum | Hessians, lr: float, *, ascent: float = 0.0) -> Threshold:
    """The batch size from which the minimum is stable (None: not even the full batch), and up to which it is not.

    Whole numbers; `unstable` is 0 if no batch size is known to be.
    """
    eta, c, n = positive("lr", lr), ascent_of(None, ascent), minimum.n
    if isinstance(minimum, Hessians):
        smallest = mean_square_batch_size(minimum, eta, ascent=c)
        return Threshold(smallest, n if smallest is None else smallest - 1, "this set", True)
    sizes = range(1, n + 1)  # both conditions are monotone in B
    unstable = bisect_left(sizes, True, key=lambda B: diverges(minimum, eta, B, ascent=c).answer != "diverges")
    below = bisect_left(sizes, True, key=lambda B: converges(minimum, eta, B, ascent=c).answer == "converges")
    return Threshold(sizes[below] if below < n else None, unstable, _convergence(minimum, n, c).about, False)


def largest_stable_rho(
    minimum: Minimum | Hessians, lr: float, batch_size: int, *, gradient_norm: float = 1.0
) -> Threshold:
    """The rho of SAM up to which the minimum is stable (None: not even without ascent), and from which it is not.

    Args:
        gradient_norm: alpha, so that rho = alpha c. With 1 the answer is the ascent c itself, which is the rho of
            SAM without normalisation.
    """
    eta, B = positive("lr", lr), batch_size_of(batch_size, minimum.n)
    alpha = positive("gradient_norm", gradient_norm)
    if isinstance(minimum, Hessians):
        exact = mean_square_ascent(minimum, eta, B)
        return Threshold(None if exact is None else alpha * exact, alpha * (exact or 0.0), "this set", True)
    convergence = _convergence(minimum, B, 0.0)
    stable = alpha * _ascent(convergence.lr / eta, minimum.largest) if convergence.lr > eta else None
    unstable = min(
        _ascent(condition.lr / eta, condition.per_ascent) for condition in _divergence(minimum, B, 0.0, None)
    )
    return Threshold(stable, alpha * max(unstable, 0.0), convergence.about, False)


def _step(
    minimum: Minimum | Hessians, lr: float, batch_size: int, ascent: float, optimizer: str | None
) -> tuple[float, int, float]:
    c = ascent_of(optimizer, ascent)
    return positive("lr", lr), batch_size_of(batch_size, minimum.n), c


def _exact(hessians: Hessians, eta: float, B: int, c: float) -> Verdict:
    critical = mean_square_lr(hessians, B, ascent=c)
    if abs(eta / critical - 1) < _SETTLED:
        return Verdict("undecided", eta / critical, _EXACT, "this set")
    if eta > critical:
        return Verdict("diverges", eta / critical, _EXACT, "this set")
    return Verdict("converges", critical / eta, _EXACT, "this set")


def _divergence(minimum: Minimum, B: int, c: float, optimizer: str | None) -> list[_Condition]:
    """The conditions for divergence, the paper's first."""
    n, top, low = minimum.n, minimum.largest, minimum.smallest
    root = math.sqrt(n / B - 1)
    sgd = "Theorem C.7" if optimizer == "random_perturbation" else "Dexter et al. 2024, Theorem 1"
    conditions = [
        _Condition(_over(minimum.sigma, top * root * (1 + c * low)), "Theorem C.8" if c else sgd, per_ascent=low),
        _Condition(_over(2, top * (1 + c * top)), "evenly: 2/eta for SAM" if c else sgd, per_ascent=top),
    ]
    if minimum.largest_sample is not None:
        m = minimum.largest_sample
        least = max(m / n, low)
        conditions.append(
            _Condition(_over(n, m * root * (1 + c * least)), "evenly: largest sample eigenvalue", per_ascent=least)
        )
    return conditions


def _convergence(minimum: Minimum, B: int, c: float) -> _Condition:
    """The condition for convergence: about every set if m is known, else Theorem 3.3's about some set."""
    n, top, sigma = minimum.n, minimum.largest, minimum.sigma
    if minimum.largest_sample is not None:
        noise = (n / B - 1) * minimum.largest_sample / n
        return _Condition(_over(2, (1 + c * top) * (top + noise)), "evenly: largest sample eigenvalue", per_ascent=top)
    lr = _over(2 * sigma, top * (1 + c * top) * (n / B - 1 + sigma))
    return _Condition(lr, "Theorem 3.3", "some set", per_ascent=top)


def _decides(margin: float) -> bool:
    return margin > 1 + 1e-12  # equality up to rounding decides nothing


def _over(a: float, b: float) -> float:
    """a/b, and infinite if b is 0."""
    return a / b if b > 0 else math.inf


def _ascent(margin: float, per_ascent: float) -> float:
    """The c at which 1 + c per_ascent = margin; infinite if no c reaches it, negative if margin is below 1."""
    return _over(margin - 1, per_ascent) if margin >= 1 else -1.0
