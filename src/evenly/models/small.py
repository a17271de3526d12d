"""Small networks for small data: a multilayer perceptron and a convolutional net."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Sequential):
    """Flattens inputs (N, ...), hidden layers with ReLU, `classes` logits."""

    def __init__(self, features: int, classes: int, hidden: Sequence[int] = (64, 64)) -> None:
        widths = [features, *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        super().__init__(*layers, nn.Linear(widths[-1], classes))


class ConvNet(nn.Module):
    """Inputs (N, C, H, W): two 3x3 convolutions with ReLU, pooled to 4x4, one hidden layer, `classes` logits.

    Args:
        width: channels of the first convolution; the second has twice as many.
        batch_norm: normalise after each convolution.
    """

    def __init__(self, channels: int, classes: int, width: int = 16, batch_norm: bool = False) -> None:
        super().__init__()

        def block(before: int, after: int) -> list[nn.Module]:
            norm = [nn.BatchNorm2d(after)] if batch_norm else []
            return [nn.Conv2d(before, after, 3, padding=1, bias=not batch_norm), *norm, nn.ReLU()]

        self.features = nn.Sequential(
            *block(channels, width), *block(width, 2 * width), nn.AdaptiveMaxPool2d(4), nn.Flatten()
        )
        self.hidden = nn.Sequential(nn.Linear(2 * width * 16, 64), nn.ReLU())
        self.fc = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.hidden(self.features(x)))
        return logits
