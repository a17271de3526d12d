"""CIFAR-10 from atlases: tiles in their official order, decoded once, larger than Pillow's limit."""

import os

import numpy as np
import pytest
import torch
from PIL import Image

from evenly.data.benchmarks import atlases
from evenly.data.benchmarks.cifar import cifar10

FILES = (*(f"train_{i}.webp" for i in range(5)), "test.webp")
COLUMNS, ROWS = 5, 4
COUNT = COLUMNS * ROWS


def tiles(number):
    """The images (20, 3, 32, 32) of one file."""
    return np.random.default_rng(number).integers(0, 256, (COUNT, 3, 32, 32), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    for number, name in enumerate(FILES):
        rows = tiles(number).transpose(0, 2, 3, 1).reshape(ROWS, COLUMNS, 32, 32, 3)
        atlas = np.concatenate([np.concatenate(row, axis=1) for row in rows])
        Image.fromarray(atlas).save(tmp_path / name, lossless=True, quality=0, method=0)
    for part, count in (("train", 5 * COUNT), ("test", COUNT)):
        np.save(tmp_path / f"{part}_labels.npy", (np.arange(count) % 10).astype(np.uint8))
    return tmp_path


def test_tiles_are_read_row_by_row_and_decoded_once(folder, monkeypatch):
    seen, original = [], atlases.read_atlas
    monkeypatch.setattr(atlases, "read_atlas", lambda path: seen.append(path.name) or original(path))
    train, test = np.concatenate([tiles(number) for number in range(5)]), tiles(5)
    for _ in range(3):
        data = cifar10(folder)
        assert torch.equal(data.train.inputs, torch.from_numpy(train))
        assert torch.equal(data.test.inputs, torch.from_numpy(test))
        assert data.train.labels.tolist() == [i % 10 for i in range(100)]
        data.train.inputs.zero_()  # does not reach the file
    assert sorted(seen) == sorted(FILES)
    first, again = (cifar10(folder, validation=0.25, n=40, seed=4) for _ in range(2))
    assert first.fingerprint() == again.fingerprint()
    assert [len(split) for split in again.splits.values()] == [30, 10, 20]
    os.utime(folder / "train_3.webp", ns=(0, 0))
    cifar10(folder)
    assert len(seen) == len(FILES) + 5, "the training atlases are decoded again"


def test_the_labels_are_read_every_time(folder):
    cifar10(folder)
    np.save(folder / "test_labels.npy", np.arange(COUNT, dtype=np.uint8)[::-1] % 10)
    assert cifar10(folder).test.labels.tolist() == [i % 10 for i in reversed(range(COUNT))]


def test_atlases_alone_may_be_larger_than_pillows_limit(folder, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert len(cifar10(folder).train) == 100
    assert Image.MAX_IMAGE_PIXELS == 100


class Creates:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


def test_damaged_files_are_refused(folder, refused):
    np.save(folder / "test_labels.npy", np.zeros(19, np.uint8))
    refused(r"test_labels.npy is not 20 labels in 0..9, one for each tile; get it again", cifar10, folder)
    np.save(folder / "test_labels.npy", np.array([Creates()] * 20), allow_pickle=True)
    refused("test_labels.npy cannot be read as plain numbers", cifar10, folder)
    Image.new("RGB", (160, 100)).save(folder / "train_2.webp")
    refused("train_2.webp is 160 x 100, not tiles of 32", cifar10, folder)
    (folder / "train_2.webp").write_bytes(b"RIFF")
    refused("train_2.webp cannot be read as an atlas", cifar10, folder)
