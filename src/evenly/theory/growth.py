"""How fast a cubic network's filters align with a feature: the times, steps and inequalities of two analyses.

A filter's alignment z = <w_j, v> with a feature of strength beta follows, under full-batch gradient descent on the
logistic loss with noise orthogonal to the features,

    z <- z + 3 eta beta^3 pull z^2,      pull = (1/N) sum_i s_i l_i,      l_i = sigmoid(-y_i f(x_i))

with s_i = 1, 0, -1 if the feature agrees with the label, is absent, opposes it. This is a tensor power method
(`recursion`), which learns in about 1 / (rate z_0) steps. SAM grows by the square of the perturbed, smaller alignment.

(N) is Nguyen et al. 2024, "USEFUL", with easy and difficult features; (D) is Deng et al. 2023, "PDE", with spurious and
core ones. For constants hidden in their Theta and O, a function here either sets them to 1 and states it, or has
explicit ones of its own. If a statement does not hold as printed, `form` chooses between "printed" and "corrected".

>>> learning_time(lr=0.1, beta=1.0, sigma_0=0.014, alpha=0.9)                   # Theorem 3.2: its order
>>> learning_time_bounds(lr=0.1, beta=1.0, z0=0.03, alpha=0.9)                  # iterations to <w, v> = 1 / beta
>>> upsampling_factor(z_e, z_d, beta_e=1.0, beta_d=0.2, alpha=0.9, rho_t=rho / gradient_norm)         # Theorem 3.5
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from evenly.errors import EvenlyError
from evenly.settings import above, at_most, checks_options
from evenly.theory.arguments import Count, NotNegative, Positive, Share
from evenly.theory.recursion import (
    Bounds,
    Form,
    accumulated_rate_bounds,
    passage_time,
    passage_time_bounds,
    passage_time_limit,
    race_preconditions,
    slow_sequence_limit,
    tensor_power,
)

__all__ = [
    "Alignments",
    "Bounds",
    "Preconditions",
    "accumulated_rate_bounds",
    "feature_growth",
    "first_learned",
    "learning_time",
    "learning_time_bounds",
    "more_even",
    "one_filter_gradient_norm",
    "passage_time",
    "passage_time_bounds",
    "passage_time_limit",
    "perturbed_alignment",
    "precondition_probability",
    "preconditions",
    "race_preconditions",
    "slow_sequence_limit",
    "spurious_learning_time",
    "tensor_power",
    "two_features",
    "upsampling_factor",
]


# When a feature is learned: Theorems 3.2 and 3.3 (N), 2.2 (D)


@checks_options
def learning_time(
    lr: Positive, beta: Positive, sigma_0: float, alpha: Share = 1.0, rho: float = 0.0, form: Form = "corrected"
) -> float:
    """The order of T_0, the iterations until the easy feature is learned: Theorems 3.2 (rho = 0) and 3.3 (N).

        T_0 = sigma_0 / (eta alpha beta^3 (sigma_0 - rho)^2) + (sigma_0 / (sigma_0 - rho))^2 ceil(-log2(sigma_0 beta))

    with every Theta set to 1, as the paper does to compare them: eqs 28 and 54. "printed" is eqs 5 and 8 of the main
    text, which lack alpha. Preconditions: sigma_0 > rho >= 0, sigma_0 beta < 1; see :func:`preconditions`.
    For iterations rather than an order, see :func:`learning_time_bounds`.
    """
    if not 0 <= rho < sigma_0 or not sigma_0 * beta < 1:
        raise EvenlyError(f"sigma_0 {sigma_0:g}, rho {rho:g}, beta {beta:g} must satisfy 0 <= rho < sigma_0 < 1/beta")
    share = alpha if form == "corrected" else 1.0
    slower = (sigma_0 / (sigma_0 - rho)) ** 2
    return slower * (1 / (lr * share * beta**3 * sigma_0) + math.ceil(-math.log2(sigma_0 * beta)))


@checks_options
def spurious_learning_time(
    lr: Positive,
    beta: Positive,
    sigma_0: Positive,
    alpha: Annotated[float, above(0.5), at_most(1)],
    form: Literal["stated", "proved"] = "proved",
) -> float:
    """The order of T_0 until the spurious feature is learned: Theorem 2.2 (D), with every Theta set to 1.

    "stated": 1 / (eta beta_s^3 sigma_0). "proved": what Lemma G.2 gives for the rates of eq. 2.4, m = eta beta_s^3
    (2 alpha - 1) and M = eta beta_s^3 alpha,

        1 / (eta beta_s^3 (2 alpha - 1) sigma_0) + (alpha / (2 alpha - 1)) ceil(-log2(sigma_0 beta_s))

    The end of the paper's proof prints eta alpha^3 sigma_0 in the denominator of the first fraction.
    """
    if not sigma_0 * beta < 1:
        raise EvenlyError(f"sigma_0 must be below 1/beta, {1 / beta:g}, got {sigma_0:g}")
    if form == "stated":
        return 1 / (lr * beta**3 * sigma_0)
    excess = 2 * alpha - 1
    return 1 / (lr * beta**3 * excess * sigma_0) + alpha / excess * math.ceil(-math.log2(sigma_0 * beta))


@checks_options
def learning_time_bounds(
    lr: Positive,
    beta: Positive,
    z0: float,
    alpha: Share = 1.0,
    rho: float = 0.0,
    learned: float | None = None,
    derivative: tuple[float, float] = (0.5, 0.5),
) -> Bounds:
    """Iterations until a filter that starts at z_0 = <w, v> has <w, v> >= learned, by default 1/beta.

    T_0 with its constants: Theorems 3.2 and 3.3 (N) by :func:`passage_time_bounds` with the rates m, M = 3 eta alpha
    beta^3 l of Lemma A.3. For SAM rho is the radius: it bounds how much the ascent takes off an alignment (eq. 41).

    Args:
        z0: above rho; take max_j <w_j, v_e>, of the filter that is first.
        alpha: the share of examples with the feature; for (D) the range of pull is l_1 alpha - l_2 (1 - alpha),
            so give alpha = 1 and the range of that as `derivative`.
        derivative: the smallest and largest mean of l_i over those examples until then, within (0, 1). It is 1/2 at
            W = 0 and stays near it while sum_j beta^3 z_j^3 is small.
    """
    low, high = derivative
    if not 0 < low <= high <= 1:
        raise EvenlyError(f"derivative must be (smallest, largest) within (0, 1], got {derivative}")
    rate = 3 * lr * alpha * beta**3
    return passage_time_bounds(z0, 1 / beta if learned is None else learned, rate * low, rate * high, rho)


@checks_options
def first_learned(beta_s: Positive, beta_c: Positive, alpha: Share) -> Literal["spurious", "core", "undecided"]:
    """The feature that is learned first by Theorem 2.2 (D) (Section 3.1), if filters start alike.

    Spurious if its slowest growth exceeds the fastest of the core one, beta_c^3 < beta_s^3 (2 alpha - 1). Core in the
    reverse case, beta_c^3 alpha > beta_s^3 alpha, that is beta_c > beta_s. Between the two the theorem does not decide.
    """
    if beta_c**3 < beta_s**3 * (2 * alpha - 1):
        return "spurious"
    return "core" if beta_c > beta_s else "undecided"


# One step of a feature: eqs 6, 7, 9, 10, 40-43 (N), 2.4, 2.5 (D)


def perturbed_alignment(z: Tensor, beta: float, pull: float | Tensor, rho_t: float | Tensor) -> Tensor:
    """<w_{j,eps}, v> = z - 3 rho_t beta^3 pull z^2 of SAM's ascent: eqs 40 and 42 (N), for z = <w_j, v> of any shape.

    `rho_t` is rho^(t) = rho / ||grad L(W)||_F. For z >= rho it lies in [z - rho, z] (eqs 41 and 43).
    """
    return z - 3 * rho_t * beta**3 * pull * z**2


def feature_growth(
    z: Tensor,
    beta: float,
    pull: float | Tensor,
    lr: float,
    rho_t: float | Tensor = 0.0,
    pull_perturbed: float | Tensor | None = None,
) -> Tensor:
    """The growth of z = <w_j, v> in one step: 3 eta beta^3 pull z_eps^2, exact if the noise is orthogonal to v.

    Gradient descent with rho_t = 0 (eqs 6 and 7 (N), eqs 2.4 and 2.5 (D)), SAM otherwise (eqs 9 and 10 (N)). Eq. 7
    prints the difference with its sign reversed: the difficult feature grows too (eq. 26).

    Args:
        pull: (1/N) sum_i s_i l_i at W. At small weights, where l_i = 1/2: alpha/2 for the easy feature, 1/2 for the
            difficult and the core one, (2 alpha - 1)/2 for the spurious one, which is Lemma 3.1 (D) at alpha = 1/2.
        rho_t: rho / ||grad L(W)||_F.
        pull_perturbed: the same at the perturbed weights; by default as at W.
    """
    pull_perturbed = pull if pull_perturbed is None else pull_perturbed
    return 3 * lr * beta**3 * pull_perturbed * perturbed_alignment(z, beta, pull, rho_t) ** 2


class Alignments(NamedTuple):
    """Two features' alignments with J filters over time, each (T + 1, J)."""

    strong: Tensor
    weak: Tensor

    @property
    def largest(self) -> Tensor:
        """max_j, (T + 1, 2): G_e and G_d, or S_e and S_d, of (N)."""
        return torch.stack([self.strong.amax(1), self.weak.amax(1)], 1)


