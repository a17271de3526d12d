"""LSAM weights examples more evenly, and raises those that the hard feature fits badly (Figures 5, 6, 8 and 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from evenly.data.spiral import SpiralDistribution, draw
from evenly.diagnose.importance import importance_map, lorenz
from evenly.papers.balanced.paths import COMPLEXITY, OPEN
from evenly.papers.claims import Scale, claim
from evenly.papers.judging import differences, in_words, is_above, is_below
from evenly.papers.nodes import Computation, computed
from evenly.runs.differences import mean
from evenly.runs.verdict import Chart, Check, HeatMap, Judgement, Measurement, line, measurement
from evenly.theory import spiral

CHECKPOINTS = (5, 10, 15)
RHOS = (0.0, 0.75, 1.0, 1.5)
LSAM_RHOS = RHOS[1:]
BINS = 8
POINTS = 31
WEIGHTS = "importance weights are those of the 300 training points; phantom weights are those of each batch of 5"


def importance(rhos: Sequence[float], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """What the importance weights are like after 5, 10 and 15 epochs: one entry for each checkpoint and rho.

    Each entry has for "real" and "phantom": the Gini coefficient by seed; the Lorenz curve, averaged over seeds; the
    median weight and the share of the total weight, by seed, of groups of examples; the median weight over bins of the
    contributions of both features, with the examples of all seeds.
    """
    each_seed = [*seeds] * len(rhos)
    rho = [rho for rho in rhos for _ in seeds]
    path = spiral.train(*draw(SpiralDistribution(), each_seed), seeds=each_seed, rho=rho, every=5)
    weights = {"real": path.importance().double(), "phantom": path.importance(phantom=True).double()}
    contributions = path.contributions.double()
    entries = []
    for epoch in CHECKPOINTS:
        at = path.epochs.tolist().index(epoch)
        for k, radius in enumerate(rhos):
            runs = slice(k * len(seeds), (k + 1) * len(seeds))
            signed = contributions[at, runs]
            entry: dict[str, Any] = {"epoch": epoch, "rho": radius}
            for name, values in weights.items():
                entry[name] = described(values[at, runs], signed)
            entries.append(entry)
    return entries


def described(weights: Tensor, signed: Tensor) -> dict[str, Any]:
    """Of the weights (S, n) and the contributions y Phi (S, n, 2) of S runs."""
    curves = torch.stack([lorenz(row).weight for row in weights]).mean(0)
    thinned = torch.linspace(0, len(curves) - 1, POINTS).round().long()
    easy, hard = signed.unbind(-1)
    groups = groups_of(easy, hard)
    # the outermost bins take what is beyond the 2% and 98% quantiles
    edges = [_edges(each) for each in (easy, hard)]
    inside = [each.clamp(edge[0], edge[-1]).flatten() for each, edge in zip((easy, hard), edges, strict=True)]
    table = importance_map(weights.flatten(), inside[0], inside[1], edges=(edges[0], edges[1]))
    return {
        "gini": [round(value, 6) for value in spiral.gini(weights).tolist()],
        "lorenz": [[round(x, 4) for x in (thinned / (len(curves) - 1)).tolist()], curves[thinned].tolist()],
        "share": {name: ((weights * mask).sum(1) / weights.sum(1)).tolist() for name, mask in groups.items()},
        "median": {
            name: [float(row[mask].median()) for row, mask in zip(weights, masks, strict=True)]
            for name, masks in groups.items()
        },
        "map": {
            "easy": [round(value, 2) for value in edges[0].tolist()[:-1]],
            "hard": [round(value, 2) for value in edges[1].tolist()[:-1]],
            "cells": table.median.nan_to_num(0.0).double().round(decimals=4),
        },
    }


def groups_of(easy: Tensor, hard: Tensor) -> dict[str, Tensor]:
    """Groups of examples by their contributions y Phi (S, n) of both features, within each run."""

    def lowest(values: Tensor, share: float) -> Tensor:
        return values <= values.quantile(share, 1, keepdim=True)

    return {
        "badly fit by easy": lowest(easy, 0.25),
        "badly fit by hard": lowest(hard, 0.25),
        "well by easy, badly by hard": ~lowest(easy, 0.5) & lowest(hard, 0.25),
        "easy above hard": easy > hard,
        "hard above easy": easy <= hard,
    }


def _edges(values: Tensor) -> Tensor:
    low, high = values.flatten().quantile(torch.tensor([0.02, 0.98], dtype=values.dtype)).tolist()
    return torch.linspace(low, high, BINS + 1, dtype=torch.float64)


def _uses(scale: Scale) -> dict[str, Computation]:
    return {"entries": computed(importance, rhos=RHOS, seeds=scale.seeds(16, first=2000))}


def _entry(entries: Sequence[Mapping[str, Any]], epoch: int, rho: float) -> Mapping[str, Any]:
    """Those of one checkpoint and rho."""
    return next(each for each in entries if each["epoch"] == epoch and each["rho"] == rho)


Entry = Mapping[str, Any]
"""What `described` gives for "real" and "phantom" weights, at one checkpoint of the runs of one arm."""


def lorenz_chart(sam: Entry, sgd: Entry, title: str, name: str = "LSAM") -> Chart:
    """The Lorenz curves of SGD's real weights and of SAM's real and phantom ones."""
    lines = [
        line("SGD, real", *sgd["real"]["lorenz"]),
        line(f"{name}, real", *sam["real"]["lorenz"]),
        line(f"{name}, phantom", *sam["phantom"]["lorenz"]),
        line("all weights equal", (0, 1), (0, 1)),
    ]
    return Chart(f"share of the total weight, {title}", "share of examples, lightest first", lines)


def _chart(entries: Sequence[Entry], epoch: int) -> Chart:
    return lorenz_chart(_entry(entries, epoch, 1.5), _entry(entries, epoch, 0.0), f"epoch {epoch}, rho 1.5")


def evenness(sam: Entry, sgd: Entry, where: str, main: bool = True) -> list[Check]:
    """Whether phantom weights are more even than SAM's real ones, and than SGD's, which may be a side point."""
    real, other = (differences(sam["phantom"]["gini"], each["real"]["gini"]) for each in (sam, sgd))
    start = f"{where}: Gini of phantom less that of"
    return [
        Check(f"{start} real is below 0 ({in_words(real)})", is_below(real)),
        Check(f"{start} SGD's real is below 0 ({in_words(other)})", is_below(other), main),
    ]


def _evenness(entries: Sequence[Entry], epoch: int, main: bool = True) -> list[Check]:
    """The same at every rho."""
    sgd = _entry(entries, epoch, 0.0)
    return [
        check
        for rho in LSAM_RHOS
        for check in evenness(_entry(entries, epoch, rho), sgd, f"epoch {epoch}, rho {rho:g}", main)
    ]


def ginis(sam: Entry, sgd: Entry, epoch: int, name: str = "LSAM 1.5") -> list[Measurement]:
    """The Gini coefficients of SGD's real weights and of SAM's real and phantom ones."""
    return [
        measurement(f"Gini, SGD, real, epoch {epoch}", sgd["real"]["gini"]),
        measurement(f"Gini, {name}, real, epoch {epoch}", sam["real"]["gini"]),
        measurement(f"Gini, {name}, phantom, epoch {epoch}", sam["phantom"]["gini"]),
    ]


def _ginis(entries: Sequence[Entry], epoch: int) -> list[Measurement]:
    return ginis(_entry(entries, epoch, 1.5), _entry(entries, epoch, 0.0), epoch)


@claim(
    "balanced/fig5-toy",
    where="Figure 5, left",
    states="At an incompletely trained LSAM checkpoint the importance weights are more even at the phantom parameters "
    "than at the real ones, and more even than SGD's.",
    rule="Over 16 seeds after 5 epochs of 15, at rho 0.75, 1 and 1.5: the 95% intervals of the paired differences in "
    "the Gini coefficient, phantom less real and phantom less SGD's real, are below 0.",
    choices=(*OPEN, COMPLEXITY, WEIGHTS, "epoch 5 of 15 as incompletely trained"),
    uses=_uses,
)
def figure_5_toy(entries: Sequence[Mapping[str, Any]]) -> Judgement:
    return Judgement(_evenness(entries, 5), _ginis(entries, 5), [_chart(entries, 5)])


@claim(
    "balanced/fig8-toy",
    where="Figure 8, left, Appendix G",
    states="Throughout training the phantom weights of LSAM are more even than its real ones, and than SGD's.",
    rule="As for Figure 5, after 5, 10 and 15 epochs. The comparison with SGD is a side point: the text of the "
    "appendix repeats the one within LSAM, the caption has both.",
    choices=(*OPEN, COMPLEXITY, WEIGHTS),
    uses=_uses,
)
def figure_8_toy(entries: Sequence[Mapping[str, Any]]) -> Judgement:
    checks = [check for epoch in CHECKPOINTS for check in _evenness(entries, epoch, main=False)]
    pairs = [
        (phantom, real)
        for epoch in CHECKPOINTS
        for rho in LSAM_RHOS
        for entry in [_entry(entries, epoch, rho)]
        for phantom, real in zip(entry["phantom"]["gini"], entry["real"]["gini"], strict=True)
    ]
    lower = sum(phantom < real for phantom, real in pairs)
    text = f"phantom more even than real on every seed, at every rho and checkpoint ({lower} of {len(pairs)})"
    checks.append(Check(text, lower == len(pairs)))
    measurements = [each for epoch in CHECKPOINTS for each in _ginis(entries, epoch)]
    return Judgement(checks, measurements, [_chart(entries, epoch) for epoch in CHECKPOINTS])


EACH = {"badly fit by easy": False, "badly fit by hard": True}
JOINT = {"well by easy, badly by hard": True}
"""Groups, and whether LSAM raises their importance."""


def fit_checks(sam: Entry, sgd: Entry, epoch: int, groups: Mapping[str, bool]) -> list[Check]:
    """Whether the groups' shares of the weight rise or fall from real to phantom weights; side points: from SGD's."""
    real, phantom = sam["real"], sam["phantom"]
    checks = []
    for name, rises in groups.items():
        test = is_above if rises else is_below
        share, raw = (differences(phantom[kind][name], real[kind][name]) for kind in ("share", "median"))
        other = differences(phantom["share"][name], sgd["real"]["share"][name])
        where, goes = f"epoch {epoch}, {name}", "rises" if rises else "falls"
        checks += [
            Check(f"{where}: the share of the weight {goes} from real to phantom ({in_words(share)})", test(share)),
            Check(f"{where}: the median weight {goes} ({in_words(raw)})", test(raw), main=False),
            Check(f"{where}: the share {goes} from SGD's real ({in_words(other)})", test(other), main=False),
        ]
    return checks


def _fit_checks(entries: Sequence[Entry], epoch: int, groups: Mapping[str, bool]) -> list[Check]:
    return fit_checks(_entry(entries, epoch, 1.5), _entry(entries, epoch, 0.0), epoch, groups)


def higher_where_easy_exceeds_hard(sam: Entry, epoch: int) -> tuple[Check, list[Measurement]]:
    """Whether the median phantom weight is higher for points to which the easy feature contributes more."""
    medians = sam["phantom"]["median"]
    higher = differences(medians["easy above hard"], medians["hard above easy"])
    text = f"epoch {epoch}: the median is higher where easy exceeds hard ({in_words(higher)})"
    return Check(text, is_above(higher)), [
        measurement(f"median phantom weight, {name}, epoch {epoch}", medians[name])
        for name in ("easy above hard", "hard above easy")
    ]


def importance_maps(sam: Entry, sgd: Entry, epoch: int, name: str = "LSAM") -> list[HeatMap]:
    """Median weights over bins of both features' contributions."""
    chosen = (("SGD, real", sgd["real"]), (f"{name}, real", sam["real"]), (f"{name}, phantom", sam["phantom"]))
    return [
        HeatMap(
            f"median importance weight, {title}, epoch {epoch}", "y Phi_hard, from", "y Phi_easy, from",
            tuple(each["map"]["hard"]), tuple(each["map"]["easy"]), tuple(map(tuple, each["map"]["cells"])),
        )
        for title, each in chosen
    ]  # fmt: skip


def _maps(entries: Sequence[Entry], epoch: int) -> list[HeatMap]:
    return importance_maps(_entry(entries, epoch, 1.5), _entry(entries, epoch, 0.0), epoch)


def shares(sam: Entry, epoch: int, groups: Mapping[str, bool]) -> list[Measurement]:
    """The groups' shares of the total weight."""
    return [
        measurement(f"share of the weight, {name}, {kind}, epoch {epoch}", sam[kind]["share"][name])
        for name in groups
        for kind in ("real", "phantom")
    ]


def _shares(entries: Sequence[Entry], epoch: int, groups: Mapping[str, bool]) -> list[Measurement]:
    return shares(_entry(entries, epoch, 1.5), epoch, groups)


FIT = (
    "groups of examples within a run: the quarter with the lowest y Phi of a feature is badly fit by it, the upper "
    "half well; shares of the total weight, as the weights' overall level acts like the learning rate"
)


SPLIT = "the joint statement and those on each feature are two claims, since they came out differently on seeds 0-15"


@claim(
    "balanced/fig6-toy",
    revised="One claim on both features, which did not hold, was split in two, on other seeds.",
    where="Figure 6, top",
    states="LSAM gives more importance to examples that the easy feature fits well and the hard one badly.",
    rule="Over 16 seeds after 5 epochs at rho 1.5: the 95% interval of the paired change in the group's share of the "
    "total weight, from the real to the phantom weights, is above 0. Side points: so is the change in the group's "
    "median weight, and the difference from SGD's share.",
    choices=(*OPEN, COMPLEXITY, WEIGHTS, FIT, SPLIT),
    uses=_uses,
)
def figure_6_toy(entries: Sequence[Mapping[str, Any]]) -> Judgement:
    return Judgement(_fit_checks(entries, 5, JOINT), _shares(entries, 5, JOINT), maps=_maps(entries, 5))


