"""C.3: which batch sizes and coherence measures diverge on a quadratic loss, under SGD, random perturbation and SAM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evenly.papers.claims import Scale, claim
from evenly.papers.nodes import computed
from evenly.runs.verdict import Check, HeatMap, Judgement, Measurement, measurement
from evenly.theory.stability import Axes, Runs, phases
from evenly.theory.stability.hessians import Hessians, quadratic
from evenly.theory.stability.phases import SIGMAS

LRS = (0.3, 0.5, 0.8)
ASCENT = 0.1
SEEDS = 10
N, LARGEST = 100, 2.0
GRID = (
    "B 1, 2, 3, 5, 8, 12, 18, 27, 40, 60 by sigma 1, 2, 3, 4, 6, 9, 13, 20, 40, 80: the text has no grid",
    "lr 0.3, 0.5 and 0.8: the text says below 1",
    "m = 2n/sigma, so that lambda_max(H) is 2 as stated; the printed m = 2 does not do so",
    "w_0 ~ N(0, I)",
)
NUMBERS = {"theorems": {"diverges": 1.0, "converges": 0.0, "undecided": 0.5}}
Panels = Mapping[str, Sequence[Mapping[str, Any]]]


def diagram(lr: float, ascent: float, optimizer: str, seed: int, batch_sizes: Sequence[int] | None = None) -> Any:
    """C.3's grid: n 100, lambda_max(H) 2, 1,000 steps, 10 runs a cell, diverged if the norm is above 1,000 times."""
    drawn = phases.phase_diagram(
        Axes(x_values=batch_sizes), lr=lr, ascent=ascent, optimizer=optimizer, n=N, largest=LARGEST,
        runs=Runs(seed=seed),
    )  # fmt: skip
    wanted = ("x_values", "y_values", "diverged", "majority", "theorems", "theorem_wrong", "sharp_right")
    return {name: value for name, value in drawn.to_dict().items() if name in wanted}


def panels(scale: Scale, optimizer: str, ascent: float = 0.0) -> dict[str, Any]:
    """The diagrams of an optimizer, by learning rate and seed."""
    return {
        f"{lr}": [
            computed(diagram, lr=lr, ascent=ascent, optimizer=optimizer, seed=seed) for seed in scale.seeds(SEEDS)
        ]
        for lr in LRS
    }


def _maps(title: str, found: Panels) -> list[HeatMap]:
    maps = []
    for lr, drawn in found.items():
        first, share = drawn[0], np.mean([each["diverged"] for each in drawn], axis=0)
        says = [[NUMBERS["theorems"][answer] for answer in row] for row in first["theorems"]]
        axes = "B", "sigma", tuple(first["x_values"]), tuple(first["y_values"])
        maps.append(HeatMap(f"{title}, lr {lr}: share of runs that diverge", *axes, _cells(share)))
        maps.append(
            HeatMap(f"{title}, lr {lr}: theorems (1 diverges, 0 converges, 0.5 no answer)", *axes, _cells(says))
        )
    return maps


def _cells(values: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(round(float(cell), 3) for cell in row) for row in values)


def _agree(found: Panels) -> list[Check]:
    """What every diagram has to have: cells of both kinds, and none where a theorem and the majority disagree."""
    drawn = [each for of_lr in found.values() for each in of_lr]
    wrong, cells = sum(each["theorem_wrong"] for each in drawn), sum(np.size(each["diverged"]) for each in drawn)
    decided = sum(answer != "undecided" for each in drawn for row in each["theorems"] for answer in row)
    share = [float(np.mean(each["majority"])) for each in drawn]
    return [
        Check(f"wherever a theorem decides, most runs agree ({wrong} wrong of {decided}, {cells} cells)", wrong == 0),
        Check(
            f"every diagram has at least 15% of each kind ({min(share):.0%} to {max(share):.0%} diverge)",
            min(share) >= 0.15 and max(share) <= 0.85,
        ),
    ]


def _numbers(found: Panels) -> list[Measurement]:
    numbers = []
    for lr, drawn in found.items():
        share = measurement(f"cells that diverge, lr {lr}", [float(np.mean(each["majority"])) for each in drawn])
        numbers += [share, measurement(f"Lyapunov exponent right, lr {lr}", [each["sharp_right"] for each in drawn])]
    return numbers


@claim(
    "stability/c3-sgd",
    revised="Similar numbers were known from earlier runs when the rule was written.",
    where="C.3, SGD",
    states="On a quadratic loss of lambda_max(H) = 2, SGD diverges at small batch sizes and small coherence measures, "
    "where the theorems say so; with lr below 1 that is due to noise, not to sharpness.",
    rule="At lr 0.3, 0.5, 0.8 and 10 seeds: no cell in which a theorem decides and more than half of ten runs do "
    "otherwise; at least 15% of the cells diverge and 15% converge. With the full batch no cell diverges.",
    choices=GRID,
    uses=lambda scale: {
        "found": panels(scale, "sgd"),
        "full_batch": [computed(diagram, lr=lr, ascent=0.0, optimizer="sgd", seed=0, batch_sizes=[N]) for lr in LRS],
    },
)
def quadratic_sgd(found: Panels, full_batch: Sequence[Mapping[str, Any]]) -> Judgement:
    noiseless = sum(int(np.sum(each["majority"])) for each in full_batch)
    quiet = Check(f"with the full batch no cell diverges ({noiseless})", noiseless == 0)
    return Judgement([*_agree(found), quiet], _numbers(found), maps=_maps("SGD", found))