@checks_options
def two_features(
    z_strong: Tensor,
    z_weak: Tensor,
    *,
    beta_strong: Positive,
    beta_weak: Positive,
    alpha: Share,
    lr: Positive,
    steps: int,
    rho: NotNegative = 0.0,
    otherwise: Literal["absent", "opposite"] = "absent",
    early: bool = False,
) -> Alignments:
    """The noise-free dynamics of all J filters, of gradient descent or of SAM (rho > 0), in their 2 J alignments.

    Exact for data without noise. A share alpha of it has s = y: Definition 3.1 (N) for "absent" (s = 0 otherwise),
    Definition 2.1 (D) for "opposite" (s = -y). With ``early`` the derivatives l_i stay 1/2, as in the proofs.

    Args:
        z_strong, z_weak: (J,), <w_j, v> at the start for the easy or spurious and the difficult or core feature.
    """
    if z_strong.ndim != 1 or z_strong.shape != z_weak.shape:
        shapes = f"{tuple(z_strong.shape)} and {tuple(z_weak.shape)}"
        raise EvenlyError(f"z_strong and z_weak must both have shape (J,), got {shapes}")
    s = 0.0 if otherwise == "absent" else -1.0
    b_strong, b_weak = beta_strong**3, beta_weak**3

    def pulls(z: Tensor) -> Tensor:
        """(1/N) sum_i s_i l_i for (strong, weak), (2, 1)."""
        if early:
            return torch.tensor([[alpha + s * (1 - alpha)], [1.0]]).to(z) / 2
        a_strong, a_weak = b_strong * (z[0] ** 3).sum(), b_weak * (z[1] ** 3).sum()
        l_with, l_without = torch.sigmoid(-a_weak - a_strong), torch.sigmoid(-a_weak - s * a_strong)
        strong = alpha * l_with + s * (1 - alpha) * l_without
        return torch.stack([strong, alpha * l_with + (1 - alpha) * l_without])[:, None]

    def gradient(z: Tensor) -> Tensor:
        return -3 * cubes * pulls(z) * z**2

    z = torch.stack([z_strong, z_weak])
    cubes = torch.tensor([[b_strong], [b_weak]]).to(z)
    path = [z]
    for _ in range(steps):
        g = gradient(z)
        if rho and g.norm() > 0:
            g = gradient(z + rho * g / g.norm())
        z = z - lr * g
        path.append(z)
    strong, weak = torch.stack(path).unbind(1)
    return Alignments(strong, weak)