@claim(
    "balanced/fig6-toy-each",
    revised="One claim on both features, which did not hold, was split in two, on other seeds.",
    where="Figure 6, top",
    states="LSAM gives less importance to examples that the easy feature fits badly, and more to those that the hard "
    "one fits badly.",
    rule="Over 16 seeds after 5 epochs at rho 1.5: the 95% interval of the paired change in the group's share of the "
    "total weight, from the real to the phantom weights, is below 0 for the first group and above 0 for the second. "
    "Side points: so is the change in the group's median weight, and the difference from SGD's share.",
    choices=(*OPEN, COMPLEXITY, WEIGHTS, FIT, SPLIT),
    uses=_uses,
)
def figure_6_toy_each(entries: Sequence[Mapping[str, Any]]) -> Judgement:
    return Judgement(_fit_checks(entries, 5, EACH), _shares(entries, 5, EACH))


@claim(
    "balanced/fig9-toy",
    revised="One claim on both features, which did not hold, was split in two, on other seeds.",
    where="Figure 9, top, Appendix G",
    states="Throughout training LSAM gives more importance to examples that the easy feature fits well and the hard "
    "one badly.",
    rule="As for Figure 6, after 5, 10 and 15 epochs.",
    choices=(*OPEN, COMPLEXITY, WEIGHTS, FIT, SPLIT),
    uses=_uses,
)
def figure_9_toy(entries: Sequence[Mapping[str, Any]]) -> Judgement:
    checks = [check for epoch in CHECKPOINTS for check in _fit_checks(entries, epoch, JOINT)]
    measurements = [each for epoch in CHECKPOINTS for each in _shares(entries, epoch, JOINT)]
    return Judgement(checks, measurements, maps=[each for epoch in CHECKPOINTS for each in _maps(entries, epoch)])


