"""A network that scales its inputs itself: users pass pixels as numbers in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from evenly.data.contract import Data, Split
from evenly.data.mapped import MappedRows, pieces
from evenly.errors import EvenlyError

if TYPE_CHECKING:
    from evenly.models import Factory

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation by which the inputs of networks trained on ImageNet are scaled."""

MOST = 2000


class Standardised(nn.Module):
    """`network` of (x - mean) / std, channel by channel; x (N, C, ...) with pixels in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.network((x - self.mean) / self.std)
        return outputs


def channel_moments(split: Split) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of each channel of uint8 images, on the scale of 0 to 1; 1 for a constant channel.

    Exact for images in memory or in the cache; of images that are read one by one, 2,000 at equal distances are used.
    """
    if isinstance(split.inputs, Tensor | MappedRows):
        first, parts = next(pieces(split.inputs, 1)), pieces(split.inputs)
    else:
        chosen = torch.linspace(0, len(split) - 1, min(MOST, len(split))).round().long().unique().tolist()
        one_by_one = [torch.as_tensor(split.inputs[i][0])[None] for i in chosen]
        first, parts = one_by_one[0], iter(one_by_one)
    if first.dtype != torch.uint8 or first.ndim != 4:
        raise EvenlyError(
            f"normalise is for uint8 images (N, C, H, W), got {first.dtype} of shape {tuple(first.shape[1:])}; "
            "use normalise='none' and scale them yourself"
        )
    sums, count = torch.zeros(2, first.shape[1], dtype=torch.float64), 0
    for part in parts:
        pixels = part.double().transpose(0, 1).flatten(1)
        sums += torch.stack([pixels.sum(1), pixels.square().sum(1)]).cpu()
        count += pixels.shape[1]
    mean, square = sums / count
    std = (square - mean**2).clamp(min=0).sqrt()
    std[std == 0] = 255.0
    return (mean / 255).tolist(), (std / 255).tolist()


def scaled(fresh: Factory, normalise: str, data: Data) -> Factory:
    """The networks that `fresh` builds, behind the scaling asked for."""
    if normalise == "none":
        return fresh
    moments = channel_moments(data.train)  # which refuses inputs that are no images
    mean, std = IMAGENET if normalise == "imagenet" else moments
    std = [1.0] * len(mean) if normalise == "mean" else std
    channels = data.train.example_shape[0]
    if len(mean) != channels:
        raise EvenlyError(f"normalise 'imagenet' is for 3 channels and the images have {channels}; use 'data'")
    return lambda draw=0: Standardised(fresh(draw), mean, std)
