"""How fast a cubic network's filters turn to a feature: the recursions, times and inequalities of the two analyses.

A filter's alignment z = <w_j, v> with a feature of strength beta follows, under full-batch gradient descent on the
logistic loss with noise orthogonal to the features,

    z <- z + 3 eta beta^3 pull z^2,      pull = (1/N) sum_i s_i l_i,      l_i = sigmoid(-y_i f(x_i))

with s_i = 1, 0, -1 where the feature agrees with the label, is absent, opposes it: a tensor power method, whose time to
learn is about 1 / (rate z_0). SAM grows by the square of the perturbed, smaller alignment instead.

(N) is Nguyen et al. 2024, "USEFUL", with easy and difficult features; (D) is Deng et al. 2023, "PDE", with spurious and
core ones. Where their Theta and O hide constants, a function here either sets them to 1 and says so, or has explicit
ones of its own. Where a statement does not hold as printed, `form` chooses between "printed" and "corrected".

>>> learning_time(lr=0.1, beta=1.0, sigma_0=0.014, alpha=0.9)                   # Theorem 3.2: its order
>>> learning_time_bounds(lr=0.1, beta=1.0, z0=0.03, alpha=0.9)                  # iterations to <w, v> = 1 / beta
>>> upsampling_factor(z_e, z_d, beta_e=1.0, beta_d=0.2, alpha=0.9, rho_t=rho / gradient_norm)         # Theorem 3.5
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from evenly.errors import EvenlyError

Form = Literal["printed", "corrected"]


class Bounds(NamedTuple):
    """lower <= the quantity <= upper."""

    lower: float
    upper: float


# The tensor power recursion and its times: Lemmas B.1-B.3 (N), G.1-G.2 (D)


def tensor_power(z0: float, rate: float | Sequence[float], steps: int, rho: float = 0.0) -> list[float]:
    """z_0, ..., z_steps of z <- z + rate (z - rho)^2; rate is a number, or eta C_t of Lemma B.1 (N) for every step."""
    rates = [rate] * steps if isinstance(rate, int | float) else list(rate)
    if len(rates) != steps:
        raise EvenlyError(f"{len(rates)} rates for {steps} steps; give one number, or one for each step")
    z = [float(z0)]
    for r in rates:
        z.append(z[-1] + r * (z[-1] - rho) ** 2)
    return z


def passage_time(z0: float, rate: float, threshold: float, rho: float = 0.0, limit: int = 10_000_000) -> int:
    """The first t with z_t >= threshold under z <- z + rate (z - rho)^2, by running it."""
    _check_recursion(z0, threshold, rate, rate, rho)
    z, t = z0, 0
    while z < threshold:
        if t == limit:
            raise EvenlyError(f"the alignment is {z:.6g} after {limit} steps, below {threshold:g}; give a larger limit")
        z += rate * (z - rho) ** 2
        t += 1
    return t


def passage_time_limit(
    z0: float, threshold: float, m: float, M: float, rho: float = 0.0, lemma: Literal["B.3", "G.2"] = "B.3"
) -> float:
    """A time by which z has passed the threshold v, where m (z - rho)^2 <= z_{t+1} - z_t <= M z^2 and z_0 > rho.

    Lemma B.3 (N), eq. 116: 2 z_0 / (m (z_0 - rho)^2) + (4 M z_0^2 / (m (z_0 - rho)^2)) ceil(log2(v / z_0)), where the
    statement prints a plain bracket and the proof a ceiling. Lemma G.2 (D), for rho = 0 only:
    3 / (m z_0) + (8 M / m) ceil(log2(v / z_0)), looser. See :func:`passage_time_bounds` for tighter ones.
    """
    _check_recursion(z0, threshold, m, M, rho)
    doublings = math.ceil(math.log2(threshold / z0))
    if lemma == "G.2":
        if rho != 0:
            raise EvenlyError(f"rho {rho:g} is not in Lemma G.2, which is about gradient descent; use lemma='B.3'")
        return 3 / (m * z0) + 8 * M / m * doublings
    if lemma != "B.3":
        raise EvenlyError(f"lemma {lemma!r} is not known; give 'B.3' or 'G.2'")
    return (2 * z0 + 4 * M * z0**2 * doublings) / (m * (z0 - rho) ** 2)


def passage_time_bounds(z0: float, threshold: float, m: float, M: float, rho: float = 0.0) -> Bounds:
    """When z passes the threshold v, under the conditions of Lemma B.3 (N), bounded on both sides and tighter.

    Ours: by x -> x + r x^2 the reciprocal falls by r / (1 + r x). At most M a step for z itself, so
    T >= (1/z_0 - 1/v) / M; at least m / (1 + m (v - rho)) a step for z - rho while it is below v - rho, so
    T <= 1 + (1/(z_0 - rho) - 1/(v - rho)) (1 + m (v - rho)) / m. With m = M and rho = 0 the two meet as m v -> 0; for
    steps so large that the lemma's own limit is below the second, that is the upper bound.
    """
    _check_recursion(z0, threshold, m, M, rho)
    x0, v = z0 - rho, threshold - rho
    upper = 1 + (1 / x0 - 1 / v) * (1 + m * v) / m
    return Bounds((1 / z0 - 1 / threshold) / M, min(upper, passage_time_limit(z0, threshold, m, M, rho)))


def accumulated_rate_bounds(
    x0: float, threshold: float, rate: float, delta: float, rho: float = 0.0, form: Form = "corrected"
) -> Bounds:
    """Lemma B.1 (N): bounds on sum_{t: x_t < A} eta C_t where x <- x + eta C_t (x - rho)^2, 0 <= rho < x_0.

    Eqs 97 and 98 with b = ceil(log(A/x_0) / log(1 + delta)) levels, which they write without the ceiling, and with
    O(eta (A - rho)^2) as what it stands for, the largest step rate (A - rho)^2:

        upper = (1 + delta)/x_0 + b rate (A - rho)^2 / x_0^2,    lower = (1/(1 + delta) - x_0/A)/x_0 - (the same)

    The upper one as printed fails for rho > 0: eq. 99 takes steps of C_t x^2 where they are C_t (x - rho)^2, and with
    rho near x_0 the sum is without bound. Corrected: the statement for rho = 0 about the sequence x - rho.

    Args:
        rate: the largest eta C_t.
        delta: in (0, 1); the lemma's free parameter.
    """
    _check_recursion(x0, threshold, rate, rate, rho)
    if not 0 < delta < 1:
        raise EvenlyError(f"delta {delta:g} is not in (0, 1); Lemma B.1 takes levels x_0 (1 + delta)^g")
    if _corrected(form):
        x0, threshold, rho = x0 - rho, threshold - rho, 0.0
    levels = math.ceil(math.log(threshold / x0) / math.log1p(delta))
    overshoot = levels * rate * (threshold - rho) ** 2 / x0**2
    return Bounds(
        (1 / (1 + delta) - x0 / threshold) / x0 - overshoot,
        (1 + delta) / x0 + overshoot,
    )


def slow_sequence_limit(x0: float, y0: float, threshold: float, rate: float, ratio: float, rho: float = 0.0) -> float:
    """How far y has come when x passes A, where x grows by eta C_t (x - rho)^2 at least and y by S eta C_t y^2 at most.

    Lemma B.2 (N) says y = O(y_0 / G) and Lemma G.1 (D) O(x_0), with constants unknown. Ours, in the reciprocals as in
    :func:`passage_time_bounds`, with q = rate (A - rho):

        y <= 1 / (1/y_0 - S ((1 + q)/(x_0 - rho) - 1/(A - rho)))

    and infinity, no bound, where that is not positive: then y may have blown up before. Where x outgrows its own
    recursion the bound still holds, for x passes A sooner.

    Args:
        rate: the largest eta C_t.
        ratio: S; beta_d^3 / (alpha beta_e^3) for (N), beta_c^3 / (beta_s^3 (2 alpha - 1)) for (D).
    """
    _check_recursion(x0, threshold, rate, rate, rho)
    if not (y0 > 0 and ratio > 0):
        raise EvenlyError(f"y0 {y0:g} and ratio {ratio:g}: the slow sequence needs positive ones")
    x, A = x0 - rho, threshold - rho
    room = 1 / y0 - ratio * ((1 + rate * A) / x - 1 / A)
    return 1 / room if room > 0 else math.inf


def race_preconditions(
    x0: float, y0: float, threshold: float, eta: float, ratio: float, G: float, rho: float = 0.0
) -> dict[str, bool]:
    """What Lemma B.2 (N) asks for, each condition and whether it holds; its O(...) on A and rho have no constants.

    The last entry is ours: eq. 110 rests on Lemma B.1's upper bound, which for rho > 0 holds with x_0 - rho in place of
    x_0 (see :func:`accumulated_rate_bounds`), so the lead must be that of x_0 - rho.
    """
    if not (0 < G < 1 / 3 and 0 < ratio < 1):
        raise EvenlyError(f"G {G:g} and ratio {ratio:g}: Lemma B.2 takes G in (0, 1/3) and S in (0, 1)")
    _check_recursion(x0, threshold, eta, eta, rho)
    lead = y0 * ratio * (1 + 2 * G) / (1 - 3 * G)
    return {
        "x_0 >= y_0 S (1 + 2G)/(1 - 3G)": x0 >= lead,
        "eta <= G^2 x_0 / log(A/x_0)": eta <= G**2 * x0 / math.log(threshold / x0),
        "eta <= G^2 y_0 / log(1/G)": eta <= G**2 * y0 / math.log(1 / G),
        "corrected: x_0 - rho >= y_0 S (1 + 2G)/(1 - 3G)": x0 - rho >= lead,
    }


# When a feature is learned: Theorems 3.2 and 3.3 (N), 2.2 (D)


def learning_time(
    lr: float, beta: float, sigma_0: float, alpha: float = 1.0, rho: float = 0.0, form: Form = "corrected"
) -> float:
    """The order of T_0, the iterations until the easy feature is learned: Theorems 3.2 (rho = 0) and 3.3 (N).

        T_0 = sigma_0 / (eta alpha beta^3 (sigma_0 - rho)^2) + (sigma_0 / (sigma_0 - rho))^2 ceil(-log2(sigma_0 beta))

    with every Theta set to 1, as the paper does to compare them. This is eqs 28 and 54; "printed" is eqs 5 and 8 of the
    main text, which lack alpha. Preconditions: sigma_0 > rho >= 0, sigma_0 beta < 1; see :func:`preconditions`.
    For iterations rather than an order, see :func:`learning_time_bounds`.
    """
    _check_law(lr, beta, alpha)
    if not 0 <= rho < sigma_0 or not sigma_0 * beta < 1:
        raise EvenlyError(f"sigma_0 {sigma_0:g}, rho {rho:g}, beta {beta:g}: T_0 needs 0 <= rho < sigma_0 < 1/beta")
    share = alpha if _corrected(form) else 1.0
    slower = (sigma_0 / (sigma_0 - rho)) ** 2
    return slower * (1 / (lr * share * beta**3 * sigma_0) + math.ceil(-math.log2(sigma_0 * beta)))


def spurious_learning_time(
    lr: float, beta: float, sigma_0: float, alpha: float, form: Literal["stated", "proved"] = "proved"
) -> float:
    """The order of T_0 until the spurious feature is learned: Theorem 2.2 (D), with every Theta set to 1.

    "stated": 1 / (eta beta_s^3 sigma_0). "proved": what Lemma G.2 gives for the rates of eq. 2.4, m = eta beta_s^3
    (2 alpha - 1) and M = eta beta_s^3 alpha,

        1 / (eta beta_s^3 (2 alpha - 1) sigma_0) + (alpha / (2 alpha - 1)) ceil(-log2(sigma_0 beta_s))

    where the end of the paper's proof prints eta alpha^3 sigma_0 below the first fraction. Precondition: alpha > 1/2.
    """
    _check_law(lr, beta, alpha)
    if not alpha > 0.5:
        raise EvenlyError(f"alpha {alpha:g}: Theorem 2.2 speaks of a majority that agrees; give more than 0.5")
    if not 0 < sigma_0 * beta < 1:
        raise EvenlyError(f"sigma_0 {sigma_0:g} and beta {beta:g}: T_0 needs 0 < sigma_0 < 1/beta")
    if form == "stated":
        return 1 / (lr * beta**3 * sigma_0)
    if form != "proved":
        raise EvenlyError(f"form {form!r} is not known; give 'stated' or 'proved'")
    excess = 2 * alpha - 1
    return 1 / (lr * beta**3 * excess * sigma_0) + alpha / excess * math.ceil(-math.log2(sigma_0 * beta))


def learning_time_bounds(
    lr: float,
    beta: float,
    z0: float,
    alpha: float = 1.0,
    rho: float = 0.0,
    learned: float | None = None,
    derivative: tuple[float, float] = (0.5, 0.5),
) -> Bounds:
    """Iterations until a filter that starts at z_0 = <w, v> has <w, v> >= learned, by default 1/beta.

    T_0 with its constants: Theorems 3.2 and 3.3 (N) by :func:`passage_time_bounds` with the rates m, M = 3 eta alpha
    beta^3 l of Lemma A.3. For SAM rho is the radius: it bounds how much the ascent takes off an alignment (eq. 41).

    Args:
        z0: positive and above rho; take max_j <w_j, v_e>, the filter that is first.
        alpha: the share of examples with the feature; for (D) the range of pull is l_1 alpha - l_2 (1 - alpha),
            so give alpha = 1 and the range of that as `derivative`.
        derivative: the smallest and largest mean of l_i over those examples until then. 1/2 is its value at W = 0, near
            which it stays while sum_j beta^3 z_j^3 is small; it is always within (0, 1).
    """
    _check_law(lr, beta, alpha)
    low, high = derivative
    if not 0 < low <= high <= 1:
        raise EvenlyError(f"derivative {derivative} is no range within (0, 1]; give (smallest, largest)")
    rate = 3 * lr * alpha * beta**3
    return passage_time_bounds(z0, 1 / beta if learned is None else learned, rate * low, rate * high, rho)


def first_learned(beta_s: float, beta_c: float, alpha: float) -> Literal["spurious", "core", "undecided"]:
    """Which feature Theorem 2.2 (D) says is learned first (Section 3.1), from filters that start alike.

    Spurious if the slowest it can grow beats the fastest of the core one, beta_c^3 < beta_s^3 (2 alpha - 1); core if
    the reverse, beta_c^3 alpha > beta_s^3 alpha, that is beta_c > beta_s; between the two the theorem is silent.
    """
    _check_law(1.0, beta_s, alpha)
    _check_law(1.0, beta_c, alpha)
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
    """What one step adds to z = <w_j, v>: 3 eta beta^3 pull z_eps^2, exact where the noise is orthogonal to v.

    Gradient descent with rho_t = 0 (eqs 6 and 7 (N), eqs 2.4 and 2.5 (D)), SAM otherwise (eqs 9 and 10 (N)). Eq. 7
    prints the difference with its sign reversed: the difficult feature grows, too (eq. 26).

    Args:
        pull: (1/N) sum_i s_i l_i at W. At small weights, where l_i = 1/2: alpha/2 for the easy feature, 1/2 for the
            difficult and the core one, (2 alpha - 1)/2 for the spurious one, which is Lemma 3.1 (D) at alpha = 1/2.
        rho_t: rho / ||grad L(W)||_F.
        pull_perturbed: the same at the perturbed weights; as at W if not given.
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


