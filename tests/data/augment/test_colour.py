"""Operations on grey levels against Pillow's, bit for bit, at strengths beyond those of TrivialAugment."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from evenly.data.augment import colour

FACTORS = [0.0, 0.01, 0.29, 0.57, 0.999, 1.0, 1.001, 1.1, 1.7, 1.99, 5.0, -0.5]  # .29 x 100 tells float32 from 64
ENHANCEMENTS = {
    "brightness": ImageEnhance.Brightness,
    "color": ImageEnhance.Color,
    "contrast": ImageEnhance.Contrast,
    "sharpness": ImageEnhance.Sharpness,
}


@pytest.mark.parametrize("name", ENHANCEMENTS)
def test_enhancements(pictures, by_pillow, name):
    images = pictures.repeat_interleave(len(FACTORS), 0)
    factors = FACTORS * len(pictures)
    done = colour.enhance(name, images, torch.tensor(factors, dtype=torch.float64))
    assert done.dtype == torch.uint8
    for n, factor in enumerate(factors):
        expected = by_pillow(images[n], lambda image, factor=factor: ENHANCEMENTS[name](image).enhance(factor))
        assert torch.equal(done[n], expected), (name, factor)


@pytest.mark.parametrize(
    ("name", "strengths"),
    [
        ("posterize", range(1, 9)),
        ("solarize", (0, 0.5, 4, 4.5, 77, 128, 250, 254.5, 255, 256)),
        ("autocontrast", (None,)),
        ("equalize", (None,)),
    ],
)
def test_operations(pictures, by_pillow, name, strengths):
    for strength in strengths:
        arguments = () if strength is None else (strength,)
        done = colour.enhance(name, pictures, torch.full((len(pictures),), strength or 0))
        for n, image in enumerate(pictures):
            expected = by_pillow(image, lambda image, given=arguments: getattr(ImageOps, name)(image, *given))
            assert torch.equal(done[n], expected), strength


def test_autocontrast_between_any_two_levels(by_pillow):
    """Floats that should be whole lie on either side of it: the same side as in Pillow's arithmetic."""
    ends = np.sort(np.random.default_rng(0).integers(0, 256, (1200, 2)), 1)
    low, high = torch.from_numpy(ends).T[:, :, None, None, None]
    images = torch.arange(256).view(1, 1, 16, 16).clamp(low, high).to(torch.uint8)
    done = colour.enhance("autocontrast", images, torch.zeros(len(images)))
    for n in range(len(ends)):
        assert torch.equal(done[n], by_pillow(images[n], ImageOps.autocontrast)), ends[n]


def test_equalize_of_many_histograms(by_pillow):
    """Sizes around 255 pixels, where the step becomes 0, and lumps that push the last level beyond 255."""
    draw = np.random.default_rng(1)
    for height, width in [(15, 17), (16, 16), (16, 17), (22, 24), (23, 23), (40, 31)]:
        lumps = draw.geometric(draw.uniform(0.005, 0.5, (60, 1, 1, 1)), (60, 1, height, width))
        images = torch.from_numpy(np.minimum(lumps, 255).astype(np.uint8))
        done = colour.enhance("equalize", images, torch.zeros(len(images)))
        for n in range(len(images)):
            assert torch.equal(done[n], by_pillow(images[n], ImageOps.equalize))


def test_grey_of_every_colour(by_pillow):
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 300, 300), dtype=np.uint8))
    expected = np.asarray(Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L"))
    assert np.array_equal(colour.grey(image[None])[0, 0].numpy(), expected)
    assert torch.equal(colour.grey(image[None, :1]), image[None, :1].short())


def test_smoothed(pictures, by_pillow):
    done = colour.smoothed(pictures)
    for n, image in enumerate(pictures):
        assert torch.equal(done[n], by_pillow(image, lambda image: image.filter(ImageFilter.SMOOTH)).short())


def test_every_example_has_its_own_strength():
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (9, 3, 12, 11), dtype=np.uint8))
    factor = torch.linspace(0, 2, 9, dtype=torch.float64)
    for name in ENHANCEMENTS:
        apart = torch.cat([colour.enhance(name, images[n : n + 1], factor[n : n + 1]) for n in range(9)])
        assert torch.equal(colour.enhance(name, images, factor), apart)
