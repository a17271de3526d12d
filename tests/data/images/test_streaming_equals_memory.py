"""Images held in memory, or too many for it and read from their files: the same batches, the same trained weights."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import evenly
from evenly.data import load
from evenly.data.images import ImageFiles

SIDE = 7
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of workers, from Python 3.12 on


def folder_of(root, side, per_class):
    """Noise, brighter in one class than in the other, so that there is something to learn."""
    random = np.random.default_rng(0)
    for label, name in enumerate(("dark", "bright")):
        (root / name).mkdir(parents=True)
        for i in range(per_class):
            pixels = random.integers(60 * label, 196 + 60 * label, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i:03}.png", compress_level=0)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return folder_of(tmp_path_factory.mktemp("images"), SIDE, 20)


def weights_of(run):
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def without_times(history):
    return [{key: value for key, value in epoch.items() if key != "seconds"} for epoch in history]


def trained(folder, memory, workers=0, **settings):
    return evenly.train(
        "mlp", str(folder), data_options={"memory": memory}, workers=workers, device="cpu", seed=3, epochs=2,
        batch_size=5, lr=0.1, progress=lambda *_: None, **settings,
    )  # fmt: skip


@pytest.mark.parametrize("optimizer", ["sgd", "sam"])
@pytest.mark.parametrize("workers", [0, 2])
def test_two_epochs_end_in_the_same_weights_bit_for_bit(folder, workers, optimizer):
    assert isinstance(load(folder, memory=1.0).train.inputs, torch.Tensor)
    assert isinstance(load(folder, memory=0.0).train.inputs, ImageFiles)
    held = trained(folder, 1.0, optimizer=optimizer)
    streamed = trained(folder, 0.0, workers, optimizer=optimizer)
    ours, theirs = weights_of(held), weights_of(streamed)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name
    assert len(held.history) == 2
    assert without_times(held.history) == without_times(streamed.history)
    for split in ("train", "validation", "test"):
        assert held.results[split] == streamed.results[split]


def test_the_weights_depend_on_the_images(folder, tmp_path):
    """Else the test above could not fail."""
    other = folder_of(tmp_path / folder.name, SIDE, 20)
    before = weights_of(trained(other, 0.0))
    for path in sorted((other / "dark").iterdir()):
        pixels = np.asarray(Image.open(path)).copy()
        pixels[0, 0] ^= 1
        Image.fromarray(pixels).save(path, compress_level=0)
    after = weights_of(trained(other, 0.0))
    assert any(not torch.equal(a, b) for a, b in zip(before.values(), after.values(), strict=True))


def test_a_million_pixels_beyond_memory_come_in_the_same_batches_for_any_number_of_workers(tmp_path):
    root = folder_of(tmp_path / "large", 256, 8)
    size = 16 * 3 * 256 * 256
    assert size / 3 > 1e6
    held = load(root, memory=size / 2**30)
    data = load(root, memory=(size - 1) / 2**30)
    assert isinstance(held.train.inputs, torch.Tensor)
    assert isinstance(data.train.inputs, ImageFiles)
    for name, split in data.splits.items():
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(1))
        expected = list(zip(held.splits[name].inputs[order].split(3), split.labels[order].split(3), strict=True))
        for workers in (0, 1, 2) if name == "train" else (0,):
            loader = DataLoader(split.inputs, batch_sampler=[part.tolist() for part in order.split(3)],
                                num_workers=workers)  # fmt: skip
            seen = list(loader)
            assert len(seen) == len(expected)
            for (x, y), (wanted, labels) in zip(seen, expected, strict=True):
                assert x.dtype == torch.uint8
                assert torch.equal(x, wanted)
                assert torch.equal(y, labels)
