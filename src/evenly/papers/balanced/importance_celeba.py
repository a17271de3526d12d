"""SAM weights the examples of CelebA more evenly, too (Figures 5, 6, 8 and 9 on real images).

`benchmarks/celeba_importance.py` trains and records, these claims judge its file. On real images a feature's
contribution is y v . Phi(x), with v of a linear probe for that feature (Section 6.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evenly.papers.balanced.importance import (
    EACH,
    FIT,
    JOINT,
    Entry,
    evenness,
    fit_checks,
    ginis,
    higher_where_easy_exceeds_hard,
    importance_maps,
    lorenz_chart,
    shares,
)
from evenly.papers.balanced.real_data import LONGER
from evenly.papers.claims import claim, untestable
from evenly.papers.judging import differences, in_words, is_below
from evenly.papers.nodes import Stored
from evenly.runs.differences import mean
from evenly.runs.verdict import Check, Judgement, Measurement, measurement

EPOCHS = (2, 5, 10, 20)
"""Of 20. SGD for twice the epochs is recorded after twice as many, when it has cost as much as SAM."""
INCOMPLETE = 5
FILE = Stored("celeba-importance.json", minutes=10)
PROXY = (
    "proxy: the first 10,000 images, 5,000 of them to train on, and a MobileNetV2; the paper has all and a ResNet-18"
)
CHOICES = (
    "importance weights are those of the training images in eval mode; phantom weights are those of each batch of 128",
    "hair is the easy feature and gender the hard one, as in Table 1; women stand for blond in the hard contribution",
    "the contribution of a feature is the mean over probes that are fitted on held-out images, balanced over hair and "
    "gender",
    "lr and rho are those that validation chose for Table 1; epoch 5 of 20 as incompletely trained",
)
STATES = {
    "5": "SAM's importance weights are more even at the phantom than at the real weights, and than SGD's",
    "6": "SAM gives less importance to examples badly fit by the easy feature and more to those badly fit by the hard "
    "one",
    "8": "Figure 5's trend is there throughout training",
    "9": "Figure 6's pattern is there throughout training",
}


def entry_of(content: Mapping[str, Any], arm: str, epoch: int) -> Entry:
    """What was recorded of an arm after an epoch, over its seeds, as `evenly.papers.balanced.importance` has it."""
    recorded = [each for each in content["entries"] if (each["arm"], each["epoch"]) == (arm, epoch)]
    recorded.sort(key=lambda each: int(each["seed"]))
    return {kind: _joined([each[kind] for each in recorded]) for kind in ("real", "phantom") if kind in recorded[0]}


def _joined(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One value for each seed; the mean Lorenz curve; the map of the first seed, since each has bins of its own."""
    return {
        "gini": [each["gini"][0] for each in seeds],
        "lorenz": [
            seeds[0]["lorenz"][0],
            [mean(at) for at in zip(*(each["lorenz"][1] for each in seeds), strict=True)],
        ],
        **{
            kind: {name: [each[kind][name][0] for each in seeds] for name in seeds[0][kind]}
            for kind in ("share", "median")
        },
        "map": seeds[0]["map"],
    }


def _equal_cost(content: Mapping[str, Any], epoch: int) -> tuple[Check, Measurement]:
    """Whether phantom weights are more even than the real ones of SGD that has cost as much."""
    phantom = entry_of(content, "SAM", epoch)["phantom"]["gini"]
    longer = entry_of(content, LONGER, 2 * epoch)["real"]["gini"]
    gap = differences(phantom, longer)
    text = f"epoch {epoch}: Gini of phantom less that of SGD after {2 * epoch} epochs is below 0 ({in_words(gap)})"
    return Check(text, is_below(gap), main=False), measurement(f"Gini, SGD, real, epoch {2 * epoch} of 40", longer)


def _arms(content: Mapping[str, Any], epoch: int) -> tuple[Entry, Entry]:
    return entry_of(content, "SAM", epoch), entry_of(content, "SGD", epoch)


@claim(
    "balanced/fig5-celeba",
    where="Figure 5, center",
    states=f"{STATES['5']}, on CelebA.",
    rule="Over 4 seeds after 5 epochs of 20: the 95% intervals of the paired differences in the Gini coefficient, "
    "phantom less real and phantom less SGD's real, are below 0. Side point: so is that of phantom less the real "
    "weights of SGD after 10 epochs of 40, which has cost as much.",
    choices=CHOICES,
    fidelity=PROXY,
    uses=lambda scale: {"stored": FILE},
)
def figure_5_celeba(stored: Mapping[str, Any]) -> Judgement:
    sam, sgd = _arms(stored, INCOMPLETE)
    control, longer = _equal_cost(stored, INCOMPLETE)
    checks = [*evenness(sam, sgd, f"epoch {INCOMPLETE}"), control]
    chart = lorenz_chart(sam, sgd, f"epoch {INCOMPLETE}", "SAM")
    return Judgement(checks, [*ginis(sam, sgd, INCOMPLETE, "SAM"), longer], [chart])


