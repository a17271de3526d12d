"""Spiral data: a linear feature that is learned at once, and a spiral that is as predictive and learned last.

    x = [x_easy, x_hard] in R^4,   y = ±1,   z, t ~ U(0, 1),   r = sqrt(t) 2 pi chi / 360,   e ~ U([0, 0.5]^2)

    x_easy = u_e k_e y a_easy [z, z] + noise_e
    x_hard = u_h k_h y a_hard ([-r cos r, r sin r] + e) + noise_h

(Springer et al. 2024, "SAM enhances feature quality via balanced learning", Appendix E.) Each feature predicts the
label by itself; chi, the complexity, is the angle in degrees over which the spiral winds. Three kinds of noise, on both
features or on the hard one only: the side of a feature is flipped, u = -1, with probability `label_noise` (the label is
not); a feature is dropped, k = 0, with probability `dropout`; Gaussian noise of standard deviation `gaussian_noise` is
added per coordinate, to dropped features too.

Equation 43 draws z^2 from a negative interval where y = -1. It is read here as antipodal: the second arm is the first
turned by 180 degrees. Taken literally, z = -r mirrors the arm instead, and the two then cross. The uniform noise e of
equation 44 turns and shrinks with the arm; outside of a_hard it would span most of the arms' distance, a_hard pi.

A balanced set, where each feature is on either side independently of the other, is what features are probed on (their
equation 1). Its label goes with the hard feature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from attrs import asdict, frozen
from torch import Tensor, nn

from evenly.data.contract import Data, Split
from evenly.errors import EvenlyError
from evenly.randomness import generator
from evenly.settings import above, at_least, at_most, setting

JITTER = 0.5
"""The width of the uniform noise e, before a_hard (Appendix E)."""
DROPPED = 2
"""The value of a feature's attribute where the feature was dropped; 0 and 1 are its sides."""

Examples = tuple[Tensor, Tensor]
"""Inputs (S, n, 4) and labels ±1 (S, n) of S data sets."""


