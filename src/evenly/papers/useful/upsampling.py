"""One-shot upsampling: the part of the difficult feature in a step of GD and of SAM (Theorem 3.5, eq. 96)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evenly.errors import EvenlyError
from evenly.papers.claims import Scale, claim
from evenly.papers.nodes import computed
from evenly.papers.useful.dynamics import NOISE, START, both_strengths
from evenly.papers.useful.theorems import Sample, ascended, autograd, sample
from evenly.runs.verdict import Check, Judgement, measurement
from evenly.theory import growth


class Case(NamedTuple):
    """One filter on noise-free data, and SAM's radius."""

    data: dict[str, float]
    z: list[float]
    rho: float
    seed: int

    def at(self, k: float = 1.0) -> tuple[Sample, Tensor]:
        """The data with beta_d multiplied by k, and the filter (1, d)."""
        drawn = sample(self.data["beta_e"], k * self.data["beta_d"], self.data["alpha"], 0.0, self.seed)
        return drawn, torch.tensor([self.z], dtype=torch.float64) @ drawn.v

    def direction(self, k: float = 1.0, rho: float = 0.0) -> Tensor:
        """The normalised gradient (1, d) of a GD step, or of a SAM step with a radius, on the data with k beta_d."""
        (x, y, _, _), w = self.at(k)
        return _unit(autograd(ascended(w, x, y, rho) if rho else w, x, y))

    def weight(self, k: float = 1.0, rho: float = 0.0) -> float:
        """|difficult| / |easy| in that direction."""
        part = self.direction(k, rho) @ self.at(k)[0].v.T
        return float(part[0, 1].abs() / part[0, 0].abs())


def cases(count: int, seed: int, most: float) -> Iterator[Case]:
    """Random data and small filters with z_e >= z_d; rho is up to `most` of the smaller alignment."""
    random_ = random.Random(seed)
    for number in range(count):
        beta_e, alpha = random_.uniform(0.5, 1.5), random_.choice([0.5, 0.8, 0.9, 1.0])
        beta_d = alpha ** (1 / 3) * beta_e * random_.uniform(0.2, 0.9)
        z_e = math.exp(random_.uniform(math.log(1e-4), math.log(1e-2)))
        z_d = z_e * random_.uniform(0.3, 1)
        yield Case(
            {"beta_e": beta_e, "beta_d": beta_d, "alpha": alpha}, [z_e, z_d], z_d * random_.uniform(0.05, most), number
        )


def upsampled_weights(draws: int, seed: int) -> dict[str, int]:
    """Violations of items 1 and 2 of Theorem 3.5 for one filter, with rho up to the smaller alignment."""
    counts = dict.fromkeys(("item 1", "item 2, GD", "item 2, SAM", "item 2, SAM, reach below 1/3", "below 1/3"), 0)
    for case in cases(draws, seed, most=1.0):
        counts["item 1"] += case.weight(rho=case.rho) < case.weight()
        largest = case.data["alpha"] ** (1 / 3) * case.data["beta_e"] / case.data["beta_d"]
        k = 1 + (largest - 1) * 0.9
        counts["item 2, GD"] += case.weight(k) <= case.weight()
        falls = case.weight(k, case.rho) <= case.weight(1.0, case.rho)
        data = {**case.data, "beta_d": k * case.data["beta_d"]}
        rho_t = case.rho / growth.one_filter_gradient_norm(*case.z, **data)
        small = 1.5 * rho_t * data["beta_d"] ** 3 * case.z[1] < 1 / 3
        counts["item 2, SAM"] += falls
        counts["item 2, SAM, reach below 1/3"] += falls and small
        counts["below 1/3"] += small
    return counts


