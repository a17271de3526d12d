"""MNIST and Fashion-MNIST from small idx files, packed and not."""

import gzip

import numpy as np
import pytest
import torch

from evenly.data.benchmarks.idx import fashion_mnist, mnist

NAMES = {
    ("train", "images"): "train-images-idx3-ubyte",
    ("train", "labels"): "train-labels-idx1-ubyte",
    ("test", "images"): "t10k-images-idx3-ubyte",
    ("test", "labels"): "t10k-labels-idx1-ubyte",
}


def content(part, count=20):
    images = np.random.default_rng(len(part)).integers(0, 256, (count, 28, 28), dtype=np.uint8)
    return images, [(3 * i) % 10 for i in range(count)]


def idx(values, *shape):
    return bytes([0, 0, 8, len(shape)]) + b"".join(side.to_bytes(4, "big") for side in shape) + values


def write(folder, packed):
    for part in ("train", "test"):
        images, labels = content(part)
        files = {"images": idx(images.tobytes(), 20, 28, 28), "labels": idx(bytes(labels), 20)}
        for kind, raw in files.items():
            name = NAMES[part, kind]
            (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(raw) if packed else raw)
    return folder


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("read", "name", "first"), [(mnist, "mnist", "0"), (fashion_mnist, "fashion-mnist", "T-shirt/top")]
)
def test_reads_images_and_labels(tmp_path, read, name, first, packed):
    data = read(write(tmp_path, packed))
    for part, split in data.splits.items():
        images, labels = content(part)
        assert split.inputs.dtype == torch.uint8
        assert torch.equal(split.inputs, torch.from_numpy(images)[:, None])
        assert split.labels.tolist() == labels
    assert data.name == name
    assert dict(data.recipe) == {"model": "convnet_3", "augment": "none", "normalise": "data"}
    assert data.class_names[0] == first
    assert len(read(tmp_path, validation=0.5).validation) == 10


def test_looks_in_the_shared_folder(tmp_path, monkeypatch, refused):
    (tmp_path / "fashion-mnist").mkdir()
    write(tmp_path / "fashion-mnist", packed=True)
    monkeypatch.setenv("EVENLY_DATA", str(tmp_path))
    assert len(fashion_mnist().train) == 20
    refused(r"mnist was not found: searched for train-images-idx3-ubyte", mnist)


IMAGES = content("train")[0].tobytes()
DAMAGED = {
    "cut short": ("images", idx(IMAGES[:-1], 20, 28, 28), "holds fewer than its 15680 values"),
    "too long": ("images", idx(IMAGES + b"\0", 20, 28, 28), "holds more than its 15680 values"),
    "two dimensions": ("images", idx(IMAGES, 20, 784), "is not an idx file of bytes in 3"),
    "of floats": ("images", b"\0\0\x0d\x03" + idx(IMAGES, 20, 28, 28)[4:], "is not an idx file of bytes in 3"),
    "a header cut short": ("images", bytes([0, 0, 8, 3, 0]), "is not an idx file of bytes in 3"),
    "an absurd claim": ("images", idx(b"", 2**31, 2**31, 28), "claims .* bytes"),
    "fewer labels": ("labels", idx(bytes(range(10)), 10), "has 20 images and 10 labels"),
    "a label of 10": ("labels", idx(bytes([10] * 20), 20), "has the label 10"),
}


@pytest.mark.parametrize("case", DAMAGED)
@pytest.mark.parametrize("packed", [True, False])
def test_refuses_damaged_files(tmp_path, case, packed, refused):
    kind, raw, message = DAMAGED[case]
    name = NAMES["train", kind] + ".gz" * packed
    (write(tmp_path, packed) / name).write_bytes(gzip.compress(raw) if packed else raw)
    refused(message, mnist, tmp_path)


def test_refuses_damaged_packing(tmp_path, refused):
    path = write(tmp_path, packed=True) / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for damaged in (whole[:-20], b"nothing packed", whole[:2000] + b"\0\1\2\3" + whole[2004:]):
        path.write_bytes(damaged)
        refused(r"train-images-idx3-ubyte.gz cannot be read", mnist, tmp_path)