def two_features(
    z_strong: Tensor,
    z_weak: Tensor,
    *,
    beta_strong: float,
    beta_weak: float,
    alpha: float,
    lr: float,
    steps: int,
    rho: float = 0.0,
    otherwise: Literal["absent", "opposite"] = "absent",
    early: bool = False,
) -> Alignments:
    """The noise-free dynamics of all J filters, of gradient descent or of SAM (rho > 0), in their 2 J alignments.

    Exact for data without noise, a share alpha of which has s = y: Definition 3.1 (N) for "absent" (s = 0 otherwise),
    Definition 2.1 (D) for "opposite" (s = -y). With ``early`` the derivatives l_i stay 1/2, the proofs' early phase.

    Args:
        z_strong, z_weak: (J,), <w_j, v> at the start for the easy or spurious and the difficult or core feature.
    """
    _check_law(lr, beta_strong, alpha)
    _check_law(lr, beta_weak, alpha)
    if z_strong.ndim != 1 or z_strong.shape != z_weak.shape:
        raise EvenlyError(f"alignments of shapes {tuple(z_strong.shape)} and {tuple(z_weak.shape)}; give (J,) both")
    if not 0 <= rho < math.inf:
        raise EvenlyError(f"rho {rho} is no radius; give a number from 0, which is plain gradient descent")
    if otherwise not in ("absent", "opposite"):
        raise EvenlyError(f"otherwise {otherwise!r} is not known; give 'absent' or 'opposite'")
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
        raise EvenlyError(f"alignments of shapes {tuple(gd.shape)} and {tuple(sam.shape)}; give (..., 2) both")
    return sam[..., 0] - sam[..., 1] < gd[..., 0] - gd[..., 1]


