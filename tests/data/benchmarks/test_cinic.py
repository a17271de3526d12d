"""CINIC-10 from a small folder of its layout."""

from PIL import Image

from evenly.data.benchmarks.cifar import CIFAR10_CLASSES
from evenly.data.benchmarks.cinic import cinic10


def picture(path, value):
    """A gray image whose every pixel is its own number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (32, 32), value).save(path)


def test_reads_cinic10(tmp_path, refused):
    number, expected = 0, {"train": [], "valid": [], "test": []}
    for part, count in (("train", 2), ("valid", 1), ("test", 1)):
        for label, name in enumerate(CIFAR10_CLASSES):
            for i in range(count):
                picture(tmp_path / "CINIC-10" / part / name / f"cifar10-{i}.png", number)
                expected[part].append((number, label))
                number += 1
    data = cinic10(tmp_path)
    for name, part in (("train", "train"), ("validation", "valid"), ("test", "test")):
        split = data.splits[name]
        assert split.example_shape == (3, 32, 32)
        assert list(zip(split.inputs[:, 0, 0, 0].tolist(), split.labels.tolist(), strict=True)) == expected[part]
    assert tuple(data.class_names) == CIFAR10_CLASSES
    assert dict(data.recipe) == {"model": "preact_resnet18", "augment": "basic", "normalise": "data"}
    picture(tmp_path / "CINIC-10" / "train" / "zebra" / "0.png", 0)
    refused(r"does not have CIFAR-10's ten classes \(see 'zebra'\)", cinic10, tmp_path)
    refused("cinic10 was not found: searched for train in", cinic10, tmp_path / "elsewhere")
