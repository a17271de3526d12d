"""Patch data: a strong feature that often suffices, a weak one that always does, and noise.

    x = P patches in R^d, in random order:  strong * s * v_strong,   weak * y * v_weak,   noise ~ N(0, noise^2 I)

with y = ±1 and s = y with probability alpha. Otherwise the strong feature is absent, s = 0 (Nguyen et al. 2024,
Definition 3.1: easy and difficult features) or opposite, s = -y (Deng et al. 2023, Definition 2.1: spurious and core
features). The noise is 0.125 per coordinate as in Nguyen et al. and in the code of Deng et al., whose text says
0.78 / sqrt(50) = 0.110; it is not made orthogonal to the features, as the analysis of Nguyen et al. assumes. Labels are
stored as 0/1. Groups are (label, does s agree with y): 2 * label + (0 if s = y else 1).
"""

from __future__ import annotations

from typing import Literal

import torch
from attrs import asdict, frozen
from torch import Tensor, nn

from evenly.data.contract import Count, Data, Share, Split
from evenly.randomness import generator
from evenly.settings import at_least, at_most, checks_options, setting

GRADIENT_DESCENT: dict[str, object] = {"batch_size": None, "lr": 0.1, "momentum": 0.0, "rho": 0.02}


@frozen
class PatchDistribution:
    """The distribution of patches."""

    strong: float = setting(1.0, help="length of the strong feature")
    weak: float = setting(0.2, help="length of the weak feature")
    alpha: float = setting(0.9, at_least(0), at_most(1), help="how often the strong feature agrees with the label")
    otherwise: Literal["absent", "opposite"] = setting("absent", help="what the strong feature is on the rest")
    noise: float = setting(0.125, at_least(0), help="standard deviation per coordinate (the papers' sigma_p / sqrt(d))")
    dimension: int = setting(50, at_least(2), help="d")
    patches: int = setting(3, at_least(2), help="P")

    def directions(self, seed: int = 0) -> tuple[Tensor, Tensor]:
        """The planted unit vectors (v_strong, v_weak), each (d,): a random orthonormal pair."""
        pair = torch.randn(self.dimension, 2, generator=generator(seed, "directions"), dtype=torch.float64)
        basis = torch.linalg.qr(pair).Q.float()
        return basis[:, 0].clone(), basis[:, 1].clone()

    def sample(self, count: int, seed: int = 0, split: str = "train") -> Split:
        """Draw `count` examples: inputs (count, P, d), labels 0/1, groups 0..3, attribute `strong` (1 where s = y)."""
        draw = generator(seed, "patches", split)
        v_strong, v_weak = self.directions(seed)
        y = torch.randint(0, 2, (count,), generator=draw) * 2 - 1
        agrees = torch.rand(count, generator=draw) < self.alpha
        s = torch.where(agrees, y, 0 if self.otherwise == "absent" else -y)
        x = torch.randn(count, self.patches, self.dimension, generator=draw) * self.noise
        x[:, 0] = self.strong * s[:, None] * v_strong
        x[:, 1] = self.weak * y[:, None] * v_weak
        order = torch.rand(count, self.patches, generator=draw).argsort(1)
        x = x.gather(1, order[:, :, None].expand_as(x))
        label = (y + 1) // 2
        return Split(x, label, 2 * label + (~agrees).long(), {"strong": agrees.long()}, name=split)

    def data(self, count: int, seed: int, *, name: str, features: tuple[str, str], recipe: dict[str, object]) -> Data:
        """The three splits; training on it records both alignments after every epoch."""
        planted = self.directions(seed)

        def observe(model: nn.Module) -> dict[str, float]:
            filters = getattr(model, "filters", None)
            if not isinstance(filters, Tensor) or filters.shape[-1] != self.dimension:
                return {}
            values = alignment(filters, *planted)
            return {f"alignment_{feature}": value for feature, value in zip(features, values, strict=True)}

        agreement = "present" if self.otherwise == "absent" else "agrees"
        return Data(
            train=self.sample(count, seed, "train"),
            validation=self.sample(max(count // 4, 1), seed, "validation"),
            test=self.sample(count, seed, "test"),
            name=name,
            about=f"Two classes of {self.patches} patches in {self.dimension} dimensions. The weak feature "
            f"({features[1]}, strength {self.weak:g}) always predicts the class; "
            f"the strong one ({features[0]}, strength {self.strong:g}) "
            f"does on {self.alpha:.0%} of the examples and is {self.otherwise} on the rest.",
            class_names=("-1", "+1"),
            group_names=[f"y={y}, {features[0]} {how}" for y in ("-1", "+1") for how in (agreement, self.otherwise)],
            observe=observe,
            recipe=recipe,
            options={"n": count, "seed": seed, **asdict(self)},
        )


def alignment(filters: Tensor, *directions: Tensor) -> list[float]:
    """max_j <w_j, v> for each direction v (d,), over the rows w_j of filters (J, d): G_e, G_d of Nguyen et al."""
    return [float((filters.detach() @ v.to(filters)).max()) for v in directions]


@checks_options
def patches(
    n: Count = 10_000, beta_e: float = 1.0, beta_d: float = 0.2, alpha: Share = 0.9, noise: float = 0.125, seed: int = 0
) -> Data:
    """Easy and difficult features; a share 1 - alpha of the examples lacks the easy one."""
    distribution = PatchDistribution(strong=beta_e, weak=beta_d, alpha=alpha, otherwise="absent", noise=noise)
    recipe = GRADIENT_DESCENT | {"model": "cubic-cnn", "epochs": 600}
    return distribution.data(n, seed, name="patches", features=("easy", "difficult"), recipe=recipe)


@checks_options
def spurious_patches(
    n: Count = 10_000,
    beta_s: float = 1.0,
    beta_c: float = 0.2,
    alpha: float = 0.98,
    noise: float = 0.125,
    seed: int = 0,
) -> Data:
    """Spurious and core features; on a share 1 - alpha of the examples the spurious one points to the other class."""
    distribution = PatchDistribution(strong=beta_s, weak=beta_c, alpha=alpha, otherwise="opposite", noise=noise)
    # the authors' code: ERM by plain gradient descent; balanced sets by momentum, torch's, so lr 0.03 is 0.3 in eq. 3.1
    small = {"lr": 0.03, "momentum": 0.9}
    schedule = {"epochs": 801 + 7 * 101, "warmup_epochs": 801, "every": 101, "add": [100, 100, 100, 50, 50, 25, 25]}
    options = {"pde": small | schedule, "subsample": small | {"epochs": 801}}
    choice = {"select": "worst-group-argmax", "evaluate_every": 20, "options": options}
    recipe = GRADIENT_DESCENT | {"model": "cubic-cnn-bias", "epochs": 401} | choice
    return distribution.data(n, seed, name="spurious-patches", features=("spurious", "core"), recipe=recipe)
