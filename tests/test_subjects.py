"""What an audit is pointed at: runs and files of weights, with the scaling they were trained behind."""

from __future__ import annotations

import pytest
import torch
from evenly.subjects import subjects

import evenly
from evenly.errors import EvenlyError
from evenly.models import factory
from evenly.models.standardised import Standardised


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of 60 images of two classes."""
    from PIL import Image

    draw = torch.Generator().manual_seed(0)
    for k, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(30):
            pixels = torch.randint(0, 160, (8, 8, 3), generator=draw, dtype=torch.uint8)
            pixels[..., 0] += 60 * k
            Image.fromarray(pixels.numpy()).save(tmp_path / "photos" / name / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    return "photos"


def accuracy(subject):
    return evenly.audit(subject.network, subject.data, top=0, samples=10).overall.right


def refused(match, *arguments, **options):
    with pytest.raises(EvenlyError, match=match) as error:
        subjects(*arguments, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_weights_saved_behind_their_scaling_bring_it_along(photos, prefix):
    run = evenly.train("convnet_3", photos, epochs=2, normalise="data", batch_size=8, device="cpu", out="run")
    assert isinstance(run.model, Standardised)
    torch.save({prefix + name: value for name, value in run.model.state_dict().items()}, "ck.pt")
    torch.save(run.model.network.state_dict(), "plain.pt")
    (truth,) = subjects(["run"], device="cpu")
    for file in ("ck.pt", "run/checkpoint/final.pt"):
        (found,) = subjects([file], photos, "convnet_3", "cpu")
        assert found.name.endswith(", inputs normalised as saved)")
        state = truth.network.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in found.network.state_dict().items())
        assert accuracy(found) == accuracy(truth)
    (by_data,) = subjects(["plain.pt"], photos, "convnet_3", "cpu", normalise="data")
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(by_data.network.eval()(x), truth.network.eval()(x), atol=1e-5)
    assert "inputs normalised by the data's mean and deviation" in by_data.name
    (plain,) = subjects(["plain.pt"], photos, "convnet_3", "cpu")
    assert plain.name == "convnet_3 (plain.pt, inputs not normalised)"
    assert torch.equal(plain.network.eval()(x), run.model.network.eval()(x))
    (imagenet,) = subjects(["plain.pt"], photos, "convnet_3", "cpu", normalise="imagenet")
    assert float(imagenet.network.mean[0]) == pytest.approx(0.485)
    refused("brings it along; leave --normalise out", ["ck.pt"], photos, "convnet_3", "cpu", normalise="data")
    refused("normalise 'zz' is not known; give none, mean, data", ["plain.pt"], photos, "convnet_3", normalise="zz")


def arrays(path):
    import numpy as np

    draw = np.random.default_rng(0)
    y = np.arange(100) % 2
    np.savez(path, x=(draw.normal(size=(100, 4)) + y[:, None]).astype(np.float32), y=y)
    return str(path)


def test_a_run_and_a_file_of_weights_stand_side_by_side(tmp_path):
    data, out = arrays(tmp_path / "my.npz"), str(tmp_path / "run")
    run = evenly.train("mlp", data, epochs=1, seed=3, device="cpu", out=out)
    file = str(tmp_path / "w.pt")
    torch.save(run.model.state_dict(), file)
    for targets, given in (([out, file], None), ([file, out], data)):
        found = subjects(targets, given, "mlp", "cpu")
        assert [each.name.split(" ")[1] for each in found] == (
            ["(mlp", "(w.pt)"] if targets[0] == out else ["(w.pt)", "(mlp"]
        )
        assert found[0].data.fingerprint() == found[1].data.fingerprint()  # the split that the run's seed drew
        assert accuracy(found[0]) == accuracy(found[1])
    refused("--model is for a file of weights, and .* is a run that knows its own", [out], model="mlp")
    refused("give --model NAME and --data DATA", [out, file])
    refused("give --model NAME and --data DATA", [file], model="mlp")
    refused("what it would be held against", [file, str(tmp_path / "run" / ".." / "w.pt")], data, "mlp")


def test_weights_without_values_are_refused(tmp_path):
    data = arrays(tmp_path / "my.npz")
    with torch.device("meta"):
        torch.save(factory("mlp", (4,), 2, 0)[0]().to("meta").state_dict(), tmp_path / "meta.pt")
    refused("is on the meta device and has no values; save", [str(tmp_path / "meta.pt")], data, "mlp", "cpu")
