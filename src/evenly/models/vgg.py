"""VGG-19 with BatchNorm for small images (Simonyan & Zisserman 2015, configuration E).

Sixteen 3x3 convolutions, each followed by BatchNorm and ReLU, and five max poolings, which bring 32x32 down to one
pixel of 512 channels; a linear layer reads the classes off it. `features` has torchvision's names (`vgg19_bn`).

Nguyen et al. (2024, App. C) name "the official PyTorch implementation", whose head of two 4096-wide layers repeats that
one pixel 49 times: 139,611,210 parameters for 10 classes, of which 119,575,818 are the head. This one, the form that
CIFAR codes share, has 20,040,522. Where torchvision is installed, "torchvision:vgg19_bn" is the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from evenly.models.initialisation import he_normal, narrow_normal

VGG19 = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
LEAST_SIDE = 32
"""Five halvings leave nothing of a smaller image."""


class VGG(nn.Module):
    """Images (N, C, H, W) of 32x32 or more to logits (N, K); a larger last map is averaged.

    Args:
        stages: (channels, convolutions) before each max pooling.
    """

    def __init__(self, channels: int, classes: int, stages: Sequence[tuple[int, int]] = VGG19) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = channels
        for width, count in stages:
            for _ in range(count):
                layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                before = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(before, classes)
        he_normal(self)
        narrow_normal(self.classifier)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits
