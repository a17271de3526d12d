"""PDE itself: Algorithm 1, its sets and settings on the benchmarks (Tables 7 and 8), and the methods of Table 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from evenly.data import Data, ProgressiveExpansion
from evenly.data.benchmarks import RECIPES, civilcomments
from evenly.engine import Fit
from evenly.experiment.training import train
from evenly.methods import METHODS
from evenly.optim.registry import builder
from evenly.papers.claims import claim, untestable
from evenly.papers.nodes import computed
from evenly.papers.pde.data import N, distribution
from evenly.runs.verdict import Check, Judgement, measurement
from evenly.settings import Settings

EXPANSIONS = [100, 100, 100, 50, 50, 25, 25]
"""Of the authors' code for the synthetic data, with 101 iterations each after 801 of warm-up."""


def expansion_sets(seed: int, n: int) -> dict[str, Any]:
    """The training sets of PDE on the synthetic data: the authors' schedule, and 500 at a time until all are in."""
    groups = distribution().sample(n, seed).groups
    assert isinstance(groups, Tensor)
    kept = {}
    for name, add in (("authors", EXPANSIONS), ("to the end", 500)):
        sampler = ProgressiveExpansion(groups, warmup_epochs=801, every=101, add=add, seed=seed)
        sets = []
        for epoch in (800, *range(801, 801 + 30 * 101, 101)):
            sampler.set_epoch(epoch)
            sets.append(sampler.members())
        added = [torch.tensor(sorted(set(now.tolist()) - set(before.tolist())), dtype=torch.long)
                 for before, now in pairwise(sets)]  # fmt: skip
        kept[name] = {
            "sizes": [len(members) for members in sets],
            "distinct": [len(members.unique()) for members in sets],
            "nested": all(set(one.tolist()) <= set(other.tolist()) for one, other in pairwise(sets)),
            "by_group": [torch.bincount(groups[members], minlength=4) for members in added],
            "warm_up": torch.bincount(groups[sets[0]], minlength=4),
        }
    return {"counts": torch.bincount(groups, minlength=4), **kept}


