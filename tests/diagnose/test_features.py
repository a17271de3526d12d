"""Features against the engine's own and by hand; t-SNE is a function of (features, seed) at every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.manifold import trustworthiness
from torch import Tensor, nn

from evenly import EvenlyError, Split
from evenly.diagnose.features import embedding, representations
from evenly.engine.batches import Batches
from evenly.engine.evaluation import features_of
from evenly.models import MLP, ConvNet


def images(n: int = 300) -> Split:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (n, 3, 8, 8), generator=draw, dtype=torch.uint8)
    return Split(x, torch.randint(2, (n,), generator=draw))


def test_features_are_the_engines() -> None:
    split, model = images(), ConvNet(3, 2, batch_norm=True)
    expected = features_of(model, Batches(split, 64, torch.device("cpu")))
    found = representations(model, split)
    assert found.shape == (300, 64)
    torch.testing.assert_close(found, expected)


def test_a_named_layer_gives_its_output() -> None:
    split, model = images(20), ConvNet(3, 2)
    x = split.inputs.float() / 255
    hidden = model.hidden(model.features(x)).detach()
    torch.testing.assert_close(representations(model, split, layer="hidden"), hidden)
    torch.testing.assert_close(representations(model, split, layer="fc"), model.fc(hidden).detach())
    maps = model.features[:2](x).detach()  # a convolution and its ReLU, averaged over positions
    torch.testing.assert_close(representations(model, split, layer="features.1"), maps.mean((2, 3)))
    assert representations(model.double(), split).dtype == torch.float64
    assert representations(model.bfloat16(), split).dtype == torch.float32


class Overwriting(nn.Module):
    """What comes after a layer writes into what it was given, and into what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        hidden = self.first(x)
        out = self.last(input=hidden)
        hidden.zero_()
        return out.mul_(0)


def test_features_are_as_the_layer_saw_them_and_nothing_is_left_changed() -> None:
    model = Overwriting()
    x = torch.randn(6, 4)
    kept = x.clone()
    torch.testing.assert_close(
        representations(model, (x, torch.zeros(6))), (x @ model.first.weight.T + model.first.bias).detach()
    )
    torch.testing.assert_close(
        representations(model, (x, torch.zeros(6)), layer="last").abs().sum() > 0, torch.tensor(True)
    )
    assert model.passes == 0
    assert torch.equal(x, kept)
    assert model.training
    assert not model.last._forward_pre_hooks
    assert not model.last._forward_hooks


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tell, self.both, self.fc = nn.Identity(), nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.tell(x.sum())
        return self.fc(self.both(x[:, None])[0][:, 0])


def test_layers_without_a_row_for_each_example_are_refused() -> None:
    def refused(match: str, model: nn.Module, **options: Any) -> None:
        with pytest.raises(EvenlyError, match=match) as error:
            representations(model, (torch.randn(5, 4), torch.zeros(5)), **options)
        assert "\n" not in str(error.value)

    refused("ReLU has no linear layer", nn.ReLU())
    refused("name a layer, e.g. layer='1'", nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()))
    refused("no layer of MLP is called '9'; there are: 0, 1, 2, 3, 4, 5", MLP(4, 2), layer="9")
    refused(r"layer 'tell' of Pair shows \(\) for 5 examples", Pair(), layer="tell")
    assert representations(Pair(), (torch.randn(5, 4), torch.zeros(5)), layer="both").shape == (5, 3)
    idle = MLP(4, 2)
    idle.forward = lambda x: x  # type: ignore[method-assign]
    refused("runs none of its linear layers .*; name a layer", idle)
    refused("does not run its layer '1'", idle, layer="1")


def groups(n: int = 120, d: int = 60) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    which = torch.arange(n) % 3
    return torch.randn(n, d, generator=draw) + 12 * torch.eye(d)[which], which


def test_the_map_keeps_neighbours_and_groups() -> None:
    x, which = groups()
    found = embedding(x)
    assert found.shape == (120, 2)
    assert found.dtype == torch.float32
    nearest = torch.cdist(found, found).fill_diagonal_(torch.inf).argmin(1)
    assert torch.equal(which[nearest], which)
    line = torch.linspace(0, 1, 100)[:, None] * torch.ones(1, 80)
    assert trustworthiness(line.numpy(), embedding(line, perplexity=10).numpy()) > 0.95


def test_one_seed_one_map() -> None:
    x, _ = groups(60)
    state, numpys = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    one, same, other = (embedding(x, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(state, torch.get_rng_state())
    assert numpys == np.random.get_state()[1].tolist()  # noqa: NPY002


@pytest.mark.parametrize(("n", "d"), [(1, 3), (2, 3), (3, 1), (4, 1), (5, 2), (20, 1), (31, 70)])
def test_few_examples_or_features_have_a_map_too(n: int, d: int) -> None:
    found = embedding(torch.randn(n, d, generator=torch.Generator().manual_seed(n)))
    assert found.shape == (n, 2)
    assert bool(found.isfinite().all())
    assert len(found.unique(dim=0)) == n


def test_examples_that_are_all_alike_have_a_map() -> None:
    found = embedding(torch.full((10, 4), 0.1))
    assert found.shape == (10, 2)
    assert float(found.abs().max()) < 1


def test_the_start_is_the_principal_components() -> None:
    """With three points there is nothing to embed: what comes back is the start, up to its trace of noise."""
    x = torch.tensor([[0.0, 0.0, 0.0], [6.0, 0.0, 0.0], [3.0, 1.0, 0.0]])
    found = embedding(x).double()
    expected = torch.tensor([[-3.0, 1 / 3], [3.0, 1 / 3], [0.0, -2 / 3]]) / 6**0.5
    for column in range(2):
        sign = 1 if float(found[:, column] @ expected[:, column].double()) > 0 else -1
        torch.testing.assert_close(sign * found[:, column], expected[:, column].double(), atol=0.05, rtol=0)


def test_what_has_no_map_is_refused() -> None:
    for features, match in (
        (torch.zeros(3), r"features have shape \(3,\)"),
        (torch.zeros(0, 3), "features have shape"),
        (torch.tensor([[torch.nan, 0.0]]), "features hold NaN"),
    ):
        with pytest.raises(EvenlyError, match=match):
            embedding(features)
