"""MobileNetV2 for fine-tuning (Sandler et al. 2018), with torchvision's layout and state-dict names.

Inverted residuals: a 1x1 convolution widens, a 3x3 convolution works on each channel alone, a 1x1 convolution without
activation narrows; the narrow ends are added where their shapes agree. ImageNet weights that torchvision publishes
load strictly (`evenly.models.weights.load_weights`). Images of any size: the last map is averaged.
"""

from __future__ import annotations

from torch import Tensor, nn

from evenly.models.initialisation import he_normal, narrow_normal

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion t, channels c, repeats n, first stride s (Table 2)."""


def _convolution(before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, BatchNorm, ReLU6."""
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU6(),
    )


class InvertedResidual(nn.Module):
    """Widen by `expansion`, filter each channel, narrow; plus the input where stride and channels allow."""

    def __init__(self, before: int, after: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = before * expansion
        self.adds = stride == 1 and before == after
        self.conv = nn.Sequential(
            *([_convolution(before, inner, 1)] if expansion != 1 else []),
            _convolution(inner, inner, 3, stride, groups=inner),
            nn.Conv2d(inner, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )

    def forward(self, x: Tensor) -> Tensor:
        narrow: Tensor = self.conv(x)
        return x + narrow if self.adds else narrow


class MobileNetV2(nn.Module):
    """Images (N, C, H, W) of any size to logits (N, K).

    Args:
        dropout: before the linear layer; 0.2 as in torchvision.
    """

    def __init__(self, channels: int, classes: int, dropout: float = 0.2) -> None:
        super().__init__()
        before = 32
        layers: list[nn.Module] = [_convolution(channels, before, 3, stride=2)]
        for expansion, after, repeats, stride in STAGES:
            for i in range(repeats):
                layers.append(InvertedResidual(before, after, 1 if i else stride, expansion))
                before = after
        layers.append(_convolution(before, 1280, 1))
        self.features = nn.Sequential(*layers)
        head = nn.Linear(1280, classes)
        self.classifier = nn.Sequential(nn.Dropout(dropout), head)
        he_normal(self)
        narrow_normal(head)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits
