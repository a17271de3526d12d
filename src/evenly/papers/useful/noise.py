"""The lemmas about noise and about the derivatives l_i: B.4 to B.10."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from evenly.data.patches import PatchDistribution
from evenly.papers.claims import Scale, claim
from evenly.papers.nodes import computed
from evenly.papers.useful.dynamics import FILTERS, NOISE, SIGMA_0, START, STEPS, N, toy
from evenly.runs.verdict import Chart, Check, Judgement, line, measurement
from evenly.theory import cubic

Seeds = Sequence[Mapping[str, Any]]
D, SIGMA = 50, 0.125
"""The dimension, and the noise per coordinate, sigma_p / sqrt(d)."""
SIGMA_P = SIGMA * D**0.5
LOG_FACTOR = math.sqrt(2 * math.log(2 * FILTERS * N))
"""What the tilde hides where a union bound over filters and examples is taken: sqrt(2 log(2 J N))."""
ASSUMED = "noise orthogonal to the features, as the analysis assumes"


def _with_assumed_noise(scale: Scale) -> dict[str, Any]:
    return {"paths": toy(scale, 0.2, seeds=4), "assumed": toy(scale, 0.2, seeds=4, orthogonal=True)}


def _noise(paths: Seeds, assumed: Seeds, arm: str, limit: float) -> Judgement:
    checks, measurements, lines = [], [], []
    for words, of_seeds, main in ((ASSUMED, assumed, True), ("the noise of the experiments", paths, False)):
        records = [path[arm]["records"] for path in of_seeds]
        largest = [max(record["noise"] for record in of_seed) for of_seed in records]
        text = f"{words}: at most {limit:.3f} at every record until {STEPS} (largest {max(largest):.3f})"
        checks.append(Check(text, max(largest) <= limit, main))
        measurements.append(measurement(f"largest |<w, xi>|, {words}", largest))
        mean = [sum(of_seed[k]["noise"] for of_seed in records) / len(records) for k in range(len(records[0]))]
        lines.append(line(words, [record["t"] for record in records[0]], mean))
    return Judgement(checks, measurements, [Chart("largest |<w, xi>|, mean over seeds", "iteration", tuple(lines))])


@claim(
    "useful/lemB.4",
    revised="Seed 100 had been looked at before the rule was written.",
    where="Lemma B.4, eq. 128",
    states="Throughout training by GD, |<w_j, xi_i>| is at most of the order sigma_0 sigma_p sqrt(d).",
    rule="Over 4 seeds at beta_d 0.2, at iterations 0, 100, ..., 600, all filters and examples: with noise orthogonal "
    "to the features, at most sigma_0 sigma_p sqrt(d). Side point: so too with the noise of the experiments.",
    choices=(START, NOISE, "constant and logarithms hidden in the order: 1"),
    uses=_with_assumed_noise,
)
def lemma_b4(paths: Seeds, assumed: Seeds) -> Judgement:
    return _noise(paths, assumed, "GD", SIGMA_0 * SIGMA_P * D**0.5)


@claim(
    "useful/lemB.9",
    revised="Seed 100 had been looked at before the rule was written.",
    where="Lemma B.9, eq. 131",
    states="Throughout training by SAM, |<w_j, xi_i>| at the perturbed weights is at most of the order sigma sigma_0 "
    "sqrt(d), sigma = sigma_p / sqrt(d): smaller by sqrt(d) than in Lemma B.4.",
    rule="Over 4 seeds at beta_d 0.2, at iterations 0, 100, ..., 600, all filters and examples: with noise orthogonal "
    "to the features, at most twice sigma sigma_0 sqrt(d) sqrt(2 log(2 J N)). Side point: so too with the noise of the "
    "experiments.",
    choices=(START, NOISE, "hidden in the order: the union bound's sqrt(2 log(2 J N)) and a constant of 2"),
    uses=_with_assumed_noise,
)
def lemma_b9(paths: Seeds, assumed: Seeds) -> Judgement:
    return _noise(paths, assumed, "SAM", 2 * SIGMA * SIGMA_0 * D**0.5 * LOG_FACTOR)


def _derivatives(paths: Seeds, arms: Sequence[str], corrected: bool) -> Judgement:
    """Ratios l_i / g(t), all within 1/2 to 2."""

    def extremes(kind: str, early: bool) -> tuple[float, float]:
        kept = [
            record[kind]
            for path in paths
            for arm in arms
            for record in path[arm]["records"]
            if not early or record["t"] < path[arm]["learned"]["iteration"]
        ]
        return min(each[0] for each in kept), max(each[1] for each in kept)

    def check(words: str, bounds: tuple[float, float], main: bool, above: float = 2.0) -> Check:
        low, high = bounds
        return Check(f"{words} ({low:.3g} to {high:.3g})", low >= 0.5 and high <= above, main)

    early = [extremes(kind, True) for kind in ("with_easy", "without_easy")]
    before = (min(low for low, _ in early), max(high for _, high in early))
    checks = [check("before T_0, every example is within 1/2 to 2", before, True)]
    if corrected:
        checks += [
            check(f"until {STEPS}, with the easy feature, within 1/2 to 2", extremes("with_easy", False), True),
            check(f"until {STEPS}, without it, at least 1/2", extremes("without_easy", False), True, math.inf),
        ]
    else:
        both = [extremes(kind, False) for kind in ("with_easy", "without_easy")]
        whole = (min(low for low, _ in both), max(high for _, high in both))
        checks.append(check(f"until {STEPS}, every example is within 1/2 to 2", whole, False))
    return Judgement(checks)


@claim(
    "useful/lemB.5",
    revised="Seed 100 had been looked at before the rule was written.",
    where="Lemma B.5, eq. 129",
    states="Under GD, l_i = Theta(1) g_1(t) for every example i.",
    rule="Over 4 seeds at beta_d 0.2 with noise orthogonal to the features, at iterations 0, 100, ..., 600: l_i / g_1 "
    "is within 1/2 to 2 for every example before T_0. Side point: until 600.",
    choices=(START, "Theta(1) read as 1/2 to 2", "T_0: the leading filter has 0.4/beta_e"),
    uses=lambda scale: {"paths": toy(scale, 0.2, seeds=4, orthogonal=True)},
)
def lemma_b5(paths: Seeds) -> Judgement:
    return _derivatives(paths, ["GD"], corrected=False)


@claim(
    "useful/lemB.10",
    revised="Seed 100 had been looked at before the rule was written.",
    where="Lemma B.10, eqs 133 and 134",
    states="l_i = Theta(1) g_1(t) under GD and l_i = Theta(1) g_2(t) at SAM's perturbed weights, for every example.",
    rule="As for Lemma B.5, for GD and for SAM.",
    choices=(START, "Theta(1) read as 1/2 to 2", "T_0: the leading filter has 0.4/beta_e"),
    uses=lambda scale: {"paths": toy(scale, 0.2, seeds=4, orthogonal=True)},
)
def lemma_b10(paths: Seeds) -> Judgement:
    return _derivatives(paths, ["GD", "SAM"], corrected=False)


@claim(
    "useful/lemB.5-corrected",
    revised="Seed 100 had been looked at before the rule was written.",
    where="Lemmas B.5 and B.10, as Lemma A.4 uses them",
    states="l_i = Theta(1) g(t) for examples with the easy feature; for the others l_i is at least that order and at "
    "most 1.",
    rule="As for Lemma B.10, until 600: within 1/2 to 2 with the easy feature, at least 1/2 without it.",
    choices=(START, "Theta(1) read as 1/2 to 2"),
    uses=lambda scale: {"paths": toy(scale, 0.2, seeds=4, orthogonal=True)},
)
def lemma_b5_corrected(paths: Seeds) -> Judgement:
    return _derivatives(paths, ["GD", "SAM"], corrected=True)


def squared_lengths(dimensions: Sequence[int], draws: int, seed: int) -> list[dict[str, float]]:
    """||X||^2 / sigma^2 of X ~ N(0, sigma^2 I_d): smallest, mean and largest over draws, for each d."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for d in dimensions:
        lengths = torch.randn(draws, d, generator=generator).square().sum(1)
        rows.append({"d": d, "low": float(lengths.min()), "mean": float(lengths.mean()), "high": float(lengths.max())})
    return rows


