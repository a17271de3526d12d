"""TrivialAugment Wide: every operation at every strength against Pillow, bit for bit, and how often each comes."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats

from evenly.data.augment import keyed, trivial_augment
from evenly.data.augment.trivial import BINS, OPERATIONS, apply, choices


def pillow_operation(name, level, sign):
    """The published table, in Pillow's own calls."""

    def mapped(*row):
        return lambda image: image.transform(image.size, Image.Transform.AFFINE, row)

    def enhanced(kind):
        return lambda image: kind(image).enhance(1 + sign * np.linspace(0, 0.99, 31)[level])

    shear = sign * np.linspace(0, 0.99, 31)[level]
    shift = sign * int(np.linspace(0, 32, 31)[level])
    return {
        "identity": lambda image: image,
        "shear_x": mapped(1, shear, 0, 0, 1, 0),
        "shear_y": mapped(1, 0, 0, shear, 1, 0),
        "translate_x": mapped(1, 0, shift, 0, 1, 0),
        "translate_y": mapped(1, 0, 0, 0, 1, shift),
        "rotate": lambda image: image.rotate(sign * np.linspace(0, 135, 31)[level]),
        "brightness": enhanced(ImageEnhance.Brightness),
        "color": enhanced(ImageEnhance.Color),
        "contrast": enhanced(ImageEnhance.Contrast),
        "sharpness": enhanced(ImageEnhance.Sharpness),
        "posterize": lambda image: ImageOps.posterize(image, 8 - round(6 * level / 30)),
        "solarize": lambda image: ImageOps.solarize(image, np.linspace(255, 0, 31)[level]),
        "autocontrast": ImageOps.autocontrast,
        "equalize": ImageOps.equalize,
    }[name]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_strength_equals_pillows(pictures, by_pillow, name):
    bins = (0, 13, 30) if name in ("identity", "autocontrast", "equalize") else range(BINS)
    strengths = [(level, sign) for level in bins for sign in (-1, 1)]
    level, sign = torch.tensor(strengths * len(pictures)).T
    images = pictures.repeat_interleave(len(strengths), 0)
    operation = torch.full_like(level, OPERATIONS.index(name))
    done = apply(images, operation, level, sign)
    assert done.dtype == torch.uint8
    assert torch.equal(apply(images, operation, level, sign, at_once=True), done)
    for n, image in enumerate(images):
        expected = by_pillow(image, pillow_operation(name, int(level[n]), int(sign[n])))
        assert torch.equal(done[n], expected), (name, int(level[n]), int(sign[n]))


def test_there_are_the_fourteen_operations_of_the_wide_space():
    assert len(OPERATIONS) == len(set(OPERATIONS)) == 14
    assert BINS == 31


def test_a_batch_of_all_operations_is_each_by_itself():
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (140, 3, 20, 21), dtype=np.uint8))
    keys = keyed(3, 4, torch.arange(140))
    operation, level, sign = choices(keys)
    assert len(operation.unique()) == 14
    done = trivial_augment(images, keys)
    assert torch.equal(done, apply(images, operation, level, sign, at_once=False))
    assert torch.equal(done, apply(images, operation, level, sign, at_once=True))
    apart = [apply(images[n : n + 1], operation[n : n + 1], level[n : n + 1], sign[n : n + 1]) for n in range(140)]
    assert torch.equal(done, torch.cat(apart))


def test_operations_bins_and_signs_are_uniform_and_independent():
    operation, level, sign = choices(keyed(0, 0, torch.arange(60_000)))
    assert sign.unique().tolist() == [-1, 1]
    cell = (operation * BINS + level) * 2 + (sign + 1) // 2
    assert int(cell.max()) < 14 * BINS * 2
    assert stats.chisquare(torch.bincount(cell, minlength=14 * BINS * 2).numpy()).pvalue > 1e-3


def test_other_channels_are_refused(refused):
    for channels in (2, 4):
        images, keys = torch.zeros(1, channels, 4, 4, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
        refused(f"TrivialAugment needs images of 1 or 3 channels, got {channels}$", trivial_augment, images, keys)
