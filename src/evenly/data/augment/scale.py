"""From uint8 images to the network's inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenly.errors import EvenlyError


def normalise(
    images: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """(images / 255 - mean) / std, computed in float32, as `dtype`; images (N, C, H, W) uint8.

    Args:
        mean, std: one number per channel on the scale of 0 to 1, or tensors (C,) already on the images' device.
    """
    channels = images.shape[1]
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != channels:
            raise EvenlyError(f"{name} has {len(values)} values for {channels} channels; give one for each")
    if not isinstance(mean, Tensor) and (outside := [m for m in mean if not 0 <= m <= 1]):
        raise EvenlyError(f"mean must be from 0 to 1, got {outside[0]}; divide grey levels by 255")
    if not isinstance(std, Tensor) and (outside := [s for s in std if not 0 < s <= 1]):
        raise EvenlyError(
            f"std must be above 0 and at most 1, got {outside[0]}; divide grey levels by 255, or use 1 if constant"
        )
    centre, spread = _column(mean, images), _column(std, images)
    return ((images.float() / 255 - centre) / spread).to(dtype)


def _column(values: Sequence[float] | Tensor, images: Tensor) -> Tensor:
    """(C, 1, 1) float32, filled on the device: under capture nothing may be copied from the host."""
    if isinstance(values, Tensor):
        return values.float()[:, None, None]
    return torch.stack([torch.full((1, 1), float(value), device=images.device) for value in values])
