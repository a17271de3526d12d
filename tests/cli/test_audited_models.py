"""What an audit is pointed at: runs and files of weights, with the scaling they were trained behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import evenly
from evenly.cli.audit import audited_models, check_targets
from evenly.errors import EvenlyError
from evenly.models import factory
from evenly.models.standardised import Standardised


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of 60 images of two classes."""
    draw = np.random.default_rng(0)
    for k, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(30):
            pixels = draw.integers(0, 160, (8, 8, 3), dtype=np.uint8)
            pixels[..., 0] += 60 * k
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    return "photos"


def audited(targets, data=None, model=None, normalise=None):
    targets = [str(target) for target in targets]
    check_targets(targets)
    return audited_models(targets, None if data is None else str(data), model, "cpu", normalise, {})


def accuracy(each):
    return evenly.audit(each.network, each.data, top=0, samples=10).overall.right


def refused(match, *arguments, **options):
    with pytest.raises(EvenlyError, match=match) as error:
        audited(*arguments, **options)
    assert "\n" not in str(error.value)


def test_weights_saved_behind_their_scaling_bring_it_along(photos):
    settings = {"model": "convnet_3", "epochs": 2, "normalise": "data", "batch_size": 8, "device": "cpu"}
    run = evenly.train(photos, out="run", **settings)
    assert isinstance(run.model, Standardised)
    torch.save({f"module.{name}": value for name, value in run.model.state_dict().items()}, "ck.pt")
    torch.save(run.model.network.state_dict(), "plain.pt")
    (truth,) = audited(["run"])
    for file in ("ck.pt", "run/model.safetensors"):
        (found,) = audited([file], photos, "convnet_3")
        assert found.name.endswith(", inputs normalised as saved)")
        state = truth.network.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in found.network.state_dict().items())
        assert accuracy(found) == accuracy(truth)
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    (by_data,) = audited(["plain.pt"], photos, "convnet_3", normalise="data")
    torch.testing.assert_close(by_data.network.eval()(x), truth.network.eval()(x), atol=1e-5, rtol=1e-4)
    assert "inputs normalised by the data's mean and deviation" in by_data.name
    (plain,) = audited(["plain.pt"], photos, "convnet_3")
    assert plain.name == "convnet_3 (plain.pt, inputs not normalised)"
    assert torch.equal(plain.network.eval()(x), run.model.network.eval()(x))
    (imagenet,) = audited(["plain.pt"], photos, "convnet_3", normalise="imagenet")
    assert float(imagenet.network.mean[0]) == pytest.approx(0.485)
    refused("brings it along; leave --normalise out", ["ck.pt"], photos, "convnet_3", normalise="data")
    refused("--normalise must be one of none, mean, data", ["plain.pt"], photos, "convnet_3", normalise="zz")


def arrays(path):
    draw = np.random.default_rng(0)
    y = np.arange(100) % 2
    np.savez(path, x=(draw.normal(size=(100, 4)) + y[:, None]).astype(np.float32), y=y)
    return path


def test_a_run_and_a_file_of_weights_stand_side_by_side(tmp_path):
    data, out, file = arrays(tmp_path / "my.npz"), tmp_path / "run", tmp_path / "w.pt"
    run = evenly.train(data, model="mlp", epochs=1, seed=3, record={"forgetting": True}, device="cpu", out=out)
    torch.save(run.model.state_dict(), file)
    for targets, given in (([out, file], None), ([file, out], data)):
        both = {each.name.partition(" ")[0]: each for each in audited(targets, given, "mlp")}
        assert list(both) == ["run", "mlp"] if targets[0] == out else ["mlp", "run"]
        assert both["run"].data.fingerprint() == both["mlp"].data.fingerprint()  # the split that the run's seed drew
        assert accuracy(both["run"]) == accuracy(both["mlp"])
        assert torch.equal(both["run"].forgetting, run.record.forgetting_scores)
        assert both["mlp"].forgetting is None
    refused("give --model NAME and --data DATA", [out, file])
    refused("is the same model; name another run or file", [file, tmp_path / "run/../w.pt"], data, "mlp")


def test_weights_without_values_are_refused(tmp_path):
    data = arrays(tmp_path / "my.npz")
    torch.save(factory("mlp", (4,), 2, 0)[0]().to("meta").state_dict(), tmp_path / "meta.pt")
    refused("are on the meta device; give a dense tensor with values", [tmp_path / "meta.pt"], data, "mlp")
