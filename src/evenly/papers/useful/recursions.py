"""The lemmas on the tensor power recursion z <- z + rate (z - rho)^2: B.1, B.2 and B.3."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from evenly.papers.claims import claim
from evenly.papers.nodes import computed
from evenly.runs.verdict import Check, Judgement
from evenly.theory import recursion

DRAWS, RACES = 200, 50


class Start(NamedTuple):
    """A start z0 > rho, a threshold above it, and rates m <= M."""

    z0: float
    threshold: float
    m: float
    M: float
    rho: float


def starts(draw: random.Random, count: int, rho: bool) -> Iterator[Start]:
    """Random recursions with large and small steps; with `rho`, up to 0.8 of the start."""
    for _ in range(count):
        z0 = _log_uniform(draw, 1e-3, 1)
        threshold = z0 * _log_uniform(draw, 1.5, 10)
        m = _log_uniform(draw, 0.03, 3) / threshold
        yield Start(
            z0, threshold, m, m * draw.choice([1.0, draw.uniform(1, 4)]), z0 * draw.uniform(0.1, 0.8) if rho else 0.0
        )


def _log_uniform(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def passage_violations(draws: int, seed: int) -> dict[str, int]:
    """How often a sequence with m (z - rho)^2 <= growth <= M z^2, the slowest or a random one, is after eq. 116."""
    draw, late = random.Random(seed), {"GD": 0, "SAM": 0}
    for name in late:
        for start in starts(draw, draws, name == "SAM"):
            limit = recursion.passage_time_limit(start.z0, start.threshold, start.m, start.M, start.rho)
            for slow in (True, False):
                z, t = start.z0, 0
                while z < start.threshold:
                    low, high = start.m * (z - start.rho) ** 2, start.M * z**2
                    z, t = z + (low if slow else draw.uniform(low, high)), t + 1
                late[name] += t > limit
    return late


@claim(
    "useful/lemB.3",
    where="Lemma B.3, eq. 116",
    states="A sequence with m (z - rho)^2 <= growth <= M z^2 is at v by 2 z_0/(m (z_0 - rho)^2) + (4 M z_0^2/(m (z_0 - "
    "rho)^2)) ceil(log2(v/z_0)).",
    rule=f"No violation in {DRAWS} draws with rho = 0 and {DRAWS} with rho > 0, each by its slowest and by a random "
    "sequence.",
    choices=("the bracket around the logarithm is the proof's ceiling",),
    uses=lambda scale: {"late": computed(passage_violations, draws=DRAWS, seed=0)},
)
def lemma_b3(late: Mapping[str, int]) -> Judgement:
    words = {"GD": "rho = 0", "SAM": "rho > 0"}
    return Judgement([Check(f"{words[name]}: {count} violations", count == 0) for name, count in late.items()])


def accumulated_violations(draws: int, seed: int) -> dict[str, int]:
    """How often sum eta C_t until x >= A is outside eqs 97 and 98, as printed and corrected."""
    draw = random.Random(seed)
    outside = dict.fromkeys(("printed, rho = 0", "printed, rho > 0", "corrected, rho = 0", "corrected, rho > 0"), 0)
    for sign, with_rho in (("=", False), (">", True)):
        for x0, threshold, m, _, rho in starts(draw, draws, with_rho):
            rate, delta = m / 10, draw.uniform(0.05, 0.95)
            x, total = x0, 0.0
            while x < threshold:
                step = rate * draw.choice([1.0, draw.uniform(0.3, 1)])
                total, x = total + step, x + step * (x - rho) ** 2
            for form in ("printed", "corrected"):
                low, high = recursion.accumulated_rate_bounds(x0, threshold, rate, delta, rho, form=form)
                outside[f"{form}, rho {sign} 0"] += not low <= total <= high
    return outside


def _accumulated(outside: Mapping[str, int], form: str) -> Judgement:
    return Judgement(
        [
            Check(f"rho {sign} 0: {outside[f'{form}, rho {sign} 0']} violations", outside[f"{form}, rho {sign} 0"] == 0)
            for sign in ("=", ">")
        ]
    )


SUM_RULE = (
    f"No violation in {DRAWS} draws with rho = 0 and {DRAWS} with 0.1 x_0 <= rho <= 0.8 x_0, the O(...) set to the "
    "largest step and the number of levels rounded up."
)


@claim(
    "useful/lemB.1",
    where="Lemma B.1, eqs 97 and 98",
    states="The sum of eta C_t while x < A is within (1 + delta)/x_0 and (1 - (1 + delta) x_0/A)/(x_0 (1 + delta)), up "
    "to a term in eta, for every rho < x_0.",
    rule=SUM_RULE,
    uses=lambda scale: {"outside": computed(accumulated_violations, draws=DRAWS, seed=1)},
)
def lemma_b1(outside: Mapping[str, int]) -> Judgement:
    return _accumulated(outside, "printed")


@claim(
    "useful/lemB.1-corrected",
    where="Lemma B.1, about x - rho",
    states="The same bounds hold with x_0 - rho and A - rho in the places of x_0 and A.",
    rule=SUM_RULE,
    uses=lambda scale: {"outside": computed(accumulated_violations, draws=DRAWS, seed=1)},
)
def lemma_b1_corrected(outside: Mapping[str, int]) -> Judgement:
    return _accumulated(outside, "corrected")


def race_violations(draws: int, seed: int) -> dict[str, int]:
    """How often y exceeds y_0 / G when x has passed A = 1, where x_0 or x_0 - rho has the lead of Lemma B.2."""
    draw, G = random.Random(seed), 0.2
    over = dict.fromkeys(("printed", "corrected", "met, printed", "met, corrected"), 0)
    for form in ("printed", "corrected"):
        for _ in range(draws):
            ratio, y0, part = draw.uniform(0.1, 0.9), _log_uniform(draw, 0.03, 0.1), draw.uniform(0, 0.8)
            lead = y0 * ratio * (1 + 2 * G) / (1 - 3 * G) * draw.uniform(1.001, 1.1)
            x0 = lead if form == "printed" else min(lead / (1 - part), 0.9)
            rho = min(part * x0, x0 - lead) if form == "corrected" else part * x0
            eta = 0.999 * G**2 * min(x0 / math.log(1 / x0), y0 / math.log(1 / G))
            conditions = list(recursion.race_preconditions(x0, y0, 1.0, eta, ratio, G, rho).values())
            over[f"met, {form}"] += all(conditions[:3] if form == "printed" else conditions)
            x, y = x0, y0
            while x < 1 and y < 1e6:
                step = eta * draw.choice([1.0, draw.uniform(0.3, 1)])
                x, y = x + step * (x - rho) ** 2, y + ratio * step * y**2
            over[form] += y > y0 / G
    return over | {"draws": draws}


def _race(over: Mapping[str, int], form: str) -> Judgement:
    met = over[f"met, {form}"]
    return Judgement(
        [
            Check(f"the conditions are met in every draw ({met} of {over['draws']})", met == over["draws"]),
            Check(f"y <= y_0/G when x has passed A: {over[form]} violations", over[form] == 0),
        ]
    )


RACE_RULE = f"In {RACES} draws that meet the conditions with G = 0.2 and rho up to 0.8 x_0, y is at most y_0/G."


@claim(
    "useful/lemB.2",
    where="Lemma B.2",
    states="Where x_0 >= y_0 S (1 + 2G)/(1 - 3G) and eta is small, the slower sequence y is of the order y_0/G when x "
    "has passed A.",
    rule=RACE_RULE,
    choices=("O(y_0/G) read as y_0/G; rho < O(x_0) read as rho <= 0.8 x_0",),
    uses=lambda scale: {"over": computed(race_violations, draws=RACES, seed=3)},
)
def lemma_b2(over: Mapping[str, int]) -> Judgement:
    return _race(over, "printed")


@claim(
    "useful/lemB.2-corrected",
    where="Lemma B.2, with the lead of x_0 - rho",
    states="The same where x_0 - rho has the lead: x_0 - rho >= y_0 S (1 + 2G)/(1 - 3G).",
    rule=RACE_RULE,
    choices=("O(y_0/G) read as y_0/G",),
    uses=lambda scale: {"over": computed(race_violations, draws=RACES, seed=3)},
)
def lemma_b2_corrected(over: Mapping[str, int]) -> Judgement:
    return _race(over, "corrected")