@claim(
    "useful/thm3.5.1",
    revised="Seed 100 had been looked at before: the part on 40 filters, which fails there, is a side point.",
    where="Theorem 3.5 (A.18) item 1, Lemma A.17",
    states="The difficult feature has a larger part in the normalised gradient of a SAM step than of a GD step.",
    rule="No violation in 500 draws of one filter with z_e >= z_d >= rho, without noise. Side point: so too in the toy "
    "experiment's network of 40 filters at iterations 0, 100, ... before T_0 of GD, on every seed.",
    choices=("part: |gradient along v_d| / |gradient along v_e|", START, NOISE),
    uses=lambda scale: {"counts": computed(upsampled_weights, draws=500, seed=7)} | both_strengths(scale),
)
def theorem_3_5_1(counts: Mapping[str, int], **paths: Sequence[Mapping[str, Any]]) -> Judgement:
    seen: list[tuple[int, bool]] = []
    for of_seeds in paths.values():
        for path in of_seeds:
            for record in path["GD"]["records"]:
                if record["t"] < path["GD"]["learned"]["iteration"]:
                    seen.append((record["t"], record["weight"][1] > record["weight"][0]))
    first = [larger for t, larger in seen if t == 0]
    larger = sum(each for _, each in seen)
    text = f"40 filters: larger at {larger} of {len(seen)} records, at the start on {sum(first)} of {len(first)} seeds"
    return Judgement(
        [
            Check(f"one filter: {counts['item 1']} violations", counts["item 1"] == 0),
            Check(text, larger == len(seen), main=False),
        ]
    )


def _weights(scale: Scale) -> dict[str, Any]:
    return {"counts": computed(upsampled_weights, draws=500, seed=7)}


@claim(
    "useful/thm3.5.2",
    where="Theorem 3.5 (A.18) item 2",
    states="A stronger difficult feature has a larger part in the normalised gradients of GD and of SAM.",
    rule="No violation in 500 draws of one filter with z_e >= z_d >= rho, without noise, beta_d raised by nine tenths "
    "of the way to alpha^(1/3) beta_e.",
    uses=_weights,
)
def theorem_3_5_2(counts: Mapping[str, int]) -> Judgement:
    names = ("item 2, GD", "item 2, SAM")
    return Judgement([Check(f"{name}: {counts[name]} violations", counts[name] == 0) for name in names])


@claim(
    "useful/thm3.5.2-corrected",
    where="Theorem 3.5 (A.18) item 2, with a condition on rho",
    states="A stronger difficult feature has a larger part in SAM's normalised gradient where the ascent takes less "
    "than a third off its alignment.",
    rule="No violation among those of the 500 draws in which the ascent takes less than 1/3 off <w, v_d>.",
    uses=_weights,
)
def theorem_3_5_2_corrected(counts: Mapping[str, int]) -> Judgement:
    count = counts["item 2, SAM, reach below 1/3"]
    return Judgement([Check(f"{count} violations in {counts['below 1/3']} draws", count == 0)])


def upsampling_errors(draws: int, searched: int, seed: int) -> dict[str, Any]:
    """1 - cos between SAM's direction and that of GD on k beta_d, for no upsampling and the k of eq. 96 in both forms.

    rho is up to 0.45 of the smaller alignment, where the printed form has a value, and rho_t has the real gradient's
    norm. `best` is the best k for one filter by search; `forty` the same for 40 normal filters.
    """
    rows, best, forty, simplified = [], [], [], []
    for case in cases(draws, seed, most=0.45):
        (x, y, _, _), w = case.at()
        rho_t = case.rho / float(autograd(w, x, y).norm())
        target = case.direction(rho=case.rho)
        row = {"none": _apart(case.direction(), target)}
        for form in ("printed", "corrected"):
            try:
                k = growth.upsampling_factor(*case.z, rho_t=rho_t, form=form, **case.data)
                row[form] = _apart(case.direction(k), target)
            except EvenlyError:  # eq. 96 has no real value
                row[form] = 2.0
        rows.append(row)
        norm = growth.one_filter_gradient_norm(*case.z, derivative=1.0, **case.data)
        k = growth.upsampling_factor(*case.z, rho_t=case.rho / norm, form="printed", **case.data)
        simplified.append(_apart(case.direction(k), target))
    for case in cases(searched, seed, most=0.45):
        target = case.direction(rho=case.rho)
        best.append(_smallest(partial(_missed, case, target)))
        forty.append(_forty(case.seed))
    return {"rows": rows, "best": best, "forty": forty, "simplified": simplified}


def _unit(g: Tensor) -> Tensor:
    unit: Tensor = g / g.norm()
    return unit


