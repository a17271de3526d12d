"""ImageNet weights in the real file: MobileNetV2 loads strictly and recognises photographs."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from evenly.models import factory, load_weights

ROOT = Path(os.environ.get("EVENLY_DATA", "/nonexistent"))
FILE = ROOT / "weights" / "mobilenet_v2-b0353104.npz"
PHOTOS = ROOT / "pacs128"
pytestmark = pytest.mark.skipif(
    not FILE.is_file(), reason="EVENLY_DATA names no folder with weights/mobilenet_v2-*.npz"
)


def photos(label, count):
    """(count, 3, 128, 128) photographs of one class, spread over the set, normalised as ImageNet is."""
    entry = next(e for e in json.loads((PHOTOS / "meta.json").read_text())["atlases"] if e["file"] == "photo.webp")
    members = np.flatnonzero(np.load(PHOTOS / "photo_labels.npy") == label)
    with Image.open(PHOTOS / "photo.webp") as atlas:
        tiles = [
            np.asarray(atlas.crop((128 * column, 128 * row, 128 * column + 128, 128 * row + 128)))
            for row, column in (divmod(int(i), entry["cols"]) for i in members[:: len(members) // count][:count])
        ]
    x = torch.from_numpy(np.stack(tiles)).permute(0, 3, 1, 2).float() / 255
    return (x - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor([0.229, 0.224, 0.225])[:, None, None]


@pytest.mark.skipif(not PHOTOS.is_dir(), reason="EVENLY_DATA names no folder with pacs128")
def test_the_network_recognises_dogs():
    """ImageNet's classes 151-268 are dogs, one in nine; measured: 23 of 24 photographs of dogs."""
    model = factory("mobilenet_v2", (3, 128, 128), 1000, 0, weights=str(FILE))[0]().eval()
    with torch.no_grad():
        seen = model(photos(0, 24)).argmax(1)
    assert int(((seen >= 151) & (seen <= 268)).sum()) >= 20


def test_all_of_the_file_is_taken():
    model = factory("mobilenet_v2", (3, 224, 224), 1000, 0)[0]()
    loaded = load_weights(model, FILE)
    with np.load(FILE) as arrays:
        assert set(loaded.taken) == set(arrays.files) == set(model.state_dict())
        for name, value in model.state_dict().items():
            np.testing.assert_array_equal(value.numpy(), arrays[name])
    assert (loaded.fresh, loaded.missing, loaded.unexpected) == ((), (), ())


def test_a_head_for_two_classes_is_fresh():
    loaded = load_weights(factory("mobilenet_v2", (3, 64, 64), 2, 0)[0](), FILE)
    assert loaded.fresh == ("classifier.1.weight", "classifier.1.bias")
    assert len(loaded.taken) == 312
