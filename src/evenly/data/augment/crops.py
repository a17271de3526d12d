"""RandomResizedCrop (Szegedy et al. 2015): a box of random area and shape, resized with Pillow's bilinear filter.

Resizing is two products with per-example matrices, (w x W) along the rows and then (h x H) along the columns. Their
entries are Pillow's fixed-point weights and the products are taken in float64, where they are exact: a crop equals
Pillow's, resized to the new width and then to the new height, bit for bit. Asked for both at once, Pillow 13 may begin
with the height; levels then differ by 1 at most, as the one rounding between the passes falls elsewhere.
An image costs C (H W w + H w h) multiplications: 0.2 million for 3x32x32, 67 million for 3x224x224.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenly.data.augment.keys import integers, uniform
from evenly.errors import EvenlyError

TRIES = 10
BITS = 22  # of Pillow's weights, after the point


def random_resized_crop(
    images: Tensor,
    keys: Tensor,
    size: int | tuple[int, int] | None = None,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """A random box of each image (N, C, H, W), resized to (N, C, h, w).

    Args:
        size: (h, w), or one number for both; that of the images if none is given.
        scale: bounds of the box's share of the area, drawn uniformly.
        ratio: bounds of its width over its height, drawn uniformly in the logarithm.
    """
    height, width = images.shape[2:]
    new_size = (height, width) if size is None else (size, size) if isinstance(size, int) else tuple(size)
    if len(new_size) != 2 or min(new_size) < 1:
        raise EvenlyError(f"size must be one side or (height, width), each at least 1 pixel, got {size}")
    if not 0 < scale[0] <= scale[1] <= 1:
        raise EvenlyError(f"scale must be a range of areas, 0 < smallest <= largest <= 1, got {scale}")
    if not 0 < ratio[0] <= ratio[1] < math.inf:
        raise EvenlyError(f"ratio must be a range of width over height, 0 < smallest <= largest, got {ratio}")
    return resized_crop(images, *random_box(keys, height, width, scale, ratio), new_size)


def random_box(
    keys: Tensor, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, left, height and width (N,) of a box in each image: the first of ten draws that fits.

    Where none of the ten does, the largest box at the centre whose shape is within the bounds.
    """
    draws = range(TRIES)
    area = torch.stack([uniform(keys, 2 * draw) for draw in draws])
    area = height * width * (scale[0] + (scale[1] - scale[0]) * area)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    shape = torch.exp(low + (high - low) * torch.stack([uniform(keys, 2 * draw + 1) for draw in draws]))
    wide, tall = (area * shape).sqrt().round().long(), (area / shape).sqrt().round().long()
    fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
    first = fits.int().argmax(0, keepdim=True)
    # the last resort has the image's shape, brought within the bounds
    bounded = min(max(width / height, ratio[0]), ratio[1])
    last_wide = max(1, min(width, round(height * bounded)))
    last_tall = max(1, min(height, round(width / bounded)))
    any_fits = fits.any(0)
    wide = torch.where(any_fits, wide.gather(0, first)[0], last_wide)
    tall = torch.where(any_fits, tall.gather(0, first)[0], last_tall)
    top = torch.where(any_fits, integers(keys, 2 * TRIES, height - tall + 1), (height - last_tall) // 2)
    left = torch.where(any_fits, integers(keys, 2 * TRIES + 1, width - wide + 1), (width - last_wide) // 2)
    return top, left, tall, wide


def resized_crop(
    images: Tensor, top: Tensor, left: Tensor, tall: Tensor, wide: Tensor, size: tuple[int, int]
) -> Tensor:
    """The box (top, left, tall, wide), integers (N,), of each image (N, C, H, W), resized to size (h, w).

    Bilinear, with the filter widened where the box shrinks, so that no pixel is skipped (antialiasing).
    """
    height, width = images.shape[2:]
    across, down = _weights(left, wide, width, size[1]), _weights(top, tall, height, size[0])
    narrowed = _rounded(images.double().flatten(1, 2) @ across.transpose(1, 2)).unflatten(1, images.shape[1:3])
    return _rounded(down[:, None] @ narrowed).to(torch.uint8)


def _weights(start: Tensor, extent: Tensor, side: int, size: int) -> Tensor:
    """(N, size, side) Pillow's weights of the pixels in [start, start + extent) for each new pixel, times 2^22."""
    start, extent = start[:, None, None].double(), extent[:, None, None].double()
    step = extent / size
    reach = step.clamp(min=1.0)
    centre = (torch.arange(size, device=start.device, dtype=torch.float64)[:, None] + 0.5) * step
    pixel = torch.arange(side, device=start.device, dtype=torch.float64) - start
    inside = (pixel >= (centre - reach + 0.5).floor().clamp(min=0)) & (
        pixel < torch.minimum((centre + reach + 0.5).floor(), extent)
    )
    weight = (1.0 - ((pixel - centre + 0.5) * (1.0 / reach)).abs()).clamp(min=0) * inside
    return torch.floor(weight / weight.sum(2, keepdim=True) * 2.0**BITS + 0.5)


def _rounded(total: Tensor) -> Tensor:
    return torch.floor((total + 2.0 ** (BITS - 1)) * 2.0**-BITS).clamp(0, 255)
