"""Initial weights that several networks share."""

from __future__ import annotations

from typing import Literal

from torch import nn


def he_normal(network: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """Draw every convolution from N(0, 2 / fan), biases zero (He et al. 2015, eq. 10 and 14)."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def narrow_normal(layer: nn.Linear, std: float = 0.01) -> None:
    """Draw a linear layer from N(0, std^2), bias zero (torchvision's heads of VGG and MobileNetV2)."""
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
