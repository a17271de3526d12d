"""Operations on grey levels, each with a strength per example: Pillow's ImageOps and ImageEnhance in batches.

Most need no more than a table from the 256 levels to new ones, (N, 1, 256) or one per channel (N, C, 256); `look_up`
applies it. "color" and "sharpness" move each pixel away from its grey, or from the mean with its neighbours.
Every operation equals Pillow's bit for bit as torch runs it op by op. A compiler that contracts a product and a sum
into one instruction may move levels of brightness, contrast, color, sharpness and autocontrast by one.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = 256


def enhance(name: str, images: Tensor, strength: Tensor) -> Tensor:
    """Images (N, C, H, W), RGB or grey, under an operation of `TABLES` or `MIXTURES`, with a strength for each (N,)."""
    if name in MIXTURES:
        return mixed(MIXTURES[name](images), images, strength[:, None, None, None])
    return look_up(images, TABLES[name](images, strength))


def look_up(images: Tensor, table: Tensor) -> Tensor:
    """Images (N, C, H, W) with every level replaced by its entry in table (N, 1 or C, 256), uint8."""
    levels = images.flatten(2).long()
    return table.expand(-1, images.shape[1], -1).gather(2, levels).view(images.shape)


def brightness_table(images: Tensor, factor: Tensor) -> Tensor:
    """(N, 1, 256): levels times factor (N,), as `ImageEnhance.Brightness`."""
    levels = _levels(factor)
    return mixed(torch.zeros_like(levels), levels, factor[:, None, None])


def contrast_table(images: Tensor, factor: Tensor) -> Tensor:
    """(N, 1, 256): away from the mean grey by factor (N,), as `ImageEnhance.Contrast`."""
    pixels = images.shape[2] * images.shape[3]
    total = grey(images).flatten(1).sum(1, dtype=torch.int64)
    mean = (2 * total + pixels) // (2 * pixels)  # to the nearest level, halves up
    return mixed(mean[:, None, None], _levels(factor), factor[:, None, None])


def posterize_table(images: Tensor, bits: Tensor) -> Tensor:
    """(N, 1, 256): the top bits (N,), 1 to 8, of every level, as `ImageOps.posterize`."""
    dropped = (8 - bits.int())[:, None, None]
    return ((_levels(bits) >> dropped) << dropped).to(torch.uint8)


def solarize_table(images: Tensor, threshold: Tensor) -> Tensor:
    """(N, 1, 256): levels from threshold (N,) up inverted, as `ImageOps.solarize`."""
    levels = _levels(threshold)
    return torch.where(levels < threshold[:, None, None], levels, 255 - levels).to(torch.uint8)


def autocontrast_table(images: Tensor, _: Tensor) -> Tensor:
    """(N, C, 256): each channel from black to white, as `ImageOps.autocontrast`; a constant channel stays."""
    pixels = images.flatten(2)
    low, high = pixels.amin(2, keepdim=True).double(), pixels.amax(2, keepdim=True).double()
    levels = _levels(images)
    scale = torch.full_like(high, 255.0) / (high - low).clamp(min=1.0)  # a number / tensor takes the reciprocal first
    stretched = (levels.double() * scale + -low * scale).clamp(0, 255).to(torch.int32)
    return torch.where(high > low, stretched, levels).to(torch.uint8)


def equalize_table(images: Tensor, _: Tensor) -> Tensor:
    """(N, C, 256): each channel's levels spread to equal counts, as `ImageOps.equalize`."""
    pixels = images.flatten(2).long()
    counts = torch.zeros(*pixels.shape[:2], LEVELS, dtype=torch.int32, device=images.device)
    counts = counts.scatter_add(2, pixels, torch.ones((), dtype=torch.int32, device=images.device).expand(pixels.shape))
    brightest = counts.gather(2, pixels.amax(2, keepdim=True))
    step = (pixels.shape[2] - brightest) // 255
    below = counts.cumsum(2, dtype=torch.int32) - counts
    spread = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, spread, _levels(images)).to(torch.uint8)


def grey(images: Tensor) -> Tensor:
    """(N, 1, H, W) int16: Pillow's luma, 0.299 R + 0.587 G + 0.114 B in 1/65536ths; a grey image is its own."""
    if images.shape[1] == 1:
        return images.short()
    red, green, blue = images.int().unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).short()[:, None]


def smoothed(images: Tensor) -> Tensor:
    """(N, C, H, W) int16: the mean over 3x3 pixels with weight 5 at the centre, rounded; the outermost pixels stay."""
    levels = images.short()
    if min(images.shape[2:]) < 3:
        return levels
    rows = levels[:, :, :-2] + levels[:, :, 1:-1] + levels[:, :, 2:]
    inner = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * levels[:, :, 1:-1, 1:-1]
    smooth = levels.clone()
    smooth[:, :, 1:-1, 1:-1] = (2 * inner + 13) // 26
    return smooth


def _levels(like: Tensor) -> Tensor:
    """(1, 1, 256) int32."""
    return torch.arange(LEVELS, dtype=torch.int32, device=like.device)[None, None]


def mixed(start: Tensor, end: Tensor, factor: Tensor) -> Tensor:
    """start + factor (end - start) in float32, cut to 0..255 and to whole levels, as `Image.blend`."""
    start = start.float()
    return (start + factor.float() * (end.float() - start)).clamp(0, 255).to(torch.uint8)


TABLES = {
    "brightness": brightness_table,
    "contrast": contrast_table,
    "posterize": posterize_table,
    "solarize": solarize_table,
    "autocontrast": autocontrast_table,
    "equalize": equalize_table,
}
"""From images and strengths to tables of levels; the last two have no strength."""
MIXTURES = {"color": grey, "sharpness": smoothed}
"""What a factor moves pixels away from, as in `ImageEnhance.Color` and `ImageEnhance.Sharpness`."""
