"""TrivialAugment Wide (Müller & Hutter 2021): one operation for each image, at random, at a random strength.

The operation is uniform over the 14 of the wide space, its strength over 31 bins, its sign is a coin. Strengths at the
last bin (at bin 0 each does nothing or next to nothing), from the paper's table of augmentation spaces:

    shear_x, shear_y                            0.99       with a sign, from the upper left corner
    translate_x, translate_y                    32 pixels  with a sign, whole pixels
    rotate                                      135°       with a sign, about the centre
    brightness, color, contrast, sharpness      1 ± 0.99
    posterize                                   8 to 2 bits
    solarize                                    threshold 255 to 0
    identity, autocontrast, equalize            have none

The published code differs in details that the table leaves open: it cuts angles to whole degrees, posterize's
bits and solarize's threshold (256 to 0) to whole numbers, and spreads the factors of the four enhancements over 0.01..2
without a sign. This is the reading with signs that torchvision made common.

A batch is computed in one of two forms, equal bit for bit. On the CPU each operation is given the images that drew it.
Elsewhere, and compiled, nothing may depend on what was drawn: all images go through one gather under per-image affine
maps, one gather through per-image tables of levels (which take in six operations) and the two operations that mix
pixels, and the result is selected. That costs the sum of these four on the whole batch, not fourteen operations, and
three to six times what the other form costs on one CPU thread.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenly.data.augment import colour
from evenly.data.augment.geometry import affine
from evenly.data.augment.keys import integers
from evenly.errors import EvenlyError

MOVES = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
ENHANCEMENTS = ("brightness", "color", "contrast", "sharpness")
OPERATIONS = ("identity", *MOVES, *ENHANCEMENTS, "posterize", "solarize", "autocontrast", "equalize")
BINS = 31
TOP = BINS - 1


def trivial_augment(images: Tensor, keys: Tensor) -> Tensor:
    """Images (N, C, H, W), RGB or grey, each under one operation of the wide space."""
    return apply(images, *choices(keys))


def choices(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The place of the operation in OPERATIONS, the bin in 0..30 and the sign, -1 or 1: each int64 (N,)."""
    return integers(keys, 0, len(OPERATIONS)), integers(keys, 1, BINS), 2 * integers(keys, 2, 2) - 1


def apply(images: Tensor, operation: Tensor, level: Tensor, sign: Tensor, *, at_once: bool | None = None) -> Tensor:
    """Images (N, C, H, W) under the given operations, bins and signs, each (N,).

    Args:
        at_once: compute the batch without shapes that depend on the operations; by default except on the CPU.
    """
    if images.shape[1] not in (1, 3):
        raise EvenlyError(f"TrivialAugment needs images of 1 or 3 channels, got {images.shape[1]}")
    if at_once is None:
        at_once = images.device.type != "cpu" or torch.compiler.is_compiling()
    return (_at_once if at_once else _in_parts)(images, operation, level, sign)


def _strengths(level: Tensor, sign: Tensor) -> dict[str, Tensor]:
    """The strength (N,) of each operation that moves no pixels; "autocontrast" and "equalize" do not use theirs."""
    factor = 1.0 + (sign * level).double() * 0.99 / TOP
    bits, threshold = 8 - (level * 6 + 15) // TOP, 255 - level * 8.5
    return dict.fromkeys((*colour.TABLES, *colour.MIXTURES), factor) | {"posterize": bits, "solarize": threshold}


def _in_parts(images: Tensor, operation: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    done = images.clone()
    if len(rows := _drew(operation, *MOVES).nonzero()[:, 0]):
        maps = matrices(operation[rows], level[rows], sign[rows], *images.shape[2:])
        done[rows] = affine(images[rows], maps)
    for name, strength in _strengths(level, sign).items():
        if len(rows := _drew(operation, name).nonzero()[:, 0]):
            done[rows] = colour.enhance(name, images[rows], strength[rows])
    return done


def _at_once(images: Tensor, operation: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    def drew(*names: str) -> Tensor:
        return _drew(operation, *names)[:, None, None]

    moved = affine(images, matrices(operation, level, sign, *images.shape[2:]))
    strengths = _strengths(level, sign)
    table = colour.brightness_table(images, strengths["brightness"])
    for name, table_of in colour.TABLES.items():
        if name != "brightness":
            table = torch.where(drew(name), table_of(images, strengths[name]), table)
    tabled = colour.look_up(images, table)
    start = torch.where(drew("color")[..., None], colour.grey(images), colour.smoothed(images))
    mixed = colour.mixed(start, images, strengths["color"][:, None, None, None])
    by_table, by_mixing = (drew(*names)[..., None] for names in (colour.TABLES, colour.MIXTURES))
    return torch.where(by_table, tabled, torch.where(by_mixing, mixed, moved))


def _drew(operation: Tensor, *names: str) -> Tensor:
    hit = operation == OPERATIONS.index(names[0])
    for name in names[1:]:
        hit = hit | (operation == OPERATIONS.index(name))
    return hit


def matrices(operation: Tensor, level: Tensor, sign: Tensor, height: int, width: int) -> Tensor:
    """(N, 6) affine maps in Pillow's form, the identity where the operation moves no pixel."""
    signed = (sign * level).double()

    def only(name: str, strength: Tensor) -> Tensor:
        return torch.where(operation == OPERATIONS.index(name), strength, torch.zeros_like(strength))

    shear = signed * 0.99 / TOP
    shift = (sign * (level * 32 // TOP)).double()
    angle = only("rotate", -signed * (135.0 / TOP) * (math.pi / 180))
    cos, sin = angle.cos(), angle.sin()
    x, y = width / 2, height / 2
    return torch.stack(
        [
            cos,
            sin + only("shear_x", shear),
            (x - (cos * x + sin * y)) + only("translate_x", shift),
            -sin + only("shear_y", shear),
            cos,
            (y - (cos * y - sin * x)) + only("translate_y", shift),
        ],
        dim=1,
    )