@claim(
    "balanced/fig6-celeba",
    where="Figure 6, center",
    states=f"{STATES['6']}, on CelebA.",
    rule="Over 4 seeds after 5 epochs of 20: the 95% interval of the paired change in the group's share of the total "
    "weight, from SAM's real to its phantom weights, is below 0 for the quarter that the easy feature fits worst, and "
    "above 0 for the quarter that the hard one fits worst. Side points: so is the change in the group's median weight, "
    "and the difference from SGD's share; and all three rise for examples that the easy feature fits well and the hard "
    "one badly. Real and phantom weights are of the same network, so that cost is no matter.",
    choices=(*CHOICES, FIT),
    fidelity=PROXY,
    uses=lambda scale: {"stored": FILE},
)
def figure_6_celeba(stored: Mapping[str, Any]) -> Judgement:
    sam, sgd = _arms(stored, INCOMPLETE)
    checks = [*fit_checks(sam, sgd, INCOMPLETE, EACH), *_joint(sam, sgd, INCOMPLETE)]
    measurements = shares(sam, INCOMPLETE, {**EACH, **JOINT})
    return Judgement(checks, measurements, maps=importance_maps(sam, sgd, INCOMPLETE, "SAM"))


def _joint(sam: Entry, sgd: Entry, epoch: int) -> list[Check]:
    return [Check(each.text, each.met, main=False) for each in fit_checks(sam, sgd, epoch, JOINT)]


@claim(
    "balanced/fig8-celeba",
    where="Figure 8, center",
    states=f"{STATES['8']}, on CelebA.",
    rule="As for Figure 5, after 2, 5, 10 and 20 epochs. The comparisons with SGD, also that of equal cost, are side "
    "points: the text of the appendix repeats the one within SAM, the caption has both.",
    choices=CHOICES,
    fidelity=PROXY,
    uses=lambda scale: {"stored": FILE},
)
def figure_8_celeba(stored: Mapping[str, Any]) -> Judgement:
    checks: list[Check] = []
    measurements: list[Measurement] = []
    charts = []
    for epoch in EPOCHS:
        sam, sgd = _arms(stored, epoch)
        control, longer = _equal_cost(stored, epoch)
        checks += [*evenness(sam, sgd, f"epoch {epoch}", main=False), control]
        measurements += [*ginis(sam, sgd, epoch, "SAM"), longer]
        charts.append(lorenz_chart(sam, sgd, f"epoch {epoch}", "SAM"))
    return Judgement(checks, measurements, charts)


@claim(
    "balanced/fig9-celeba",
    where="Figure 9, center",
    states=f"{STATES['9']}, on CelebA.",
    rule="As for Figure 6, after 2, 5, 10 and 20 epochs. Also, as the appendix says: over 4 seeds, the 95% interval of "
    "the paired difference between the median phantom weights of images with y v_easy Phi > y v_hard Phi and of the "
    "others is above 0.",
    choices=(*CHOICES, FIT),
    fidelity=PROXY,
    uses=lambda scale: {"stored": FILE},
)
def figure_9_celeba(stored: Mapping[str, Any]) -> Judgement:
    checks: list[Check] = []
    measurements: list[Measurement] = []
    maps = []
    for epoch in EPOCHS:
        sam, sgd = _arms(stored, epoch)
        higher, medians = higher_where_easy_exceeds_hard(sam, epoch)
        checks += [*fit_checks(sam, sgd, epoch, EACH), *_joint(sam, sgd, epoch), higher]
        measurements += [*shares(sam, epoch, EACH), *medians]
        maps += importance_maps(sam, sgd, epoch, "SAM")
    return Judgement(checks, measurements, maps=maps)


for _figure, _states in STATES.items():
    untestable(
        f"balanced/fig{_figure}-waterbirds",
        where=f"Figure {_figure}, {'right' if _figure in '58' else 'bottom'}",
        states=f"{_states}, on Waterbirds.",
        why="Waterbirds and ImageNet's weights of a ResNet-18 are not here",
    )
