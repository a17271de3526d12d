"""Pre-activation residual networks for small images (He et al. 2016b, "Identity Mappings in Deep Residual Networks").

    x  ->  x + conv(relu(bn(conv(relu(bn(x))))))

The form that Nguyen et al. (2024, App. C) and Andriushchenko & Flammarion (2022) train on CIFAR: a 3x3 stem that keeps
the resolution, no max pooling, four stages of basic blocks, and a last BatchNorm and ReLU before the pooling. Widely
used code leaves that last BatchNorm out and has 2 x 512 parameters fewer (11,171,146 instead of 11,172,170 for
ResNet-18 with 10 classes); without it the head sees an unnormalised sum of branches.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from evenly.models.initialisation import he_normal


class PreActBlock(nn.Module):
    """Two 3x3 convolutions, each after BatchNorm and ReLU.

    The shortcut is the input itself; where the shape changes it is a 1x1 convolution of the activated input, so that
    both branches share the first BatchNorm and ReLU.
    """

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        changes = stride != 1 or before != after
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        branch: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return branch + (x if self.shortcut is None else self.shortcut(active))


class PreActResNet(nn.Module):
    """Images (N, C, H, W) of any size to logits (N, K).

    Args:
        blocks: basic blocks in each stage; (2, 2, 2, 2) is ResNet-18, (3, 4, 6, 3) ResNet-34.
        width: channels of the first stage; each later stage doubles them and halves the resolution.
    """

    def __init__(self, channels: int, classes: int, blocks: Sequence[int] = (2, 2, 2, 2), width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        stages, before = [], width
        for stage, count in enumerate(blocks):
            after = width * 2**stage
            strides = [1 if stage == 0 else 2] + [1] * (count - 1)
            stages.append(
                nn.Sequential(*(PreActBlock(after if i else before, after, stride) for i, stride in enumerate(strides)))
            )
            before = after
        self.stages = nn.Sequential(*stages)
        self.bn = nn.BatchNorm2d(before)
        self.fc = nn.Linear(before, classes)
        he_normal(self)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        features = F.relu(self.bn(self.stages(self.conv1(x)))).mean((2, 3))
        logits: Tensor = self.fc(features)
        return logits