@dataclass(frozen=True)
class Preconditions:
    """What Theorems 3.2-3.4 (N) assume of a start, each with its verdict.

    Attributes:
        stronger: alpha^(1/3) beta_e > beta_d.
        filters_ready: all <w_j, v_e> and <w_j, v_d> are at least rho > 0 (Assumption A.1, which prints v_e twice).
        easy_ahead: G_e - G_d >= rho (before Theorem A.16).
        ready: how many of the 2 J alignments are at least rho.
        of: 2 J.
    """

    stronger: bool
    filters_ready: bool
    easy_ahead: bool
    ready: int
    of: int

    @property
    def hold(self) -> bool:
        """Whether the theorems speak about this start at all."""
        return self.stronger and self.filters_ready and self.easy_ahead


def preconditions(z_e: Tensor, z_d: Tensor, *, beta_e: float, beta_d: float, alpha: float, rho: float) -> Preconditions:
    """Whether the proofs of Theorems 3.2-3.4 (N) apply to filters with alignments z_e and z_d (J,) at the start.

    From a normal initialisation they practically never do: see :func:`precondition_probability`. That eq. 11 is seen to
    hold in experiments all the same is then an observation, not a consequence.
    """
    z = torch.cat([z_e.reshape(-1), z_d.reshape(-1)])
    ready = int((z >= rho).sum())
    return Preconditions(
        stronger=alpha ** (1 / 3) * beta_e > beta_d,
        filters_ready=rho > 0 and ready == z.numel(),
        easy_ahead=bool(z_e.max() - z_d.max() >= rho),
        ready=ready,
        of=z.numel(),
    )


