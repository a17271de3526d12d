"""When GD and SAM learn the easy and the difficult feature: Theorems 3.2 to 3.4 on the paper's toy data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from evenly.papers.claims import claim
from evenly.papers.nodes import computed
from evenly.papers.useful.dynamics import (
    FILTERS,
    LEARNED,
    LR,
    NOISE,
    NOT_LEARNED,
    RHO,
    SIGMA_0,
    START,
    STEPS,
    STRENGTHS,
    both_strengths,
)
from evenly.runs.verdict import Check, Judgement, measurement
from evenly.theory import growth

Path = Mapping[str, Any]
Seeds = Sequence[Path]
CHOICES = (START, NOISE)
ORDER_LIMIT = 1.5
"""Largest over smallest ratio of a measured time to a predicted order that counts as the same order."""


def learning_times(
    alphas: Sequence[float], starts: Sequence[float], rates: Sequence[float], seed: int
) -> list[dict[str, float]]:
    """Iterations until max_j <w_j, v_e> = 1/beta_e without noise, over settings, from one scaled draw of 40 filters."""
    draw = torch.randn(2, FILTERS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows = []
    for alpha in alphas:
        for sigma_0 in starts:
            for lr in rates:
                path = growth.two_features(
                    *(sigma_0 * draw), beta_strong=1.0, beta_weak=0.2, alpha=alpha, lr=lr,
                    steps=int(0.6 / (lr * alpha * sigma_0)),
                )  # fmt: skip
                t = int((path.strong.amax(1) >= 1).nonzero()[0])
                printed, order = (
                    growth.learning_time(lr, 1.0, sigma_0, alpha, form=form) for form in ("printed", "corrected")
                )
                rows.append({"alpha": alpha, "sigma_0": sigma_0, "lr": lr, "t": t, "eq28": order, "eq5": printed})
    return rows


def _orders(rows: Sequence[Mapping[str, float]], form: str) -> Judgement:
    ratios = [row["t"] / row[form] for row in rows]
    spread = max(ratios) / min(ratios)
    return Judgement(
        [Check(f"measured over predicted time varies by at most {ORDER_LIMIT} over the settings ({spread:.2f})",
               spread <= ORDER_LIMIT)],
        [measurement("measured / predicted time", ratios)],
    )  # fmt: skip


SETTINGS = {"alphas": [0.3, 0.6, 0.9, 1.0], "starts": [0.01, 0.03], "rates": [0.03, 0.1]}
ORDER_RULE = (
    "Over 16 settings (alpha 0.3 to 1, sigma_0 0.01 and 0.03, learning rate 0.03 and 0.1), the time to "
    "max <w, v_e> = 1/beta_e divided by the formula with every Theta set to 1 varies by at most a factor of 1.5."
)


@claim(
    "useful/eq5",
    where="Theorem 3.2, eq. 5",
    states="T_0 is of order 1/(eta beta_e^3 sigma_0) + log2(1/(sigma_0 beta_e)), with no dependence on alpha.",
    rule=ORDER_RULE,
    choices=("noise-free data, so that nothing else varies; one draw of 40 filters, scaled by sigma_0",),
    uses=lambda scale: {"rows": computed(learning_times, **SETTINGS, seed=0)},
)
def equation_5(rows: Sequence[Mapping[str, float]]) -> Judgement:
    return _orders(rows, "eq5")


@claim(
    "useful/eq5-corrected",
    where="Theorem A.8, eq. 28",
    states="T_0 is of order 1/(eta alpha beta_e^3 sigma_0) + log2(1/(sigma_0 beta_e)): eq. 28 has the alpha that eq. 5 "
    "lacks.",
    rule=ORDER_RULE,
    choices=("noise-free data, so that nothing else varies; one draw of 40 filters, scaled by sigma_0",),
    uses=lambda scale: {"rows": computed(learning_times, **SETTINGS, seed=0)},
)
def equation_28(rows: Sequence[Mapping[str, float]]) -> Judgement:
    return _orders(rows, "eq28")


@claim(
    "useful/thm3.2",
    where="Theorem 3.2 (A.8), T_0 and property (1)",
    states="GD learns the easy feature, max <w, v_e> >= 1/beta_e, after a time of the order of eq. 28.",
    rule="Over 12 seeds at beta_d 0.2 and at 0.4: the alignment is at least 1/beta_e at iteration 600 on every seed; "
    "the time at which the leading filter has 0.4/beta_e is within the bounds that the recursion gives with "
    "constants, on every seed; it is one multiple of eq. 28's order within a factor of 1.5.",
    choices=(*CHOICES, "bounds: l between its value at that time (or 0.49) and 0.51"),
    uses=both_strengths,
)
def theorem_3_2(**paths: Seeds) -> Judgement:
    checks, measurements = [], []
    for name, of_seeds in paths.items():
        learned = sum(path["GD"]["easy"][-1] >= 1 for path in of_seeds)
        inside, ratios = 0, []
        for path in of_seeds:
            z0, t = max(path["start"]["easy"]), path["GD"]["learned"]["iteration"]
            low = min(path["GD"]["learned"]["derivative"], 0.49)
            bounds = growth.learning_time_bounds(LR, 1.0, z0, 0.9, 0.0, LEARNED, (low, 0.51))
            inside += bounds.lower <= t <= bounds.upper and t != NOT_LEARNED
            ratios.append(t / growth.learning_time(LR, 1.0, z0, 0.9))
        spread, total = max(ratios) / min(ratios), len(of_seeds)
        checks += [
            Check(f"{STRENGTHS[name]}: learned by iteration {STEPS} ({learned} of {total} seeds)", learned == total),
            Check(f"{STRENGTHS[name]}: within the bounds ({inside} of {total} seeds)", inside == total),
            Check(f"{STRENGTHS[name]}: one multiple of the order ({spread:.2f})", spread <= ORDER_LIMIT),
        ]
        times = [path["GD"]["learned"]["iteration"] for path in of_seeds]
        measurements += [
            measurement(f"iteration at 0.4/beta_e, {STRENGTHS[name]}", times),
            measurement(f"over eq. 28's order, {STRENGTHS[name]}", ratios),
        ]
    return Judgement(checks, measurements)


def _not_learned(paths: Mapping[str, Seeds], arm: str) -> tuple[list[Check], list[Any]]:
    """Property (2) at T_0 of an arm, or at 600 where it is not reached by then."""
    checks, measurements = [], []
    for name, of_seeds in paths.items():
        at = [min(path[arm]["learned"]["iteration"], STEPS) for path in of_seeds]
        levels = [path[arm]["difficult"][t] for path, t in zip(of_seeds, at, strict=True)]
        grown = [level / path[arm]["difficult"][0] for level, path in zip(levels, of_seeds, strict=True)]
        text = f"{STRENGTHS[name]}: at most twice its start on every seed (largest {max(grown):.3f})"
        checks.append(Check(text, max(grown) <= 2))
        measurements.append(
            measurement(f"max <w, v_d> / sigma_0 at T_0, {STRENGTHS[name]}", [x / SIGMA_0 for x in levels])
        )
    return checks, measurements


@claim(
    "useful/thm3.2.2",
    where="Theorem 3.2 (A.8), property (2); Lemma A.7",
    states="When GD has learned the easy feature it has not learned the difficult one: max <w, v_d> is of the order of "
    "sigma_0.",
    rule="Over 12 seeds at beta_d 0.2 and at 0.4: when the leading filter has 0.4/beta_e, the largest difficult "
    "alignment is at most twice that at the start, on every seed.",
    choices=CHOICES,
    uses=both_strengths,
)
def theorem_3_2_difficult(**paths: Seeds) -> Judgement:
    return Judgement(*_not_learned(paths, "GD"))


@claim(
    "useful/thm3.3",
    where="Theorem 3.3 (A.15), T_0 and property (1)",
    states="SAM learns the easy feature too, later than GD, after a time of the order of eq. 54.",
    rule="Over 12 seeds at beta_d 0.2 and at 0.4: the leading filter has 0.4/beta_e later than under GD on every seed; "
    "where it starts above rho, the time is within the bounds that the recursion gives with constants (a filter that "
    "is not there by 600 must have an upper bound above 600). Side points: max <w, v_e> >= 1/beta_e by iteration 600 "
    "on every seed; sigma_0 >= rho, without which eq. 54 has no meaning.",
    choices=(*CHOICES, "bounds: l between its value at that time (or 0.49) and 0.51"),
    uses=both_strengths,
)
def theorem_3_3(**paths: Seeds) -> Judgement:
    checks, measurements = [], []
    for name, of_seeds in paths.items():
        times = [[path[arm]["learned"]["iteration"] for path in of_seeds] for arm in ("GD", "SAM")]
        later = sum(sam > gd for gd, sam in zip(*times, strict=True))
        inside = above = learned = 0
        for path in of_seeds:
            z0, t = max(path["start"]["easy"]), path["SAM"]["learned"]["iteration"]
            learned += path["SAM"]["easy"][-1] >= 1
            if z0 > RHO:
                low = min(path["SAM"]["learned"]["derivative"], 0.49)
                bounds = growth.learning_time_bounds(LR, 1.0, z0, 0.9, RHO, LEARNED, (low, 0.51))
                above += 1
                inside += bounds.lower <= t <= bounds.upper or (t == NOT_LEARNED and bounds.upper > STEPS)
        total = len(of_seeds)
        checks += [
            Check(f"{STRENGTHS[name]}: later than GD ({later} of {total} seeds)", later == total),
            Check(f"{STRENGTHS[name]}: within the bounds ({inside} of the {above} that start above rho)",
                  inside == above > 0),
            Check(f"{STRENGTHS[name]}: learned by iteration {STEPS} ({learned} of {total} seeds)",
                  learned == total, main=False),
        ]  # fmt: skip
        ratios = [sam / gd for gd, sam in zip(*times, strict=True)]
        measurements.append(measurement(f"SAM's time over GD's, at least, {STRENGTHS[name]}", ratios))
    text = f"sigma_0 {SIGMA_0:.4f} is at least rho {RHO}, as eq. 8 assumes"
    return Judgement([*checks, Check(text, SIGMA_0 >= RHO, main=False)], measurements)


@claim(
    "useful/thm3.3.2",
    where="Theorem 3.3 (A.15), property (2); Lemma A.14",
    states="When SAM has learned the easy feature it has not learned the difficult one.",
    rule="Over 12 seeds at beta_d 0.2 and at 0.4: when the leading filter has 0.4/beta_e (at 600 where it has not by "
    "then), the largest difficult alignment is at most twice that at the start, on every seed.",
    choices=CHOICES,
    uses=both_strengths,
)
def theorem_3_3_difficult(**paths: Seeds) -> Judgement:
    return Judgement(*_not_learned(paths, "SAM"))


@claim(
    "useful/thm3.4",
    revised="Similar numbers were known from earlier runs when the rule was written.",
    where="Theorem 3.4 (A.16), eq. 11",
    states="From the same start, S_e - S_d < G_e - G_d at every iteration: SAM learns the features more evenly.",
    rule="At beta_d 0.2 and at 0.4: at every t = 1, ..., 600 on all of 12 seeds.",
    choices=CHOICES,
    uses=both_strengths,
)
def theorem_3_4(**paths: Seeds) -> Judgement:
    checks, measurements = [], []
    for name, of_seeds in paths.items():
        holds, gaps = 0, []
        for path in of_seeds:
            gd, sam = (torch.tensor([path[arm]["easy"], path[arm]["difficult"]]).T for arm in ("GD", "SAM"))
            holds += bool(growth.more_even(gd, sam)[1:].all())
            gaps.append(float(((gd[:, 0] - gd[:, 1]) - (sam[:, 0] - sam[:, 1])).mean()))
        total = len(of_seeds)
        text = f"{STRENGTHS[name]}: eq. 11 at every t ({holds} of {total} seeds)"
        checks.append(Check(text, holds == total))
        measurements.append(measurement(f"mean gap over the run, {STRENGTHS[name]}", gaps))
    return Judgement(checks, measurements)


@claim(
    "useful/assumptionA.1",
    where="Assumption A.1, and before Theorem A.16",
    states="Every filter has alignments of at least rho with both features at the start, or after several iterations; "
    "the easy one is ahead by rho.",
    rule="Over 12 seeds at beta_d 0.2 and at 0.4: the normal start of the toy experiment meets it on at least one "
    "seed, or all 80 alignments are at least rho at some record of the 600 iterations of GD.",
    choices=(*CHOICES, "the assumption prints v_e twice; the second is read as v_d"),
    uses=both_strengths,
)
def assumption_a1(**paths: Seeds) -> Judgement:
    met, most, total = 0, 0, 0
    for beta_d, of_seeds in zip((0.2, 0.4), paths.values(), strict=True):
        for path in of_seeds:
            z_e, z_d = (torch.tensor(path["start"][feature]) for feature in ("easy", "difficult"))
            met += growth.preconditions(z_e, z_d, beta_e=1.0, beta_d=beta_d, alpha=0.9, rho=RHO).hold
            most = max(most, *(record["ready"] for record in path["GD"]["records"]))
            total += 1
    chance = growth.precondition_probability(FILTERS, SIGMA_0, RHO)
    start = f"at the start on {met} of {total} seeds, where a normal start has probability {chance:.0e}"
    later = f"later at most {most} of {2 * FILTERS} alignments are at least rho"
    return Judgement([Check(f"met at the start or later ({start}; {later})", met > 0 or most == 2 * FILTERS)])