def _orders(rows: Sequence[Mapping[str, float]], power: float, name: str) -> Judgement:
    low, high = (worst(row[end] / row["d"] ** power for row in rows) for worst, end in ((min, "low"), (max, "high")))
    return Judgement(
        [Check(f"||X||^2 / {name} is within a factor of 4 over all draws and d ({low:.2f} to {high:.2f})",
               high <= 4 * low)],
        charts=[Chart("mean ||X||^2 / sigma^2", "d", (
            line("measured", [row["d"] for row in rows], [row["mean"] for row in rows], dots=True),
            line(name, [row["d"] for row in rows], [row["d"] ** power for row in rows])), log_x=True, log_y=True)],
    )  # fmt: skip


LENGTHS_RULE = "Over 1,000 draws at each d = 50, 200, ..., 12,800, largest over smallest ratio is at most 4."


@claim(
    "useful/lemB.6",
    where="Lemma B.6",
    states="X ~ N(0, sigma^2 I_d) has ||X||^2 = Theta(sigma^2 sqrt(d)) with high probability.",
    rule=LENGTHS_RULE,
    uses=lambda scale: {"rows": computed(squared_lengths, dimensions=[50, 200, 800, 3200, 12800], draws=1000, seed=0)},
)
def lemma_b6(rows: Sequence[Mapping[str, float]]) -> Judgement:
    return _orders(rows, 0.5, "sigma^2 sqrt(d)")


