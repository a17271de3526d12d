"""The tensor power recursion z <- z + rate (z - rho)^2, its first passage times, and races between two of them.

(N) is Nguyen et al. 2024, "USEFUL" (Lemmas B.1-B.3); (D) is Deng et al. 2023, "PDE" (Lemmas G.1 and G.2). `growth`
applies them to the features of a cubic network. If a statement does not hold as printed, `form` chooses between
"printed" and "corrected".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from evenly.errors import EvenlyError
from evenly.settings import above, below, checks_options
from evenly.theory.arguments import Fraction, Positive

Form = Literal["printed", "corrected"]


class Bounds(NamedTuple):
    """lower <= the quantity <= upper."""

    lower: float
    upper: float


def tensor_power(z0: float, rate: float | Sequence[float], steps: int, rho: float = 0.0) -> list[float]:
    """z_0, ..., z_steps of z <- z + rate (z - rho)^2; the rate is one number, or eta C_t of Lemma B.1 (N) per step."""
    rates = [rate] * steps if isinstance(rate, int | float) else list(rate)
    if len(rates) != steps:
        raise EvenlyError(f"rate has {len(rates)} values for {steps} steps; give one number, or one per step")
    z = [float(z0)]
    for r in rates:
        z.append(z[-1] + r * (z[-1] - rho) ** 2)
    return z


def passage_time(z0: float, rate: float, threshold: float, rho: float = 0.0, limit: int = 10_000_000) -> int:
    """The first t with z_t >= threshold under z <- z + rate (z - rho)^2, by iteration."""
    _check_recursion(z0, threshold, rate, rate, rho)
    z, t = z0, 0
    while z < threshold:
        if t == limit:
            raise EvenlyError(
                f"z is {z:.6g} after {limit} steps, below the threshold {threshold:g}; give a larger limit"
            )
        z += rate * (z - rho) ** 2
        t += 1
    return t


@checks_options
def passage_time_limit(
    z0: float, threshold: float, m: float, M: float, rho: float = 0.0, lemma: Literal["B.3", "G.2"] = "B.3"
) -> float:
    """A time by which z has passed the threshold v, if m (z - rho)^2 <= z_{t+1} - z_t <= M z^2 and z_0 > rho.

    Lemma B.3 (N), eq. 116: 2 z_0 / (m (z_0 - rho)^2) + (4 M z_0^2 / (m (z_0 - rho)^2)) ceil(log2(v / z_0)). The
    statement has a plain bracket in place of the proof's ceiling. Lemma G.2 (D), for rho = 0 only, is looser:
    3 / (m z_0) + (8 M / m) ceil(log2(v / z_0)). :func:`passage_time_bounds` has tighter ones.
    """
    _check_recursion(z0, threshold, m, M, rho)
    doublings = math.ceil(math.log2(threshold / z0))
    if lemma == "G.2":
        if rho != 0:
            raise EvenlyError(
                f"rho must be 0 in Lemma G.2, which is about gradient descent, got {rho:g}; use lemma='B.3'"
            )
        return 3 / (m * z0) + 8 * M / m * doublings
    return (2 * z0 + 4 * M * z0**2 * doublings) / (m * (z0 - rho) ** 2)


def passage_time_bounds(z0: float, threshold: float, m: float, M: float, rho: float = 0.0) -> Bounds:
    """Bounds on the time T at which z passes the threshold v, under the conditions of Lemma B.3 (N) and tighter.

    Ours: by x -> x + r x^2 the reciprocal falls by r / (1 + r x). For z itself that is at most M a step, so
    T >= (1/z_0 - 1/v) / M. For z - rho below v - rho it is at least m / (1 + m (v - rho)) a step, so
    T <= 1 + (1/(z_0 - rho) - 1/(v - rho)) (1 + m (v - rho)) / m. With m = M and rho = 0 the two meet as m v -> 0. If
    steps are so large that the lemma's limit is smaller, it is the upper bound.
    """
    _check_recursion(z0, threshold, m, M, rho)
    x0, v = z0 - rho, threshold - rho
    upper = 1 + (1 / x0 - 1 / v) * (1 + m * v) / m
    return Bounds((1 / z0 - 1 / threshold) / M, min(upper, passage_time_limit(z0, threshold, m, M, rho)))


@checks_options
def accumulated_rate_bounds(
    x0: float, threshold: float, rate: float, delta: Fraction, rho: float = 0.0, form: Form = "corrected"
) -> Bounds:
    """Lemma B.1 (N): bounds on sum_{t: x_t < A} eta C_t where x <- x + eta C_t (x - rho)^2, 0 <= rho < x_0.

    Eqs 97 and 98 with b = ceil(log(A/x_0) / log(1 + delta)) levels, which they print without the ceiling, and with
    O(eta (A - rho)^2) replaced by the largest step, rate (A - rho)^2:

        upper = (1 + delta)/x_0 + b rate (A - rho)^2 / x_0^2,    lower = (1/(1 + delta) - x_0/A)/x_0 - (the same)

    The upper bound as printed fails for rho > 0: eq. 99 takes steps of C_t x^2 where they are C_t (x - rho)^2, and for
    rho near x_0 the sum is unbounded. Corrected: the statement for rho = 0 about the sequence x - rho.

    Args:
        rate: the largest eta C_t.
        delta: the lemma's free parameter.
    """
    _check_recursion(x0, threshold, rate, rate, rho)
    if form == "corrected":
        x0, threshold, rho = x0 - rho, threshold - rho, 0.0
    levels = math.ceil(math.log(threshold / x0) / math.log1p(delta))
    overshoot = levels * rate * (threshold - rho) ** 2 / x0**2
    return Bounds((1 / (1 + delta) - x0 / threshold) / x0 - overshoot, (1 + delta) / x0 + overshoot)


@checks_options
def slow_sequence_limit(
    x0: float, y0: Positive, threshold: float, rate: float, ratio: Positive, rho: float = 0.0
) -> float:
    """A limit of y when x passes A, where x grows by at least eta C_t (x - rho)^2 and y by at most S eta C_t y^2.

    Lemma B.2 (N) says y = O(y_0 / G) and Lemma G.1 (D) O(x_0), with constants unknown. Ours, in the reciprocals as in
    :func:`passage_time_bounds`, with q = rate (A - rho):

        y <= 1 / (1/y_0 - S ((1 + q)/(x_0 - rho) - 1/(A - rho)))

    and infinity, no bound, if that is not positive: then y may diverge before. If x grows faster than its recursion,
    it passes A sooner and the bound still holds.

    Args:
        rate: the largest eta C_t.
        ratio: S; beta_d^3 / (alpha beta_e^3) for (N), beta_c^3 / (beta_s^3 (2 alpha - 1)) for (D).
    """
    _check_recursion(x0, threshold, rate, rate, rho)
    x, A = x0 - rho, threshold - rho
    reciprocal = 1 / y0 - ratio * ((1 + rate * A) / x - 1 / A)
    return 1 / reciprocal if reciprocal > 0 else math.inf


@checks_options
def race_preconditions(
    x0: float,
    y0: float,
    threshold: float,
    eta: float,
    ratio: Fraction,
    G: Annotated[float, above(0), below(1 / 3)],
    rho: float = 0.0,
) -> dict[str, bool]:
    """The conditions of Lemma B.2 (N), and whether each holds; its O(...) on A and rho have no constants.

    The last entry is ours: eq. 110 uses Lemma B.1's upper bound, which for rho > 0 holds with x_0 - rho in place of x_0
    (see :func:`accumulated_rate_bounds`), so x_0 - rho must have the lead.
    """
    _check_recursion(x0, threshold, eta, eta, rho)
    lead = y0 * ratio * (1 + 2 * G) / (1 - 3 * G)
    return {
        "x_0 >= y_0 S (1 + 2G)/(1 - 3G)": x0 >= lead,
        "eta <= G^2 x_0 / log(A/x_0)": eta <= G**2 * x0 / math.log(threshold / x0),
        "eta <= G^2 y_0 / log(1/G)": eta <= G**2 * y0 / math.log(1 / G),
        "corrected: x_0 - rho >= y_0 S (1 + 2G)/(1 - 3G)": x0 - rho >= lead,
    }


def _check_recursion(z0: float, threshold: float, m: float, M: float, rho: float) -> None:
    if not 0 <= rho < z0 < threshold < math.inf:
        raise EvenlyError(
            f"rho {rho:g}, start {z0:g}, threshold {threshold:g} must satisfy 0 <= rho < start < threshold"
        )
    if not 0 < m <= M < math.inf:
        raise EvenlyError(f"the rates m {m:g} and M {M:g} must satisfy 0 < m <= M")
