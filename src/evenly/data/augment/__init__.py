"""Augmentation in batches, on the device that holds the images: uint8 (N, C, H, W) in, uint8 (N, C, h, w) out.

    augment = Augment("basic+trivial")
    images = augment(images, index, epoch, seed)             # index: (N,) the examples' places in the training set
    inputs = normalise(images, mean, std, torch.bfloat16)

What happens to an example is a pure function of (seed, epoch, index): its batch, its place in it and the number of
workers change nothing, and neither does the device. Nothing is read back to the host and no shape depends on a draw, so
the whole can be compiled and captured in a CUDA graph; there `epoch` must be a tensor, or every replay repeats it.
"""

from __future__ import annotations

from evenly.data.augment.crops import random_resized_crop, resized_crop
from evenly.data.augment.geometry import affine, flip, pad_and_crop
from evenly.data.augment.keys import generated_keys, keyed
from evenly.data.augment.recipe import RECIPES, Augment
from evenly.data.augment.scale import normalise
from evenly.data.augment.trivial import trivial_augment

__all__ = [
    "RECIPES",
    "Augment",
    "affine",
    "flip",
    "generated_keys",
    "keyed",
    "normalise",
    "pad_and_crop",
    "random_resized_crop",
    "resized_crop",
    "trivial_augment",
]
