"""On a GPU: a recorded step does what the plain one does, puts back what it touched, and says where it cannot be."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from evenly.data import Data
from evenly.data.augment import Augment
from evenly.data.mapped import MappedRows
from evenly.engine import Checkpoints, Objective, captured
from evenly.engine.batches import gathered
from evenly.engine.side_by_side import side_by_side
from evenly.errors import EvenlyError
from evenly.experiment.execute import memory_explained
from evenly.methods.group_dro import group_dro
from evenly.optim.registry import OPTIMIZERS, builder

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

CUDA = torch.device("cuda")


def network(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Dropout(dropout), nn.Linear(32, 3),
    )  # fmt: skip


@pytest.fixture
def data():
    random = torch.Generator().manual_seed(1)
    y = torch.randint(3, (150,), generator=random)
    x = torch.randint(0, 200, (150, 3, 12, 12), generator=random, dtype=torch.uint8)
    x[torch.arange(150), y] += 40
    groups = torch.randint(2, (150,), generator=random)
    return Data(train=(x, y, groups), test=(x[:60], y[:60], groups[:60]))


def weights_of(run):
    return torch.cat([value.detach().float().flatten().cpu() for value in run.model.state_dict().values()])


@pytest.fixture
def fitted(fit):
    def run(data, optimizer="sgd", model=None, objective=None, **settings):
        optimizer = builder(optimizer, lr=0.05, weight_decay=1e-3) if isinstance(optimizer, str) else optimizer
        settings = {"batch_size": 32, "precision": "float32", "augment": "basic"} | settings
        engine = fit(optimizer=optimizer, device=CUDA, **settings)
        return engine(network() if model is None else model, data, objective=objective)

    return run


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_recorded_run_ends_where_the_plain_one_does(fitted, data, optimizer, compiled, monkeypatch):
    monkeypatch.setattr("evenly.engine.captured.COMPILE_STEPS", 0 if compiled else 10**9)
    recorded, plain = fitted(data, optimizer), fitted(data, optimizer, capture=False)
    assert recorded.step == ("captured" if compiled else "captured: too few steps to be worth it")
    assert plain.step == "plain: capture is off"
    assert recorded.cost == plain.cost
    tolerance = 5e-3 if "adam" in optimizer else 5e-4
    torch.testing.assert_close(weights_of(recorded), weights_of(plain), atol=tolerance, rtol=tolerance)
    for ours, theirs in zip(recorded.history, plain.history, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=2e-3)
        assert ours["examples"] == theirs["examples"] == 150


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("optimizer", ["sgd", "sam"])
def test_a_streamed_run_ends_where_the_one_on_the_gpu_does(fitted, data, optimizer, capture, tmp_path):
    np.save(tmp_path / "x.npy", data.train.inputs.numpy())
    rows = MappedRows(np.load(tmp_path / "x.npy", mmap_mode="r"), range(150), data.train.labels)
    stored = Data(train=(rows, data.train.labels, data.train.groups), test=data.test)
    held = fitted(data, optimizer, capture=capture, stream="never")
    for each in (data, stored):
        streamed = fitted(each, optimizer, capture=capture, stream="always")
        assert streamed.step == held.step
        assert streamed.step.startswith("captured" if capture else "plain")
        torch.testing.assert_close(weights_of(streamed), weights_of(held), atol=5e-4, rtol=5e-4)


def test_an_objective_with_a_state_and_a_rate_that_changes_are_recorded_too(fit, data):
    settings = {"epochs": 4, "schedule": lambda progress: 1 - progress, "batch_size": 32, "precision": "float32"}
    runs = []
    for capture in (True, False):
        engine = fit(optimizer=builder("sam", lr=0.05), device=CUDA, capture=capture, **settings)
        runs.append(group_dro(network, data, engine))
    assert runs[0].step.startswith("captured")
    torch.testing.assert_close(weights_of(runs[0]), weights_of(runs[1]), atol=2e-3, rtol=2e-3)
    assert [row["lr"] for row in runs[0].history] == pytest.approx([row["lr"] for row in runs[1].history])


def test_weights_of_examples_are_recorded_too(fitted, data):
    weighted = Objective(weights=torch.rand(150))
    recorded = fitted(data, augment="none", objective=weighted)
    plain = fitted(data, augment="none", objective=weighted, capture=False)
    torch.testing.assert_close(weights_of(recorded), weights_of(plain), atol=5e-4, rtol=5e-4)
    assert (weights_of(recorded) - weights_of(fitted(data, augment="none"))).abs().max() > 1e-3


def test_a_run_taken_up_again_goes_on_where_it_stopped(fitted, data, tmp_path):
    settings = {"data": data, "optimizer": builder("sam", lr=0.01), "epochs": 6}
    straight = fitted(**settings)

    def stop(share, note):
        if share >= 0.5:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fitted(**settings, checkpoints=Checkpoints(tmp_path), progress=stop)
    resumed = fitted(**settings, checkpoints=Checkpoints(tmp_path))
    assert resumed.step.startswith("captured")
    torch.testing.assert_close(weights_of(resumed), weights_of(straight), atol=3e-3, rtol=3e-3)


class Reads(nn.Module):
    """Reads a number back to the host, which no recording allows."""

    def __init__(self):
        super().__init__()
        self.inner = network(dropout=0.3)

    def forward(self, x):
        return self.inner(x) * (1.0 if x.sum().item() > -1e9 else 2.0)


def test_what_cannot_be_recorded_is_trained_plainly_and_says_why(fitted, data):
    class Streamed(torch.utils.data.Dataset):
        targets = data.train.labels

        def __len__(self):
            return 150

        def __getitem__(self, i):
            return data.train.inputs[i], int(data.train.labels[i])

    reading = fitted(data, model=Reads())
    assert reading.step.startswith("plain: ")
    assert reading.history[-1]["train_loss"] < reading.history[0]["train_loss"]
    assert "one by one" in fitted(Data(train=Streamed())).step
    assert "whole training set" in fitted(data, batch_size=None).step
    assert "RMSprop" in fitted(data, lambda params: torch.optim.RMSprop(params, lr=1e-3)).step
    assert "Adam is not capturable" in fitted(data, torch.optim.Adam).step
    assert "dampening" in fitted(data, lambda params: torch.optim.SGD(params, 0.1, 0.9, dampening=0.5)).step
    few = Data(train=(data.train.inputs[:20], data.train.labels[:20]))
    assert "20 examples" in fitted(few).step


def test_images_compute_in_bfloat16_unless_float32_is_asked_for(fitted, data):
    auto, exact = fitted(data, precision="auto"), fitted(data, precision="float32")
    assert 0 < (weights_of(auto) - weights_of(exact)).abs().max() < 0.5
    outputs = auto.outputs(data.test)
    assert outputs.dtype == torch.float32
    assert torch.equal(outputs, outputs.bfloat16().float())  # the last layer was computed in bfloat16
    assert not torch.equal(exact.outputs(data.test), exact.outputs(data.test).bfloat16().float())


def test_compiled_augmentation_gives_the_same_pixels(data):
    inputs = data.train.inputs.to(CUDA)
    place = torch.randint(0, 450, (64,), device=CUDA)
    arguments = inputs, place % 150, place, torch.tensor(5, device=CUDA), torch.tensor(2**50 + 3, device=CUDA)
    for recipe in ("basic", "trivial", "resized"):
        augment = Augment(recipe)
        both = [f(*arguments, augment) for f in (gathered, captured._compiled(gathered))]
        # one divides by 255, the other multiplies; and a fused product and sum may round to the next grey level
        torch.testing.assert_close(*both, atol=1.01 / 255, rtol=0)
        assert ((both[0] - both[1]).abs() > 1e-6).float().mean() < 1e-3


def test_seeds_side_by_side_are_what_they_are_alone(fitted, data):
    many = Data(train=(data.train.inputs.repeat(12, 1, 1, 1), data.train.labels.repeat(12)))  # several turns an epoch

    def run(seed):
        return fitted(many, model=network(dropout=0.3), seed=seed, epochs=4)

    together = side_by_side([lambda seed=seed: run(seed) for seed in range(4)], CUDA, most=3)
    for seed, ours in enumerate(together):
        alone = run(seed)
        assert ours.step.startswith("captured")
        torch.testing.assert_close(weights_of(ours), weights_of(alone), atol=1e-4, rtol=1e-4)
    assert (weights_of(together[0]) - weights_of(together[1])).abs().max() > 1e-3


def test_memory_that_does_not_suffice_is_said_with_the_setting_to_lower():
    said = r"GiB do not suffice at batch size 64 .*lower batch_size"
    with pytest.raises(EvenlyError, match=said), memory_explained(64):
        torch.empty(2**45, device=CUDA)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_is_read_back_within_an_epoch(fitted, data):
    torch.cuda.set_sync_debug_mode("warn")
    counts = []
    try:
        for length in (1, 4):
            many = Data(train=(data.train.inputs.repeat(length, 1, 1, 1), data.train.labels.repeat(length)))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert fitted(many, epochs=3).step.startswith("captured")
            counts.append(sum("synchroniz" in str(w.message) for w in caught))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert counts[0] == counts[1]