def _apart(a: Tensor, b: Tensor) -> float:
    """1 - cos of the angle between unit vectors, without cancellation."""
    return float((a - b).square().sum() / 2)


def _missed(case: Case, target: Tensor, k: float) -> float:
    return _apart(case.direction(k), target)


def _smallest(far: Callable[[float], float]) -> float:
    """The smallest value over k in [0, 10]; 1 - cos has one valley."""
    low, high = 0.0, 10.0
    for _ in range(60):
        third = (high - low) / 3
        low, high = (low, high - third) if far(low + third) < far(high - third) else (low + third, high)
    return far(low)


def _forty(seed: int) -> float:
    w = 1e-3 * torch.randn(40, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def direction(k: float, rho: float = 0.0) -> Tensor:
        x, y, _, _ = sample(1.0, k * 0.6, 0.9, 0.0, seed)
        return _unit(autograd(ascended(w, x, y, rho) if rho else w, x, y))

    target = direction(1.0, 1e-3)
    return _smallest(lambda k: _apart(direction(k), target))


def _factors(scale: Scale) -> dict[str, Any]:
    return {"errors": computed(upsampling_errors, draws=200, searched=20, seed=7)}


RECOVERED = 1e-8


@claim(
    "useful/thm3.5.3",
    where="Theorem 3.5 (A.18) item 3",
    states="Some k makes a GD step on D(beta_e, k beta_d, alpha) go in the direction of a SAM step on the data without "
    "k.",
    rule="For one filter, without noise, the best k recovers the direction (1 - cos at most 1e-8) in all of 20 draws. "
    "Side point: so too for 40 filters, in all of 20 draws.",
    choices=("k by search",),
    uses=_factors,
)
def theorem_3_5_3(errors: Mapping[str, Any]) -> Judgement:
    one, forty = max(errors["best"]), min(errors["forty"])
    return Judgement(
        [
            Check(f"one filter: 1 - cos at most {one:.1e}", one <= RECOVERED),
            Check(f"40 filters: 1 - cos at least {forty:.1e}", max(errors["forty"]) <= RECOVERED, main=False),
        ]
    )


def _factor(errors: Mapping[str, Any], form: str) -> Judgement:
    of_form, none = ([row[name] for row in errors["rows"]] for name in (form, "none"))
    better = sum(ours < other for ours, other in zip(of_form, none, strict=True))
    checks = [
        Check(f"it recovers SAM's direction (1 - cos at most {max(of_form):.1e})", max(of_form) <= RECOVERED),
        Check(f"it is closer to SAM than no upsampling ({better} of {len(none)} draws)", better == len(none)),
    ]
    if form == "printed":
        same = max(errors["simplified"])
        text = f"exact with rho_t from eq. 84's simplified gradient (1 - cos at most {same:.1e})"
        checks.append(Check(text, same <= RECOVERED, main=False))
    return Judgement(checks, [measurement("1 - cos", of_form), measurement("1 - cos without upsampling", none)])


FACTOR_RULE = (
    "In 200 draws of one filter at small weights, without noise, rho_t = rho / ||grad L||_F of the real gradient: "
    "1 - cos between the GD step on k beta_d and the SAM step is at most 1e-8, and less than that of k = 1."
)


@claim(
    "useful/eq96",
    where="Theorem A.18, eq. 96",
    states="k = ((1 - 3 rho_t beta_d^3 z_d) / (1 - 3 rho_t alpha beta_e^3 z_e))^(2/3) recovers SAM's direction.",
    rule=FACTOR_RULE,
    uses=_factors,
)
def equation_96(errors: Mapping[str, Any]) -> Judgement:
    return _factor(errors, "printed")


@claim(
    "useful/eq96-corrected",
    where="Theorem A.18, eq. 96 with the l of eqs 40 and 42",
    states="With 3 rho_t l in the place of 3 rho_t, l = 1/2, the same k recovers SAM's direction.",
    rule=FACTOR_RULE,
    uses=_factors,
)
def equation_96_corrected(errors: Mapping[str, Any]) -> Judgement:
    return _factor(errors, "corrected")
