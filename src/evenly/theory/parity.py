"""Two-layer ReLU networks that solve boolean data exactly, and their coherence (the stability paper, Section 3).

    f(x) = sum_j W2_j relu(<W1_j, x> + b_j),   x in {-1, 1}^d,   y = x_1 x_2  (y = x_1 for C = 1)

A (C, r) solution depends on the first C inputs: it has one hidden unit for each of their 2^C patterns, and exactly one
is active. A memorizing solution has a unit for each sample. Their loss is 0, so a sample's Hessian is g_i g_i^T,
g_i = grad f(x_i) over (W2, W1, b), for the loss (f - y)^2 / 2 (twice that for (f - y)^2). The coherence matrix is

    S_ij = |g_i . g_j| = |r^2 + (1 + x_i . x_j) / r^2|  if i and j activate the same unit, and 0 otherwise.

Throughout, with u = 2^-C and n samples drawn uniformly and independently:

    s  = r^2 + (d + 1) / r^2      the trace of every H_i, and the entry of S for x_i = x_j
    s' = r^2 + (C + 1) / r^2      the mean of g_i . g_j over i != j in a block, as x_i . x_j is C on average

The paper takes s for every entry of a block. Bounds have a ``"printed"`` and a ``"corrected"`` form.

>>> network = solution(d=6, C=2, r=flattest_r(6))
>>> x = boolean_inputs(6)
>>> network(x) - labels(x, C=2)             # 0 on all 64 inputs
>>> coherence_matrix(x, C=2, r=flattest_r(6))
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from evenly.errors import EvenlyError
from evenly.settings import above, at_least, at_most, checks_options
from evenly.theory.arguments import Count, Fraction, NotNegative, Positive

Form = Literal["printed", "corrected"]
Radius = Annotated[float | None, above(0)]


class TwoLayerReLU(nn.Module):
    """f(x) = sum_j W2_j relu(<W1_j, x> + b_j): inputs (..., d) to outputs (...), with no bias at the output.

    The parameters are in the paper's order: W2 (hidden,), W1 (hidden, d), b (hidden,).
    """

    def __init__(self, W2: Tensor, W1: Tensor, b: Tensor) -> None:
        super().__init__()
        self.W2, self.W1, self.b = nn.Parameter(W2), nn.Parameter(W1), nn.Parameter(b)

    def preactivations(self, x: Tensor) -> Tensor:
        """<W1_j, x> + b_j, (..., hidden)."""
        return x @ self.W1.T + self.b

    def active(self, x: Tensor) -> Tensor:
        """Whether each unit is active on each input: boolean (..., hidden)."""
        return self.preactivations(x) > 0

    def forward(self, x: Tensor) -> Tensor:
        return self.preactivations(x).relu() @ self.W2


@checks_options
def boolean_inputs(d: Annotated[int, at_least(1), at_most(20)], *, dtype: torch.dtype = torch.float64) -> Tensor:
    """All 2^d inputs in {-1, 1}^d, (2^d, d); the first coordinate changes fastest and the first row is all ones."""
    bits = torch.arange(2**d)[:, None] >> torch.arange(d) & 1
    return (1 - 2 * bits).to(dtype)


@checks_options
def labels(x: Tensor, C: Count) -> Tensor:
    """y (n,) in {-1, 1} of inputs x (n, d): x_1 x_2 for C >= 2, x_1 for C = 1."""
    _check_inputs(x, C)
    return x[:, 0] * x[:, 1] if C >= 2 else x[:, 0].clone()


@checks_options
def solution(
    d: Count, C: Count, r: Positive, hidden: int | None = None, *, dtype: torch.dtype = torch.float64
) -> TwoLayerReLU:
    """The (C, r) solution (C.1): for every pattern a in {0, 1}^C a unit j = 1 + sum_l 2^(l-1) a_l with

        W1_j = r [(-1)^a_1, ..., (-1)^a_C, 0, ..., 0],   b_j = -r (C - 1),   W2_j = (1/r) (-1)^(a_1 + a_2)

    and (1/r) (-1)^a_1 for C = 1.

    Args:
        d: the number of inputs.
        C: the number of inputs that the network depends on, at most d.
        r: the scale of the first layer against the second; the function does not depend on it, the curvature does.
        hidden: the number of units; those past 2^C are 0. By default 2^C.
    """
    _check_reads(C, d)
    units = 2**C
    hidden = _hidden(hidden, units, f"a unit for each of the 2^{C} patterns")
    signs = boolean_inputs(C, dtype=dtype)
    W2, W1, b = torch.zeros(hidden, dtype=dtype), torch.zeros(hidden, d, dtype=dtype), torch.zeros(hidden, dtype=dtype)
    W1[:units, :C] = r * signs
    b[:units] = -r * (C - 1)
    W2[:units] = labels(signs, C) / r
    return TwoLayerReLU(W2, W1, b)


@checks_options
def memorizing(x: Tensor, y: Tensor, r: Radius = None, hidden: int | None = None) -> TwoLayerReLU:
    """A memorizing solution (Theorem 3.4): sample i has unit i, which no other sample activates.

        W1_i = r x_i,   b_i = -r (d - 1),   W2_i = y_i / r

    since <x_i, x_k> <= d - 2 for x_k != x_i. Its coherence matrix is diagonal, with r^2 + (d + 1) y_i^2 / r^2 on the
    diagonal, and its coherence measure is 1. It is the (d, r) solution with the units of absent patterns left out.

    Args:
        x: (n, d) inputs in {-1, 1}. No two may be equal: equal samples activate the same units of any network, so that
            no memorizing solution exists.
        y: (n,) target outputs, any numbers.
        r: the scale of the first layer; by default `flattest_r`.
        hidden: the number of units; those past n are 0. By default n.
    """
    _check_inputs(x, 1)
    n, d = x.shape
    r = flattest_r(d) if r is None else r
    if y.shape != (n,) or not bool(y.isfinite().all()):
        raise EvenlyError(f"y must be {n} finite numbers, one per row of x, got shape {tuple(y.shape)}")
    _, row, counts = x.unique(dim=0, return_inverse=True, return_counts=True)
    if bool((counts > 1).any()):
        first, second = (row == counts.argmax()).nonzero().flatten()[:2]
        raise EvenlyError(f"samples {int(first)} and {int(second)} are equal, so they share every unit; leave one out")
    hidden = _hidden(hidden, n, "a unit for each sample")
    W2, W1, b = x.new_zeros(hidden), x.new_zeros(hidden, d), x.new_zeros(hidden)
    W1[:n], b[:n], W2[:n] = r * x, -r * (d - 1), y.to(x) / r
    return TwoLayerReLU(W2, W1, b)


def is_memorizing(network: TwoLayerReLU, x: Tensor) -> bool:
    """Whether every sample x_i (n, d) activates a unit and no unit is active on two of them."""
    active = network.active(x)
    return bool(active.any(1).all()) and bool((active.sum(0) <= 1).all())


def converse_of_theorem_3_4_fails() -> tuple[TwoLayerReLU, Tensor]:
    """A network and two samples (2, 6) that share a unit, so are not memorized, but have S_12 = 0.

    Theorem 3.4 states that a memorizing solution has a diagonal S, which is true, and "the reverse is also true", which
    is false: here C = 2, d = 6, r = 1 and x_1 . x_2 = -2, so that r^2 + (1 + x_1 . x_2) / r^2 = 0. A (C, r) solution
    needs x_1 . x_2 = -(1 + r^4), which no pair reaches at `flattest_r`, where it is -(d + 2).
    """
    x = torch.ones(2, 6, dtype=torch.float64)
    x[1, 2:] = -1
    return solution(d=6, C=2, r=1.0), x


@checks_options
def flattest_r(d: Count) -> float:
    """(d + 1)^(1/4), where the trace r^2 + (d + 1) / r^2 of every sample's Hessian is smallest: 2 sqrt(d + 1)."""
    return float((d + 1) ** 0.25)


