"""DenseNet-121 (Huang et al. 2017): every layer of a block reads the outputs of all layers before it.

Growth rate 32, blocks of 6, 12, 24 and 16 bottleneck layers, channels halved between blocks; torchvision's state-dict
names. Two stems:

- "cifar", the default: one 3x3 convolution that keeps the resolution, without BatchNorm, as the first layer begins with
  one; 6,956,298 parameters for 10 classes. The form that CIFAR codes share.
- "imagenet": a 7x7 convolution of stride 2, BatchNorm, ReLU and max pooling of stride 2; 6,964,106 parameters for
  10 classes, 7,978,856 for 1000, torchvision's `densenet121`.

Nguyen et al. (2024, App. C) "directly used the official PyTorch implementation", which taken literally is the second
stem. It leaves 8x8 of a 32x32 image before the first block and could hardly be the state of the art that they report,
so the first is taken to be theirs; neither reading can be checked, as their code is not public.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenly.models.initialisation import he_normal
from evenly.settings import checks_options

LEAST_SIDE = {"cifar": 8, "imagenet": 29}
"""The three poolings between blocks need 8x8 after the stem."""


class DenseLayer(nn.Module):
    """BatchNorm, ReLU, 1x1 convolution to 4 x growth channels; BatchNorm, ReLU, 3x3 to growth channels, appended."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(F.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(F.relu(self.norm2(inner)))], 1)


class DenseNet(nn.Module):
    """Images (N, C, H, W) to logits (N, K); the last map is averaged.

    Args:
        stem: "cifar" for small images (8x8 or more), "imagenet" for large ones (29x29 or more).
        blocks: layers in each dense block.
        growth: channels that each layer adds; the stem has twice as many.
    """

    @checks_options
    def __init__(
        self,
        channels: int,
        classes: int,
        stem: Literal["cifar", "imagenet"] = "cifar",
        blocks: Sequence[int] = (6, 12, 24, 16),
        growth: int = 32,
    ) -> None:
        super().__init__()
        width = 2 * growth
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        if stem == "cifar":
            parts["conv0"] = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        else:
            parts["conv0"] = nn.Conv2d(channels, width, 7, 2, padding=3, bias=False)
            parts["norm0"], parts["relu0"] = nn.BatchNorm2d(width), nn.ReLU()
            parts["pool0"] = nn.MaxPool2d(3, 2, padding=1)
        for number, layers in enumerate(blocks, 1):
            parts[f"denseblock{number}"] = nn.Sequential(
                OrderedDict((f"denselayer{i + 1}", DenseLayer(width + i * growth, growth)) for i in range(layers))
            )
            width += layers * growth
            if number < len(blocks):
                parts[f"transition{number}"] = nn.Sequential(
                    OrderedDict(
                        norm=nn.BatchNorm2d(width),
                        relu=nn.ReLU(),
                        conv=nn.Conv2d(width, width // 2, 1, bias=False),
                        pool=nn.AvgPool2d(2),
                    )
                )
                width //= 2
        parts[f"norm{len(blocks) + 1}"] = nn.BatchNorm2d(width)
        self.features = nn.Sequential(parts)
        self.classifier = nn.Linear(width, classes)
        he_normal(self, "fan_in")
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(F.relu(self.features(x)).mean((2, 3)))
        return logits