def precondition_probability(neurons: int, sigma_0: float, rho: float) -> float:
    """The probability that W^(0) ~ N(0, sigma_0^2) meets Assumption A.1 (N): P(N(0, 1) >= rho / sigma_0)^(2 J).

    Below 2^-(2 J) for every rho > 0, for v_e and v_d are orthogonal: 8e-25 at the papers' J = 40.
    """
    if neurons < 1 or not (sigma_0 > 0 and rho >= 0):
        raise EvenlyError(
            f"neurons {neurons}, sigma_0 {sigma_0:g}, rho {rho:g}: give at least 1, sigma_0 > 0, rho >= 0"
        )
    return (0.5 * math.erfc(rho / sigma_0 / math.sqrt(2))) ** (2 * neurons)


# Upsampling in place of SAM: Theorem 3.5 (N)


def one_filter_gradient_norm(
    z_e: float, z_d: float, *, beta_e: float, beta_d: float, alpha: float, derivative: float = 0.5
) -> float:
    """||grad L|| for one filter without noise, every l_i = derivative: 3 l |(alpha beta_e^3 z_e^2, beta_d^3 z_d^2)|.

    1/2 is the value of l at small weights and gives the real gradient's norm; 1 gives that of eq. 84 (N).
    """
    return 3 * derivative * math.hypot(alpha * beta_e**3 * z_e**2, beta_d**3 * z_d**2)


