"""LSAM learns the spiral that SGD leaves aside, by its phantom weights (Sections 5 and 6.1, Figures 1-4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from evenly.data.spiral import SpiralDistribution, draw
from evenly.papers.balanced.paths import COMPLEXITY, OPEN, RHOS, errors_of, falls, is_clear_drop
from evenly.papers.claims import claim
from evenly.papers.judging import differences, in_words, is_above, is_below
from evenly.papers.nodes import computed
from evenly.runs.differences import mean, paired
from evenly.runs.verdict import Chart, Check, HeatMap, Judgement, line, measurement
from evenly.theory import spiral

Table = Mapping[str, Sequence[Sequence[float]]]
"""What `paths.errors` returns: (rhos, seeds) by name."""
COMPLEXITIES = (90.0, 180.0, 270.0, 315.0, 360.0, 450.0)
LEARNED_BY_SGD = (90.0, 180.0)
STRONG = 1.5
CELLS = 25


def boundaries(seed: int, rho: float = STRONG) -> dict[str, Any]:
    """sigmoid(Phi) of SGD's and of LSAM's network over the plane of each feature, the other one 0."""
    path = spiral.train(*draw(SpiralDistribution(), [seed, seed]), seeds=[seed, seed], rho=[0.0, rho], every=15)
    maps: dict[str, Any] = {}
    for feature, side in (("easy", 2.0), ("hard", 1.5)):
        axis = torch.linspace(-side, side, CELLS)
        plane = torch.zeros(CELLS * CELLS, 4)
        place = 0 if feature == "easy" else 2
        plane[:, place], plane[:, place + 1] = axis.repeat(CELLS), axis.repeat_interleave(CELLS)
        phi = spiral.representation(path.networks, plane.expand(2, -1, -1))[..., place // 2].sigmoid()
        maps[feature] = {"axis": axis.double().round(decimals=3), "SGD": _cells(phi[0]), "LSAM": _cells(phi[1])}
    return maps


def _cells(values: torch.Tensor) -> torch.Tensor:
    return values.double().round(decimals=3).view(CELLS, CELLS)


@claim(
    "balanced/fig1ii",
    where="Figure 1 (ii), Section 5.2",
    states="SGD and LSAM both learn the label and the linear feature. SGD has a poor representation of the spiral, "
    "LSAM a good one.",
    rule="Over 16 seeds with rho 1.5: the mean errors of the label and of the easy feature are at most 1% for both. "
    "The 95% interval of the paired difference between SGD's and LSAM's hard error is above 0, and LSAM's mean is less "
    "than half of SGD's. Side point: the label is learned perfectly, with a mean error of at most 0.1%.",
    published={"SGD, label error": "0", "LSAM, label error": "0"},
    choices=(*OPEN, COMPLEXITY, "rho 1.5"),
    uses=lambda scale: {"runs": errors_of(scale), "planes": computed(boundaries, seed=0)},
)
def figure_1ii(runs: Table, planes: Mapping[str, Any]) -> Judgement:
    arms = {"SGD": 0, "LSAM": RHOS.index(STRONG)}
    checks, measurements = [], []
    for name, arm in arms.items():
        label, easy = mean(runs["label"][arm]), mean(runs["easy"][arm])
        checks += [
            Check(f"{name}: label error at most 1% ({label:.2%})", label <= 0.01),
            Check(f"{name}: easy error at most 1% ({easy:.2%})", easy <= 0.01),
            Check(f"{name}: label error at most 0.1% ({label:.2%})", label <= 0.001, main=False),
        ]
        measurements += [
            measurement(f"{name}, {feature} error", runs[feature][arm], "0" if feature == "label" else "")
            for feature in ("label", "easy", "hard")
        ]
    sgd, lsam = (runs["hard"][arm] for arm in arms.values())
    gain = differences(sgd, lsam)
    checks += [
        Check(f"the hard error is lower with LSAM: {in_words(gain)}", is_above(gain)),
        Check(f"LSAM's is less than half of SGD's ({mean(lsam):.3f}, {mean(sgd):.3f})", mean(lsam) < mean(sgd) / 2),
    ]
    maps = [
        HeatMap(
            f"sigmoid of Phi_{feature}, {name}, one seed", f"x_{feature}, first", f"x_{feature}, second",
            tuple(planes[feature]["axis"]), tuple(planes[feature]["axis"]), tuple(map(tuple, planes[feature][name])),
        )
        for feature in ("hard", "easy")
        for name in arms
    ]  # fmt: skip
    return Judgement(checks, measurements, maps=maps)


@claim(
    "balanced/fig2",
    revised="Similar numbers were known from earlier runs when the rule was written.",
    where="Figure 2, Section 5.2",
    states="The hard feature's probing error is largest with SGD (rho 0) and falls as rho grows, for several "
    "complexities of the spiral.",
    rule="Over 16 seeds, at 270, 315, 360 and 450 degrees: the 95% interval of the paired difference between rho 0 and "
    "1.5 is above 0, and the mean error falls from rho 0 to 0.5 to 1 to 1.5. Side point: at 90 and 180 degrees, too, "
    "the mean error is largest at rho 0.",
    choices=(*OPEN, "the complexities and the radii: the figure's axes are not in the text"),
    uses=lambda scale: {"runs": [errors_of(scale, complexity=chi) for chi in COMPLEXITIES]},
)
def figure_2(runs: Sequence[Table]) -> Judgement:
    checks, measurements, lines = [], [], []
    for chi, table in zip(COMPLEXITIES, runs, strict=True):
        hard = dict(zip(RHOS, table["hard"], strict=True))
        means = {rho: mean(values) for rho, values in hard.items()}
        if chi in LEARNED_BY_SGD:
            first = means[0.0] >= max(means.values())
            checks.append(Check(f"{chi:g} degrees: largest at rho 0 ({means[0.0]:.4f})", first, main=False))
        else:
            gain = differences(hard[0.0], hard[STRONG])
            steps = [means[rho] for rho in (0.0, 0.5, 1.0, 1.5)]
            shown = ", ".join(f"{value:.3f}" for value in steps)
            checks += [
                Check(f"{chi:g} degrees: lower at rho 1.5 than at 0, by {in_words(gain)}", is_above(gain)),
                Check(f"{chi:g} degrees: falls from rho 0 to 0.5, 1, 1.5 ({shown})", falls(steps)),
            ]
        measurements += [measurement(f"hard error, {chi:g} degrees, rho {rho:g}", hard[rho]) for rho in (0.0, 1.0, 1.5)]
        lines.append(line(f"{chi:g} degrees", RHOS, list(means.values())))
    return Judgement(checks, measurements, [Chart("probing error of the hard feature", "rho", tuple(lines))])


@claim(
    "balanced/fig2-beyond",
    where="Section 5.2",
    states="The spiral's probing error improves progressively as rho grows, without a bound being named.",
    rule="Over 16 seeds at 315 degrees the mean error falls on from rho 1.5 to 2 and to 4. The label is still learned, "
    "with an error of at most 1%, at both.",
    choices=(*OPEN, COMPLEXITY),
    uses=lambda scale: {"runs": errors_of(scale), "beyond": errors_of(scale, rhos=(2.0, 4.0))},
)
def figure_2_beyond(runs: Table, beyond: Table) -> Judgement:
    hard = [mean(runs["hard"][-1]), *map(mean, beyond["hard"])]
    label = [mean(values) for values in beyond["label"]]
    checks = [
        Check(f"falls from rho 1.5 to 2 to 4 ({', '.join(f'{value:.3f}' for value in hard)})", falls(hard)),
        *(
            Check(f"rho {rho}: label error at most 1% ({error:.1%})", error <= 0.01)
            for rho, error in zip((2, 4), label, strict=True)
        ),
    ]
    measurements = [
        measurement(f"{name} error, rho {rho}", values)
        for name in ("hard", "label")
        for rho, values in zip((2, 4), beyond[name], strict=True)
    ]
    means = [mean(values) for values in [*runs["hard"], *beyond["hard"]]]
    return Judgement(
        checks, measurements, [Chart("probing error of the hard feature", "rho", [line("LSAM", [*RHOS, 2, 4], means)])]
    )


SAM_RHOS = (0.0, 0.05, 0.1, 0.2, 0.5)


@claim(
    "balanced/sec5-sam",
    revised="Similar numbers were known from earlier runs when the rule was written.",
    where="Section 5, first paragraph",
    states="In the toy setting SGD learns a poor representation of the harder feature and SAM a good one of both.",
    rule="Over 16 seeds, SAM that perturbs all weights of the same network (equation 3): at some rho of 0.05, 0.1, 0.2 "
    "and 0.5 the paired drop of the hard error from rho 0 is clear at the 5% level, corrected for four radii. Side "
    "point: at that rho the mean is less than half of SGD's.",
    choices=(*OPEN, COMPLEXITY, "the radii: the paper shows figures of LSAM only"),
    uses=lambda scale: {"runs": errors_of(scale, rhos=SAM_RHOS, sam=True)},
)
def section_5_sam(runs: Table) -> Judgement:
    hard = runs["hard"]
    drops = [differences(hard[0], values) for values in hard[1:]]
    best = min(range(1, len(hard)), key=lambda k: mean(hard[k]))
    checks = [
        Check("a drop at some rho: " + ", ".join(map(in_words, drops)), is_clear_drop(drops)),
        Check(
            f"less than half of SGD's at the best ({mean(hard[best]):.3f}, {mean(hard[0]):.3f})",
            mean(hard[best]) < mean(hard[0]) / 2, main=False,
        ),
    ]  # fmt: skip
    measurements = [
        measurement(f"hard error, SAM, rho {rho:g}", values) for rho, values in zip(SAM_RHOS, hard, strict=True)
    ]
    chart = Chart("probing error of the hard feature", "rho", [line("SAM", SAM_RHOS, list(map(mean, hard)))])
    return Judgement(checks, measurements, [chart])


@claim(
    "balanced/fig3",
    revised="Similar numbers were known from earlier runs when the rule was written.",
    where="Figure 3, Section 6.1",
    states="The ratio v_hard / v_easy of the phantom weights is close to 1 at rho 0 and rises with rho, while that of "
    "the real weights stays nearly constant.",
    rule="Over 16 seeds at 315 degrees: the mean phantom ratio rises from rho 0 to 0.5 to 1 to 1.5, and the 95% "
    "interval of its paired rise from 0 to 1.5 is above 0. The real ratio does not rise: that interval is not above 0. "
    "Side points: SGD's ratio is within 0.8 to 1.2, and the real one stays within 10% of SGD's at every rho.",
    published={"ratio, phantom, rho 0": "close to 1"},
    choices=(*OPEN, COMPLEXITY, "the ratio of the means over all steps: a mean of ratios diverges where v~_easy is 0"),
    uses=lambda scale: {"runs": [errors_of(scale, complexity=chi) for chi in (270.0, 315.0, 360.0)]},
)
def figure_3(runs: Sequence[Table]) -> Judgement:
    phantom, real = (
        {rho: values for rho, values in zip(RHOS, runs[1][name], strict=True)} for name in ("phantom", "real")
    )
    steps = [mean(phantom[rho]) for rho in (0.0, 0.5, 1.0, 1.5)]
    rise, real_rise = (differences(ratio[STRONG], ratio[0.0]) for ratio in (phantom, real))
    change = max(abs(mean(values) / mean(real[0.0]) - 1) for values in real.values())
    rises = falls([-value for value in steps])
    checks = [
        Check(f"phantom: rises from rho 0 to 0.5, 1, 1.5 ({', '.join(f'{each:.2f}' for each in steps)})", rises),
        Check(f"phantom: higher at rho 1.5 than at 0, by {in_words(rise, 2)}", is_above(rise)),
        Check(f"real: no rise from rho 0 to 1.5 ({in_words(real_rise, 2)})", not is_above(real_rise)),
        Check(f"the ratio of SGD is within 0.8 to 1.2 ({steps[0]:.2f})", 0.8 <= steps[0] <= 1.2, main=False),
        Check(f"real: within 10% of SGD's at every rho (largest change {change:.0%})", change < 0.1, main=False),
    ]
    measurements = [
        measurement(f"ratio, {name}, rho {rho:g}", values[rho], "close to 1" if rho == 0 else "")
        for name, values in (("phantom", phantom), ("real", real))
        for rho in (0.0, 1.0, 1.5)
    ]
    lines = [
        line(f"{name}, {chi} degrees", RHOS, list(map(mean, table[name])))
        for chi, table in zip((270, 315, 360), runs, strict=True)
        for name in ("phantom", "real")
    ]
    return Judgement(checks, measurements, [Chart("v_hard / v_easy", "rho", tuple(lines))])


SHARES = tuple(round(0.05 * k, 2) for k in range(1, 20))


def learning_rates(rhos: Sequence[float], seeds: Sequence[int]) -> dict[str, Any]:
    """LSAM's factors on the features' learning rates v~ / v, and the hard one's share of both rates, over the steps.

    Returns: medians over steps, (rhos, seeds) each; quantiles over all steps and seeds at the largest rho; medians
    over the steps of each epoch there.
    """
    each_seed = [*seeds] * len(rhos)
    rho = [rho for rho in rhos for _ in seeds]
    path = spiral.train(*draw(SpiralDistribution(), each_seed), seeds=each_seed, rho=rho, every=15)
    easy, hard = path.rate_factors.unbind(-1)
    real, phantom = path.hard_shares
    named = {"easy": easy, "hard": hard, "share, real": real, "share, phantom": phantom}
    last = slice(len(each_seed) - len(seeds), None)
    probabilities = torch.tensor(SHARES)
    return {
        "medians": {name: values.median(0).values.view(len(rhos), len(seeds)) for name, values in named.items()},
        "quantiles": {name: values[:, last].flatten().quantile(probabilities) for name, values in named.items()},
        "by epoch": {
            name: [part[:, last].flatten().median().item() for part in values.chunk(15)]
            for name, values in named.items()
        },
    }


def _distribution(values: Mapping[str, Any], names: Mapping[str, str], title: str) -> list[Chart]:
    lines = [line(shown, values["quantiles"][name], SHARES) for name, shown in names.items()]
    by_epoch = [line(shown, range(1, 16), values["by epoch"][name]) for name, shown in names.items()]
    return [
        Chart("share of batches with a lower value", f"{title}, rho 1.5", tuple(lines)),
        Chart(f"{title}, median over the batches of an epoch, rho 1.5", "epoch", tuple(by_epoch)),
    ]


RATE_RHOS = (0.75, 1.0, 1.5)


@claim(
    "balanced/fig4i",
    revised="Similar numbers were known from earlier runs when the rule was written.",
    where="Figure 4 (i), Section 6.2",
    states="LSAM raises the effective learning rate of the hard feature and lowers that of the easy one.",
    rule="Over 16 seeds at rho 0.75, 1 and 1.5: the 95% interval of the median over batches of v~_hard / v_hard is "
    "above 1, and that of v~_easy / v_easy below 1.",
    choices=(*OPEN, COMPLEXITY, "batches are those of all training steps"),
    uses=lambda scale: {"rates": computed(learning_rates, rhos=RATE_RHOS, seeds=scale.seeds(16))},
)
def figure_4i(rates: Mapping[str, Any]) -> Judgement:
    checks, measurements = [], []
    for k, rho in enumerate(RATE_RHOS):
        easy, hard = (paired([value - 1 for value in rates["medians"][name][k]]) for name in ("easy", "hard"))
        checks += [
            Check(f"rho {rho:g}: the hard factor less 1 is above 0 ({in_words(hard, 2)})", is_above(hard)),
            Check(f"rho {rho:g}: the easy factor less 1 is below 0 ({in_words(easy, 2)})", is_below(easy)),
        ]
        measurements += [
            measurement(f"median v~/v, {name}, rho {rho:g}", rates["medians"][name][k], published)
            for name, published in (("easy", "below 1"), ("hard", "above 1"))
        ]
    return Judgement(checks, measurements, _distribution(rates, {"easy": "easy", "hard": "hard"}, "v~ / v"))


@claim(
    "balanced/fig4i-corrected",
    where="Figure 4 (i), Section 6.2, corrected",
    states="LSAM lowers the effective learning rates of both features, that of the easy one more.",
    rule="At rho 0.75, 1 and 1.5: both means over 16 seeds of the median factor are below 1, and on every seed the "
    "easy one is the lower.",
    choices=(*OPEN, COMPLEXITY, "batches are those of all training steps"),
    uses=lambda scale: {"rates": computed(learning_rates, rhos=RATE_RHOS, seeds=scale.seeds(16))},
)
def figure_4i_corrected(rates: Mapping[str, Any]) -> Judgement:
    checks = []
    for k, rho in enumerate(RATE_RHOS):
        easy, hard = (rates["medians"][name][k] for name in ("easy", "hard"))
        checks += [
            Check(f"rho {rho:g}: both below 1 ({mean(easy):.2f}, {mean(hard):.2f})", mean(easy) < 1 and mean(hard) < 1),
            Check(
                f"rho {rho:g}: the easy one is lower on every seed", all(a < b for a, b in zip(easy, hard, strict=True))
            ),
        ]
    return Judgement(checks)


@claim(
    "balanced/fig4ii",
    where="Figure 4 (ii), Section 6.2",
    states="The hard feature has a larger share of the learning rates at the phantom weights than at the real ones.",
    rule="At rho 0.75, 1 and 1.5 the median over batches of v_hard / (v_easy + v_hard) is larger at the phantom "
    "weights on each of 16 seeds.",
    choices=(*OPEN, COMPLEXITY, "batches are those of all training steps"),
    uses=lambda scale: {"rates": computed(learning_rates, rhos=RATE_RHOS, seeds=scale.seeds(16))},
)
def figure_4ii(rates: Mapping[str, Any]) -> Judgement:
    checks, measurements = [], []
    for k, rho in enumerate(RATE_RHOS):
        real, phantom = (rates["medians"][f"share, {name}"][k] for name in ("real", "phantom"))
        larger = sum(b > a for a, b in zip(real, phantom, strict=True))
        checks.append(Check(f"rho {rho:g}: larger on every seed ({larger} of {len(real)})", larger == len(real)))
        measurements += [
            measurement(f"share of the hard feature, {name}, rho {rho:g}", values)
            for name, values in (("real", real), ("phantom", phantom))
        ]
    names = {"share, real": "real", "share, phantom": "phantom"}
    return Judgement(checks, measurements, _distribution(rates, names, "share of the hard feature"))
