"""A network behind the scaling of its inputs: the moments, what it trains on, and who gives what to whom."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import evenly
from evenly.data import Data, Split, mapped
from evenly.diagnose.losses import mean_loss
from evenly.diagnose.samples import samples_of
from evenly.models import factory, standardised
from evenly.models.standardised import IMAGENET, Standardised, channel_moments

COUNT = 24


class Read(Dataset):
    """Images one at a time, as arrays; keeps a list of those that were asked for."""

    def __init__(self, images):
        self.images, self.targets, self.asked = images, np.arange(len(images)) % 2, []

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        self.asked.append(i)
        return self.images[i], int(self.targets[i])


def pixels(count=COUNT, channels=3, seed=0):
    """uint8 images whose channels differ in mean and spread."""
    draw = np.random.default_rng(seed)
    spread = np.array([20, 70, 5][:channels])[:, None, None]
    around = np.array([200, 120, 30][:channels])[:, None, None]
    return np.clip(draw.normal(around, spread, (count, channels, 6, 7)), 0, 255).astype(np.uint8)


def data_of(channels=3, streamed=False, kind=np.uint8):
    train, validation, test = (pixels(count, channels, seed) for seed, count in enumerate((COUNT, 8, 10)))
    parts = {"train": train, "validation": validation // 2, "test": test // 3}
    parts = {name: x.astype(kind) for name, x in parts.items()}
    return Data(**{name: Read(x) if streamed else (x, np.arange(len(x)) % 2) for name, x in parts.items()})


def by_numpy(x):
    """The images' moments in float64, channel by channel."""
    scaled = x.astype(np.float64) / 255
    return scaled.mean((0, 2, 3)), scaled.std((0, 2, 3))


def scaled_by_hand(x, mean, std):
    x = torch.from_numpy(x).double() / 255
    mean, std = (torch.as_tensor(np.asarray(moment)).view(1, -1, 1, 1) for moment in (mean, std))
    return ((x - mean) / std).float()


# The moments


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("streamed", [False, True])
def test_moments_against_numpy(monkeypatch, channels, streamed):
    monkeypatch.setattr(mapped, "PIECE", 7 * channels * 42)  # several parts, the last one shorter
    x = pixels(COUNT, channels)
    split = Split(Read(x)) if streamed else Split(x, np.arange(COUNT) % 2)
    mean, std = channel_moments(split)
    expected_mean, expected_std = by_numpy(x)
    assert mean == pytest.approx(expected_mean, rel=1e-12)
    assert std == pytest.approx(expected_std, rel=1e-10)


@pytest.mark.parametrize("value", [0, 77, 255])
def test_a_constant_channel_is_only_shifted(value):
    x = pixels()
    x[:, 1] = value
    mean, std = channel_moments(Split(x, np.arange(COUNT) % 2))
    assert mean[1] == pytest.approx(value / 255)
    assert std[1] == 1.0
    assert std[0] == pytest.approx(by_numpy(x)[1][0])
    outputs = Standardised(nn.Identity(), mean, std)(torch.from_numpy(x).float() / 255)
    assert outputs[:, 1].abs().max() < 1e-6


def test_of_many_images_on_disk_some_at_equal_distances_are_looked_at(monkeypatch):
    monkeypatch.setattr(standardised, "MOST", 6)
    x = pixels(101)
    read = Read(x)
    mean, std = channel_moments(Split(read))
    chosen = [0, 20, 40, 60, 80, 100]
    assert sorted(read.asked) == chosen
    assert mean == pytest.approx(by_numpy(x[chosen])[0], rel=1e-12)
    assert std == pytest.approx(by_numpy(x[chosen])[1], rel=1e-10)
    in_memory, _ = channel_moments(Split(x, np.arange(101) % 2))
    assert in_memory == pytest.approx(by_numpy(x)[0], rel=1e-12), "all of them"


@pytest.mark.parametrize("streamed", [False, True])
def test_what_are_no_pixels_is_refused(streamed, refused):
    for x, said in ((pixels().astype(np.float32), "float32"), (pixels()[:, 0], "uint8 of shape")):
        split = Split(Read(x)) if streamed else Split(x, np.arange(COUNT) % 2)
        refused(f"normalise is for uint8 images.*{said}.*normalise='none'", channel_moments, split)


# The network


def test_the_network_gets_scaled_pixels_and_the_moments_travel_with_it():
    x = torch.rand(5, 3, 4, 4)
    model = Standardised(nn.Flatten(), [0.1, 0.2, 0.3], [1.0, 2.0, 4.0])
    expected = np.stack([(x[:, c].numpy() - m) / s for c, (m, s) in enumerate(((0.1, 1), (0.2, 2), (0.3, 4)))], 1)
    np.testing.assert_allclose(model(x).numpy(), expected.reshape(5, -1), rtol=1e-5, atol=1e-6)
    assert not list(model.parameters())
    other = Standardised(nn.Flatten(), [0, 0, 0], [1, 1, 1])
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))
    assert model.double()(x.double()).dtype == torch.float64


# Training behind it


def fresh(data, seed=0, model="convnet"):
    return factory(model, data.train.example_shape, data.classes, seed)[0]()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("normalise", "channels"), [("data", 1), ("data", 3), ("imagenet", 3)])
