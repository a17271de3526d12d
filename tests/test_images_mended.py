"""Images that change, cannot be read for a while, or lie where results would: refused or noticed, never passed over."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from torch import nn

import evenly
from evenly.data import Data, load
from evenly.data.images import decoding
from evenly.engine.batches import EVALUATION_NUMBERS, Batches
from evenly.errors import EvenlyError
from evenly.experiment import reopen, resolve


@pytest.fixture
def photos(tmp_path):
    for k, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(8):
            image = Image.new("RGB", (8, 8), (40 * k, 10 * i, 90))
            image.putpixel((i, 2), (255, 0, 0))
            image.save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


SETTINGS = {"model": "mlp", "epochs": 2, "batch_size": 4, "device": "cpu", "normalise": "none"}


@pytest.mark.parametrize("memory", [0, 4])
def test_a_run_does_not_go_on_with_other_images(photos, tmp_path, memory):
    options = {"memory": memory}
    evenly.train(data=photos, data_options=options, out=tmp_path / "run", **SETTINGS)
    evenly.train(data=photos, data_options=options, out=tmp_path / "run", **SETTINGS)
    picture = Image.open(photos / "dog" / "3.png").rotate(90)
    picture.save(photos / "dog" / "3.png")
    with pytest.raises(EvenlyError, match="holds another run"):
        evenly.train(data=photos, data_options=options, out=tmp_path / "run", **SETTINGS)


def test_a_run_on_images_on_disk_is_reopened(photos, tmp_path):
    run = evenly.train(data=photos, data_options={"memory": 0}, out=tmp_path / "run", **SETTINGS)
    again, data, _ = reopen(tmp_path / "run")
    assert torch.equal(again.outputs(data.test), run.outputs(data.test))


def test_a_file_that_can_be_read_again_is(photos, monkeypatch):
    real = decoding._decode

    def locked(path, *rest):
        if path.name == "3.png" and path.parent.name == "cat":
            raise PermissionError(13, "Permission denied")
        return real(path, *rest)

    monkeypatch.setattr(decoding, "_decode", locked)
    with pytest.raises(EvenlyError, match=r"cat/3\.png"):
        load(photos)
    skipped = load(photos, skip_bad=True)
    monkeypatch.setattr(decoding, "_decode", real)
    assert sum(map(len, load(photos).splits.values())) == 16
    assert sum(map(len, skipped.splits.values())) == 15


def test_a_damaged_header_of_the_cache_is_noticed(photos):
    before = load(photos).fingerprint()
    (kept,) = (photos / ".evenly-cache").glob("*.npy")
    content = kept.read_bytes()
    kept.write_bytes(content.replace(b"}", b" ", 1))
    assert load(photos).fingerprint() == before


class NotANumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(x) if self.training else self.out(x) * torch.nan


def rows(count=20):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 2


def test_nan_in_eval_mode_is_no_accuracy():
    with pytest.raises(EvenlyError, match="gives NaN on 20 train examples in eval mode"):
        evenly.train(NotANumber(), Data(train=rows()), epochs=1, device="cpu")


def test_large_examples_are_looked_at_a_few_at_a_time():
    wide = EVALUATION_NUMBERS // 3
    split = Data(train=(torch.zeros(8, wide, dtype=torch.uint8), torch.arange(8) % 2)).train
    assert [len(b) for b in Batches(split, None, torch.device("cpu")).in_order()] == [3, 3, 2]
    assert [len(b) for b in Batches(split, 6, torch.device("cpu")).in_order()] == [6, 2]


def test_scaling_is_for_models_by_name_and_follows_weights():
    pixels = torch.randint(0, 256, (8, 3, 8, 8), dtype=torch.uint8)
    data = Data(train=(pixels, torch.arange(8) % 2), recipe={"normalise": "data"})
    own = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    assert resolve(data, "erm", {}, own)[0]["normalise"] == "none"
    with pytest.raises(EvenlyError, match="normalise 'imagenet' is for a model by name"):
        resolve(data, "erm", {"normalise": "imagenet"}, own)
    plain = Data(train=(pixels, torch.arange(8) % 2))
    weights = {"model_options": {"weights": "file.npz"}}
    assert resolve(plain, "erm", weights, "mobilenet_v2")[0]["normalise"] == "imagenet"
    gray = Data(train=(pixels[:, :1], torch.arange(8) % 2))
    assert resolve(gray, "erm", weights, "mobilenet_v2")[0]["normalise"] == "none"


def test_one_example_is_too_few_for_batch_normalisation():
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    with pytest.raises(EvenlyError, match="too few for the model's batch normalisation; raise batch_size"):
        evenly.train(network, Data(train=rows()), epochs=1, batch_size=1, device="cpu")


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        ({"batch_size": [8, 0]}, "batch_size 0"),
        ({"augment": ["none", "foo"]}, "foo"),
        ({"schedule": ["constant", "foo"]}, "foo"),
        ({"epochs": [1, 0]}, "epochs 0"),
    ],
)
def test_a_value_that_cannot_be_run_is_said_before_any_run(sweep, said, tmp_path, monkeypatch):
    monkeypatch.setattr("evenly.comparison.train", lambda *_, **__: pytest.fail("it ran"))
    with pytest.raises(EvenlyError, match=said):
        evenly.compare("mlp", Data(train=rows()), ["erm"], seeds=1, sweep=sweep, out=tmp_path / "c", device="cpu")
    assert not (tmp_path / "c").exists()


def test_a_checkpoint_of_something_else_changes_nothing(tmp_path):
    settings = {"epochs": 3, "device": "cpu"}
    evenly.train("mlp", Data(train=rows()), out=tmp_path / "run", **settings)
    metrics = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    torch.save({"epoch": 1}, tmp_path / "run" / "checkpoint" / "final.pt")
    with pytest.raises(EvenlyError, match="is no checkpoint of evenly"):
        evenly.train("mlp", Data(train=rows()), out=tmp_path / "run", **settings)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == metrics