@claim(
    "balanced/fig9-toy-each",
    revised="One claim on both features, which did not hold, was split in two, on other seeds.",
    where="Figure 9, top, Appendix G",
    states="Throughout training, examples badly fit by the easy feature get less importance and those badly fit by the "
    "hard one more. The median weight is higher for points to which the easy feature contributes more than the hard.",
    rule="As for balanced/fig6-toy-each, after 5, 10 and 15 epochs. Also: over 16 seeds, the 95% interval of the "
    "paired difference between the median phantom weights of points with y Phi_easy > y Phi_hard and of the others "
    "is above 0.",
    choices=(*OPEN, COMPLEXITY, WEIGHTS, FIT, SPLIT),
    uses=_uses,
)
def figure_9_toy_each(entries: Sequence[Mapping[str, Any]]) -> Judgement:
    checks: list[Check] = []
    measurements: list[Measurement] = []
    for epoch in CHECKPOINTS:
        checks += _fit_checks(entries, epoch, EACH)
        higher, medians = higher_where_easy_exceeds_hard(_entry(entries, epoch, 1.5), epoch)
        checks.append(higher)
        measurements += medians
    lines = [
        line(f"{name}, {kind}", CHECKPOINTS, [mean(_entry(entries, e, 1.5)[kind]["share"][name]) for e in CHECKPOINTS])
        for name in EACH
        for kind in ("real", "phantom")
    ]
    return Judgement(checks, measurements, [Chart("share of the total weight, rho 1.5", "epoch", tuple(lines))])
