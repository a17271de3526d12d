"""LSAM with noisy features and with larger batches (Appendix H, Figures 10 and 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evenly.papers.balanced.paths import COMPLEXITY, OPEN, RHOS, clearest, errors_of, is_clear_drop
from evenly.papers.claims import Scale, claim
from evenly.papers.judging import differences, in_words, is_above
from evenly.runs.differences import mean
from evenly.runs.verdict import Chart, Check, Judgement, line, measurement

NOISE_RHOS = (0.0, 0.5, 1.0, 1.5)
NOISE = {
    "label_noise": ("label noise", (0.02, 0.05, 0.1)),
    "gaussian_noise": ("Gaussian noise", (0.25, 0.5, 1.0)),
    "dropout": ("dropout", (0.1, 0.2, 0.4)),
}
PLACES = ("both", "hard")
SIZES = (5, 10, 20, 50, 150)
HELD_OUT = "held-out points are free of noise: they measure what was learned"
SEEDS = "seeds 500-531: seeds 0-11 were tried first and were too few to settle Gaussian noise on the hard feature"


def _noisy(kind: str) -> Any:
    def uses(scale: Scale) -> Mapping[str, Any]:
        return {
            place: {
                str(level): errors_of(scale, 32, 500, rhos=NOISE_RHOS, noise_on=place, **{kind: level})
                for level in NOISE[kind][1]
            }
            for place in PLACES
        } | {"clean": errors_of(scale)}

    return uses


def _judged_noise(kind: str, clean: Mapping[str, Any], places: Mapping[str, Mapping[str, Any]]) -> Judgement:
    name, levels = NOISE[kind]
    improved: dict[tuple[str, str], bool] = {}
    checks, measurements, charts = [], [], []
    for place, by_level in places.items():
        on = "both features" if place == "both" else "the hard feature"
        lines = [line("no noise", NOISE_RHOS, [mean(clean["hard"][RHOS.index(rho)]) for rho in NOISE_RHOS])]
        for level, table in by_level.items():
            sgd, *lsam = table["hard"]
            drops = [differences(sgd, values) for values in lsam]
            improved[place, level] = is_clear_drop(drops)
            text = f"{name} {level} on {on}: a clear drop ({in_words(clearest(drops))})"
            checks.append(Check(text, improved[place, level], main=False))
            measurements += [
                measurement(f"hard error, {name} {level} on {on}, rho {rho:g}", values)
                for rho, values in zip(NOISE_RHOS, table["hard"], strict=True)
                if rho in (0.0, 1.0, 1.5)
            ]
            lines.append(line(f"{name} {level}", NOISE_RHOS, list(map(mean, table["hard"]))))
        count = sum(improved[place, str(level)] for level in levels)
        checks.append(
            Check(f"{name} on {on}: a drop at most levels ({count} of {len(levels)})", count > len(levels) / 2)
        )
        charts.append(Chart(f"probing error of the hard feature, {name} on {on}", "rho", tuple(lines)))
    return Judgement(checks, measurements, charts)


def _rule(levels: str) -> str:
    return (
        f"At {levels}, on both features and on the hard one: over 32 seeds, at some rho of 0.5, 1 and 1.5 the paired "
        "drop of the hard error from SGD's is clear at the 5% level, corrected for three radii. The claim asks for "
        "that at most levels of each placement. Side points: at each level."
    )


@claim(
    "balanced/fig10a",
    where="Figure 10 (A), Appendix H.1",
    states="With label noise of up to 10% on the features, LSAM improves the hard feature's probing error.",
    rule=_rule("2%, 5% and 10%"),
    choices=(*OPEN, COMPLEXITY, HELD_OUT, SEEDS),
    uses=_noisy("label_noise"),
)
def figure_10a(clean: Mapping[str, Any], **places: Mapping[str, Any]) -> Judgement:
    return _judged_noise("label_noise", clean, places)


@claim(
    "balanced/fig10b",
    where="Figure 10 (B), Appendix H.1",
    states="With Gaussian noise of a standard deviation up to 1, LSAM improves the hard feature's probing error.",
    rule=_rule("standard deviations 0.25, 0.5 and 1"),
    choices=(*OPEN, COMPLEXITY, HELD_OUT, SEEDS),
    uses=_noisy("gaussian_noise"),
)
def figure_10b(clean: Mapping[str, Any], **places: Mapping[str, Any]) -> Judgement:
    return _judged_noise("gaussian_noise", clean, places)


@claim(
    "balanced/fig10c",
    where="Figure 10 (C), Appendix H.1",
    states="With features dropped at a rate of up to 40%, LSAM improves the hard feature's probing error.",
    rule=_rule("rates 10%, 20% and 40%"),
    choices=(*OPEN, COMPLEXITY, HELD_OUT, SEEDS),
    uses=_noisy("dropout"),
)
def figure_10c(clean: Mapping[str, Any], **places: Mapping[str, Any]) -> Judgement:
    return _judged_noise("dropout", clean, places)


@claim(
    "balanced/fig11",
    where="Figure 11, Appendix H.2",
    states="LSAM is robust to a wide range of batch sizes. Its gain shrinks when batches are very large, and the error "
    "depends more on the batch size when rho is large. The best rho is similar across batch sizes.",
    rule="Over 16 seeds with batches of 5, 10, 20, 50 and 150, 15 epochs each: at 5, 10 and 20 the paired drop from "
    "SGD's hard error at some rho is clear at the 5% level, corrected for six radii. The largest mean drop at 150 is "
    "less than half of that at 5. The range of mean errors over batch sizes is larger at rho 1.5 than at each rho up "
    "to 1. Side points: the best rho at 10, 20 and 50 is within 0.5 of that at 5, and at 150 rho 1.5 does no harm.",
    choices=(*OPEN, COMPLEXITY, "all batch sizes train for 15 epochs at lr 0.01, so large batches take fewer steps"),
    uses=lambda scale: {
        "runs": [errors_of(scale), *(errors_of(scale, batch_size=size) for size in SIZES[1:])],
    },
)
def figure_11(runs: Sequence[Mapping[str, Any]]) -> Judgement:
    tables = {size: table["hard"] for size, table in zip(SIZES, runs, strict=True)}
    means = {size: list(map(mean, table)) for size, table in tables.items()}
    checks, measurements = [], []
    for size in (5, 10, 20):
        sgd, *lsam = tables[size]
        drops = [differences(sgd, values) for values in lsam]
        text = f"batches of {size}: a clear drop ({in_words(clearest(drops))})"
        checks.append(Check(text, is_clear_drop(drops)))
    gain = {size: values[0] - min(values[1:]) for size, values in means.items()}
    checks.append(
        Check(
            f"the largest drop at 150 is less than half of that at 5 ({gain[150]:.3f}, {gain[5]:.3f})",
            gain[150] < gain[5] / 2,
        )
    )
    spread = [max(values) - min(values) for values in zip(*means.values(), strict=True)]
    up_to_1 = max(spread[k] for k, rho in enumerate(RHOS) if rho <= 1)
    checks.append(
        Check(
            f"the range over sizes is largest at rho 1.5 ({spread[-1]:.3f}; up to rho 1: {up_to_1:.3f})",
            spread[-1] > up_to_1,
        )
    )
    best_rho = {size: RHOS[values.index(min(values))] for size, values in means.items()}
    for size in (10, 20, 50):
        near = abs(best_rho[size] - best_rho[5]) <= 0.5
        checks.append(Check(f"the best rho at {size} is {best_rho[size]:g}, at 5 {best_rho[5]:g}", near, main=False))
    for size, table in tables.items():
        measurements += [
            measurement(f"hard error, batches of {size}, rho {rho:g}", table[RHOS.index(rho)])
            for rho in (0.0, 1.0, 1.5)
        ]
    lines = [line(f"batches of {size}", RHOS, values) for size, values in means.items()]
    harmed = is_above(differences(tables[150][-1], tables[150][0]))
    checks.append(
        Check(f"at 150, rho 1.5 does not harm ({means[150][-1]:.3f}, SGD {means[150][0]:.3f})", not harmed, main=False)
    )
    return Judgement(checks, measurements, [Chart("probing error of the hard feature", "rho", tuple(lines))])
