"""When and which feature is learned, without noise: T_0 of Theorem 2.2 and E.6, Section 3.1, Lemmas G.1 and G.2."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from evenly.papers.claims import claim
from evenly.papers.nodes import computed
from evenly.papers.pde.theory import SIGMA_0, J
from evenly.runs.verdict import Check, Judgement, measurement
from evenly.theory import growth, recursion

CENTRE = {"lr": 0.1, "beta": 1.0, "sigma_0": SIGMA_0, "alpha": 0.98}
SWEPT: dict[str, tuple[float, ...]] = {
    "lr": (0.05, 0.1, 0.2), "beta": (0.8, 1.0, 1.25), "sigma_0": (SIGMA_0 / 2, SIGMA_0, 2 * SIGMA_0),
    "alpha": (0.7, 0.98),
}  # fmt: skip
EXPONENTS = {"lr": -1, "beta": -3, "sigma_0": -1}


def learning_times(seed: int) -> list[dict[str, float]]:
    """T_0 of the noise-free dynamics at the centre and with one value changed at a time."""
    settings = [CENTRE | {name: value} for name, values in SWEPT.items() for value in values]
    z = torch.randn(2, J, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    times = []
    for each in {tuple(one.items()): one for one in settings}.values():
        steps = math.ceil(2 * growth.spurious_learning_time(**each))
        path = growth.two_features(
            each["sigma_0"] * z[0], each["sigma_0"] * z[1], beta_strong=each["beta"], beta_weak=0.2,
            alpha=each["alpha"], lr=each["lr"], steps=steps, otherwise="opposite",
        )  # fmt: skip
        reached = (path.strong.amax(1) >= 1 / (J ** (1 / 3) * each["beta"])).nonzero()
        times.append({**each, "T_0": float(reached[0]) if len(reached) else math.nan})
    return times


def exponent(times: Sequence[Mapping[str, float]], name: str) -> float:
    """The power of a setting that T_0 goes with, between its smallest and largest value."""
    others = {key: value for key, value in CENTRE.items() if key != name}
    swept = sorted(
        ((each[name], each["T_0"]) for each in times if all(each[key] == value for key, value in others.items())),
    )
    (low, first), (high, last) = swept[0], swept[-1]
    return math.log(last / first) / math.log(high / low)


Times = Sequence[Sequence[Mapping[str, float]]]


@claim(
    "pde/thm2.2-time",
    where="Theorem 2.2, T_0",
    states="The spurious feature is learned after T_0 = Theta(1/(eta beta_s^3 sigma_0)) iterations.",
    rule="Over 5 starts, without noise: T_0 goes with powers of eta, beta_s and sigma_0 within 0.15 of -1, -3 and -1, "
    "and T_0 eta beta_s^3 sigma_0 varies by at most a factor of 2 within a start.",
    published={"eta": "-1", "beta_s": "-3", "sigma_0": "-1"},
    choices=("noise-free dynamics, which are exact then; J = 40; learned at 1/(J^(1/3) beta_s)",),
    uses=lambda scale: {"starts": [computed(learning_times, seed=seed) for seed in scale.seeds(5)]},
)
def theorem_2_2_time(starts: Times) -> Judgement:
    checks, measurements = [], []
    for name, stated in EXPONENTS.items():
        powers = [exponent(times, name) for times in starts]
        label = {"lr": "eta", "beta": "beta_s"}.get(name, name)
        checks.append(Check(f"power of {label} is {stated}", all(abs(power - stated) <= 0.15 for power in powers)))
        measurements.append(measurement(label, powers, str(stated)))
    spans = [span(times, "stated") for times in starts]
    checks.append(Check("the constant varies by at most a factor of 2", max(spans) <= 2))
    return Judgement(checks, [*measurements, measurement("largest over smallest constant", spans)])


def span(times: Sequence[Mapping[str, float]], form: Any, alphas: bool = False) -> float:
    """The largest over the smallest ratio of T_0 to its order, at the centre's alpha or at all."""
    ratios = [
        each["T_0"] / growth.spurious_learning_time(each["lr"], each["beta"], each["sigma_0"], each["alpha"], form)
        for each in times
        if alphas or each["alpha"] == CENTRE["alpha"]
    ]
    return max(ratios) / min(ratios)


@claim(
    "pde/thmE.6-time",
    where="end of the proof of Theorem E.6",
    states="T_0 has alpha^3 where the theorem has beta_s^3: Theta(1)/(eta alpha^3 sigma_0) + Theta(1) (alpha/(2 alpha "
    "- 1)) ceil(-log2(sigma_0 beta_s)).",
    rule="Over 5 starts, without noise: the power of beta_s in T_0 is within 0.15 of 0.",
    published={"beta_s": "0"},
    uses=lambda scale: {"starts": [computed(learning_times, seed=seed) for seed in scale.seeds(5)]},
)
def theorem_e6_time(starts: Times) -> Judgement:
    powers = [exponent(times, "beta") for times in starts]
    return Judgement(
        [Check("T_0 does not depend on beta_s", all(abs(power) <= 0.15 for power in powers))],
        [measurement("beta_s", powers, "0")],
    )


