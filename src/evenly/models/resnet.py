"""Residual networks for fine-tuning (He et al. 2016a), with torchvision's layout and state-dict names.

ImageNet weights that torchvision publishes load strictly (`evenly.models.weights.load_weights`). ResNet-50 has its
stride in the 3x3 convolution, as torchvision's has. Images of any size: the last map is averaged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from evenly.models.initialisation import he_normal


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, each followed by BatchNorm; ReLU between them and after the sum."""

    expansion = 1

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _projection(before, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(branch + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, each followed by BatchNorm; the last has four times the channels."""

    expansion = 4

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = width * self.expansion
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, after, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(after)
        self.downsample = _projection(before, after, stride)

    def forward(self, x: Tensor) -> Tensor:
        branch = F.relu(self.bn1(self.conv1(x)))
        branch = F.relu(self.bn2(self.conv2(branch)))
        branch = self.bn3(self.conv3(branch))
        return F.relu(branch + (x if self.downsample is None else self.downsample(x)))


def _projection(before: int, after: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and before == after:
        return None
    return nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))


class ResNet(nn.Module):
    """Images (N, C, H, W) of any size to logits (N, K); a 7x7 stem and max pooling, each of stride 2.

    Args:
        block: `BasicBlock` (ResNet-18) or `Bottleneck` (ResNet-50).
        blocks: blocks in each of the four stages.
        width: channels of the first stage.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        block: type[BasicBlock] | type[Bottleneck] = BasicBlock,
        blocks: Sequence[int] = (2, 2, 2, 2),
        width: int = 64,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        before = width

        def stage(number: int) -> nn.Sequential:
            nonlocal before
            layers, inner = [], width * 2**number
            for i in range(blocks[number]):
                layers.append(block(before, inner, 2 if number and not i else 1))
                before = inner * block.expansion
            return nn.Sequential(*layers)

        self.layer1, self.layer2, self.layer3, self.layer4 = (stage(number) for number in range(4))
        self.fc = nn.Linear(before, classes)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits
