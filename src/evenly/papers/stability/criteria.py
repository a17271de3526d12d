"""The criteria: when SAM and SGD diverge, and when sets exist on which they converge (C.8.4, Theorem 3.3, C.14)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from evenly.papers.claims import claim
from evenly.papers.nodes import computed
from evenly.papers.stability.perturbation import divergence, equality
from evenly.papers.stability.sets import DRAWS, SETS, none_broken, steps
from evenly.runs.verdict import Check, Judgement, Measurement
from evenly.theory.stability import Hessians, Minimum, mean_square_growth
from evenly.theory.stability.bounds import Step, lemma_4_1

GRID = "n 2 to 200, any B below n, any whole sigma up to n, lambda_max and c over powers of e"


def sam_divergence(seed: int, count: int) -> dict[str, int]:
    """SAM's criterion met strictly against the exact growth; how often the growth is above 1 without it."""
    counts = dict.fromkeys(("cases", "broken", "sets", "undecided"), 0)
    for step, draw in steps(count, seed):
        numbers = Minimum.of(step.hessians)
        root = math.sqrt(step.hessians.n / step.batch_size - 1)
        least = max(float(step.eigenvalues[0]), 0.0)
        criterion = numbers.sigma / (numbers.largest * root * (1 + step.ascent * least))
        lr = float(draw.uniform(0.5, 3)) * criterion
        growth = mean_square_growth(step.hessians, lr, step.batch_size, ascent=step.ascent)
        counts["sets"] += 1
        if lr > criterion:
            counts["cases"] += 1
            counts["broken"] += not growth > 1
        else:
            counts["undecided"] += growth > 1
    return counts


@claim(
    "stability/thmC.8.4",
    where="Theorem C.8.4, eqs 31, 44",
    states="SAM diverges if lambda_max(H) >= (sigma/eta)(n/B - 1)^(-1/2) (1 + c lambda_min(H))^(-1).",
    rule="On 500 random sets, at learning rates around the criterion: wherever it is met with more than equality, the "
    "exact mean square grows. Side point: it also diverges at equality, as printed.",
    choices=(DRAWS,),
    uses=lambda scale: {"found": computed(sam_divergence, seed=8, count=SETS), "at_equality": computed(equality)},
)
def theorem_c_8_4(found: Mapping[str, int], at_equality: float) -> Judgement:
    return Judgement(
        [
            none_broken("the mean square grows where the criterion is met", found),
            Check(
                f"it diverges at equality, too (n 100, B 50, sigma 1, lr 1/2, c 0: growth {at_equality:.6f})",
                at_equality > 1 + 1e-9,
                main=False,
            ),
        ],
        [Measurement("diverges below the criterion, share of sets", found["undecided"] / found["sets"])],
    )


def sets_of_theorem_3_3(seed: int, count: int, sam: bool) -> dict[str, float]:
    """C.13's set: H_i = m e_1 e_1^T for i <= sigma, 0 otherwise; its sigma, and its growth around the condition."""
    found = {"cases": 0.0, "converges": 0.0, "sharp": 0.0, "sigma": 0.0, "largest": 0.0}
    for k in range(count):
        draw = np.random.default_rng([seed, k])
        n = int(draw.integers(2, 201))
        B, sigma = int(draw.integers(1, n)), int(draw.integers(1, n + 1))
        largest, c = float(np.exp(draw.normal(0, 2))), float(np.exp(draw.normal(-1, 2))) if sam else 0.0
        values = np.zeros((n, 1))
        values[:sigma] = largest * n / sigma
        hessians = Hessians.diagonal(values)
        numbers = Minimum.of(hessians)
        limit = 2 * sigma / (n / B - 1 + sigma) / (largest * (1 + c * largest))
        growths = [mean_square_growth(hessians, factor * limit, B, ascent=c) for factor in (0.2, 0.99, 1.01)]
        found["cases"] += 1
        found["converges"] += not max(growths[:2]) < 1
        found["sharp"] += not growths[2] > 1
        found["sigma"] = max(found["sigma"], abs(numbers.sigma / sigma - 1))
        found["largest"] = max(found["largest"], abs(numbers.largest / largest - 1))
    return found


@claim(
    "stability/thm3.3",
    where="Theorem 3.3, C.13, eq. 87",
    states="If lambda_1 (1 + c lambda_1) < (2 sigma/eta)(n/B - 1 + sigma)^(-1), there is a set of Hessians with this "
    "sigma and lambda_max(H) = lambda_1 on which SAM converges.",
    rule="For 500 draws of n, B, sigma, lambda_1 and c: C.13's set has this sigma and lambda_max(H), and its mean "
    "square goes to 0 at 0.2 and 0.99 times the largest eta of the condition.",
    choices=(GRID,),
    uses=lambda scale: {"found": computed(sets_of_theorem_3_3, seed=9, count=SETS, sam=True)},
)
def theorem_3_3(found: Mapping[str, float]) -> Judgement:
    broken, sharp = int(found["converges"]), int(found["sharp"])
    return Judgement(
        [
            Check(f"the set has this sigma ({found['sigma']:.1e} off)", found["sigma"] < 1e-9),
            Check(f"the set has this lambda_max(H) ({found['largest']:.1e} off)", found["largest"] < 1e-9),
            Check(f"its mean square goes to 0 ({broken} broken in {found['cases']:.0f} cases)", broken == 0),
        ],
        [Measurement("sets that still converge at 1.01 times that eta", sharp)],
    )


@claim(
    "stability/dexter1",
    where="C.14, Theorem 1, eq. 88",
    states="SGD diverges if lambda_max(H) >= 2/eta or lambda_max(H) >= (sigma/eta)(n/B - 1)^(-1/2).",
    rule="On 500 random sets: wherever one of the two is met with more than equality, the exact mean square grows. "
    "Side point: it also diverges at equality, as printed.",
    choices=(DRAWS,),
    uses=lambda scale: {
        "found": computed(divergence, seed=1, count=SETS),
        "sharp": computed(sharpness, seed=10, count=SETS),
        "at_equality": computed(equality),
    },
)
def dexter_theorem_1(found: Mapping[str, int], sharp: Mapping[str, int], at_equality: float) -> Judgement:
    return Judgement([
        none_broken("the mean square grows by the condition on sigma", found, "sgd"),
        none_broken("the mean square grows above 2/eta", sharp),
        Check(
            f"it diverges at equality, too (n 100, B 50, sigma 1, lr 1/2: growth {at_equality:.6f})",
            at_equality > 1 + 1e-9,
            main=False,
        ),
    ])  # fmt: skip


def sharpness(seed: int, count: int) -> dict[str, int]:
    """The exact growth at learning rates above 2/lambda_max(H)."""
    counts = {"cases": 0, "broken": 0}
    for step, draw in steps(count, seed, sam=False):
        lr = float(draw.uniform(1.0001, 3)) * 2 / float(step.eigenvalues[-1])
        counts["cases"] += 1
        counts["broken"] += not mean_square_growth(step.hessians, lr, step.batch_size) > 1
    return counts


@claim(
    "stability/dexter2",
    where="C.14, Theorem 2, eq. 89",
    states="If lambda_max < (2 sigma/eta)(sigma + n/B - 1)^(-1), there is a set with this sigma and lambda_max on "
    "which SGD stays bounded.",
    rule="As Theorem 3.3, with c = 0.",
    choices=(GRID,),
    uses=lambda scale: {"found": computed(sets_of_theorem_3_3, seed=9, count=SETS, sam=False)},
)
def dexter_theorem_2(found: Mapping[str, float]) -> Judgement:
    return theorem_3_3(found)


def lemma_4_1_answers(seed: int, count: int) -> dict[str, int]:
    """What Lemma 4.1 decides, against the exact growth."""
    counts = dict.fromkeys(("cases", "diverges", "converges", "undecided", "broken"), 0)
    for drawn, draw in steps(count, seed, sam=False, full_rank=True):
        step = Step(drawn.hessians, drawn.lr * float(np.exp(draw.uniform(-4, 0.5))), drawn.batch_size)
        answer = lemma_4_1(step)
        growth = mean_square_growth(step.hessians, step.lr, step.batch_size)
        counts["cases"] += 1
        counts[answer] += 1
        counts["broken"] += (answer == "diverges" and not growth > 1) or (answer == "converges" and not growth < 1)
    return counts


@claim(
    "stability/lem4.1",
    where="C.14, Lemma 4.1, eqs 90, 91",
    states="SGD diverges if lambda_max(H) >= 2/eta or (eta^2/(nB) - eta^2/n^2)^k sum_y ||H_y1 ... H_yk||_F^2 goes to "
    "infinity. It converges if all eigenvalues of H are within eps/eta and (2 - eps)/eta and the sum over eps^k goes "
    "to 0.",
    rule="On the random sets of full rank out of 2,000: wherever the lemma decides, the exact growth agrees. It "
    "decides for divergence and for convergence on at least 30 sets each.",
    choices=(DRAWS, "the square of the norm and the power k of its factor, which our copy of the text does not show"),
    uses=lambda scale: {"found": computed(lemma_4_1_answers, seed=11, count=2000)},
)
def lemma_4_1_decides(found: Mapping[str, int]) -> Judgement:
    enough = min(found["diverges"], found["converges"]) >= 30
    return Judgement([
        none_broken("the exact growth agrees", found),
        Check(f"it decides both ways ({found['diverges']} diverge, {found['converges']} converge)", enough),
    ])  # fmt: skip
