"""C.4, read as its title says: the loss of SGD, random perturbation and SAM that start next to constructed minima."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import SGD

from evenly.papers.claims import Scale, claim
from evenly.papers.nodes import Computation, computed
from evenly.papers.stability.coherence_in_training import Arm
from evenly.papers.stability.solutions import gradients
from evenly.randomness import derive, generator, isolated
from evenly.runs.verdict import Chart, Check, Judgement, line, measurement
from evenly.theory import parity
from evenly.theory.stability import Hessians, Minimum, mean_square_growth, mean_square_lr

D, HIDDEN, N, BATCH_SIZE, RHO, LR, EPOCHS, RUNS = 100, 50, 50, 10, 0.01, 0.01, 50, 5
NOISE, LONG = 0.01, 400
MINIMA = {"(2, r) solution": 2, "(5, r) solution": 5, "memorizing solution": None}
ALGORITHMS: dict[str, Arm] = {
    "SGD": Arm(), "random perturbation": Arm("random_perturbation", rho=RHO), "SAM": Arm("sam", rho=RHO),
}  # fmt: skip
LEFT = 10.0
"""A run has left the minimum once its loss is this many times the one it started with."""
OVERFLOW = 1e12
Found = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]


def minimum(name: str, seed: int) -> tuple[parity.TwoLayerReLU, torch.Tensor, torch.Tensor]:
    """A network of 50 units with zero loss on 50 samples of 100 inputs, and the samples."""
    x = torch.randint(0, 2, (N, D), generator=generator(seed, "boolean")).double() * 2 - 1
    y, r = parity.labels(x, 2), parity.flattest_r(D)
    C = MINIMA[name]
    network = parity.memorizing(x, y, r, HIDDEN) if C is None else parity.solution(D, C, r, HIDDEN)
    return network, x, y


def curvature(name: str, seed: int) -> Hessians:
    """The samples' Hessians of (f - y)^2 at the minimum: 2 g_i g_i^T."""
    network, x, _ = minimum(name, seed)
    return Hessians.rank_one(2**0.5 * gradients(network, x))


def losses(name: str, algorithm: str, times_critical: float, epochs: int, seed: int) -> dict[str, Any]:
    """The loss before the first and after each epoch, next to a minimum; the exact growth of the mean square.

    Args:
        times_critical: the learning rate over the exact largest stable one; 0 for the paper's 0.01.
    """
    hessians = curvature(name, seed)
    lr = LR if not times_critical else times_critical * mean_square_lr(hessians, BATCH_SIZE, sampling="fixed")
    network, x, y = minimum(name, seed)
    with torch.no_grad():
        for k, weights in enumerate(network.parameters()):
            weights.add_(torch.randn(weights.shape, generator=generator(seed, "noise", k)), alpha=NOISE)
    optimizer = ALGORITHMS[algorithm].wrap(SGD(network.parameters(), lr=lr))

    def mean_loss() -> float:
        with torch.no_grad():
            loss = float((network(x) - y).square().mean())
        return loss if loss < OVERFLOW else OVERFLOW

    logged = [mean_loss()]
    with isolated(derive(seed, "perturbations")):
        for epoch in range(epochs):
            for batch in torch.randperm(N, generator=generator(seed, "order", epoch)).split(BATCH_SIZE):

                def closure(batch: torch.Tensor = batch) -> torch.Tensor:
                    optimizer.zero_grad()
                    loss: torch.Tensor = (network(x[batch]) - y[batch]).square().mean()
                    loss.backward()
                    return loss

                optimizer.step(closure)  # type: ignore[arg-type]
            logged.append(mean_loss())
            if logged[-1] == OVERFLOW:
                logged += [OVERFLOW] * (epochs + 1 - len(logged))
                break
    growth = mean_square_growth(hessians, lr, BATCH_SIZE, sampling="fixed")
    return {"loss": [float(f"{each:.6g}") for each in logged], "lr": lr, "growth": growth}


def runs(
    scale: Scale,
    algorithms: Sequence[str],
    minima: Iterable[str] = MINIMA,
    times_critical: float = 0.0,
    epochs: int = EPOCHS,
) -> dict[str, Any]:
    """Runs by minimum and algorithm, one for each seed; the start and the batches of a seed are the same for all."""

    def node(name: str, algorithm: str, seed: int) -> Computation:
        return computed(losses, name=name, algorithm=algorithm, times_critical=times_critical, epochs=epochs, seed=seed)

    seeds = scale.seeds(RUNS)
    return {name: {each: [node(name, each, seed) for seed in seeds] for each in algorithms} for name in minima}


