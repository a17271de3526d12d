"""Flips, padded crops and affine maps, against slices and Pillow."""

from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from scipy import stats

from evenly.data.augment import affine, flip, keyed, pad_and_crop
from evenly.data.augment.keys import integers


@pytest.mark.parametrize("padding", [0, 1, 4, 40])
def test_a_padded_crop_is_a_slice_of_the_padded_image(pictures, padding):
    height, width = pictures.shape[2:]
    keys = keyed(0, 1, torch.arange(60))
    images = pictures.repeat(12, 1, 1, 1)
    done = pad_and_crop(images, keys, padding)
    top, left = integers(keys, 0, 2 * padding + 1), integers(keys, 1, 2 * padding + 1)
    framed = F.pad(images, [padding] * 4)
    for n in range(60):
        expected = framed[n, :, top[n] : top[n] + height, left[n] : left[n] + width]
        assert torch.equal(done[n], expected)


def test_all_places_of_the_crop_are_equally_likely():
    count = 16_200
    image = torch.arange(1, 82, dtype=torch.uint8).view(1, 1, 9, 9)
    done = pad_and_crop(image.expand(count, -1, -1, -1), keyed(2, 0, torch.arange(count)), 4)
    centres = Counter(done[:, 0, 4, 4].tolist())  # the pixel at the centre tells the place
    assert sorted(centres) == list(range(1, 82))
    assert stats.chisquare(list(centres.values())).pvalue > 1e-3


def test_zero_padding_is_black_and_the_default_is_four():
    white = torch.full((400, 1, 5, 5), 255, dtype=torch.uint8)
    keys = keyed(0, 0, torch.arange(400))
    done = pad_and_crop(white, keys)
    assert torch.equal(done, pad_and_crop(white, keys, 4))
    assert done.unique().tolist() == [0, 255]
    assert int((done == 255).flatten(1).sum(1).min()) == 1  # shifted by four both ways, one pixel is left


def test_flips_mirror_half_of_the_images():
    count = 10_000
    images = torch.randint(0, 256, (1, 3, 4, 5), dtype=torch.uint8).expand(count, -1, -1, -1)
    done = flip(images, keyed(1, 1, torch.arange(count)))
    mirrored = torch.from_numpy(images.numpy()[..., ::-1].copy())
    as_it_was, turned = ((done == which).flatten(1).all(1) for which in (images, mirrored))
    assert bool((as_it_was ^ turned).all())
    assert stats.binomtest(int(turned.sum()), count).pvalue > 1e-3


@pytest.mark.parametrize(("p", "share"), [(0.0, 0.0), (1.0, 1.0), (0.1, 0.1)])
def test_the_probability_of_a_flip(p, share):
    images = torch.arange(2, dtype=torch.uint8).expand(5000, 1, 1, 2)
    turned = flip(images, keyed(0, 0, torch.arange(5000)), p)[:, 0, 0, 0].double().mean()
    assert abs(float(turned) - share) <= 4 * np.sqrt(share * (1 - share) / 5000)


def test_any_affine_map_equals_pillows(pictures, by_pillow):
    draw = np.random.default_rng(0)
    height, width = pictures.shape[2:]
    maps = draw.normal(0, 1, (60, 6)) * [1, 1, width, 1, 1, height]
    maps[:10] = np.round(maps[:10])  # boundaries hit exactly
    maps[10:20, [1, 3]] = 0  # Pillow has a path of its own for these
    images = pictures.repeat(12, 1, 1, 1)
    done = affine(images, torch.from_numpy(maps))
    for n, row in enumerate(maps):
        expected = by_pillow(
            images[n], lambda image, row=row: image.transform(image.size, Image.Transform.AFFINE, tuple(row))
        )
        assert torch.equal(done[n], expected), row


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_probabilities_are_checked(p, refused):
    images, keys = torch.zeros(1, 1, 2, 2, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    refused(f"^p must be a probability from 0 to 1, got {p}$", flip, images, keys, p)
    padding = p - 0.9  # -1.0, 0.6, nan
    refused(f"padding must be a whole number of pixels, at least 0, got {padding}", pad_and_crop, images, keys, padding)
