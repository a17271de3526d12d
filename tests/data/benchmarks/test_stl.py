"""STL-10 from small files of its binary layout."""

import numpy as np
import torch

from evenly.data.benchmarks.stl import stl10


def write(folder):
    """The images as (N, 3, 96, 96), written pixel by pixel as the format says, column by column; labels from 1."""
    folder.mkdir(exist_ok=True)
    parts = {}
    for number, name in enumerate(("train", "test")):
        images = np.random.default_rng(number).integers(0, 256, (20, 3, 96, 96), dtype=np.uint8)
        labels = [(7 * i) % 10 for i in range(20)]
        columns = b"".join(
            bytes(image[channel][row][column] for row in range(96))
            for image in images.tolist()
            for channel in range(3)
            for column in range(96)
        )
        (folder / f"{name}_X.bin").write_bytes(columns)
        (folder / f"{name}_y.bin").write_bytes(bytes(label + 1 for label in labels))
        parts[name] = (images, labels)
    return parts


def test_reads_columns_as_columns(tmp_path):
    parts = write(tmp_path / "stl10_binary")
    data = stl10(tmp_path, seed=1)
    for name, split in data.splits.items():
        assert torch.equal(split.inputs, torch.from_numpy(parts[name][0]))
        assert split.labels.tolist() == parts[name][1]
        assert split.inputs.is_contiguous()
    assert dict(data.recipe) == {"model": "preact_resnet18", "augment": "basic", "normalise": "data"}
    assert list(data.class_names)[:4] == ["airplane", "bird", "car", "cat"]
    assert len(stl10(tmp_path / "stl10_binary", validation=0.5).validation) == 10


def test_refuses_damaged_files(tmp_path, refused):
    write(tmp_path)
    labels = (tmp_path / "train_y.bin").read_bytes()
    (tmp_path / "train_y.bin").write_bytes(labels[:-1])
    refused(r"train_X.bin has 552960 bytes for 19 labels", stl10, tmp_path)
    for strange in (0, 11):
        (tmp_path / "train_y.bin").write_bytes(labels[:-1] + bytes([strange]))
        refused(r"train_y.bin are not all in 1..10", stl10, tmp_path)
    (tmp_path / "train_y.bin").unlink()
    refused(r"lacks train_y.bin", stl10, tmp_path)
