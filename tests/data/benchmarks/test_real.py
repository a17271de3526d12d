"""The published data itself, where the environment variable EVENLY_DATA names a folder that holds it."""

import hashlib
import os
from pathlib import Path

import pytest
import torch

from evenly.data.benchmarks.celeba import celeba
from evenly.data.benchmarks.cifar import cifar10
from evenly.data.benchmarks.coloured import coloured_mnist
from evenly.data.benchmarks.composites import cifar_mnist, fashion_mnist_mnist
from evenly.data.benchmarks.domains import pacs, target_parts
from evenly.data.benchmarks.idx import fashion_mnist, mnist
from evenly.data.benchmarks.sources import SOURCES
from evenly.data.images.cache import cached_arrays

DATA = os.environ.get("EVENLY_DATA")


def needs(name):
    there = DATA is not None and (Path(DATA) / name).is_dir()
    return pytest.mark.skipif(not there, reason=f"needs {name} in the folder that EVENLY_DATA names")


def moments(images):
    """Mean and standard deviation of each channel, pixels in [0, 1], from counts of the 256 values: exact."""
    counts = torch.stack([images[:, c].flatten().bincount(minlength=256) for c in range(images.shape[1])]).double()
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = (counts * values).sum(1) / counts.sum(1)
    square = (counts * values**2).sum(1) / counts.sum(1)
    return mean.tolist(), (square - mean**2).sqrt().tolist()


@needs("cifar10")
def test_cifar10_is_the_published_one_in_its_order(tmp_path):
    for cached in (0, 1):
        assert len(cached_arrays()) == cached
        data = cifar10(Path(str(DATA)) / "cifar10")
        assert data.train.inputs.shape == (50_000, 3, 32, 32)
        assert data.test.inputs.shape == (10_000, 3, 32, 32)
        mean, std = moments(data.train.inputs)
        assert mean == pytest.approx([0.49139968, 0.48215841, 0.44653091], abs=5e-9)
        assert std == pytest.approx([0.24703223, 0.24348513, 0.26158784], abs=5e-9)
        assert data.train.labels.bincount().tolist() == [5000] * 10
        assert data.test.labels.bincount().tolist() == [1000] * 10
        assert data.train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
        assert data.test.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
        # a file of the official binary version is a label byte and the pixels in this order
        first = data.train.inputs[0]
        assert first[:, 0, 0].tolist() == [59, 62, 63]
        assert first[:, 0, 1].tolist() == [43, 46, 45]


@needs("mnist")
def test_mnist_is_the_published_one():
    data = mnist(validation=1 / 6)
    assert (len(data.train), len(data.validation), len(data.test)) == (50_000, 10_000, 10_000)
    whole = mnist()
    mean, std = moments(whole.train.inputs)
    assert (round(mean[0], 4), round(std[0], 4)) == (0.1307, 0.3081)
    assert whole.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert whole.test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]


@needs("fashion-mnist")
def test_fashion_mnist_is_the_published_one():
    data = fashion_mnist()
    mean, std = moments(data.train.inputs)
    assert (round(mean[0], 4), round(std[0], 4)) == (0.2860, 0.3530)
    assert data.train.labels.bincount().tolist() == [6000] * 10
    assert data.test.labels.bincount().tolist() == [1000] * 10
    assert data.train.labels[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert len(fashion_mnist(n=500).train) == 500


@needs("fashion-mnist")
def test_the_checksums_of_fashion_mnist_are_those_of_its_files():
    for source in SOURCES["fashion-mnist"]:
        content = (Path(str(DATA)) / "fashion-mnist" / source.url.rsplit("/", 1)[1]).read_bytes()
        assert hashlib.md5(content).hexdigest() == source.checksum


@needs("celeba10k")
def test_celeba_has_the_published_groups_and_81_blond_men():
    if (Path(str(DATA)) / "celeba").exists():
        pytest.skip("EVENLY_DATA has the official CelebA, which comes before its first 10,000 images")
    seen = {seed: celeba(seed=seed) for seed in (0, 1)}
    for data in seen.values():
        counts = torch.stack([split.groups.bincount(minlength=4) for split in data.splits.values()])
        assert counts.sum(0).tolist() == [4412, 4136, 1371, 81]
        shares = counts / counts.sum(0)
        assert torch.allclose(shares, torch.tensor([[0.5], [0.1], [0.4]]), atol=0.012), "to within one of 81"
        assert data.train.example_shape == (3, 64, 64)
    assert not torch.equal(seen[0].test.inputs, seen[1].test.inputs)
    blond, dark = (seen[0].train.inputs[seen[0].train.labels == k][:, :, :16].float().mean() for k in (1, 0))
    assert blond > dark + 10, "hair, at the top of the image, is brighter"


@needs("pacs128")
def test_pacs_has_the_published_counts():
    data = pacs(target="photo")
    assert data.test.labels.bincount().tolist() == [189, 202, 182, 186, 199, 280, 432]
    assert (data.train.groups.bincount() + data.validation.groups.bincount()).tolist() == [2048, 2344, 0, 3929]
    assert data.class_names == ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]
    sketch = data.train.inputs[data.train.groups == 3][:200].float()
    assert sketch.mean() > 200, "black lines on white"
    assert [len(part) for part in target_parts(data)] == [1336, 334]


@needs("cifar10")
@needs("mnist")
def test_cifar_mnist_joins_the_published_images():
    data = cifar_mnist()
    assert [split.labels.bincount().tolist() for split in data.splits.values()] == [[4500] * 2, [500] * 2, [980] * 2]
    one, zero = (data.train.inputs[data.train.labels == k][:, :, :32].float() for k in (1, 0))
    assert one.mean() < 0.5 * zero.mean(), "a one has less ink"
    assert one[..., 16, 16].mean() > 5 * zero[..., 16, 16].mean(), "a zero has a hole in its middle"


@needs("fashion-mnist")
@needs("mnist")
def test_fashion_mnist_mnist_joins_the_published_images():
    data = fashion_mnist_mnist()
    assert [split.labels.bincount().tolist() for split in data.splits.values()] == [[5258] * 5, [584] * 5, [980] * 5]
    assert data.class_names == ["T-shirt/top", "trouser", "pullover", "dress", "coat"]


@needs("mnist")
def test_coloured_mnist_has_the_published_sizes_and_rates():
    data = coloured_mnist()
    assert [len(split) for split in data.splits.values()] == [50_000, 10_000, 10_000]
    for split, environments in ((data.train, {0: 0.9, 1: 0.8}), (data.test, {2: 0.1})):
        for k, rate in environments.items():
            here = split.attributes["environment"] == k
            agrees = split.attributes["colour"] == split.labels
            assert agrees[here].double().mean().item() == pytest.approx(rate, abs=1e-3)
        right = split.attributes["half"] == split.labels
        assert right.double().mean().item() == pytest.approx(0.75, abs=1e-3)
