"""RandomResizedCrop: boxes against the ten tries written as a loop, pixels against Pillow."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from evenly.data.augment import keyed, random_resized_crop, resized_crop
from evenly.data.augment.crops import random_box
from evenly.data.augment.keys import integers, uniform

BILINEAR = Image.Resampling.BILINEAR
USUAL = ((0.08, 1.0), (3 / 4, 4 / 3))


def box_by_loop(key, height, width, scale, ratio):
    for attempt in range(10):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * float(uniform(key, 2 * attempt)))
        low, high = math.log(ratio[0]), math.log(ratio[1])
        shape = math.exp(low + (high - low) * float(uniform(key, 2 * attempt + 1)))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            return int(integers(key, 20, height - h + 1)), int(integers(key, 21, width - w + 1)), h, w
    h, w = height, width
    if width / height < ratio[0]:
        h = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        w = max(1, round(height * ratio[1]))
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [
        (32, 32, *USUAL),
        (37, 29, *USUAL),
        (5, 60, *USUAL),  # few fit
        (60, 5, *USUAL),
        (1, 1, *USUAL),
        (20, 20, (1.0, 1.0), (2.0, 2.0)),  # none fits: wide
        (20, 20, (1.0, 1.0), (0.5, 0.5)),  # none fits: tall
        (3, 100, (1.0, 1.0), (0.01, 0.02)),  # none fits, and the last resort is thin
    ],
)
def test_boxes_are_those_of_ten_tries(height, width, scale, ratio):
    keys = keyed(0, 0, torch.arange(80))
    boxes = torch.stack(random_box(keys, height, width, scale, ratio), 1).tolist()
    expected = [list(box_by_loop(keys[n : n + 1], height, width, scale, ratio)) for n in range(80)]
    assert boxes == expected
    for top, left, tall, wide in boxes:
        assert top >= 0
        assert top + tall <= height
        assert left >= 0
        assert left + wide <= width


def test_area_shape_and_place_are_spread_as_published():
    keys = keyed(1, 0, torch.arange(8000))
    _, _, tall, wide = random_box(keys, 400, 400, (0.1, 0.5), (3 / 4, 4 / 3))
    assert stats.kstest((tall * wide / 400**2).numpy(), "uniform", args=(0.1, 0.4)).pvalue > 1e-3
    logs = torch.log(wide / tall).double().numpy()
    assert stats.kstest(logs, "uniform", args=(math.log(3 / 4), 2 * math.log(4 / 3))).pvalue > 1e-3
    top, left, tall, wide = random_box(keys, 8, 8, (0.25, 0.25), (1.0, 1.0))
    assert tall.unique().tolist() == wide.unique().tolist() == [4]
    assert stats.chisquare(torch.bincount(5 * top + left, minlength=25).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("size", [(32, 32), (7, 50), (37, 29), (1, 1), (224, 3)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_resized_crop_equals_pillows(by_pillow, size, channels):
    """Width first and then height: bit for bit. In whichever order Pillow takes by itself: within one level."""
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (60, channels, 37, 29), dtype=np.uint8))
    images[:10] = 255 * (images[:10] > 127)
    boxes = random_box(keyed(0, 0, torch.arange(60)), 37, 29, *USUAL)
    done = resized_crop(images, *boxes, size)
    assert done.shape == (60, channels, *size)
    assert done.dtype == torch.uint8
    for n, (top, left, tall, wide) in enumerate(torch.stack(boxes, 1).tolist()):
        box = (left, top, left + wide, top + tall)
        by_turns = by_pillow(
            images[n],
            lambda image, box=box, tall=tall: (
                image.crop(box).resize((size[1], tall), BILINEAR).resize((size[1], size[0]), BILINEAR)
            ),
        )
        assert torch.equal(done[n], by_turns)
        at_once = by_pillow(images[n], lambda image, box=box: image.crop(box).resize((size[1], size[0]), BILINEAR))
        assert int((done[n].int() - at_once.int()).abs().max()) <= 1


def test_the_whole_image_at_its_own_size_is_itself(pictures):
    count, _, height, width = pictures.shape
    zero = torch.zeros(count, dtype=torch.int64)
    assert torch.equal(resized_crop(pictures, zero, zero, zero + height, zero + width, (height, width)), pictures)


def test_the_size_is_one_side_two_or_the_images_own():
    images = torch.randint(0, 256, (4, 3, 20, 30), dtype=torch.uint8)
    keys = keyed(0, 0, torch.arange(4))
    assert random_resized_crop(images, keys).shape == (4, 3, 20, 30)
    assert random_resized_crop(images, keys, 8).shape == (4, 3, 8, 8)
    assert random_resized_crop(images, keys, (5, 9)).shape == (4, 3, 5, 9)
    expected = resized_crop(images, *random_box(keys, 20, 30, *USUAL), (8, 8))
    assert torch.equal(random_resized_crop(images, keys, 8), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, r"size must be one side or \(height, width\), each at least 1 pixel, got 0"),
        ({"size": (3, 4, 5)}, r"size must be .*, got \(3, 4, 5\)"),
        ({"scale": (0.0, 1.0)}, r"scale must be a range of areas, 0 < smallest <= largest <= 1, got \(0.0, 1.0\)"),
        ({"scale": (0.5, 0.2)}, r"scale must be .*, got \(0.5, 0.2\)"),
        ({"scale": (0.5, 1.2)}, r"scale must be .*, got \(0.5, 1.2\)"),
        ({"ratio": (0.0, 1.0)}, r"ratio must be a range of width over height, 0 < smallest <=.*, got \(0.0"),
        ({"ratio": (2.0, 1.0)}, r"ratio must be .*, got \(2.0, 1.0\)"),
    ],
)
def test_strange_options_are_refused(options, message, refused):
    images, keys = torch.zeros(1, 1, 4, 4, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    refused(message, random_resized_crop, images, keys, **options)