def left(run: Mapping[str, Any]) -> bool:
    """Whether the loss ever was more than 10 times the one at the start, or overflowed."""
    return not all(loss <= LEFT * run["loss"][0] for loss in run["loss"])


def _mean_loss(of_arm: Sequence[Mapping[str, Any]]) -> list[float]:
    return [statistics.fmean(each) for each in zip(*(run["loss"] for run in of_arm), strict=True)]


@claim(
    "stability/c4-local",
    revised="That random perturbation hovers above SGD was a main point, was not met, and became a side point.",
    where="C.4, from constructed minima",
    states="Next to minima of a 100-50-1 network, with batches of 10, rho 0.01 and lr 0.01, SGD, random perturbation "
    "and SAM start from the same weights; the loss is logged over 50 epochs and averaged over 5 runs.",
    rule="From the (2, r), the (5, r) and the memorizing solution at r = (d + 1)^(1/4): the linear theory says that "
    "SGD is stable at lr 0.01, and SGD's loss is lower after 50 epochs than at the start on every run. No run of any "
    "algorithm leaves the minimum. Side point: SAM and random perturbation hover, so that their last loss is above "
    "SGD's on every run.",
    choices=(
        "the minima: the section does not name them, its title says local",
        "50 samples: as many as the memorizing solution has units",
        "starting noise N(0, 0.01^2) in every weight",
        "a run leaves the minimum if its loss is ever above 10 times the one at the start",
    ),
    uses=lambda scale: {"found": runs(scale, list(ALGORITHMS))},
)
def local_stability(found: Found) -> Judgement:
    checks, numbers, charts = [], [], []
    for name, arms in found.items():
        sgd = arms["SGD"]
        growth = max(run["growth"] for run in sgd)
        checks.append(Check(f"{name}: stable by the linear theory (growth {growth:.5f} per step)", growth <= 1 + 1e-9))
        falls = sum(run["loss"][-1] < run["loss"][0] for run in sgd)
        checks.append(Check(f"{name}: SGD's loss falls ({falls} of {len(sgd)} runs)", falls == len(sgd)))
        gone = sum(left(run) for of_arm in arms.values() for run in of_arm)
        checks.append(Check(f"{name}: no run leaves ({gone} do)", gone == 0))
        for each in ("random perturbation", "SAM"):
            above = sum(a["loss"][-1] > b["loss"][-1] for a, b in zip(arms[each], sgd, strict=True))
            text = f"{name}: {each} ends above SGD ({above} of {len(sgd)} runs)"
            checks.append(Check(text, above == len(sgd), main=False))
        numbers += [
            measurement(f"last loss, {name}, {each}", [run["loss"][-1] for run in of_arm])
            for each, of_arm in arms.items()
        ]
        lines = tuple(line(each, range(EPOCHS + 1), _mean_loss(of_arm)) for each, of_arm in arms.items())
        charts.append(Chart(f"loss, {name}, mean over runs", "epoch", lines, log_y=True))
    return Judgement(checks, numbers, charts)


@claim(
    "stability/c4-local-critical",
    where="C.4 and C.14, from constructed minima",
    states="The linear theory tells at which learning rates SGD stays at a minimum of the network.",
    rule="From each of the three minima and over 5 runs: at 0.7 times the exact largest learning rate of a stable mean "
    "square SGD never leaves, and at 1.5 times it leaves on every run.",
    choices=("as stability/c4-local", "batches of exactly 10: the exact rate is that of fixed batches"),
    uses=lambda scale: {
        "below": runs(scale, ["SGD"], times_critical=0.7),
        "above": runs(scale, ["SGD"], times_critical=1.5),
    },
)
def critical_learning_rate(below: Found, above: Found) -> Judgement:
    checks, numbers = [], []
    for name in below:
        stays, leaves = ([left(run) for run in found[name]["SGD"]] for found in (below, above))
        checks.append(Check(f"{name}: 0.7 times, no run leaves ({sum(stays)} do)", not any(stays)))
        checks.append(Check(f"{name}: 1.5 times, every run leaves ({sum(leaves)} of {len(leaves)})", all(leaves)))
        numbers.append(measurement(f"{name}: exact largest lr", [run["lr"] / 1.5 for run in above[name]["SGD"]]))
    return Judgement(checks, numbers)


