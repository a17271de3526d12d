"""The spiral data and the toy's network and recipe (Section 5.1, Figure 1 (i), Appendices B and E)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from evenly.data.spiral import JITTER, SpiralDistribution, draw
from evenly.papers.claims import claim
from evenly.papers.nodes import computed
from evenly.runs.verdict import Chart, Check, Judgement, line, measurement
from evenly.theory import spiral

GRID = 100
"""Cells per axis that a plane is cut into to estimate a Bayes error."""


def bayes_error(x: Tensor, y: Tensor) -> float:
    """The error of guessing the majority of each cell of a grid, of points x (N, 2) and labels ±1.

    The majority is that of the first half of the points, the error that of the second. It is at least Bayes' error on
    average, and close to it if cells are small and full.
    """
    low, high = x.amin(0), x.amax(0)
    place = ((x - low) / (high - low) * GRID).long().clamp_max(GRID - 1)
    cell, half = place[:, 0] * GRID + place[:, 1], len(y) // 2
    balance = torch.zeros(GRID**2, dtype=torch.float64).index_add_(0, cell[:half], y[:half].double())
    return float((balance[cell[half:]].sign() != y[half:].sign()).double().mean())


def readings(seed: int, n: int = 2_000_000) -> dict[str, float]:
    """Bayes errors of the hard feature by itself under readings of equations 43 and 44, at 315 degrees."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=generator) * 2 - 1
    r = torch.rand(n, generator=generator).sqrt() * (2 * math.pi * 315 / 360)
    e = JITTER * torch.rand(n, 2, generator=generator)

    def arm(z: Tensor) -> Tensor:
        return torch.stack([-z * z.cos(), z * z.sin()], 1)

    side = y[:, None]
    return {
        "printed": bayes_error(0.25 * arm(y * r) + e, y),
        "antipodal, noise outside a_hard": bayes_error(0.25 * side * arm(r) + e, y),
        "antipodal, noise inside a_hard": bayes_error(0.25 * side * (arm(r) + e), y),
    }


@claim(
    "balanced/appE",
    revised="The Bayes error was first estimated where it was fitted; after a first run it is held out.",
    where="Equations 43 and 44, Appendix E",
    states="The label follows from the spiral alone, where z = sqrt(U) 2 pi chi / 360 with the label's sign and "
    "uniform noise on [0, 0.5]^2 is added to a_hard [-z cos z, z sin z].",
    rule="With 2 million points at 315 degrees, the best guess in each cell of a grid of 100 x 100, read off half of "
    "the points, is wrong on at most 0.1% of points, as printed.",
    choices=("z^2 from a negative interval is read as z = -sqrt(U) 2 pi chi / 360",),
    uses=lambda scale: {"found": computed(readings, seed=0)},
)
def appendix_e(found: Mapping[str, float]) -> Judgement:
    error = found["printed"]
    checks = [Check(f"at most 0.1% ({error:.1%})", error <= 0.001)]
    return Judgement(checks, [measurement(f"Bayes error, {name}", [value]) for name, value in found.items()])


def drawn(complexity: float, seed: int, n: int = 1_000_000) -> dict[str, Any]:
    """The points of evenly's spiral data: Bayes errors of both features by themselves, ranges, a few points."""
    (x,), (y,) = draw(SpiralDistribution(complexity=complexity), [seed], n=n, held_out=1, dtype=torch.float64)[0]
    easy, hard = x[:, :2], x[:, 2:]
    z = easy[:, 0] * y / 2
    uniform = (z.sort().values - (torch.arange(n, dtype=z.dtype) + 0.5) / n).abs().max()
    reach = hard.norm(dim=1).max() / 0.25
    return {
        "easy error": float(((easy[:, 0] > 0) != (y > 0)).double().mean()),
        "easy is a line": bool((easy[:, 0] == easy[:, 1]).all()),
        "easy, distance from uniform": float(uniform),
        "hard error": bayes_error(hard, y),
        "reach": float(reach),
        "points": {
            str(side): hard[y == side][:300].round(decimals=3).T for side in (-1, 1)
        },
    }  # fmt: skip


@claim(
    "balanced/fig1i",
    revised="After a first run, which failed at 315 degrees for lack of points, it has 1,000,000 of them, held out.",
    where="Figure 1 (i), Section 5.1, equations 41-44",
    states="The easy feature is a line, [z, z] times 2 with z uniform on [0, 1] and the label's sign. The hard feature "
    "is a spiral times 0.25 that turns by chi degrees. Each predicts the label fully.",
    rule="With 1 million points at 180, 315 and 450 degrees: the easy feature's sign is the label on all; its "
    "distribution function is within 0.005 of the uniform one. The label follows from the spiral but for 0.1% of "
    "points. The outermost point is at 2 pi chi / 360, within the noise of 0.5 on each axis.",
    choices=(
        "z^2 < 0 is read as the antipodal arm, and the uniform noise is inside a_hard: as printed, the arms overlap "
        "(balanced/appE)",
    ),
    uses=lambda scale: {"sets": {str(chi): computed(drawn, complexity=float(chi), seed=0) for chi in (180, 315, 450)}},
)
def figure_1i(sets: Mapping[str, Mapping[str, Any]]) -> Judgement:
    checks, charts = [], []
    for chi, found in sets.items():
        angle = 2 * math.pi * float(chi) / 360
        near = angle - math.sqrt(0.5) <= found["reach"] <= angle + math.sqrt(0.5)
        checks += [
            Check(
                f"{chi} degrees: the easy feature predicts the label",
                found["easy error"] == 0 and found["easy is a line"],
            ),
            Check(f"{chi} degrees: the easy feature is uniform", found["easy, distance from uniform"] < 0.005),
            Check(
                f"{chi} degrees: the hard feature predicts it ({found['hard error']:.3%})", found["hard error"] <= 0.001
            ),
            Check(f"{chi} degrees: the arm ends at {angle:.2f} ({found['reach']:.2f})", near),
        ]
        lines = [line(f"y = {side}", *found["points"][side], dots=True) for side in ("-1", "1")]
        charts.append(Chart(f"x_hard, second, {chi} degrees", "x_hard, first", lines))
    return Judgement(checks, charts=charts)