@claim(
    "useful/lemB.6-corrected",
    where="Lemma B.6, with d in place of its root",
    states="X ~ N(0, sigma^2 I_d) has ||X||^2 = Theta(sigma^2 d) with high probability.",
    rule=LENGTHS_RULE,
    uses=lambda scale: {"rows": computed(squared_lengths, dimensions=[50, 200, 800, 3200, 12800], draws=1000, seed=0)},
)
def lemma_b6_corrected(rows: Sequence[Mapping[str, float]]) -> Judgement:
    return _orders(rows, 1.0, "sigma^2 d")


def product_tails(d: int, deltas: Sequence[float]) -> list[dict[str, float]]:
    """P(|<X, Y>| > sigma sigma_0 sqrt(2 d log(2/delta))) by quadrature, for independent normal X and Y in R^d.

    Given X, the product is normal with variance sigma_0^2 ||X||^2, and ||X||^2 / sigma^2 is chi-squared.
    """
    s = torch.linspace(1e-3, 12, 400_001, dtype=torch.float64)  # ||X||^2 / (sigma^2 d)
    density = torch.exp((d / 2 - 1) * torch.log(s) - d * s / 2 + d / 2 * math.log(d / 2) - math.lgamma(d / 2))
    rows = []
    for delta in deltas:
        t = math.sqrt(2 * math.log(2 / delta))
        beyond = torch.special.erfc(t / torch.sqrt(2 * s))
        rows.append({"delta": delta, "probability": float(torch.trapezoid(density * beyond, s))})
    return rows


DELTAS = [0.1, 1e-2, 1e-3, 1e-4, 1 / (D * N)]
RARE = 1e-9


@claim(
    "useful/lemB.7",
    revised="The side point at delta 1e-9 was added after a first run.",
    where="Lemma B.7",
    states="With probability at least 1 - delta, |<X, Y>| <= sigma sigma_0 sqrt(2 d log(2/delta)) for independent "
    "normal X and Y.",
    rule="The exact probability of more than that, at d = 50, is at most delta for delta = 0.1, 0.01, 0.001, 0.0001 "
    "and 1/(d N) with N = 10,000, which Lemma B.8 takes. Side point: also for delta = 1e-9; the lemma has any delta.",
    uses=lambda scale: {"rows": computed(product_tails, d=D, deltas=[*DELTAS, RARE])},
)
def lemma_b7(rows: Sequence[Mapping[str, float]]) -> Judgement:
    return Judgement(
        [
            Check(
                f"delta {row['delta']:.1e}: probability {row['probability']:.1e}",
                row["probability"] <= row["delta"],
                main=row["delta"] != RARE,
            )
            for row in rows
        ]
    )


def noise_products(seed: int, n: int = N) -> dict[str, float]:
    """Lemma B.8 at the start of the toy experiment: max |<w_eps, xi_i>| and max_i (1/n) sum_k |<xi_k, xi_i>|."""
    distribution = PatchDistribution()
    split = distribution.sample(n, seed)
    assert isinstance(split.inputs, torch.Tensor)
    data = cubic.fold(split.inputs, split.labels)
    w = SIGMA_0 * torch.randn(FILTERS, D, generator=torch.Generator().manual_seed(seed))
    noise = data.own[0]
    rows = [(part @ noise.T).abs().mean(1).max() for part in noise.split(1000)]
    at_start = cubic.noise_alignments(cubic.perturbed(w, data, 0.02), data).max()
    return {"filters": float(at_start), "examples": float(torch.stack(rows).max())}


@claim(
    "useful/lemB.8",
    where="Lemma B.8",
    states="At the start, the largest |<w_eps, xi_i>| is of the order sigma sigma_0 sqrt(d), and the largest mean "
    "|<xi_k, xi_i>| of the order sigma^2 d / N + sigma^2 sqrt(d).",
    rule="On 4 draws of the toy experiment: the first is at most twice sigma sigma_0 sqrt(d) sqrt(2 log(2 J N)); the "
    "second at most sqrt(2 log(2 N)) times its order. Side point: eq. 130's factor sqrt(2 d log(2/(d N))) is real.",
    choices=(
        START,
        "the logarithms of the union bounds are written out; eq. 130 prints log(2/(d N)), which is negative",
    ),
    uses=lambda scale: {"draws": [computed(noise_products, seed=seed) for seed in scale.seeds(4, first=100)]},
)
def lemma_b8(draws: Sequence[Mapping[str, float]]) -> Judgement:
    filters = [draw["filters"] / (SIGMA * SIGMA_0 * D**0.5 * LOG_FACTOR) for draw in draws]
    examples = [draw["examples"] / (SIGMA**2 * D / N + SIGMA**2 * D**0.5) for draw in draws]
    limit = math.sqrt(2 * math.log(2 * N))
    return Judgement(
        [
            Check(f"filters: at most 2 times the order with its logarithm ({max(filters):.2f})", max(filters) <= 2),
            Check(f"examples: at most {limit:.1f} times the order ({max(examples):.2f})", max(examples) <= limit),
            Check(f"log(2/(d N)) = {math.log(2 / (D * N)):.1f} is positive", 2 / (D * N) > 1, main=False),
        ],
        [measurement("filters, over the order", filters), measurement("examples, over the order", examples)],
    )