@frozen
class SpiralDistribution:
    """The distribution of spiral data. The defaults are Appendix E's, without noise."""

    complexity: float = setting(315.0, above(0), help="chi in degrees")
    a_easy: float = setting(2.0, above(0), help="scale of the easy feature")
    a_hard: float = setting(0.25, above(0), help="scale of the hard feature")
    label_noise: float = setting(0.0, at_least(0), at_most(1), help="probability that a feature's side is flipped")
    gaussian_noise: float = setting(0.0, at_least(0), help="standard deviation per coordinate")
    dropout: float = setting(0.0, at_least(0), at_most(1), help="probability that a feature is dropped")
    noise_on: Literal["both", "hard"] = setting("both", help="the features that are noisy")

    @property
    def clean(self) -> SpiralDistribution:
        """The same distribution without noise."""
        return SpiralDistribution(self.complexity, self.a_easy, self.a_hard)

    def sample(self, count: int, seed: int = 0, split: str = "train", *, balanced: bool = False) -> Split:
        """Draw `count` examples: inputs (count, 4), labels 0/1, groups 0..3, attributes `easy` and `hard`.

        An attribute is the side that the feature shows, 0 or 1, or 2 where it was dropped. Groups are 2 * label, plus 1
        where the easy feature does not show the label. For one seed, distributions of different complexity or
        noise are made of the same draws.
        """
        x, label, sides = self._draw(count, seed, split, balanced)
        group = 2 * label + (sides[0] != label).long()
        return Split(x.float(), label, group, {"easy": sides[0], "hard": sides[1]}, name=split)

    def _draw(self, count: int, seed: int, split: str, balanced: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs (count, 4) in float64, labels 0/1, and the sides that both features show, (2, count)."""
        if count < 1:
            raise EvenlyError(f"n must be at least 1, got {count} for the {split} set")
        draw = generator(seed, "spiral", split)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=draw, dtype=torch.float64)

        label = torch.randint(0, 2, (count,), generator=draw)
        z, t, jitter, flip, drop = (
            uniform(count), uniform(count), JITTER * uniform(count, 2), uniform(2, count), uniform(2, count),
        )  # fmt: skip
        noise = torch.randn(2, count, 2, generator=draw, dtype=torch.float64)
        other = torch.randint(0, 2, (count,), generator=draw)

        true = torch.stack([other if balanced else label, label])
        noisy = torch.tensor([[self.noise_on == "both"], [True]])
        flipped, dropped = (flip < self.label_noise) & noisy, (drop < self.dropout) & noisy
        side = torch.where(flipped, 1 - true, true)
        sign = (2 * side - 1).masked_fill(dropped, 0).double()[:, :, None]
        r = t.sqrt() * (2 * math.pi * self.complexity / 360)
        arm = torch.stack([-r * r.cos(), r * r.sin()], 1)
        feature = torch.stack([self.a_easy * z[:, None].expand(-1, 2), self.a_hard * (arm + jitter)])
        noisy_feature = sign * feature + noise * (self.gaussian_noise * noisy.double())[:, :, None]
        return torch.cat([noisy_feature[0], noisy_feature[1]], 1), label, side.masked_fill(dropped, DROPPED)


def draw(
    distributions: SpiralDistribution | Sequence[SpiralDistribution],
    seeds: Sequence[int],
    *,
    n: int = 300,
    held_out: int = 1000,
    dtype: torch.dtype = torch.float32,
) -> tuple[Examples, Examples]:
    """Training and held-out examples of S runs, for :func:`evenly.theory.spiral.train`.

    Held-out points are free of noise: they measure how well a feature was learned, not how noisy it is.

    Args:
        distributions: one for all runs, or one for each.
        seeds: (S,). Runs of one seed and distribution get the same examples.
        n: training examples; 300 in Appendix B.
        held_out: test points, which the paper does not count.
    """
    if isinstance(distributions, SpiralDistribution):
        distributions = [distributions] * len(seeds)
    if not seeds or len(distributions) != len(seeds):
        raise EvenlyError(
            f"got {len(distributions)} distributions for {len(seeds)} seeds; give one distribution, or one for each of "
            "1 or more seeds"
        )
    runs = list(zip(distributions, seeds, strict=True))
    examples: dict[tuple[SpiralDistribution, int, str], Examples] = {}
    for distribution, seed in set(runs):
        for split, count, source in (("train", n, distribution), ("test", held_out, distribution.clean)):
            x, label, _ = source._draw(count, seed, split, balanced=False)
            examples[distribution, seed, split] = (x.to(dtype), (2 * label - 1).to(dtype))
    stacked = []
    for split in ("train", "test"):
        parts = [examples[distribution, seed, split] for distribution, seed in runs]
        stacked.append((torch.stack([x for x, _ in parts]), torch.stack([y for _, y in parts])))
    return stacked[0], stacked[1]


def spiral(
    n: int = 300,
    complexity: float = 315.0,
    a_easy: float = 2.0,
    a_hard: float = 0.25,
    label_noise: float = 0.0,
    gaussian_noise: float = 0.0,
    dropout: float = 0.0,
    noise_on: Literal["both", "hard"] = "both",
    seed: int = 0,
) -> Data:
    """A linear and a spiral feature; each predicts the label in training, only the spiral in validation and test."""
    distribution = SpiralDistribution(complexity, a_easy, a_hard, label_noise, gaussian_noise, dropout, noise_on)
    validation = distribution.clean.sample(1000, seed, "validation", balanced=True)
    noisy = label_noise or gaussian_noise or dropout
    exception = f", but for the noise on {'each' if noise_on == 'both' else 'the spiral'}" if noisy else ""
    return Data(
        train=distribution.sample(n, seed, "train"),
        validation=validation,
        test=distribution.clean.sample(1000, seed, "test", balanced=True),
        name="spiral",
        about=f"Two classes of points in 4 dimensions: two lie on a line, two on a spiral of {complexity:g} degrees. "
        f"In training each of the two features predicts the class{exception}. In validation and test the spiral does, "
        "and the line agrees with it on half of the points.",
        class_names=("-1", "+1"),
        group_names=[f"y={y}, line {how}" for y in ("-1", "+1") for how in ("agrees", "does not agree")],
        observe=lambda model: probing_errors(model, validation),
        recipe={"model": "mlp", "epochs": 15, "batch_size": 5, "lr": 0.01, "momentum": 0.0, "rho": 0.05},
        options={"n": n, "seed": seed, **asdict(distribution)},
    )


@torch.no_grad()
def probing_errors(model: nn.Module, split: Split) -> dict[str, float]:
    """How often the model mistakes the side of each feature: `easy_probing_error`, `hard_probing_error`.

    A network with a `representation` (N, 4) -> (N, 2) is read there, by sign (Section 5.1). Any other network predicts
    the class with the other feature set to zero.
    """
    assert isinstance(split.inputs, Tensor)
    x = split.inputs.to(next(model.parameters()))
    training = model.training
    model.eval()
    try:
        answers = [_answer(model, x, k) for k in (0, 1)]
    finally:
        model.train(training)
    return {
        f"{name}_probing_error": float((answer.long().cpu() != split.attributes[name]).double().mean())
        for name, answer in zip(("easy", "hard"), answers, strict=True)
    }


def _answer(model: nn.Module, x: Tensor, feature: int) -> Tensor:
    """(N,), whether the model takes feature 0 (easy) or 1 (hard) of x (N, 4) to be on side 1."""
    representation = getattr(model, "representation", None)
    side: Tensor
    if representation is not None:
        side = representation(x)[:, feature] > 0
        return side
    own = slice(2 * feature, 2 * feature + 2)
    alone = torch.zeros_like(x)
    alone[:, own] = x[:, own]
    output = model(alone).reshape(len(x), -1)
    side = output[:, 0] > 0 if output.shape[1] == 1 else output.argmax(1) == 1
    return side
