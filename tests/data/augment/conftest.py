"""Images of every kind that Pillow treats differently, and the way to Pillow and back."""

import numpy as np
import pytest
import torch
from PIL import Image

SIZES = [(3, 32, 32), (1, 28, 28), (3, 17, 23), (3, 2, 5), (1, 3, 4), (1, 1, 1), (3, 48, 20)]
Shape = tuple[int, int, int]


def _make(kind, shape):
    draw = np.random.default_rng(5)
    channels, height, width = shape
    y, x = np.mgrid[:height, :width]
    images = {
        "random": draw.integers(0, 256, shape),
        "dull": np.clip(draw.normal(120, 20, shape), 0, 255),
        "constant": np.full(shape, 77),
        "gradient": np.stack([(3 * x + 5 * y * (c + 1)) % 256 for c in range(channels)]),
        "two levels": np.where(draw.random(shape) < 0.3, 250, 4),
    }
    return torch.from_numpy(images[kind].astype(np.uint8))


KINDS = ["random", "dull", "constant", "gradient", "two levels"]


@pytest.fixture(params=SIZES, ids=lambda shape: "x".join(map(str, shape)))
def pictures(request):
    """(5, C, H, W): one image of each kind."""
    return torch.stack([_make(kind, request.param) for kind in KINDS])


@pytest.fixture
def by_pillow():
    """Apply a function of a Pillow image to one tensor (C, H, W)."""

    def apply(image, function):
        array = image.permute(1, 2, 0).numpy()
        done = np.asarray(function(Image.fromarray(array if len(image) == 3 else array[..., 0])))
        return torch.from_numpy(done.copy()).view(done.shape[0], done.shape[1], len(image)).permute(2, 0, 1)

    return apply
