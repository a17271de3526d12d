"""How the easy and the difficult feature grow under gradient descent and SAM (Sections 3 and D.1, Figures 2 and 6)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from evenly.data.patches import PatchDistribution
from evenly.papers.claims import claim
from evenly.papers.nodes import computed
from evenly.runs.verdict import Chart, Check, Judgement, line, measurement
from evenly.theory import cubic

SIGMA_0, LR, RHO, STEPS = 0.1 / 50**0.5, 0.1, 0.02, 600
NOT_LEARNED = STEPS + 1
START = "initial weights N(0, 0.01414^2), no bias: the paper does not give sigma_0"


def alignments(beta_d: float, seed: int, n: int = 10_000) -> dict[str, Any]:
    """max_j <w_j, v> of the easy and the difficult feature after each of 600 iterations of GD and of SAM."""
    distribution = PatchDistribution(weak=beta_d)
    split, features = distribution.sample(n, seed), torch.stack(distribution.directions(seed))
    assert isinstance(split.inputs, torch.Tensor)
    data = cubic.fold(split.inputs, split.labels)
    start = SIGMA_0 * torch.randn(40, 50, generator=torch.Generator().manual_seed(seed))
    paths = {
        name: cubic.train(start, data, features, lr=LR, steps=STEPS, rho=rho).largest.T
        for name, rho in (("GD", 0.0), ("SAM", RHO))
    }
    return {name: {"easy": path[0], "difficult": path[1]} for name, path in paths.items()}


def half_time(easy: Sequence[float]) -> int:
    """The iteration at which the easy alignment has half of its last value; 601 where it is not learned by 600."""
    if easy[-1] < 0.5:
        return NOT_LEARNED
    return next(t for t, value in enumerate(easy) if value >= easy[-1] / 2)


@claim(
    "useful/fig2ab",
    where="Figure 2 (a), (b)",
    states="Gradient descent learns the easy feature at about iteration 250, SAM at about 450.",
    rule="Over 12 seeds at beta_d 0.2 and at 0.4: the median half-time of GD is within 190 to 310, that of SAM is at "
    "least 1.4 times as long, and SAM is later on every seed.",
    published={"GD, half-time": "about 250", "SAM, half-time": "about 450"},
    choices=(START,),
    uses=lambda scale: {
        f"beta_d_{beta_d}": [computed(alignments, beta_d=beta_d, seed=seed) for seed in scale.seeds(12, first=100)]
        for beta_d in (0.2, 0.4)
    },
)
def figure_2ab(**paths: Sequence[Mapping[str, Any]]) -> Judgement:
    checks, measurements, charts = [], [], []
    for name, of_seeds in paths.items():
        times = {each: [half_time(path[each]["easy"]) for path in of_seeds] for each in ("GD", "SAM")}
        gd, sam = (statistics.median(times[each]) for each in ("GD", "SAM"))
        strength = f"beta_d {name.removeprefix('beta_d_')}"
        checks += [
            Check(f"{strength}: GD's median is within 190 to 310 ({gd:g})", 190 <= gd <= 310),
            Check(f"{strength}: SAM's is at least 1.4 times as long ({sam:g})", sam >= 1.4 * gd),
            Check(f"{strength}: SAM is later on every seed", all(s > g for g, s in zip(*times.values(), strict=True))),
        ]
        published = {"GD": "about 250", "SAM": "about 450"}
        measurements += [
            measurement(f"{each}, half-time, {strength}", of_arm, published[each]) for each, of_arm in times.items()
        ]
        steps = range(0, NOT_LEARNED, 10)
        lines = [
            line(f"{each}, {feature}", steps, [of_seeds[0][each][feature][t] for t in steps])
            for each in ("GD", "SAM")
            for feature in ("easy", "difficult")
        ]
        charts.append(Chart(f"largest alignment, {strength}, one seed", "iteration", tuple(lines)))
    return Judgement(checks, measurements, charts)
