"""The paper's toy experiment, computed once for all claims: GD and SAM on D(beta_e, beta_d, alpha) for 600 iterations.

n = 10,000, d = 50, 40 filters, learning rate 0.1, rho 0.02, by the closed-form simulator `evenly.theory.cubic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evenly.data.patches import PatchDistribution
from evenly.papers.claims import Scale
from evenly.papers.nodes import Computation, computed
from evenly.theory import cubic

N, FILTERS, SIGMA_0, LR, RHO, STEPS = 10_000, 40, 0.1 / 50**0.5, 0.1, 0.02, 600
EVERY = 100
"""Iterations between the records that need the weights."""
LEARNED = 0.4
"""A filter's easy alignment, in units of 1 / beta_e, from which the early phase of the theorems is taken to be over."""
NOT_LEARNED = STEPS + 1
SEEDS, FIRST_SEED = 12, 100
START = "initial weights N(0, 0.01414^2), no bias: the paper does not give sigma_0; this one has Figure 2's timing"
NOISE = "the noise is not made orthogonal to the features: the analysis assumes it, the experiments do not say"


def toy(scale: Scale, beta_d: float, seeds: int = SEEDS, **settings: Any) -> list[Computation]:
    """The nodes of the toy experiment, one per seed."""
    return [
        computed(alignments, beta_d=beta_d, seed=seed, n=N, **settings) for seed in scale.seeds(seeds, first=FIRST_SEED)
    ]


def both_strengths(scale: Scale) -> dict[str, list[Computation]]:
    """The two data sets of Figure 2: beta_d 0.2 and 0.4."""
    return {"weak": toy(scale, 0.2), "strong": toy(scale, 0.4)}


STRENGTHS = {"weak": "beta_d 0.2", "strong": "beta_d 0.4"}


def alignments(
    beta_d: float,
    seed: int,
    n: int = N,
    beta_e: float = 1.0,
    alpha: float = 0.9,
    bias: bool = False,
    orthogonal: bool = False,
) -> dict[str, Any]:
    """max_j <w_j, v> of both features after each iteration of GD and of SAM, and what the lemmas are about.

    Args:
        bias: the network of Deng et al.'s code: a bias for each filter, initial weights 0.1 x U(-1/sqrt(d), 1/sqrt(d)).
        orthogonal: the noise is projected off the features.

    Returns:
        `start`: both alignments of every filter. For GD and SAM: `easy` and `difficult` (601 values each), `learned`
        (when the filter that leads at the start has 0.4 / beta_e, or 601, and sigmoid(-sum_j beta_e^3 z_j^3) then),
        `accuracy` and `accuracy_without` (test, in %, of all and of the examples without the easy feature), and
        `records` at iterations 0, 100, ..., 600 (see `_record`).
    """
    distribution = PatchDistribution(strong=beta_e, weak=beta_d, alpha=alpha)
    features = torch.stack(distribution.directions(seed))
    sets = {}
    for name in ("train", "test"):
        split = distribution.sample(n, seed, name)
        assert isinstance(split.inputs, Tensor)
        has_easy = split.attributes["strong"] == 1
        inputs = with_constant(split.inputs) if bias else split.inputs
        sets[name] = (cubic.fold(inputs, split.labels), has_easy)
    draw = torch.Generator().manual_seed(seed)
    if bias:
        features = torch.nn.functional.pad(features, (0, 1))
        start = (2 * torch.rand(FILTERS, 51, generator=draw) - 1) * 0.1 / 50**0.5
    else:
        start = SIGMA_0 * torch.randn(FILTERS, 50, generator=draw)
    if orthogonal:
        sets = {name: (cubic.orthogonal_noise(data, features), has) for name, (data, has) in sets.items()}
    result: dict[str, Any] = {"start": dict(zip(("easy", "difficult"), features @ start.T, strict=True))}
    for name, rho in (("GD", 0.0), ("SAM", RHO)):
        result[name] = _path(start, *sets["train"], features, rho, beta_e, beta_d, not bias)
        weights = result[name].pop("weights")
        test, has_easy = sets["test"]
        right = (cubic.margins(weights, test) > 0).double()
        without = None if has_easy.all() else 100 * right[~has_easy].mean()
        result[name] |= {"accuracy": 100 * right.mean(), "accuracy_without": without}
    return result


def with_constant(patches: Tensor) -> Tensor:
    """Patches with a last coordinate of 1, whose weight is the filter's bias."""
    return torch.nn.functional.pad(patches, (0, 1), value=1.0)


def _path(
    w: Tensor,
    data: cubic.Folded,
    has_easy: Tensor,
    features: Tensor,
    rho: float,
    beta_e: float,
    beta_d: float,
    recorded: bool,
) -> dict[str, Any]:
    every = EVERY if recorded else STEPS
    records, parts = [], []
    for t in range(0, STEPS, every):
        if recorded:
            records.append({"t": t} | _record(w, data, has_easy, features, rho, beta_e, beta_d))
        path = cubic.train(w, data, features, lr=LR, steps=every, rho=rho)
        parts.append(path.alignments[:-1] if t + every < STEPS else path.alignments)
        w = path.weights
    if recorded:
        records.append({"t": STEPS} | _record(w, data, has_easy, features, rho, beta_e, beta_d))
    z = torch.cat(parts)  # (601, 2, J)
    leader = z[0, 0].argmax()
    passed = (z[:, 0, leader] >= LEARNED / beta_e).nonzero()
    t = int(passed[0]) if len(passed) else NOT_LEARNED
    low = torch.sigmoid(-(beta_e**3) * (z[min(t, STEPS), 0] ** 3).sum())
    return {
        "easy": z[:, 0].amax(1), "difficult": z[:, 1].amax(1), "learned": {"iteration": t, "derivative": low},
        "records": records, "weights": w,
    }  # fmt: skip


def _record(
    w: Tensor, data: cubic.Folded, has_easy: Tensor, features: Tensor, rho: float, beta_e: float, beta_d: float
) -> dict[str, Any]:
    """What lemmas say of a moment, at W for GD and at the perturbed weights for SAM.

    `noise`: max |<w_j, xi_i>|. `with_easy`, `without_easy`: the smallest and largest l_i / g(t) of examples with and
    without the easy feature, g of eqs 133 and 134. `ready`: how many of the 2 J alignments are at least RHO. `weight`:
    |g v_d| / |g v_e| of the gradient of a GD step and of a SAM step from W.
    """
    z, gradients = features @ w.T, [cubic.gradient(at, data)[1].clone() for at in (w, cubic.perturbed(w, data, RHO))]
    at = cubic.perturbed(w, data, rho) if rho else w
    easy, difficult = features @ at.T
    g = torch.sigmoid(-((beta_d * difficult) ** 3).sum() - ((beta_e * easy) ** 3).sum())
    ratio = torch.sigmoid(-cubic.margins(at, data)) / g
    parts = {"with_easy": ratio[has_easy], "without_easy": ratio[~has_easy]}
    return {
        "noise": cubic.noise_alignments(at, data).max(),
        **{name: [part.min(), part.max()] if len(part) else None for name, part in parts.items()},
        "ready": int((z >= RHO).sum()),
        "weight": [(gradient @ features[1]).norm() / (gradient @ features[0]).norm() for gradient in gradients],
    }


def half_time(easy: Sequence[float]) -> int:
    """The iteration at which the easy alignment has half of its last value; 601 where it is not learned by 600."""
    if easy[-1] < 0.5:
        return NOT_LEARNED
    return next(t for t, value in enumerate(easy) if value >= easy[-1] / 2)
