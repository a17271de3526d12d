"""Penultimate activations: what the last linear layer was given, whatever the network around it looks like."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenly import EvenlyError, Split
from evenly.engine import Trained


def split(count: int = 9, shape: tuple[int, ...] = (4,), dtype: torch.dtype = torch.float32) -> Split:
    x = torch.randn(count, *shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return Split(x, torch.arange(count) % 2)


def run(model: nn.Module) -> Trained:
    return Trained(model, [], 0.0, "last", 1)


def body() -> nn.Sequential:
    """With layers that act otherwise in training: running statistics that are not those of a batch, dropout."""
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5))
    layers[1].running_mean.copy_(torch.arange(6) / 6)
    layers[1].running_var.copy_(1 + torch.arange(6))
    return layers


def by_hand(layers: nn.Sequential, x: Tensor) -> Tensor:
    linear, norm = layers[0], layers[1]
    z = x @ linear.weight.T + linear.bias
    return ((z - norm.running_mean) / (norm.running_var + norm.eps).sqrt()).clamp(min=0).detach()


@pytest.fixture(autouse=True)
def _seeded() -> Any:
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.mark.parametrize("count", [1, 9, 1024, 2050])
def test_they_are_what_the_last_layer_is_given_in_order_over_several_batches(count: int) -> None:
    layers, data = body(), split(count)
    found = run(nn.Sequential(layers, nn.Linear(6, 2))).features(data)
    assert found.shape == (count, 6)
    torch.testing.assert_close(found, by_hand(layers, data.inputs), rtol=1e-5, atol=1e-6)


class Backwards(nn.Module):
    """The layer that runs last stands first, one is never run, one is called with its input by name."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)
        self.layers = layers
        self.unused = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(input=self.layers(x))


def test_the_last_to_run_counts_not_the_last_to_be_registered() -> None:
    layers, data = body(), split()
    found = run(nn.Sequential(Backwards(layers))).features(data)
    torch.testing.assert_close(found, by_hand(layers, data.inputs), rtol=1e-5, atol=1e-6)


def test_a_layer_that_runs_twice_shows_its_last_input() -> None:
    layer = nn.Linear(4, 4)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x))

    data = split()
    torch.testing.assert_close(run(Twice()).features(data), layer(data.inputs).detach())


def test_what_is_written_into_the_input_afterwards_does_not_count() -> None:
    class Overwriting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            z = self.fc(x)
            x.zero_()
            return z

    data = split()
    kept = data.inputs.clone()
    assert torch.equal(run(Overwriting()).features(data), kept)
    assert torch.equal(data.inputs, kept)


def test_positions_of_an_example_are_laid_side_by_side() -> None:
    data = split(5, (3, 4))
    assert torch.equal(run(nn.Sequential(nn.Linear(4, 2), nn.Flatten())).features(data), data.inputs.reshape(5, 12))


@pytest.mark.parametrize("what", ["features", "outputs"])
def test_a_run_in_bfloat16_is_evaluated_in_bfloat16(what: str) -> None:
    model, data = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)), split()
    short, full = (
        getattr(Trained(model, [], 0.0, "last", 1, precision=precision), what)(data)
        for precision in ("bf16", "float32")
    )
    assert short.dtype == full.dtype == torch.float32
    assert torch.equal(short, short.bfloat16().float())
    assert not torch.equal(full, full.bfloat16().float())
    torch.testing.assert_close(short, full.detach(), rtol=0.03, atol=0.03)
    double = run(nn.Linear(4, 2).double()).features(split(dtype=torch.float64))
    assert double.dtype == torch.float32


def test_leaves_no_trace() -> None:
    model = nn.Sequential(body(), nn.Linear(6, 2)).train()
    kept = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    found = run(model).features(split())
    assert not found.requires_grad
    assert model.training
    assert all(torch.equal(kept[key], value) for key, value in model.state_dict().items())
    assert all(not module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.random.get_rng_state(), state)


class Unlinear(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2]


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2]


class Crossed(nn.Module):
    """Its linear layer runs over examples instead of features."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(9, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.T).T


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Unlinear, r"^Unlinear has no linear layer .*; use its outputs instead \(on='probabilities' or 'logits'\)$"),
        (Idle, r"^Idle runs none of its linear layers .*; use its outputs instead"),
        (Crossed, r"^the last linear layer of Crossed is given \(4, 9\) for 9 examples, not a row for each; use"),
    ],
)
def test_a_network_without_features_is_refused_and_left_as_it_was(model: type[nn.Module], message: str) -> None:
    network = model().train()
    with pytest.raises(EvenlyError, match=message) as refusal:
        run(network).features(split())
    assert "\n" not in str(refusal.value)
    assert network.training
    assert all(not module._forward_pre_hooks for module in network.modules())