def test_the_first_loss_is_that_of_scaled_pixels(normalise, channels, streamed):
    data = data_of(channels, streamed)
    run = evenly.train(data, model="mlp", epochs=1, batch_size=None, normalise=normalise)
    mean, std = by_numpy(pixels(COUNT, channels)) if normalise == "data" else IMAGENET
    with torch.no_grad():
        outputs = fresh(data, model="mlp")(scaled_by_hand(pixels(COUNT, channels), mean, std))
        plain = fresh(data, model="mlp")(torch.from_numpy(pixels(COUNT, channels)).float() / 255)
    labels = torch.arange(COUNT) % 2
    expected, unscaled = (nn.functional.cross_entropy(each, labels).item() for each in (outputs, plain))
    assert run.history[0]["train_loss"] == pytest.approx(expected, rel=1e-5)
    assert abs(expected - unscaled) > 1e-3 * expected


def test_whoever_uses_the_model_gives_pixels_from_0_to_1():
    data = data_of()
    run = evenly.train(data, model="convnet", epochs=2, batch_size=8, normalise="data")
    assert isinstance(run.model, Standardised)
    mean, std = by_numpy(pixels())
    assert run.model.mean.flatten().tolist() == pytest.approx(mean, rel=1e-6)
    assert run.model.std.flatten().tolist() == pytest.approx(std, rel=1e-6)
    for name, split in data.splits.items():  # all by the training set's moments
        with torch.no_grad():
            ours = run.model(split.inputs.float() / 255)
            by_hand = run.model.network(scaled_by_hand(split.inputs.numpy(), mean, std))
        torch.testing.assert_close(run.outputs(split), ours)
        torch.testing.assert_close(ours, by_hand, rtol=1e-4, atol=1e-4)
        right = (ours.argmax(1) == split.labels).double().mean().item()
        assert run.results.splits[name].accuracy == pytest.approx(right)


def test_the_tools_that_look_at_a_model_see_what_the_run_saw():
    data = data_of()
    run = evenly.train(data, model="convnet", epochs=2, batch_size=8, normalise="data")
    x, y = samples_of(data)
    with torch.no_grad():
        torch.testing.assert_close(run.model(x), run.outputs(data.train))
    assert mean_loss(run.model, "cross-entropy", x, y) == pytest.approx(run.results.splits["train"].loss, rel=1e-5)
    mean, std = by_numpy(pixels())
    ours = evenly.coherence(run.model, "cross-entropy", data)
    theirs = evenly.coherence(run.model.network, "cross-entropy", (scaled_by_hand(pixels(), mean, std), y))
    assert ours.measure == pytest.approx(theirs.measure, rel=1e-3)
    assert ours.largest_sample_eigenvalue == pytest.approx(theirs.largest_sample_eigenvalue, rel=1e-3)
    unscaled = evenly.coherence(run.model.network, "cross-entropy", (x, y))
    assert abs(unscaled.largest_sample_eigenvalue / ours.largest_sample_eigenvalue - 1) > 0.01


@pytest.mark.parametrize("normalise", ["data", "imagenet"])
@pytest.mark.parametrize("method", ["erm", "useful"])
def test_a_scaled_run_is_read_back(tmp_path, method, normalise):
    data = data_of()
    settings = {"epochs": 2, "batch_size": 8, "normalise": normalise, "augment": "basic", "precision": "bf16"}
    run = evenly.train(data, model="convnet", method=method, out=tmp_path / "run", **settings)
    again = evenly.load(tmp_path / "run")
    assert again.plan.settings.normalise == normalise
    assert isinstance(again.model, Standardised)
    assert torch.equal(again.model.mean, run.model.mean)
    assert torch.equal(again.outputs(data.test), run.outputs(data.test))
    assert again.results == run.results


def own():
    return nn.Sequential(nn.Flatten(), nn.Linear(126, 2))


@pytest.mark.parametrize("normalise", ["data", "imagenet"])
def test_a_network_of_the_users_own_is_never_wrapped(normalise, refused):
    for model in (own, own()):
        settings = {"model": model, "epochs": 1, "batch_size": None}
        refused("for a model by name", evenly.train, data_of(), normalise=normalise, **settings)
        assert type(evenly.train(data_of(), **settings).model) is nn.Sequential
    recipe = Data(train=(pixels(), np.arange(COUNT) % 2), recipe={"normalise": normalise})
    assert type(evenly.train(recipe, model=own, epochs=1).model) is nn.Sequential
    assert type(evenly.train(recipe, model="mlp", epochs=1).model) is Standardised
    for settings in ({}, {"normalise": "none"}):
        assert not isinstance(evenly.train(data_of(), model="convnet", epochs=1, **settings).model, Standardised)


@pytest.mark.parametrize("normalise", ["data", "imagenet"])
def test_inputs_that_are_no_pixels_of_three_channels_are_refused(normalise, refused):
    def train(data, normalise=normalise):
        evenly.train(data, model="mlp", epochs=1, normalise=normalise)

    rows = Data(train=(np.zeros((COUNT, 3), np.float32), np.arange(COUNT) % 2))
    refused("normalise is for uint8 images", train, rows)
    for streamed in (False, True):
        refused("normalise is for uint8 images .*float32", train, data_of(3, streamed, np.float32))
        message = "normalise 'imagenet' is for 3 channels and the images have 1; use 'data'"
        refused(message, train, data_of(1, streamed), "imagenet")
    refused("normalise must be one of none, mean, data, imagenet, got 'cifar'", train, data_of(), "cifar")