# SAM learns features more evenly: Theorem 3.4 (N)


def more_even(gd: Tensor, sam: Tensor) -> Tensor:
    """Eq. 11 (N), S_e - S_d < G_e - G_d, for alignments (..., 2) of easy and difficult feature under GD and SAM.

    Both from the same start, where the two sides are equal: Theorem 3.4 is about t >= 1.
    """
    if gd.shape != sam.shape or gd.shape[-1:] != (2,):
        raise EvenlyError(f"gd and sam must both have shape (..., 2), got {tuple(gd.shape)} and {tuple(sam.shape)}")
    return sam[..., 0] - sam[..., 1] < gd[..., 0] - gd[..., 1]


@dataclass(frozen=True)
class Preconditions:
    """The assumptions of Theorems 3.2-3.4 (N) about a start, and whether each holds.

    Attributes:
        stronger: alpha^(1/3) beta_e > beta_d.
        filters_ready: all <w_j, v_e> and <w_j, v_d> are at least rho > 0 (Assumption A.1, which prints v_e twice).
        easy_ahead: G_e - G_d >= rho (before Theorem A.16).
        ready: the number of alignments that are at least rho.
        total: the number of alignments, 2 J.
    """

    stronger: bool
    filters_ready: bool
    easy_ahead: bool
    ready: int
    total: int

    @property
    def hold(self) -> bool:
        """Whether the theorems apply to this start."""
        return self.stronger and self.filters_ready and self.easy_ahead