@claim(
    "stability/c3-random",
    revised="Similar numbers were known from earlier runs when the rule was written.",
    where="C.3, random perturbation",
    states="Random perturbation has the phase diagram of SGD.",
    rule="At lr 0.3, 0.5, 0.8 and 10 seeds, on the batches of SGD: no cell in which a theorem decides and most runs do "
    "otherwise. At most 0.2% of the cells differ from SGD's, and those only where no theorem decides and 3 to 7 of "
    "SGD's ten runs diverge.",
    choices=(*GRID, "delta ~ N(0, 0.01^2 I): its scale is not given"),
    uses=lambda scale: {"found": panels(scale, "random_perturbation"), "sgd": panels(scale, "sgd")},
)
def quadratic_random(found: Panels, sgd: Panels) -> Judgement:
    cells, different, near = 0, 0, 0
    for lr, of_lr in found.items():
        for ours, plain in zip(of_lr, sgd[lr], strict=True):
            differ = np.not_equal(ours["majority"], plain["majority"])
            share = np.asarray(plain["diverged"])
            toss = (share >= 0.3) & (share <= 0.7) & np.equal(plain["theorems"], "undecided")
            cells, different, near = (
                cells + differ.size,
                different + int(differ.sum()),
                near + int((differ & toss).sum()),
            )
    return Judgement(
        [
            *_agree(found),
            Check(f"at most 0.2% of the cells differ from SGD's ({different} of {cells})", different <= 0.002 * cells),
            Check(f"those that differ are near even under SGD ({near} of {different})", near == different),
        ],
        _numbers(found),
        maps=_maps("random perturbation", found),
    )


@claim(
    "stability/c3-sam",
    revised="Similar numbers were known from earlier runs when the rule was written.",
    where="C.3, SAM",
    states="SAM diverges wherever SGD does, and on more cells, as the theorems say.",
    rule="At lr 0.3, 0.5, 0.8 and 10 seeds, on the batches of SGD: no cell in which a theorem decides and most runs do "
    "otherwise. No cell diverges under SGD and not under SAM. In every diagram more cells diverge under SAM.",
    choices=(*GRID, "rho/alpha = 0.1; the ascent uses the full Hessian, as in eq. 26"),
    uses=lambda scale: {"found": panels(scale, "sam", ASCENT), "sgd": panels(scale, "sgd")},
)
def quadratic_sam(found: Panels, sgd: Panels) -> Judgement:
    pairs = [pair for lr in found for pair in zip(found[lr], sgd[lr], strict=True)]
    lost = sum(int(np.sum(np.logical_and(plain["majority"], np.logical_not(sam["majority"])))) for sam, plain in pairs)
    more = [float(np.mean(sam["majority"])) - float(np.mean(plain["majority"])) for sam, plain in pairs]
    return Judgement(
        [
            *_agree(found),
            Check(f"every cell that diverges under SGD diverges under SAM ({lost} do not)", lost == 0),
            Check(f"more cells diverge in every diagram (by {min(more):.0%} to {max(more):.0%})", min(more) > 0),
        ],
        _numbers(found),
        maps=_maps("SAM, rho/alpha 0.1", found),
    )


def normalisation() -> dict[str, Any]:
    """lambda_max(H) of C.3's set for every sigma, with the printed m = 2 and with m = 2n/sigma; the largest eta m/B."""
    printed = [float(np.linalg.eigvalsh(printed_set(sigma).mean())[-1]) for sigma in SIGMAS]
    corrected = [float(np.linalg.eigvalsh(quadratic(N, sigma, LARGEST).mean())[-1]) for sigma in SIGMAS]
    return {"sigma": SIGMAS, "printed": printed, "corrected": corrected}


def printed_set(sigma: int) -> Hessians:
    """C.3's set with m = 2."""
    return Hessians.diagonal(2.0 * (quadratic(N, sigma).values > 0))


@claim(
    "stability/c3-normalisation",
    where="C.3",
    states="With m = 2 the sharpness lambda_max(H) of C.3's set is 2.",
    rule="For every sigma of the grid, lambda_max(H) is 2 to 1e-9.",
    uses=lambda scale: {"found": computed(normalisation)},
)
def normalisation_printed(found: Mapping[str, Any]) -> Judgement:
    values = found["printed"]
    right = all(abs(value - LARGEST) < 1e-9 for value in values)
    return Judgement(
        [Check(f"lambda_max(H) is 2 for every sigma ({min(values):.2f} to {max(values):.2f})", right)],
        [
            Measurement(f"lambda_max(H), sigma {s}", v, published="2")
            for s, v in zip(found["sigma"], values, strict=True)
        ],
    )


@claim(
    "stability/c3-normalisation-corrected",
    where="C.3, corrected",
    states="With m = 2n/sigma the sharpness lambda_max(H) of C.3's set is 2, and its coherence measure is sigma.",
    rule="For every sigma of the grid, lambda_max(H) is 2 to 1e-9.",
    uses=lambda scale: {"found": computed(normalisation)},
)
def normalisation_corrected(found: Mapping[str, Any]) -> Judgement:
    values = found["corrected"]
    right = all(abs(value - LARGEST) < 1e-9 for value in values)
    return Judgement([Check(f"lambda_max(H) is 2 for every sigma ({min(values):.2f} to {max(values):.2f})", right)])
