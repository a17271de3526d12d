"""CIFAR-MNIST and Fashion-MNIST-MNIST from small sources, every joined image taken apart again."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import evenly
from evenly.data import load
from evenly.data.benchmarks.composites import cifar_mnist, fashion_mnist_mnist

CASES = {
    "cifar-mnist": (cifar_mnist, "cifar10", "cifar", 2),
    "fashion-mnist-mnist": (fashion_mnist_mnist, "fashion-mnist", "fashion", 5),
}
both = pytest.mark.parametrize("name", CASES)


def taken_apart(sources, source, split):
    """Places in storage of the digit above and of the picture below, all else checked to be as it should."""
    part = "test" if split.name == "test" else "train"
    images = split.inputs.numpy()
    assert images.dtype == np.uint8
    assert images.shape[1:] == (3, 64, 32)
    upper, lower = images[:, :, :32], images[:, :, 32:]
    gray = [upper] if source == "cifar10" else [upper, lower]
    for half in gray:
        frame = half.copy()
        frame[:, :, 2:30, 2:30] = 0
        assert not frame.any()
        assert (half == half[:, :1]).all(), "gray in three channels"
    digits = sources.where("mnist", part, upper[:, 0, 2:30, 2:30])
    pictures = lower if source == "cifar10" else lower[:, 0, 2:30, 2:30]
    return digits, sources.where(source, part, pictures)


@both
@pytest.mark.parametrize("correlation", [1.0, 0.5, 0.3])
def test_each_picture_stands_below_a_digit_of_its_own(sources, name, correlation):
    read, source, feature, classes = CASES[name]
    data = read(sources.folder, correlation=correlation, validation=0.2, seed=5)
    used = {"train": [], "test": []}
    below = {"train": [], "test": []}
    for split in data.splits.values():
        part = "test" if split.name == "test" else "train"
        digits, pictures = taken_apart(sources, source, split)
        assert split.attributes["mnist"].tolist() == sources.labels["mnist", part][digits].tolist()
        assert split.attributes[feature].tolist() == sources.labels[source, part][pictures].tolist()
        assert split.labels.tolist() == split.attributes[feature].tolist()
        differs = split.attributes["mnist"] != split.labels
        assert split.groups.tolist() == (2 * split.labels + differs).tolist()
        assert pictures == sorted(pictures), "in the order of storage"
        used[part] += digits
        below[part] += pictures
    for part in ("train", "test"):
        assert len(set(used[part])) == len(used[part]), "no digit twice"
        assert len(set(below[part])) == len(below[part]), "no picture twice"
        counts = [np.bincount(sources.labels[it, part], minlength=10)[:classes] for it in ("mnist", source)]
        assert len(used[part]) == classes * np.min(counts), "as many as the rarest class of either"


@both
@pytest.mark.parametrize("correlation", [1.0, 0.75, "chance", 0.0])
def test_the_digit_agrees_at_the_rate_asked_for(sources, name, correlation):
    read, _, _, classes = CASES[name]
    rate = 1 / classes if correlation == "chance" else correlation
    for split in read(sources.folder, correlation=rate, validation=0.25, seed=2).splits.values():
        table = np.zeros((classes, classes), int)
        np.add.at(table, (split.labels.numpy(), split.attributes["mnist"].numpy()), 1)
        m = len(split) // classes
        assert table.sum(0).tolist() == table.sum(1).tolist() == [m] * classes
        assert np.diag(table).tolist() == [round(rate * m)] * classes
        others = table[~np.eye(classes, dtype=bool)]
        assert others.max() - others.min() <= 1


@both
def test_the_seed_decides_everything_and_the_correlation_nothing_but_the_pairs(sources, name):
    read, source, _, _ = CASES[name]
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    first, again, other = (read(sources.folder, validation=0.2, seed=seed) for seed in (1, 1, 2))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    apart = read(sources.folder, correlation=0.2, validation=0.2, seed=1)
    for part, split in first.splits.items():
        ours, theirs = (taken_apart(sources, source, each) for each in (split, apart.splits[part]))
        assert ours[1] == theirs[1]
        assert ours[0] != theirs[0]
        assert len(set(ours[0]) & set(theirs[0])) == len(ours[0]), "the same digits, dealt out anew"
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[2])


@both
def test_names_sizes_and_the_papers_settings(sources, name, monkeypatch):
    read, _, feature, classes = CASES[name]
    monkeypatch.setenv("EVENLY_DATA", str(sources.folder))
    data = load(name, n=10 * classes + 1)
    assert [len(split) for split in data.splits.values()] == [9 * classes, classes, 10 * classes]
    assert data.fingerprint() == read(sources.folder, n=10 * classes).fingerprint()
    assert data.name == name
    assert data.options["correlation"] == 1.0
    assert len(data.group_names) == 2 * classes
    assert {key: len(values) for key, values in data.attribute_names.items()} == {feature: classes, "mnist": classes}
    assert list(data.class_names) == list(data.attribute_names[feature])
    assert dict(data.recipe) == {
        "model": "convnet_3", "augment": "none", "normalise": "mean", "epochs": 20, "batch_size": 100, "momentum": 0.9,
        "weight_decay": 0.0, "schedule": "cosine",
    }  # fmt: skip
    assert list(data.splits) == ["train", "validation", "test"]
    assert "validation" not in load(name, validation=0.0).splits
    if name == "cifar-mnist":
        assert data.class_names == ["airplane", "automobile"]
        assert data.group_names[:2] == ["airplane, digit agrees", "airplane, digit differs"]


class OneHalf(nn.Module):
    """Features of one half of the image only, which tell the source's class by a table of its images."""

    def __init__(self, known, rows):
        super().__init__()
        self.known, self.rows, self.fc = known, rows, nn.Linear(1, 2)

    def forward(self, x):
        sums = (255 * x[:, 0, self.rows].double()).round().sum((1, 2)).long()
        return self.fc(torch.tensor([[float(self.known[int(s)])] for s in sums]))