def preconditions(z_e: Tensor, z_d: Tensor, *, beta_e: float, beta_d: float, alpha: float, rho: float) -> Preconditions:
    """Whether the proofs of Theorems 3.2-3.4 (N) apply to filters with alignments z_e and z_d (J,) at the start.

    For a normal initialisation they practically never do: see :func:`precondition_probability`. If eq. 11 holds in an
    experiment nevertheless, that is an observation and not a consequence.
    """
    z = torch.cat([z_e.reshape(-1), z_d.reshape(-1)])
    ready = int((z >= rho).sum())
    return Preconditions(
        stronger=alpha ** (1 / 3) * beta_e > beta_d,
        filters_ready=rho > 0 and ready == z.numel(),
        easy_ahead=bool(z_e.max() - z_d.max() >= rho),
        ready=ready,
        total=z.numel(),
    )


@checks_options
def precondition_probability(neurons: Count, sigma_0: Positive, rho: NotNegative) -> float:
    """The probability that W^(0) ~ N(0, sigma_0^2) meets Assumption A.1 (N): P(N(0, 1) >= rho / sigma_0)^(2 J).

    Below 2^-(2 J) for every rho > 0, as v_e and v_d are orthogonal: 8e-25 at the papers' J = 40.
    """
    return (0.5 * math.erfc(rho / sigma_0 / math.sqrt(2))) ** (2 * neurons)


# Upsampling instead of SAM: Theorem 3.5 (N)


def one_filter_gradient_norm(
    z_e: float, z_d: float, *, beta_e: float, beta_d: float, alpha: float, derivative: float = 0.5
) -> float:
    """||grad L|| for one filter without noise, every l_i = derivative: 3 l |(alpha beta_e^3 z_e^2, beta_d^3 z_d^2)|.

    1/2 is the value of l at small weights and gives the real gradient's norm; 1 gives that of eq. 84 (N).
    """
    return 3 * derivative * math.hypot(alpha * beta_e**3 * z_e**2, beta_d**3 * z_d**2)


@checks_options
def upsampling_factor(
    z_e: float,
    z_d: float,
    *,
    beta_e: Positive,
    beta_d: Positive,
    alpha: Share,
    rho_t: NotNegative,
    form: Form = "corrected",
    derivative: Share = 0.5,
) -> float:
    """The k for which a GD step on D(beta_e, k beta_d, alpha) has the direction of SAM's on D(beta_e, beta_d, alpha).

    Theorem 3.5 (N), eq. 96, for one filter w with z_e = <w, v_e>, z_d = <w, v_d> and rho_t = rho / ||grad L(W)||_F:

        k^3 = ((1 - 3 rho_t l beta_d^3 z_d) / (1 - 3 rho_t l alpha beta_e^3 z_e))^2

    "corrected" has l = 1/2 (`derivative`), the mean of l_i in eqs 40 and 42, and recovers SAM's direction in the limit
    of small weights, even if the ascent changes an alignment's sign. "printed" has l = 1, as in eqs 84 and 88. It is
    exact only if rho_t comes from eq. 84's gradient (:func:`one_filter_gradient_norm` with derivative 1), where the
    factor cancels. With the real gradient's norm it overshoots so far that k = 1, no upsampling, is closer to SAM, and
    for 3 rho_t alpha beta_e^3 z_e > 1 the power 2/3 of eq. 96 has no real value.

    Every filter has its own k: with several filters, no single k recovers SAM's direction.
    """
    corrected = form == "corrected"
    reach = 3 * rho_t * (derivative if corrected else 1.0)
    difficult, easy = 1 - reach * beta_d**3 * z_d, 1 - reach * alpha * beta_e**3 * z_e
    if easy == 0:
        raise EvenlyError(f"rho_t {rho_t:g} cancels <w, v_e> = {z_e:g}, and no finite k does; give a smaller rho")
    ratio = difficult / easy
    if not corrected and ratio < 0:
        raise EvenlyError(f"rho_t {rho_t:g}: eq. 96 as printed has a root of {ratio:.3g}; use form='corrected'")
    return math.pow(abs(ratio), 2 / 3)
