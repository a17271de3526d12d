"""Operations that move pixels: flips, crops after zero padding, affine maps in Pillow's fixed-point arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor

from evenly.data.augment.keys import integers, uniform
from evenly.errors import EvenlyError

FIXED = 65536.0  # Pillow's affine map counts in 1/65536 of a pixel


def flip(images: Tensor, keys: Tensor, p: float = 0.5) -> Tensor:
    """Images (N, C, H, W), each mirrored left to right with probability p."""
    if not 0 <= p <= 1:
        raise EvenlyError(f"p must be a probability from 0 to 1, got {p}")
    return torch.where((uniform(keys, 0) < p)[:, None, None, None], images.flip(3), images)


def pad_and_crop(images: Tensor, keys: Tensor, padding: int = 4) -> Tensor:
    """Images (N, C, H, W) in a frame of `padding` zeros, cropped back to (H, W) at one of (2 padding + 1)^2 places.

    The zeros are black pixels: pad before normalising (He et al. 2016; Nguyen et al. 2024, appendix C).
    """
    if not padding >= 0 or padding % 1:
        raise EvenlyError(f"padding must be a whole number of pixels, at least 0, got {padding}")
    down, right = (integers(keys, draw, 2 * int(padding) + 1) - int(padding) for draw in (0, 1))
    rows = down[:, None, None] + torch.arange(images.shape[2], device=images.device)[:, None]
    columns = right[:, None, None] + torch.arange(images.shape[3], device=images.device)
    return pick(images, rows, columns)


def affine(images: Tensor, matrices: Tensor) -> Tensor:
    """Images (N, C, H, W), each under its own affine map; nearest pixel, zero where the map leaves the image.

    ``matrices`` (N, 6), float64, rows (a, b, c, d, e, f) as Pillow has them: the pixel at (x, y) is taken from
    (a x + b y + c, d x + e y + f), coordinates of pixel centres. Equal to `Image.transform` bit for bit, up to the
    32,768 pixels a side within which Pillow, too, computes in fixed point; where b and d are 0 but a or e is not 1,
    Pillow adds up floats, and a pixel within a thousandth of a boundary may fall on its other side.
    """
    a, b, c, d, e, f = matrices.unbind(1)

    def fixed(value: Tensor) -> Tensor:
        return torch.floor(value * FIXED + 0.5).long()[:, None, None]

    y = torch.arange(images.shape[2], device=images.device)[:, None]
    x = torch.arange(images.shape[3], device=images.device)
    rows = (fixed(f + d * 0.5 + e * 0.5) + fixed(d) * x + fixed(e) * y) >> 16
    columns = (fixed(c + a * 0.5 + b * 0.5) + fixed(a) * x + fixed(b) * y) >> 16
    return pick(images, rows, columns)


def pick(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(N, C, h, w): the pixel at (rows, columns) of images (N, C, H, W); zero where that is outside.

    ``rows`` and ``columns`` are integers that broadcast to (N, h, w).
    """
    channels, height, width = images.shape[1:]
    inside = (rows >= 0) & (rows < height) & ((columns >= 0) & (columns < width))
    place = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
    taken = images.flatten(2).gather(2, place.flatten(1)[:, None].expand(-1, channels, -1))
    return torch.where(inside[:, None], taken.view(-1, channels, *place.shape[1:]), 0)
