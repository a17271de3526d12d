"""The settings that image data sets bring along: those of the user's own images go by their size."""

import pytest
import torch
from PIL import Image

from evenly.data.images import image_folder
from evenly.models import factory


def folder_of(root, width, height, mode="RGB"):
    for name in "ab":
        (root / name).mkdir()
        for i in range(4):
            Image.new(mode, (width, height), i).save(root / name / f"{i}.png")
    return root


@pytest.mark.parametrize(
    ("width", "height", "model"),
    [(1, 1, "convnet_3"), (64, 64, "convnet_3"), (5, 64, "convnet_3"), (65, 64, "resnet18"), (3, 65, "resnet18")],
)
@pytest.mark.parametrize("memory", [1.0, 0.0])
def test_small_images_get_a_small_network_that_takes_them(tmp_path, width, height, model, memory):
    data = image_folder(folder_of(tmp_path, width, height, "RGB" if width < 65 else "L"), memory=memory)
    assert dict(data.recipe) == {"model": model, "augment": "none", "normalise": "data"}
    if memory:
        fresh, _ = factory(model, data.train.example_shape, data.classes, 0)
        outputs = fresh().eval()(data.train.inputs.float())
        assert outputs.shape == (len(data.train), 2)
        assert bool(torch.isfinite(outputs).all())


def test_the_size_that_images_are_brought_to_counts(tmp_path):
    folder = folder_of(tmp_path, 90, 70)
    assert image_folder(folder).recipe["model"] == "resnet18"
    assert image_folder(folder, size=64).recipe["model"] == "convnet_3"