@claim(
    "stability/c4-local-hover",
    where="C.7, last lines, from the memorizing solution of C.4",
    states="SGD goes on to the minimum, and random perturbation hovers around it, as its noise makes gradients less "
    "accurate.",
    rule="From the memorizing solution with the settings of C.4, over 400 epochs and 5 runs: SGD's last loss is below "
    "1e-6 of its first, and random perturbation's is above SGD's on every run. Measured beside it: SAM.",
    choices=("as stability/c4-local", "400 epochs in place of 50, so that SGD arrives"),
    fidelity="reduced: C.4's settings, but 400 epochs, at one minimum",
    uses=lambda scale: {"found": runs(scale, list(ALGORITHMS), ["memorizing solution"], epochs=LONG)},
)
def hovering(found: Found) -> Judgement:
    (arms,) = found.values()
    sgd, random, _ = arms.values()
    arrived = max(run["loss"][-1] / run["loss"][0] for run in sgd)
    above = sum(a["loss"][-1] > b["loss"][-1] for a, b in zip(random, sgd, strict=True))
    lines = tuple(line(each, range(0, LONG + 1, 5), _mean_loss(of_arm)[::5]) for each, of_arm in arms.items())
    return Judgement(
        [
            Check(f"SGD's loss falls below 1e-6 of its first (largest {arrived:.1e})", arrived < 1e-6),
            Check(f"random perturbation ends above SGD ({above} of {len(sgd)} runs)", above == len(sgd)),
        ],
        [measurement(f"last loss, {each}", [run["loss"][-1] for run in of_arm]) for each, of_arm in arms.items()],
        [Chart("loss, memorizing solution, mean over runs", "epoch", lines, log_y=True)],
    )


def measures(seed: int) -> dict[str, dict[str, float]]:
    """The coherence measure of each minimum, and max_i lambda_max(H_i)."""
    found = {name: Minimum.of(curvature(name, seed)) for name in MINIMA}
    return {name: {"sigma": each.sigma, "sample": each.largest_sample or 0.0} for name, each in found.items()}


@claim(
    "stability/coherent-is-faster",
    revised="The losses had been seen before the rule was written; its direction is the paper's.",
    where="C.9, last lines, and C.10, at the minima of C.4",
    states="SGD and SAM both converge faster to a solution with a larger coherence measure, so that the memorizing "
    "solution is hard to find.",
    rule="From the minima of stability/c4-local, whose samples are equally sharp, over 5 runs: sigma of the (2, r) "
    "solution is the largest and that of the memorizing one the smallest. From the (2, r) solution the loss after 50 "
    "epochs, over the first, is lower than from the memorizing one on every run, for SGD and for SAM; and its exact "
    "largest learning rate of a stable mean square is higher.",
    choices=("as stability/c4-local",),
    uses=lambda scale: {
        "found": runs(scale, list(ALGORITHMS)),
        "above": runs(scale, ["SGD"], times_critical=1.5),
        "minima": [computed(measures, seed=seed) for seed in scale.seeds(RUNS)],
    },
)
def faster_where_coherent(found: Found, above: Found, minima: Sequence[Mapping[str, Any]]) -> Judgement:
    simple, middle, memorizing = MINIMA
    sigmas = {name: [each[name]["sigma"] for each in minima] for name in MINIMA}
    ordered = all(a > b > c for a, b, c in zip(*sigmas.values(), strict=True))
    sharp = max(
        abs(each[name]["sample"] / each[simple]["sample"] - 1) for each in minima for name in (middle, memorizing)
    )
    checks = [
        Check("sigma falls from the (2, r) to the memorizing solution on every run", ordered),
        Check(f"their samples are equally sharp ({sharp:.1e} apart)", sharp < 1e-6),
    ]
    for each in ("SGD", "SAM"):
        left_over = [[run["loss"][-1] / run["loss"][0] for run in found[name][each]] for name in (simple, memorizing)]
        lower = sum(a < b for a, b in zip(*left_over, strict=True))
        means = " against ".join(f"{statistics.fmean(values):.1e}" for values in left_over)
        text = f"{each}'s loss falls further from the (2, r) solution ({lower} of {len(minima)} runs; to {means})"
        checks.append(Check(text, lower == len(minima)))
    lrs = {name: [run["lr"] / 1.5 for run in above[name]["SGD"]] for name in MINIMA}
    higher = sum(a > b for a, b in zip(lrs[simple], lrs[memorizing], strict=True))
    checks.append(
        Check(f"its largest stable learning rate is higher ({higher} of {len(minima)})", higher == len(minima))
    )
    numbers = [measurement(f"sigma, {name}", values) for name, values in sigmas.items()]
    return Judgement(checks, [*numbers, *(measurement(f"largest lr, {name}", values) for name, values in lrs.items())])