def algorithm_by_hand(seed: int) -> dict[str, Any]:
    """PDE on 60 examples, full batch, in float64, against eqs 3.1 and 3.2 on its sets with the momentum kept."""
    draw = torch.Generator().manual_seed(seed)
    groups = torch.arange(4).repeat_interleave(torch.tensor([30, 6, 8, 16]))[torch.randperm(60, generator=draw)]
    x = torch.randn(60, 5, generator=draw, dtype=torch.float64)
    data = Data(train=(x, groups // 2, groups))
    first = torch.randn(2, 5, generator=draw, dtype=torch.float64)

    def linear(draw: int = 0) -> nn.Module:
        model = nn.Linear(5, 2, bias=False).double()
        model.weight.data.copy_(first)
        return model

    epochs, options = 14, {"warmup_epochs": 5, "every": 2, "add": 6}
    settings = Settings(epochs=epochs, batch_size=None, select="last", schedule="constant")
    fit = Fit(settings, builder("sgd", lr=0.1, momentum=0.9), seed=seed)
    run = METHODS["pde"](linear, data, fit, **options)
    sampler = ProgressiveExpansion(groups, 5, 2, 6, seed=seed)
    w, velocity = first.clone(), torch.zeros_like(first)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        members = sampler.members()
        wrong = (x[members] @ w.T).softmax(1) - torch.eye(2, dtype=torch.float64)[groups[members] // 2]
        # eq. 3.1 has (1 - gamma) before the gradient, torch has not: eta is ten times as large there
        velocity = 0.9 * velocity + 0.1 * (wrong.T @ x[members] / len(members))
        w = w - 10 * 0.1 * velocity
    final = run.model.weight
    assert isinstance(final, Tensor)
    return {"off": float((final.detach() - w).abs().max()), "moved": float((w - first).abs().max())}


@claim(
    "pde/alg1",
    where="Algorithm 1, lines 2-14; Section 3.2",
    states="The warm-up set has as many of every group as the smallest group. Each expansion draws new examples from "
    "the rest, a similar number from each group; the last ones are of the larger groups alone. The momentum is kept.",
    rule="On every one of 3 seeds of the synthetic data: the warm-up has 4 x the smallest group; sets are nested, of "
    "the sizes asked for, and hold nothing twice; groups with examples left get equal numbers up to 1, until all are "
    "in; the last expansions hold large groups alone. PDE's weights equal those of eqs 3.1 and 3.2 by hand to 1e-10.",
    choices=("expansions of the authors' code: 100, 100, 100, 50, 50, 25, 25",),
    uses=lambda scale: {
        "sets": [computed(expansion_sets, seed=seed, n=N) for seed in scale.seeds(3)],
        "by_hand": [computed(algorithm_by_hand, seed=seed) for seed in scale.seeds(3)],
    },
)
def algorithm_1(sets: Sequence[Mapping[str, Any]], by_hand: Sequence[Mapping[str, Any]]) -> Judgement:
    kinds = ("authors", "to the end")
    both = [each[kind] for each in sets for kind in kinds]
    wanted = []
    for each in sets:
        size, total = 4 * min(each["counts"]), sum(each["counts"])
        asked = {"authors": EXPANSIONS + [0] * 30, "to the end": [500] * 30}
        for kind in kinds:
            grown = [size]
            for m in asked[kind][:30]:
                grown.append(min(grown[-1] + m, total))
            wanted.append(each[kind]["sizes"] == grown)
    balanced = all(each[kind]["warm_up"] == [min(each["counts"])] * 4 for each in sets for kind in kinds)
    ends = [[by for by in each["to the end"]["by_group"] if sum(by)][-3:] for each in sets]
    checks = [
        Check("the warm-up is balanced, at the size of the smallest group", balanced),
        Check("sizes as asked for", all(wanted)),
        Check("nothing twice in a set", all(each["sizes"] == each["distinct"] for each in both)),
        Check("every set holds the one before", all(each["nested"] for each in both)),
        Check("similar numbers from groups with examples left", all(map(_is_even, sets))),
        Check("at last the large groups alone", all(by[1] == by[3] == 0 for last in ends for by in last)),
        Check("weights as by hand, momentum kept", all(each["off"] <= 1e-10 < each["moved"] for each in by_hand)),
    ]
    return Judgement(checks, [measurement("warm-up set", [each["authors"]["sizes"][0] for each in sets])])


def _is_even(sets: Mapping[str, Any]) -> bool:
    """Whether groups that have examples left after an expansion all got as many as the others, up to 1."""
    for kind in ("authors", "to the end"):
        left = [count - taken for count, taken in zip(sets["counts"], sets[kind]["warm_up"], strict=True)]
        for by_group in sets[kind]["by_group"]:
            left = [before - taken for before, taken in zip(left, by_group, strict=True)]
            got = [taken for taken, rest in zip(by_group, left, strict=True) if rest]
            if got and (max(by_group) > max(got) or max(got) - min(got) > 1):
                return False
    return True


def warm_up_size(counts: Sequence[int], cap: int | None = None) -> dict[str, Any]:
    """The size of the warm-up set for groups of these sizes, and what each group gives."""
    groups = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    sampler = ProgressiveExpansion(groups, warmup_epochs=1, cap=cap)
    return {"size": sampler.size(0), "given": torch.bincount(groups[sampler.members()], minlength=len(counts))}


COUNTS = {"Waterbirds": [3498, 184, 56, 1057], "CelebA": [71_629, 66_874, 22_880, 1_387]}


@claim(
    "pde/table7",
    where="Table 7",
    states="The warm-up set has 224 images on Waterbirds (of 4,795) and 5,548 on CelebA (of 162,770).",
    rule="For the group sizes of these data sets, the warm-up set has the published size.",
    published={"Waterbirds": "224", "CelebA": "5,548"},
    choices=(
        "the sizes of the larger groups are those of Sagawa et al. (2020); the paper gives the smallest and the sum",
    ),
    uses=lambda scale: {name: computed(warm_up_size, counts=counts) for name, counts in COUNTS.items()},
)
def table_7(**sets: Mapping[str, Any]) -> Judgement:
    published, totals = {"Waterbirds": 224, "CelebA": 5_548}, {"Waterbirds": 4_795, "CelebA": 162_770}
    checks = [
        Check(f"{name}: {size:,} of {totals[name]:,}", sets[name]["size"] == size and sum(COUNTS[name]) == totals[name])
        for name, size in published.items()
    ]
    return Judgement(checks, [measurement(name, [each["size"]], f"{published[name]:,}") for name, each in sets.items()])


untestable(
    "pde/table7-civilcomments",
    where="Table 7, CivilComments",
    states="The warm-up set of CivilComments, at most 150 of each of 512 groups, has 13,705 comments of 269,038.",
    why="the sizes of the 512 groups are not published and CivilComments is not here",
    published={"warm-up set": "13,705"},
)


MANY = [max(0, 2_000 // k - 4) for k in range(1, 513)]
"""512 made-up group sizes, 112 of them 0."""


@claim(
    "pde/appC-cap",
    where="Appendix C, groups of CivilComments",
    states="Of each of 512 groups, many of them small or empty, at most 150 examples are in the warm-up set.",
    rule="For 512 groups of 0 to 1,996 examples: a group gives 150 or all it has. The recipe of CivilComments has this "
    "cap.",
    published={"cap": "150"},
    choices=("group sizes are made up: 2,000/k - 4 for the k-th",),
    fidelity="proxy: the sizes of the groups of CivilComments are not published",
    uses=lambda scale: {"capped": computed(warm_up_size, counts=MANY, cap=150)},
)
def appendix_c(capped: Mapping[str, Any]) -> Judgement:
    checks = [
        Check("150 or all", capped["given"] == [min(150, count) for count in MANY]),
        Check("the recipe has 150", civilcomments.PDE["cap"] == 150),
    ]
    return Judgement(checks, [measurement("cap", [civilcomments.PDE["cap"]], "150")])


def recipes() -> dict[str, dict[str, Any]]:
    """The settings of the recipe "pde-paper" of each benchmark."""
    values = {}
    for name in TABLE_8:
        recipe = RECIPES[name]["pde-paper"]
        stages = recipe["options"]["pde"]
        values[name] = {
            "lr": recipe["lr"], "weight decay": recipe["weight_decay"], "batch": recipe["batch_size"],
            "T_0": stages["warmup_epochs"], "J": stages["every"], "m": stages["add"],
        }  # fmt: skip
    return values


TABLE_8 = {
    "waterbirds": {"lr": 1e-2, "weight decay": 1e-2, "batch": 64, "T_0": 140, "J": 10, "m": 10},
    "celeba": {"lr": 1e-2, "weight decay": 1e-4, "batch": 128, "T_0": 16, "J": 10, "m": 50},
    "civilcomments": {"lr": 1e-5, "weight decay": 1e-2, "batch": 16, "T_0": 15, "J": 2, "m": 300},
}


@claim(
    "pde/table8",
    where="Table 8",
    states="PDE's results on each of the three data sets have a learning rate, weight decay, batch size, T_0, J and m.",
    rule='The recipe "pde-paper" of each data set has the six published values.',
    published={
        name: ", ".join(f"{setting} {value:g}" for setting, value in row.items()) for name, row in TABLE_8.items()
    },
    choices=("nothing is trained",),
    uses=lambda scale: {"values": computed(recipes)},
)
def table_8(values: Mapping[str, Mapping[str, Any]]) -> Judgement:
    checks = [
        Check(f"{name}: {', '.join(f'{setting} {value:g}' for setting, value in row.items())}", values[name] == row)
        for name, row in TABLE_8.items()
    ]
    return Judgement(checks)


@claim(
    "pde/sec4.2-networks",
    where="Appendix C, Table 3",
    states="Images are classified by a ResNet-50; GroupDRO has learning rate 1e-5 and weight decay 1 on Waterbirds, "
    "0.1 on CelebA, and 0.01 on CivilComments.",
    rule='The recipes "pde-paper" and "group-dro-paper" of the image data sets name a ResNet-50; those of GroupDRO '
    "have these values.",
    published={"GroupDRO, weight decay": "1, 0.1, 0.01"},
    choices=("nothing is trained",),
    uses=lambda scale: {"values": computed(group_dro_recipes)},
)
def networks(values: Mapping[str, Mapping[str, Any]]) -> Judgement:
    decays = {"waterbirds": 1.0, "celeba": 0.1, "civilcomments": 0.01}
    checks = [
        Check(f"{name}: lr 1e-5, weight decay {decay:g}", values[name]["lr"] == 1e-5 and values[name]["decay"] == decay)
        for name, decay in decays.items()
    ]
    models = [model for name in ("waterbirds", "celeba") for model in values[name]["models"]]
    return Judgement([*checks, Check("a ResNet-50 for images", set(models) == {"resnet50"})])


def group_dro_recipes() -> dict[str, dict[str, Any]]:
    """What the recipes have for GroupDRO, and the networks of both recipes."""
    return {
        name: {
            "lr": RECIPES[name]["group-dro-paper"]["lr"],
            "decay": RECIPES[name]["group-dro-paper"]["weight_decay"],
            "models": [RECIPES[name][paper].get("model") for paper in ("pde-paper", "group-dro-paper")],
        }
        for name in TABLE_8
    }


TABLE_2 = {
    "ERM": ("erm", False, True), "LfF": ("lff", False, False), "EIIL": ("eiil", False, False),
    "JTT": ("jtt", False, False), "Subsample": ("subsample", True, True), "DFR": ("dfr", True, False),
    "GroupDRO": ("group_dro", True, True), "PDE": ("pde", True, True),
}  # fmt: skip
"""Method, whether it has group information, whether it trains once."""


def trains_once(method: str) -> bool:
    """Whether a method's cost is one pass for every example of its epochs, and nothing besides."""
    run = train("shortcut-digits", method=method, seed=0, epochs=4)
    steps = sum(row["examples"] for row in run.history)
    return bool(abs(run.results.cost - steps) < 1e-6)


@claim(
    "pde/table2-methods",
    where="Table 2, columns group info and train once; Section 4.2, baselines",
    states="ERM, LfF, EIIL and JTT need no groups of the training set; Subsample, DFR, GroupDRO and PDE do. ERM, "
    "Subsample, GroupDRO and PDE train once.",
    rule="All eight are methods of evenly with these needs; on shortcut digits those four cost one gradient for every "
    "example of their epochs, and the others more.",
    choices=("DFR-Tr and DFR-Val are one method with the option `on`",),
    uses=lambda scale: {name: computed(trains_once, method=method) for name, (method, *_) in TABLE_2.items()},
)
def table_2_methods(**once: bool) -> Judgement:
    checks = []
    for name, (method, groups, trains) in TABLE_2.items():
        words = f"{name}: {'groups' if groups else 'no groups'}, trains {'once' if trains else 'more than once'}"
        checks.append(Check(words, METHODS[method].needs_groups == groups and once[name] == trains))
    return Judgement(checks)