def upsampling_factor(
    z_e: float,
    z_d: float,
    *,
    beta_e: float,
    beta_d: float,
    alpha: float,
    rho_t: float,
    form: Form = "corrected",
    derivative: float = 0.5,
) -> float:
    """k such that a GD step on D(beta_e, k beta_d, alpha) points where a SAM step on D(beta_e, beta_d, alpha) does.

    Theorem 3.5 (N), eq. 96, for one filter w with z_e = <w, v_e>, z_d = <w, v_d> and rho_t = rho / ||grad L(W)||_F:

        k^3 = ((1 - 3 rho_t l beta_d^3 z_d) / (1 - 3 rho_t l alpha beta_e^3 z_e))^2

    "corrected" has l = 1/2 (`derivative`), the mean of l_i that eqs 40 and 42 carry, and recovers SAM's direction in
    the limit of small weights, also where the ascent turns an alignment's sign. "printed" has l = 1, as eqs 84 and 88
    have, and is exact only if rho_t comes from eq. 84's gradient (:func:`one_filter_gradient_norm` with derivative 1),
    where the factor cancels; with the real gradient's norm it overshoots so far that k = 1, no upsampling, is nearer to
    SAM, and beyond 3 rho_t alpha beta_e^3 z_e = 1 the power 2/3 of eq. 96 has no real value.

    Every filter has its own k: with several, no single one recovers SAM's direction.
    """
    _check_law(1.0, beta_e, alpha)
    _check_law(1.0, beta_d, alpha)
    if not (0 <= rho_t < math.inf and 0 < derivative <= 1):
        raise EvenlyError(f"rho_t {rho_t:g} and derivative {derivative:g}: give rho_t >= 0 and a derivative in (0, 1]")
    corrected = _corrected(form)
    reach = 3 * rho_t * (derivative if corrected else 1.0)
    above, below = 1 - reach * beta_d**3 * z_d, 1 - reach * alpha * beta_e**3 * z_e
    if below == 0:
        raise EvenlyError(f"rho_t {rho_t:g} takes all of <w, v_e> = {z_e:g} away; no finite k does: give a smaller rho")
    if not corrected and above / below < 0:
        raise EvenlyError(f"rho_t {rho_t:g}: eq. 96 as printed has a root of {above / below:.3g}; use form='corrected'")
    return math.pow(abs(above / below), 2 / 3)


def _corrected(form: str) -> bool:
    if form not in ("printed", "corrected"):
        raise EvenlyError(f"form {form!r} is not known; give 'printed' or 'corrected'")
    return form == "corrected"


def _check_recursion(z0: float, threshold: float, m: float, M: float, rho: float) -> None:
    if not 0 <= rho < z0 < threshold < math.inf:
        raise EvenlyError(
            f"rho {rho:g}, start {z0:g}, threshold {threshold:g}: the recursion grows for 0 <= rho < start < threshold"
        )
    if not 0 < m <= M < math.inf:
        raise EvenlyError(f"rates {m:g} and {M:g} do not bound a growth; give 0 < m <= M")


def _check_law(lr: float, beta: float, alpha: float) -> None:
    if not 0 < lr < math.inf:
        raise EvenlyError(f"lr {lr} does not descend; give a positive number")
    if not 0 < beta < math.inf:
        raise EvenlyError(f"beta {beta} is no feature strength; give a positive number")
    if not 0 < alpha <= 1:
        raise EvenlyError(f"alpha {alpha} is no share of the examples; give a number in (0, 1]")
