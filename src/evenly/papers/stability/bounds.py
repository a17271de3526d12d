"""The products of Jacobians that the divergence and the convergence theorem bound (C.8, C.9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from evenly.papers.claims import claim
from evenly.papers.nodes import computed
from evenly.papers.stability.sets import DRAWS, SETS, at_least, none_broken, not_below, steps
from evenly.runs.verdict import Check, Judgement, Measurement
from evenly.theory.stability import mean_square_growth
from evenly.theory.stability.bounds import (
    Step,
    epsilon,
    equation_39,
    equation_67,
    expected_product,
    growth_bound,
    theorem_c_8_1,
    theorem_c_8_2,
    theorem_c_8_3,
    theorem_c_9_1,
    theorem_c_9_2,
    theorem_c_9_3,
)

POWERS = range(1, 6)
LINKS = ("Frobenius norms", "the largest Frobenius norm", "the largest eigenvalue", "lambda_max(H^SAM) and sigma^SAM")


def products(seed: int, count: int) -> dict[str, int]:
    """How often the bounds of Theorem C.8 are broken for k = 1 to 5; terms of the sum in eq. 29 one by one."""
    counts = dict.fromkeys(("cases", "C.8.1", "C.8.2", "C.8.3", "equal", "terms", "eq. 39"), 0)
    for step, draw in steps(count, seed):
        for k in POWERS:
            exact, m_k = expected_product(step, k), theorem_c_8_1(step, k)
            counts["cases"] += 1
            counts["C.8.1"] += not not_below(exact, m_k)
            counts["C.8.2"] += not at_least(float(np.trace(m_k)), theorem_c_8_2(step, k))
            counts["C.8.3"] += not at_least(float(np.trace(m_k)), theorem_c_8_3(step, k))
            counts["equal"] += k == 1 and not np.allclose(exact, m_k, rtol=1e-9, atol=0)
            for _ in range(4):
                counts["terms"] += 1
                term = draw.integers(0, step.hessians.n, k).tolist()
                counts["eq. 39"] += not at_least(*equation_39(step, term))
    return counts


@claim(
    "stability/thmC.8.1",
    where="Theorem C.8.1, eqs 27, 28",
    states="The expected product of k Jacobians of SAM is never below M_k = J^2k + N_k, and equals it for k = 1 "
    "(eq. 34).",
    rule="On 500 random sets, k = 1 to 5, the difference is positive semidefinite, and 0 for k = 1.",
    choices=(DRAWS,),
    uses=lambda scale: {"found": computed(products, seed=5, count=SETS)},
)
def theorem_c_8_1_holds(found: Mapping[str, int]) -> Judgement:
    return Judgement([
        none_broken("the expected product is not below M_k", found, "C.8.1"),
        none_broken("M_1 equals it", found, "equal"),
    ])  # fmt: skip


@claim(
    "stability/thmC.8.2",
    where="Theorem C.8.2, eq. 29",
    states="Tr M_k is at least (1 + c lambda_min(H))^2k times the sum without I + cH.",
    rule="No violation on 500 random sets, k = 1 to 5.",
    choices=(DRAWS,),
    uses=lambda scale: {"found": computed(products, seed=5, count=SETS)},
)
def theorem_c_8_2_holds(found: Mapping[str, int]) -> Judgement:
    return Judgement([none_broken("Tr M_k is at least eq. 29", found, "C.8.2")])


@claim(
    "stability/eq39",
    where="Eqs 38, 39, in the proof of Theorem C.8.2",
    states="Each term y_1 ... y_k of the sum is at least (1 + c lambda_min(H))^2k times the term without I + cH.",
    rule="No violation in four random terms of each sum, on 500 random sets, k = 1 to 5.",
    choices=(DRAWS,),
    uses=lambda scale: {"found": computed(products, seed=5, count=SETS)},
)
def equation_39_fails(found: Mapping[str, int]) -> Judgement:
    broken = found["eq. 39"]
    return Judgement(
        [Check(f"every term is at least its bound ({broken} broken in {found['terms']} terms)", broken == 0)],
        [Measurement("share of terms that break it", broken / found["terms"])],
    )


@claim(
    "stability/thmC.8.3",
    where="Theorem C.8.3, eq. 30",
    states="Tr M_k is at least eta^2k (n/B - 1)^k (1 + c lambda_min(H))^2k lambda_max(H)^2k / (sigma^2k n d^5).",
    rule="No violation on 500 random sets, k = 1 to 5.",
    choices=(DRAWS,),
    uses=lambda scale: {"found": computed(products, seed=5, count=SETS)},
)
def theorem_c_8_3_holds(found: Mapping[str, int]) -> Judgement:
    return Judgement([none_broken("Tr M_k is at least eq. 30", found, "C.8.3")])


def upper_bounds(seed: int, count: int) -> dict[str, Any]:
    """How often the bounds of Theorem C.9 are broken, and the links of eq. 67."""
    names = ("cases", "sets", "matrices", "traces", "base", "growth", "printed", "corrected", "met", "converges", "eps")
    counts: dict[str, Any] = dict.fromkeys((*names, *LINKS), 0)
    for drawn, draw in steps(count, seed, full_rank=True):
        step = Step(drawn.hessians, drawn.lr * float(draw.uniform(0.05, 0.8)), drawn.batch_size, drawn.ascent)
        if (eps := epsilon(step)) <= 0:
            continue
        counts["sets"] += 1
        growth = mean_square_growth(step.hessians, step.lr, step.batch_size, ascent=step.ascent)
        counts["growth"] += not at_least(growth_bound(step), growth)
        spread = float(np.abs(np.linalg.eigvalsh(step.jacobian)).max())
        counts["eps"] += abs(spread - (1 - eps)) > 1e-6
        if theorem_c_9_3(step):
            counts["met"] += 1
            counts["converges"] += not growth < 1
        for k in POWERS:
            exact, upper = expected_product(step, k), theorem_c_9_1(step, k)
            counts["cases"] += 1
            broken = not not_below(upper, exact)
            counts["matrices"] += broken
            counts["base"] += broken and k == 1
            counts["traces"] += not at_least(float(np.trace(upper)), float(np.trace(exact)))
            chain = equation_67(step, k)
            for name, small, large in zip(LINKS, chain[:-1], chain[1:], strict=True):
                counts[name] += not at_least(large, small)
            counts["printed"] += not at_least(theorem_c_9_2(step, k, "printed"), chain[0])
            counts["corrected"] += not at_least(theorem_c_9_2(step, k), chain[0])
    return counts


@claim(
    "stability/thmC.9.1",
    where="Theorem C.9.1, eqs 46, 47",
    states="The expected product of k Jacobians is at most sum_r (1 - eps)^2(k-r) binom(k, r) N_r, as matrices.",
    rule="On the random sets of full rank out of 500 on which an eps above 0 exists, k = 1 to 5, the difference is "
    "positive semidefinite. Side points: so it is for k = 1, and so are the traces ordered.",
    choices=(DRAWS,),
    uses=lambda scale: {"found": computed(upper_bounds, seed=6, count=SETS)},
)
def theorem_c_9_1_printed(found: Mapping[str, int]) -> Judgement:
    return Judgement([
        none_broken("the expected product is at most the sum", found, "matrices"),
        none_broken("it is for k = 1", found, "base", main=False),
        none_broken("its trace is at most the trace of the sum", found, "traces", main=False),
    ])  # fmt: skip


@claim(
    "stability/thmC.9.1-corrected",
    where="Theorem C.9.1, corrected",
    states="E||w||^2 grows per step by at most (1 - eps)^2 + lim (Tr N_k)^(1/k), and the traces are ordered as in eq. "
    "63. The printed induction uses J M J <= (1 - eps)^2 M, which not every M fulfils.",
    rule="On the same sets: no violation by the exact growth, and none by the traces for k = 1 to 5.",
    choices=(DRAWS,),
    uses=lambda scale: {"found": computed(upper_bounds, seed=6, count=SETS)},
)
def theorem_c_9_1_corrected(found: Mapping[str, int]) -> Judgement:
    return Judgement([
        Check(f"the growth is at most the bound ({found['growth']} broken in {found['sets']})", found["growth"] == 0),
        none_broken("the trace is at most the trace of the sum", found, "traces"),
    ])  # fmt: skip


@claim(
    "stability/thmC.9.2",
    where="Theorem C.9.2, eqs 48, 67",
    states="Tr N_k is at most eta^2k (1/B - 1/n)^k d^(3k+2) n^4k lambda_max(H^SAM)^4k / sigma_SAM^2k.",
    rule="No violation on the same sets, k = 1 to 5. Side points: none of each of the four links of eq. 67.",
    choices=(DRAWS,),
    uses=lambda scale: {"found": computed(upper_bounds, seed=6, count=SETS)},
)
def theorem_c_9_2_printed(found: Mapping[str, int]) -> Judgement:
    return Judgement([
        none_broken("Tr N_k is at most the printed bound", found, "printed"),
        *(none_broken(f"eq. 67, the bound by {name}", found, name, main=False) for name in LINKS),
    ])  # fmt: skip


@claim(
    "stability/thmC.9.2-corrected",
    where="Theorem C.9.2, corrected",
    states="Tr N_k is at most eta^2k (1/B - 1/n)^k d^(k+1) n^2k lambda_max(H^SAM)^2k / sigma_SAM^2k times the "
    "condition number of I + cH. The printed one rests on eq. 64, whose sides have different units.",
    rule="No violation on the same sets, k = 1 to 5.",
    choices=(DRAWS,),
    uses=lambda scale: {"found": computed(upper_bounds, seed=6, count=SETS)},
)
def theorem_c_9_2_corrected(found: Mapping[str, int]) -> Judgement:
    return Judgement([none_broken("Tr N_k is at most the corrected bound", found, "corrected")])


@claim(
    "stability/thmC.9.3",
    where="Theorem C.9.3, eqs 49, 59, 60",
    states="If eps/eta <= lambda_i + c lambda_i^2 <= (2 - eps)/eta, and Tr N_k / eps^k goes to 0, the expected product "
    "goes to 0. The first condition is that of J being within 1 - eps.",
    rule="Out of 4,000 random sets: wherever both conditions are met (at least 100), the exact growth of E||w||^2 is "
    "below 1. On every set the largest eps is 1 minus the norm of J, to 1e-6.",
    choices=(DRAWS,),
    uses=lambda scale: {"found": computed(convergences, seed=7, count=4000)},
)
def theorem_c_9_3_holds(found: Mapping[str, int]) -> Judgement:
    return Judgement([
        none_broken("the mean square goes to 0", found, "grows"),
        Check(f"eqs 59 and 60 bound J ({found['eps']} broken in {found['sets']})", found["eps"] == 0),
    ])  # fmt: skip


def convergences(seed: int, count: int) -> dict[str, int]:
    """Sets that meet the conditions of Theorem C.9.3, and whether the mean square grows there."""
    counts = dict.fromkeys(("sets", "cases", "grows", "eps"), 0)
    for drawn, draw in steps(count, seed, full_rank=True):
        step = Step(drawn.hessians, drawn.lr * float(draw.uniform(0.02, 0.8)), drawn.batch_size, drawn.ascent)
        counts["sets"] += 1
        norm = float(np.abs(np.linalg.eigvalsh(step.jacobian)).max())
        counts["eps"] += abs(norm - (1 - epsilon(step))) > 1e-6
        if theorem_c_9_3(step):
            counts["cases"] += 1
            growth = mean_square_growth(step.hessians, step.lr, step.batch_size, ascent=step.ascent)
            counts["grows"] += not growth < 1
    return counts