@claim(
    "pde/thmE.6-time-corrected",
    where="end of the proof of Theorem E.6, with the rates of eq. 2.4 in Lemma G.2",
    states="T_0 = Theta(1)/(eta beta_s^3 (2 alpha - 1) sigma_0) + Theta(1) (alpha/(2 alpha - 1)) ceil(-log2(sigma_0 "
    "beta_s)).",
    rule="Over 5 starts, without noise, eta, beta_s, sigma_0 and alpha (0.7 and 0.98) changed one at a time: T_0 over "
    "this order varies by at most a factor of 2 within a start.",
    uses=lambda scale: {"starts": [computed(learning_times, seed=seed) for seed in scale.seeds(5)]},
)
def theorem_e6_corrected(starts: Times) -> Judgement:
    spans = [span(times, "proved", alphas=True) for times in starts]
    return Judgement(
        [Check("the constant varies by at most a factor of 2", max(spans) <= 2)],
        [measurement("largest over smallest constant", spans)],
    )


def first_features(seed: int, least_alpha: float, draws: int) -> dict[str, Any]:
    """Draws of (beta_s, beta_c, alpha) where Section 3.1 decides; which feature the noise-free dynamics learn first."""
    draw = random.Random(seed)
    drawn: dict[str, list[tuple[float, float, float]]] = {"spurious": [], "core": []}
    while min(map(len, drawn.values())) < draws:
        values = draw.uniform(0.2, 1.5), draw.uniform(0.2, 1.5), draw.uniform(least_alpha, 1.0)
        feature = growth.first_learned(*values)
        if feature != "undecided" and len(drawn[feature]) < draws:
            drawn[feature].append(values)
    z = 0.05 * torch.randn(2, draws, J, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    alike = {name: _first(torch.stack([z[0], z[0]]), values) for name, values in drawn.items()}
    apart = {name: _first(z, values) for name, values in drawn.items()}
    needed = [c < s and a > 0.5 for s, c, a in drawn["spurious"]]
    right = {"spurious": 1, "core": 2}
    against = {
        name: [values for values, first in zip(drawn[name], alike[name].tolist(), strict=True) if first != right[name]]
        for name in right
    }
    return {
        "against": against,
        "alike": {name: float((first == right[name]).double().mean()) for name, first in alike.items()},
        "apart": {name: float((first == right[name]).double().mean()) for name, first in apart.items()},
        "needed": all(needed),
    }


def _first(z: Tensor, values: Sequence[tuple[float, float, float]]) -> Tensor:
    """(D,) which feature passes 1/(J^(1/3) beta) first: 1 the spurious, 2 the core one, 0 neither within 2,000 steps.

    The rate of each draw is such that its faster feature takes about a hundred steps.
    """
    beta_s, beta_c, alpha = torch.tensor(values, dtype=torch.float64).T
    cubes = torch.stack([beta_s, beta_c])[..., None] ** 3
    learned = torch.stack([1 / beta_s, 1 / beta_c]) / J ** (1 / 3)
    fastest = torch.maximum(beta_s**3 * (2 * alpha - 1), beta_c**3) * z.amax((0, 2))
    lr = 0.01 / (1.5 * fastest)
    first = torch.zeros(len(beta_s), dtype=torch.long)
    for _ in range(2_000):
        margin_s, margin_c = (cubes * z**3).sum(2)
        with_, against = torch.sigmoid(-margin_c - margin_s), torch.sigmoid(margin_s - margin_c)
        pulls = torch.stack([alpha * with_ - (1 - alpha) * against, alpha * with_ + (1 - alpha) * against])
        z = z + 3 * lr[:, None] * cubes * pulls[..., None] * z**2
        share = z.amax(2) / learned
        first = torch.where((first == 0) & (share.amax(0) >= 1), 1 + share.argmax(0), first)
        if bool((first > 0).all()):
            break
    return first


def _implication(id: str, feature: str, states: str, where: str = "Section 3.1", least_alpha: float = 0.5) -> None:
    @claim(
        id,
        where=where,
        states=states,
        revised=""
        if least_alpha == 0.5
        else "Written after the counterexample; a side point on independent starts was dropped.",
        rule="Noise-free dynamics of 40 filters, 500 draws of (beta_s, beta_c, alpha) that meet the condition, on 2 "
        "seeds: this feature reaches 1/(J^(1/3) beta) first in every draw if both features start with the same "
        "alignments." + (" Side point: in every draw with independent normal starts." if least_alpha == 0.5 else ""),
        uses=lambda scale: {
            "draws": [
                computed(first_features, seed=seed, least_alpha=least_alpha, draws=500) for seed in scale.seeds(2)
            ]
        },
    )
    def judge(draws: Sequence[Mapping[str, Any]]) -> Judgement:
        alike, apart = ([100 * each[start][feature] for each in draws] for start in ("alike", "apart"))
        against = [values for each in draws for values in each["against"][feature]]
        example = " (not at beta_s {:.2f}, beta_c {:.2f}, alpha {:.3f})".format(*against[0]) if against else ""
        checks = [
            Check(f"both start alike: always first{example}", not against),
        ]
        if least_alpha == 0.5:
            checks.append(Check("independent starts: always first", min(apart) == 100, main=False))
        if feature == "spurious":
            met = all(each["needed"] for each in draws)
            checks.append(Check("the condition needs alpha > 1/2 and beta_c < beta_s", met))
        shares = {"first, start alike": alike, "first, independent starts": apart}
        return Judgement(checks, [measurement(name, values, unit="%") for name, values in shares.items()])


_implication(
    "pde/sec3.1-spurious", "spurious", "The spurious feature is learned first if beta_c^3 < beta_s^3 (2 alpha - 1)."
)
_implication(
    "pde/sec3.1-spurious-corrected",
    "spurious",
    "The spurious feature is learned first if beta_c^3 < beta_s^3 (2 alpha - 1) and alpha is at least 0.88. Lemma E.3 "
    "takes alpha g_1 - (1 - alpha) l for positive until T_0: with its g_1 of at least 0.119 that needs alpha of "
    "0.88. With nearly balanced groups the pull on v_s ends long before the feature is learned.",
    where="Section 3.1, with what Lemma E.3 needs",
    least_alpha=0.88,
)
_implication(
    "pde/sec3.1-core",
    "core",
    "The core feature is learned first if beta_c > beta_s, however unbalanced the groups are.",
)


def tensor_powers(seed: int, draws: int) -> dict[str, Any]:
    """Draws of sequences as in Lemmas G.1 and G.2: how often, and by how much, the bounds are kept."""
    draw = random.Random(seed)
    over_limit, largest, constants, late = 0, 0.0, [], 0
    for _ in range(draws):
        m = math.exp(draw.uniform(math.log(0.01), math.log(0.3)))
        M = m * draw.uniform(1, 2)
        z0, v = draw.uniform(0.01, 0.1), draw.uniform(0.2, 2)
        x, t = z0, 0
        while x < v:
            x, t = x + draw.uniform(m, M) * x**2, t + 1
        late += t > recursion.passage_time_limit(z0, v, m, M, lemma="G.2")
        B, y0 = m * draw.uniform(0.001, 0.1), z0 * draw.uniform(0.2, 1)
        x, y, t = z0, y0, 0
        while x < v:
            x, y, t = x + m * x**2, y + B * y**2, t + 1
        over_limit += y > recursion.slow_sequence_limit(z0, y0, v, m, B / m) * (1 + 1e-12)
        largest = max(largest, y / z0)
        constants.append(t * m * z0)
    return {"late": late, "over": over_limit, "largest": largest, "constants": [min(constants), max(constants)]}


@claim(
    "pde/lemmaG.1",
    where="Lemma G.1",
    states="If x grows by at least eta A x^2 and y by at most eta B y^2 with B much smaller than A, then x passes C "
    "after about 1/(eta x_0) steps, and y is still O(x_0).",
    rule="500 draws with B/A up to 0.1 and y_0 up to x_0, on 2 seeds: y is at most 2 x_0 in every draw, and within the "
    "explicit limit of `recursion.slow_sequence_limit`; steps times eta A x_0 are within 1/4 to 4.",
    uses=lambda scale: {"draws": [computed(tensor_powers, seed=seed, draws=500) for seed in scale.seeds(2)]},
)
def lemma_g1(draws: Sequence[Mapping[str, Any]]) -> Judgement:
    low, high = min(each["constants"][0] for each in draws), max(each["constants"][1] for each in draws)
    checks = [
        Check("y is at most 2 x_0", max(each["largest"] for each in draws) <= 2),
        Check("y is within the explicit limit", all(each["over"] == 0 for each in draws)),
        Check(f"time: {low:.2f} to {high:.2f} times 1/(eta A x_0)", low >= 0.25 and high <= 4),
    ]
    return Judgement(checks, [measurement("largest y / x_0", [each["largest"] for each in draws])])


@claim(
    "pde/lemmaG.2",
    where="Lemma G.2",
    states="If z grows by between m z^2 and M z^2, it has passed v by 3/(m z_0) + (8 M/m) ceil(log2(v/z_0)).",
    rule="500 draws on 2 seeds, growth drawn anew at every step: no violation.",
    uses=lambda scale: {"draws": [computed(tensor_powers, seed=seed, draws=500) for seed in scale.seeds(2)]},
)
def lemma_g2(draws: Sequence[Mapping[str, Any]]) -> Judgement:
    late = [each["late"] for each in draws]
    return Judgement([Check("no violation", not any(late))], [measurement("violations in 500 draws", late, "0")])
