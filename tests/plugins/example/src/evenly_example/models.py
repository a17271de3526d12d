"""A linear classifier."""

import math

from torch import nn


def linear(shape: tuple[int, ...], classes: int, *, bias: bool = True) -> nn.Module:
    """A linear classifier of all inputs."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes, bias=bias))
