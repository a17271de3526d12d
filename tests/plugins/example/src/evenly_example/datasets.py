"""Points with a weak feature that is always right and a strong one that is right on most training points."""

from typing import Annotated

import torch

from evenly.data import Data, Split
from evenly.randomness import generator
from evenly.settings import at_least, at_most


def two_features(
    n: Annotated[int, at_least(100)] = 400, rate: Annotated[float, at_least(0), at_most(1)] = 0.9, seed: int = 0
) -> Data:
    """Points whose strong second feature agrees with the label at `rate` in training; four groups."""

    def drawn(name: str, agree: float) -> Split:
        draw = generator(seed, "two-features", name)
        labels = torch.arange(n) % 2
        second = torch.where(torch.rand(n, generator=draw) < agree, labels, 1 - labels)
        x = torch.randn(n, 2, generator=draw) + torch.stack([2 * labels - 1, 6 * second - 3], dim=1)
        return Split(x, labels, 2 * labels + second, name=name)

    return Data(
        train=drawn("train", rate),
        validation=drawn("validation", 0.5),
        test=drawn("test", 0.5),
        name="two-features",
        about="Points in the plane. The first coordinate gives the class, the second one often does in training.",
        group_names=[f"class {k}, second feature {side}" for k in (0, 1) for side in ("low", "high")],
        recipe={"model": "mlp", "epochs": 6, "batch_size": 50, "lr": 0.05},
    )
