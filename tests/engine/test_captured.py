"""The recorded step without a GPU: a stand-in for CUDA's graph runs the step again where a graph would replay it."""

from __future__ import annotations

import random
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from evenly.data import Data
from evenly.data.augment import Augment
from evenly.engine.batches import Batches
from evenly.engine.captured import CapturedStep, NotCapturedError
from evenly.engine.loop import Loop
from evenly.engine.steps import Objective, Step, mean
from evenly.engine.world import ALONE
from evenly.optim.registry import builder
from evenly.settings import Execution

CPU = torch.device("cpu")


class Graph:
    """Replays by running again; what Python counts on the way is put back, as no Python runs in a replay."""

    def __init__(self):
        self.run = None

    def replay(self):
        step = self.run.step
        cost = step.cost
        self.run._run()
        step.cost = cost


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    @contextmanager
    def record(graph, **_):
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)


def data():
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (60, 3, 8, 8), generator=draw, dtype=torch.uint8)
    return Data(train=(x, torch.arange(60) % 3, torch.arange(60) % 2))


def network(*more):
    torch.manual_seed(1)
    layers = (nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), *more)
    return nn.Sequential(*layers, nn.Linear(144, 3)).train()


def made(optimizer="sgd", model=None, objective=mean, state=None, weights=None, stream="auto"):
    model = network() if model is None else model
    stepper = builder(optimizer, lr=0.05, weight_decay=1e-3)(model.parameters())
    if optimizer != "sgd":
        stepper.model = model
    step = Step(model, stepper, Objective(objective, state or {}, weights), "float32", CPU)
    return step, Batches(data().train, 16, CPU, augment=Augment("basic"), seed=3, stream=stream)


def recorded(*args, **kwargs):
    step, batches = made(*args, **kwargs)
    captured = CapturedStep(step, batches, compiled=False)
    captured.graph.run = captured
    captured.set_rates()
    return captured


def places():
    return list(torch.randperm(60, generator=torch.Generator().manual_seed(5)).split(16))


@pytest.mark.parametrize("stream", ["never", "always"])
@pytest.mark.parametrize("optimizer", ["sgd", "sam", "asam", "lsam", "sam:adamw"])
def test_replays_end_where_plain_steps_do(optimizer, stream):
    captured, (step, batches) = recorded(optimizer, stream=stream), made(optimizer)
    for epoch in range(2):
        for each in (captured.batches, batches):
            each.at_epoch.fill_(epoch)
        # the last one is smaller and goes by the plain step
        for place, rows in zip(places(), captured.batches.rows(places()), strict=True):
            captured(place, rows)
            step(batches.at(place, batches.augment))
    for ours, theirs in zip(captured.step.model.state_dict().values(), step.model.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    assert captured.step.cost == step.cost == 120 * (1 if optimizer == "sgd" else 2)
    assert captured.step.read() == pytest.approx(step.read())


def test_recording_leaves_everything_as_it_was():
    step, batches = made("sam", state={"q": torch.tensor([0.25, 0.75])}, objective=moving)
    before = {key: value.clone() for key, value in step.model.state_dict().items()}
    CapturedStep(step, batches, compiled=False)
    assert all(torch.equal(value, before[key]) for key, value in step.model.state_dict().items())
    assert step.state["q"].tolist() == [0.25, 0.75]
    assert step.cost == 0
    assert step.read() == [0, 0]
    assert all(not value.any() for each in step.optimizer.state.values() for value in each.values())
    assert all(p.grad is None for p in step.model.parameters())


def moving(losses, batch, state):
    """Puts a new tensor in the place of its state, as group DRO does."""
    if batch.first:
        state["q"] = 0.5 * state["q"] + 0.5 * losses.detach().mean()
    return losses.mean() * state["q"].sum()


def test_an_objectives_state_is_carried_from_replay_to_replay():
    captured = recorded(objective=moving, state={"q": torch.ones(2)})
    step, batches = made(objective=moving, state={"q": torch.ones(2)})
    kept = captured.step.state["q"]
    for place in places():
        captured(place)
        step(batches.at(place, batches.augment))
    assert captured.step.state["q"] is kept
    torch.testing.assert_close(kept, step.state["q"], atol=1e-6, rtol=1e-5)


def test_a_rate_that_was_set_as_a_number_is_taken_over_and_other_settings_are_noticed():
    captured, (step, batches) = recorded(), made()
    for rate in (0.05, 0.5, 0.0):
        for each in (captured.step, step):
            each.optimizer.param_groups[0]["lr"] = rate
        captured.set_rates()
        captured(places()[0])
        step(batches.at(places()[0], batches.augment))
    torch.testing.assert_close(captured.step.model[0].weight, step.model[0].weight, atol=1e-6, rtol=1e-5)
    assert captured.holds()
    captured.step.optimizer.param_groups[0]["momentum"] = 0.5
    assert not captured.holds()


def test_weights_of_the_examples_count():
    weights = torch.rand(60)
    captured, (step, batches) = recorded(weights=weights), made(weights=weights)
    captured(places()[0])
    step(batches.at(places()[0], batches.augment))
    torch.testing.assert_close(captured.step.model[-1].weight, step.model[-1].weight, atol=1e-6, rtol=1e-5)


class Rebinding(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.full((144,), 2.0))

    def forward(self, x):
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return x - self.average


class Drawing(nn.Module):
    def forward(self, x):
        return x * (2.0 if random.random() < 0.5 else 1.0)


def test_what_a_replay_would_get_wrong_is_refused_and_put_back():
    step, batches = made(model=network(Rebinding()))
    with pytest.raises(NotCapturedError, match="new tensors"):
        CapturedStep(step, batches, compiled=False)
    assert torch.equal(step.model[4].average, torch.full((144,), 2.0))
    with pytest.raises(NotCapturedError, match="random numbers on the host"):
        recorded(model=network(Drawing()))

    def lazy(losses, batch, state):
        state[f"seen {len(state)}"] = losses.detach()
        return losses.mean()

    step, batches = made(objective=lazy)
    with pytest.raises(NotCapturedError, match="new tensors"):
        CapturedStep(step, batches, compiled=False)
    assert step.state == {}


@pytest.mark.parametrize(("drawn", "compiled"), [(8, False), (16, True)])
def test_a_run_is_compiled_for_the_steps_that_its_sampler_makes(monkeypatch, drawn, compiled):
    """Ten epochs in batches of four: of 60 examples a method may train on a few, and compiling takes a minute."""
    asked = []

    def recorded(step, batches, compiled):
        asked.append(compiled)
        raise NotCapturedError("seen enough")

    monkeypatch.setattr("evenly.engine.captured.COMPILE_STEPS", 30)
    monkeypatch.setattr("evenly.engine.captured.CapturedStep", recorded)
    step, batches = made()
    fit = SimpleNamespace(device=torch.device("cuda"), execution=Execution(), world=ALONE)
    settings = SimpleNamespace(epochs=10, batch_size=4)
    loop = SimpleNamespace(fit=fit, settings=settings, sampler=range(drawn), step=step, train=batches)
    Loop._capture(loop)
    assert asked == [compiled]
    assert (loop.captured, loop.how) == (None, "plain: seen enough")