def noise_frequencies(seed: int, n: int = 100_000) -> dict[str, dict[str, float]]:
    """How often features are flipped and dropped, and the standard deviation of what is added, by where noise is on."""
    found = {}
    clean = SpiralDistribution().sample(n, seed)
    assert isinstance(clean.inputs, Tensor)
    for place in ("both", "hard"):
        values = {}
        for name, level in (("label_noise", 0.1), ("dropout", 0.4), ("gaussian_noise", 1.0)):
            noisy = SpiralDistribution(**{name: level, "noise_on": place}).sample(n, seed)  # type: ignore[arg-type]
            assert isinstance(noisy.inputs, Tensor)
            for feature, columns in (("easy", slice(0, 2)), ("hard", slice(2, 4))):
                before, after = clean.inputs[:, columns], noisy.inputs[:, columns]
                share = {
                    "label_noise": (after == -before).all(1).double().mean(),
                    "dropout": (after == 0).all(1).double().mean(),
                    "gaussian_noise": (after - before).std(),
                }[name]
                values[f"{name}, {feature}"] = float(share)
        found[place] = values
    return found


@claim(
    "balanced/appE-noise",
    where="Equation 45, Appendices E and H.1",
    states="Three kinds of noise: a feature's side is flipped with probability p, a feature is set to 0 with "
    "probability q, Gaussian noise of standard deviation sigma is added. Each is on both features or on the hard one "
    "alone.",
    rule="In 100,000 points with p 0.1, q 0.4 and sigma 1, the frequencies and the standard deviation are within 0.01 "
    "of these where the noise is, and 0 on the easy feature where it is on the hard one alone.",
    choices=("q is the probability of dropping: B(q) as printed is that of keeping, the text of H.1 that of dropping",),
    uses=lambda scale: {"found": computed(noise_frequencies, seed=0)},
)
def appendix_e_noise(found: Mapping[str, Mapping[str, float]]) -> Judgement:
    levels = {"label_noise": 0.1, "dropout": 0.4, "gaussian_noise": 1.0}
    checks = []
    for place, values in found.items():
        for name, value in values.items():
            kind, _, feature = name.partition(", ")
            expected = levels[kind] if place == "both" or feature == "hard" else 0.0
            met = abs(value - expected) < 0.01 if expected else value == 0
            checks.append(Check(f"noise on {place}: {name} {value:.3f}, {expected:g} asked for", met))
    return Judgement(checks)


def toy_network(seed: int) -> dict[str, float]:
    """The disentangled network against the layers of Appendix B written out, and the recipe's values."""
    network = spiral.initial([seed], dtype=torch.float64)
    layers: Sequence[nn.Module] = (
        nn.Linear(4, 100), nn.LayerNorm(100), nn.ReLU(), nn.Linear(100, 100), nn.LayerNorm(100), nn.ReLU(),
        nn.Linear(100, 1),
    )  # fmt: skip
    plain = nn.Sequential(*layers).double()
    values = network._asdict()
    with torch.no_grad():
        for layer, number in ((0, 1), (3, 2), (6, 3)):
            plain[layer].weight.copy_(values[f"weight{number}"][0].T)  # type: ignore[operator]
            plain[layer].bias.copy_(values[f"bias{number}"][0, 0])  # type: ignore[operator]
        x = torch.randn(50, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        apart = torch.zeros(2, 50, 4, dtype=torch.float64)
        apart[0, :, :2], apart[1, :, 2:] = x[:, :2], x[:, 2:]
        expected = torch.cat([plain(apart[0]), plain(apart[1])], 1)
        gap = (spiral.representation(network, x[None])[0] - expected).abs().max()
    defaults = {name: each.default for name, each in inspect.signature(spiral.train).parameters.items()}
    return {
        "gap": float(gap), "lr": defaults["lr"], "batch size": defaults["batch_size"],
        "points": inspect.signature(draw).parameters["n"].default,
        "a_easy": SpiralDistribution().a_easy, "a_hard": SpiralDistribution().a_hard,
    }  # fmt: skip


@claim(
    "balanced/appB-toy",
    where="Equation 4, Appendices B and E",
    states="The toy's network has two hidden layers of 100 units with LayerNorm and ReLU, applied to each feature with "
    "the other set to 0. Training has lr 0.01, batches of 5 and 300 points, a_easy is 2 and a_hard 0.25.",
    rule="On 50 random inputs the network differs from these layers by less than 1e-12, and the defaults are these.",
    published={"lr": "0.01", "batch size": "5", "points": "300", "a_easy": "2", "a_hard": "0.25"},
    uses=lambda scale: {"found": computed(toy_network, seed=0)},
)
def appendix_b_toy(found: Mapping[str, float]) -> Judgement:
    expected = {"lr": 0.01, "batch size": 5, "points": 300, "a_easy": 2, "a_hard": 0.25}
    checks = [Check(f"the network is that of Appendix B (apart by {found['gap']:.0e})", found["gap"] < 1e-12)]
    checks += [Check(f"{name} {found[name]:g}", found[name] == value) for name, value in expected.items()]
    return Judgement(checks, [measurement(name, [found[name]], f"{value:g}") for name, value in expected.items()])