@checks_options
def trace(d: Count, r: Positive) -> float:
    """s = Tr H_i = ||g_i||^2 = r^2 + (d + 1) / r^2, the same for every sample and every C (C.1)."""
    return r**2 + (d + 1) / r**2


@checks_options
def mean_overlap(C: Count, r: Positive) -> float:
    """s' = E g_i . g_j = r^2 + (C + 1) / r^2 over i != j that share a unit of the (C, r) solution."""
    return r**2 + (C + 1) / r**2


@checks_options
def blocks(x: Tensor, C: Count) -> Tensor:
    """The unit (from 0) that each sample x (n, d) activates in a (C, r) solution, int64 (n,)."""
    _check_inputs(x, C)
    return ((x[:, :C] < 0) * 2 ** torch.arange(C, device=x.device)).sum(1)


@checks_options
def gradient_products(x: Tensor, C: Count, r: Positive) -> Tensor:
    """g_i . g_j of a (C, r) solution, (n, n): r^2 + (1 + x_i . x_j) / r^2 within a block of samples, 0 between them."""
    unit = blocks(x, C)
    return (r**2 + (1 + x @ x.T) / r**2) * (unit[:, None] == unit)


@checks_options
def coherence_matrix(x: Tensor, C: Count, r: Positive, *, ascent: NotNegative = 0.0) -> Tensor:
    """S (n, n) of a (C, r) solution on samples x (n, d), in closed form; with an ascent c = rho / alpha, S^SAM:

        S^SAM_ij = sqrt(Tr (I + cH) H_i (I + cH) H_j) = |g_i . g_j + (c/n) sum_k (g_i . g_k)(g_k . g_j)|

    C.11 gives 2 sqrt(d + 1) for every pair in a block, which holds only for x_i = x_j and r = (d + 1)^(1/4).
    """
    products = gradient_products(x, C, r)
    return (products + ascent / len(x) * products @ products).abs()


