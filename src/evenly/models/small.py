"""Small networks for small data: multilayer perceptrons and convolutional nets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Sequential):
    """Flattens inputs (N, ...), hidden layers with ReLU, `classes` logits.

    Args:
        hidden: widths of the hidden layers. (512, 512) with dropout 0.1 is the 3-layer MLP of Nguyen et al. (2024).
        dropout: share of each hidden layer's outputs that training zeroes, after the ReLU.
    """

    def __init__(self, features: int, classes: int, hidden: Sequence[int] = (64, 64), dropout: float = 0.0) -> None:
        widths = [features, *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
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


class ThreeConvNet(nn.Sequential):
    """Inputs (N, *shape), shape (C, H, W): three convolutions of stride 2 with ReLU, flattened, `classes` logits.

    The network that Springer et al. (2024, App. B) train on CIFAR-MNIST and FMNIST-MNIST: 32 channels by 5x5, 64 and
    128 by 3x3, and a linear layer over all 128 x ceil(H/8) x ceil(W/8) outputs.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        channels, height, width = shape
        super().__init__(
            nn.Conv2d(channels, 32, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 128, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(128 * -(-height // 8) * -(-width // 8), classes),
        )
