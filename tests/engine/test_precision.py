"""In which numbers a network computes: float32 on the CPU unless bf16 is asked for, and weights always."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import evenly
from evenly.data import Data, Split
from evenly.engine import Objective
from evenly.engine.precision import resolved, whole

CPU = torch.device("cpu")


@pytest.fixture
def data():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randint(0, 256, (30, 1, 5, 5), generator=draw, dtype=torch.uint8), torch.arange(30) % 3
    return Data(train=(x, y), validation=(x[:12], y[:12]), test=(x[:12], y[:12]))


@pytest.fixture
def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(nn.Flatten(), nn.Linear(25, 16), nn.ReLU(), nn.Linear(16, 3))


def sgd(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def weights_of(run):
    return torch.cat([value.flatten() for value in run.model.state_dict().values()])


def short(x):
    """Rounded to bfloat16, as numbers in float32."""
    return x.bfloat16().float()


@pytest.mark.parametrize("optimizer", [sgd, lambda params: evenly.SAM(sgd(params), rho=0.05)])
@pytest.mark.parametrize("size", [None, 8])
def test_bf16_keeps_weights_losses_and_outputs_in_float32(fit, data, net, optimizer, size):
    seen = []

    def objective(losses, batch, state):
        seen.append(losses.dtype)
        return losses.mean()

    runs = {
        precision: fit(optimizer=optimizer, batch_size=size, precision=precision)(
            copy.deepcopy(net), data, objective=Objective(objective)
        )
        for precision in ("bf16", "float32", "auto")
    }
    assert set(seen) == {torch.float32}
    for run in runs.values():
        assert all(value.dtype == torch.float32 for value in run.model.state_dict().values())
        outputs = run.outputs(data.test)
        assert outputs.dtype == torch.float32
        assert (torch.equal(outputs, short(outputs))) == (run is runs["bf16"])
    assert torch.equal(weights_of(runs["auto"]), weights_of(runs["float32"]))
    difference = (weights_of(runs["bf16"]) - weights_of(runs["float32"])).abs().max()
    assert 0 < difference < 0.05
    assert not torch.equal(weights_of(runs["bf16"]), short(weights_of(runs["bf16"])))


def test_the_first_loss_in_bf16_written_out(fit, data, net):
    """Inputs, weights, biases and sums of every linear layer are rounded to bfloat16; the loss is not."""
    hidden = short(
        nn.functional.linear(short(data.train.inputs.float().flatten(1) / 255), *map(short, net[1].parameters()))
    )
    scores = short(nn.functional.linear(hidden.relu(), *map(short, net[3].parameters())))
    loss = nn.functional.cross_entropy(scores, data.train.labels).item()
    run = fit(epochs=1, optimizer=sgd, batch_size=None, precision="bf16")(copy.deepcopy(net), data)
    assert run.history[0]["train_loss"] == pytest.approx(loss, rel=2e-3)
    exact = fit(epochs=1, optimizer=sgd, batch_size=None, precision="float32")(copy.deepcopy(net), data)
    pixels = data.train.inputs.float() / 255
    whole_loss = nn.functional.cross_entropy(net(pixels), data.train.labels).item()
    assert exact.history[0]["train_loss"] == pytest.approx(whole_loss, rel=1e-6)
    assert run.history[0]["train_loss"] != exact.history[0]["train_loss"]


def test_auto_is_bf16_for_images_on_a_gpu_that_has_it(monkeypatch, data):
    class Read(Dataset):
        def __init__(self, x):
            self.x, self.targets = x, torch.arange(len(x)) % 2

        def __len__(self):
            return len(self.x)

        def __getitem__(self, i):
            return self.x[i], int(self.targets[i])

    cuda, y = torch.device("cuda"), torch.arange(4) % 2
    pixels = torch.zeros(4, 3, 2, 2, dtype=torch.uint8)
    cases = {
        "images": (Split(pixels, y), True),
        "images read": (Split(Read(pixels)), True),
        "float images": (Split(pixels.float(), y), False),
        "float images read": (Split(Read(pixels.float())), False),
        "rows of bytes": (Split(pixels.flatten(1), y), False),
        "rows of bytes read": (Split(Read(pixels.flatten(1))), False),
    }
    for has_it in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True, has=has_it: has)
        for name, (split, are_images) in cases.items():
            assert resolved("auto", split, cuda) == ("bf16" if has_it and are_images else "float32"), name
            assert resolved("auto", split, CPU) == "float32", name
            for asked in ("bf16", "float32"):
                assert resolved(asked, split, cuda) == resolved(asked, split, CPU) == asked


def test_whole_leaves_longer_numbers_alone():
    for given, expected in (
        ("bfloat16", "float32"),
        ("float16", "float32"),
        ("float32", "float32"),
        ("float64", "float64"),
    ):
        assert whole(torch.ones(2, dtype=getattr(torch, given))).dtype == getattr(torch, expected)