@checks_options
def theorem_3_5(
    n: Count, d: Count, C: Count, r: Radius = None, *, delta: Fraction = 0.05, form: Form = "corrected"
) -> float:
    """Theorem 3.5: lambda_max(S) is at most this with probability 1 - delta over n samples.

        s (n u + sqrt(n (C + ln(1/delta)) / 2)),   s = r^2 + (d + 1) / r^2

    The proof takes the largest block's size times s for the eigenvalue, which is an upper bound of it (no entry of S
    exceeds s), and Hoeffding's inequality for the size.

    Args:
        r: by default `flattest_r`.
        delta: the probability of failure.
        form: "printed" has s = 2 sqrt(d + 1) for every r: right at `flattest_r`, and violated by data if
            r^2 + (C + 1) / r^2 is above it.
    """
    _, s, _ = _scales(d, C, r, form)
    return s * (n * 2.0**-C + math.sqrt(n * (C + math.log(1 / delta)) / 2))


@checks_options
def theorem_3_6(
    n: Count,
    d: Count,
    C: Count,
    r: Radius = None,
    *,
    ascent: NotNegative,
    form: Literal["printed", "corrected", "sure"] = "corrected",
) -> float:
    """Theorem 3.6: lambda_max(S^SAM) is at least this in expectation over n samples, with c = `ascent` = rho / alpha.

        n u s' sqrt((1 + c u s')^2 + c^2 (u - u^2) s'^2 / n),   s' = r^2 + (C + 1) / r^2

    Why: lambda_max is at least the mean row sum of S^SAM, a block of m samples adds at least m^2 s' + (c/n) m^3 s'^2 to
    n times that, since ||sum x_i||^2 >= C m^2 in it, and m is binomial.

    Args:
        form: "printed" has s = 2 sqrt(d + 1) for s', as if all samples of a block were equal, and fails if s is well
            above s'. "corrected" holds in expectation; data that fill the blocks evenly fall slightly below it (all 2^d
            inputs once; draws of C = 1 at large r, by less than 1% in our trials).
            "sure" is n u s' (1 + c u s'), which holds for every data set, as the blocks' sizes sum to n.
    """
    c, u = ascent, 2.0**-C
    if form == "sure":
        overlap = _scales(d, C, r, "corrected")[2]
        return n * u * overlap * (1 + c * u * overlap)
    _, _, overlap = _scales(d, C, r, form)
    return n * u * overlap * math.sqrt((1 + c * u * overlap) ** 2 + c**2 * (u - u**2) * overlap**2 / n)


@checks_options
def equation_79(
    n: Count, d: Count, C: Count, r: Radius = None, *, ascent: NotNegative, form: Form = "corrected"
) -> float:
    """Eq. 79: a sample's largest eigenvalue under SAM, lambda_max((I + cH) H_i) = S^SAM_ii, with c = `ascent`.

        s + (c/n) (s^2 + (n - 1) u (s'^2 + (d - C) / r^4)),   s' = r^2 + (C + 1) / r^2

    is its mean over n samples, the same for every i; the largest of the n is above it.

    Args:
        form: "printed" has s (1 + c u s), s = 2 sqrt(d + 1), and calls it the largest of the n: it takes s for every
            g_i . g_k of the block, and the mean block for the largest.
    """
    c, u = ascent, 2.0**-C
    r, s, overlap = _scales(d, C, r, form)
    if form == "printed":
        return s * (1 + c * u * s)
    return s + c / n * (s**2 + (n - 1) * u * (overlap**2 + (d - C) / r**4))


def _scales(d: int, C: int, r: float | None, form: Form) -> tuple[float, float, float]:
    """(r, s, s'), where the printed forms have 2 sqrt(d + 1) for both s and s'."""
    _check_reads(C, d)
    r = flattest_r(d) if r is None else r
    if form == "printed":
        return r, 2 * math.sqrt(d + 1), 2 * math.sqrt(d + 1)
    return r, trace(d, r), mean_overlap(C, r)


def _check_reads(C: int, d: int) -> None:
    if d < C:
        raise EvenlyError(f"C must be at most {d}, the number of inputs, got {C}")


def _hidden(hidden: int | None, needed: int, meaning: str) -> int:
    if hidden is not None and hidden < needed:
        raise EvenlyError(f"hidden must be at least {needed}, {meaning}, got {hidden}")
    return needed if hidden is None else hidden


def _check_inputs(x: Tensor, C: int) -> None:
    if x.ndim != 2 or len(x) == 0 or not x.is_floating_point():
        raise EvenlyError(f"x must be floating-point numbers (n, d) with n >= 1, got {x.dtype} of {tuple(x.shape)}")
    if bool((wrong := x.abs() != 1).any()):
        i, k = wrong.nonzero()[0].tolist()
        raise EvenlyError(f"x[{i}, {k}] must be -1 or 1, got {x[i, k].item():g}")
    _check_reads(C, x.shape[1])