def test_a_probe_tells_which_of_the_two_features_was_learned(sources):
    apart = cifar_mnist(sources.folder, correlation=0.5, validation=0.4, seed=3)
    for attribute, rows in (("mnist", slice(0, 32)), ("cifar", slice(32, 64))):
        known = {}
        for split in apart.splits.values():
            sums = split.inputs[:, 0, rows].double().sum((1, 2)).long().tolist()
            known |= dict(zip(sums, split.attributes[attribute].tolist(), strict=True))
        model = OneHalf(known, rows)
        errors = {
            "cifar": evenly.probe(model, apart, "cifar", against=["mnist"]).error,
            "mnist": evenly.probe(model, apart, "mnist").error,
        }
        assert errors == {name: 0.0 if name == attribute else 0.5 for name in errors}
    assert evenly.probe(OneHalf(known, rows), apart, "label").error == 0.0


def test_refusals(sources, tmp_path, refused):
    refused("validation 1.0 is not a share to hold out", cifar_mnist, sources.folder, validation=1.0)
    refused("n must be at least 2, one image for each class, got 1", cifar_mnist, sources.folder, n=1)
    message = "of 4 images in each class leaves none for a split; hold out another share"
    refused(f"validation 0.1 {message}", cifar_mnist, sources.folder, n=8)
    refused("validation 0.9 of 2 images in each class", cifar_mnist, sources.folder, n=4, validation=0.9)
    (tmp_path / "mnist").symlink_to(sources.folder / "mnist")
    refused(f"cifar10 was not found: searched for .* in '{tmp_path}/cifar10'.*download", cifar_mnist, tmp_path)
    refused("fashion-mnist needs a folder and EVENLY_DATA is not set", fashion_mnist_mnist)
