"""What every diagnosis does: it changes nothing, takes data in any form, and refuses what is no model or no data."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

import evenly
from evenly import Data, EvenlyError, Split
from evenly.diagnose.samples import split_of
from evenly.randomness import isolated

pytest.importorskip("sklearn.linear_model")  # its first import draws from Python's random state

N = 40
Y = torch.arange(N) % 2
X = torch.randn(N, 1, 6, 6, generator=torch.Generator().manual_seed(0)) + Y[:, None, None, None]
CARD = {"lr": 0.1, "batch_size": 4, "chunk": 1}

DIAGNOSES: dict[str, Any] = {
    "coherence": lambda model, data: evenly.coherence(model, "cross-entropy", data, chunk=1).matrix,
    "coherence tracker": lambda model, data: evenly.CoherenceTracker("cross-entropy", data, chunk=1)(model)["sigma"],
    "spectrum": lambda model, data: evenly.hessian_spectrum(model, "cross-entropy", data, 2, batch_size=16).eigenvalues,
    "importance": lambda model, data: evenly.importance_weights(model, data, rho=0.1),
    "importance by LSAM": lambda model, data: evenly.importance_weights(model, data, 0.1, kind="lsam", batch_size=9),
    "probe": lambda model, data: evenly.probe(model, data, "label", against=()).weights,
    "features": evenly.representations,
    "forgetting": lambda model, data: evenly.ForgettingTracker(data)(model)["accuracy"],
    "card": lambda model, data: evenly.stability_card(model, "cross-entropy", data, **CARD).gradient_norm,
    "record": lambda model, data: evenly.Recorder(data, importance=0.1, l1=True, spectrum=1)(model)["lambda_1"],
}
ON_EVERYTHING = DIAGNOSES | {
    "spectrum in train mode": lambda model, data: evenly.hessian_spectrum(model, "cross-entropy", data, mode="train"),
    "audit": lambda model, data: evenly.audit(model, data_of(data), top=1),
    "heat maps": lambda model, data: evenly.grad_cam(model, X),
}


def data_of(data: Any) -> Data:
    with isolated():  # not what is tested here
        return Data(train=data)


class Busy(nn.Module):
    """Writes into a buffer and into its input; has BatchNorm and dropout; notes the mode of every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5)
        self.fc = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.modes: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.modes.append(self.training)
        return self.fc(self.drop(self.norm(self.conv(x.add_(1.0))).relu()).mean((2, 3)))


class Drawing(Dataset[Any]):
    """Draws from all the global random states, as augmentation does."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return X[i] + 0 * (torch.rand(1) + random.random() + np.random.random()), int(Y[i])  # noqa: NPY002


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))


def random_states() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002


@pytest.mark.parametrize("name", ON_EVERYTHING)
def test_model_data_and_random_states_are_not_changed(name: str) -> None:
    model, inputs = Busy().train(), X.clone()
    model.norm.eval()
    model.fc.weight.grad = torch.ones_like(model.fc.weight)
    before, states = {key: value.clone() for key, value in model.state_dict().items()}, random_states()
    ON_EVERYTHING[name](model, Drawing())
    ON_EVERYTHING[name](model, (X, Y))
    assert random_states() == states
    assert set(model.modes) == {name == "spectrum in train mode"}
    assert [each.training for each in (model, model.conv, model.norm, model.drop)] == [True, True, False, True]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert bool((model.fc.weight.grad == 1).all())
    assert all(weight.grad is None for key, weight in model.named_parameters() if key != "fc.weight")
    assert all(weight.requires_grad for weight in model.parameters())
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    assert torch.equal(X, inputs)


@pytest.mark.parametrize("name", DIAGNOSES)
def test_modes_come_back_after_an_error(name: str) -> None:
    model = network().train()
    with pytest.raises(EvenlyError):
        DIAGNOSES[name](model, (X.expand(N, 2, 6, 6), Y))
    assert all(each.training for each in model.modules())


@pytest.mark.parametrize("name", DIAGNOSES)
def test_data_in_every_form_gives_the_same(name: str) -> None:
    model, stored = network(), TensorDataset(X, Y)
    expected = torch.as_tensor(DIAGNOSES[name](model, (X, Y)))
    for data in (
        [X, Y], (X.numpy(), Y.numpy()), (X.double(), Y), Split(X, Y), Data(train=(X, Y)), stored, Split(stored),
        DataLoader(stored, batch_size=7),
    ):  # fmt: skip
        torch.testing.assert_close(torch.as_tensor(DIAGNOSES[name](model, data)), expected)
    pixels = (X * 40 + 128).clamp(0, 255).to(torch.uint8)
    found, scaled = (torch.as_tensor(DIAGNOSES[name](model, (x, Y))) for x in (pixels, pixels.float() / 255))
    torch.testing.assert_close(found, scaled)


@pytest.mark.parametrize("name", ON_EVERYTHING)
def test_what_is_no_network_or_has_no_weights_is_refused(name: str, refused: Any) -> None:
    with torch.device("meta"):
        empty = network()
    refused("on the meta device, .*; build it on the cpu", ON_EVERYTHING[name], empty, (X, Y))
    refused("model is a NoneType; give an nn.Module", ON_EVERYTHING[name], None, (X, Y))
    refused("LazyLinear has lazy parameters", ON_EVERYTHING[name], nn.LazyLinear(2), (X, Y))


class Broken(Drawing):
    def __getitem__(self, i: int) -> Any:
        if i == 30:
            raise OSError("disk\ngone")
        return super().__getitem__(i)


@pytest.mark.parametrize("name", DIAGNOSES)
def test_data_that_cannot_be_read_is_refused(name: str, refused: Any) -> None:
    model, diagnose = network(), DIAGNOSES[name]
    refused(r"example 30 of the data cannot be read \(OSError: disk\)", diagnose, model, Broken())
    refused("the data is empty", diagnose, model, (X[:0], Y[:0]))
    refused("the data is empty", diagnose, model, DataLoader(TensorDataset(X[:0], Y[:0])))
    refused("give one target for each input", diagnose, model, (X, Y[:3]))
    refused("data is a Tensor; give", diagnose, model, X)
    refused("cannot be read as numbers", diagnose, model, (X, ["a"] * N))
    refused(r"item 0 of the data is a tuple, not \(x, y\)", diagnose, model, TensorDataset(X))


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(TensorDataset(X, Y), shuffle=True),
        DataLoader(TensorDataset(X, Y), sampler=SubsetRandomSampler(range(30))),
        DataLoader(TensorDataset(X, Y), batch_sampler=[[2, 1], [0]]),
    ],
)
def test_results_by_example_refuse_an_order_that_is_drawn(loader: Any, refused: Any) -> None:
    message = r"draws its order \(.*matched to it; give its .dataset, or a loader with shuffle=False"
    for name in ("forgetting", "importance", "features", "record", "probe"):
        refused(message, DIAGNOSES[name], network(), loader)


def test_loaders_of_a_stream_and_in_order_are_taken() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(zip(X, Y, strict=True))

    for loader in (DataLoader(TensorDataset(X, Y), batch_size=7), DataLoader(Stream(), batch_size=7)):
        assert torch.equal(split_of(loader).inputs, X)


class Mixed(nn.Module):
    """A linear network with one more parameter before it."""

    def __init__(self, first: nn.Parameter) -> None:
        super().__init__()
        self.first, self.layer = first, nn.Linear(36, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)) * self.first.abs().float()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.complex64])
def test_inputs_have_the_type_of_the_first_real_parameter(dtype: torch.dtype) -> None:
    model = Mixed(nn.Parameter(torch.ones(1, dtype=dtype), requires_grad=False))
    model.layer.double()
    inputs: list[Tensor] = []
    model.layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    plain = nn.Sequential(nn.Flatten(), nn.Linear(36, 2)).double()
    plain[1].load_state_dict(model.layer.state_dict())
    for name in ("importance", "spectrum"):
        torch.testing.assert_close(DIAGNOSES[name](model, (X, Y)), DIAGNOSES[name](plain, (X, Y)))
    right = plain(X.double()).argmax(1) == Y
    assert evenly.audit(model, Data(train=(X, Y)), top=0).overall.right == int(right.sum())
    assert {each.dtype for each in inputs} == {torch.float64}


def test_complex_parameters_are_refused_where_real_ones_are_meant(refused: Any) -> None:
    model, data = Mixed(nn.Parameter(torch.ones(1, dtype=torch.complex64))), Data(train=(X, Y))
    message = "parameter first of Mixed is complex, .*; keep its real and imaginary part as two parameters"
    refused(message, evenly.audit, model, data)
    refused(message, evenly.hessian_spectrum, model, "cross-entropy", data)
    refused(message, evenly.importance_weights, model, data, rho=0.1)
    refused(message, evenly.train, data, model=model, epochs=1, record={"spectrum": 1})
    assert evenly.hessian_spectrum(model, "cross-entropy", data, top=1, parameters="layer").converged.all()
    assert evenly.audit(model, data, rho=0, top=0).overall.n == N


@pytest.mark.parametrize("values", [None, "a", ["a"], [[1], [2, 3]]])
def test_what_is_no_array_is_refused_by_name(values: Any, refused: Any) -> None:
    tracker, message = evenly.ForgettingTracker(3), "cannot be read as numbers; give"
    refused(f"images {message}", evenly.grad_cam, network(), values)
    refused(f"features {message}", evenly.embedding, values)
    refused(f"index {message}", tracker.update, values, [True])
    refused(f"right {message}", tracker.update, [0], values)
    refused(f"easy {message}", evenly.importance_map, [1.0], values, [1.0])
    if values is not None:
        refused(f"targets {message}", evenly.grad_cam, network(), X, values)
    if values in (None, ["a"]):
        refused(f"weights {message}", evenly.gini, values)
        refused(f"weights {message}", evenly.lorenz, values)


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    found = evenly.hessian_spectrum(network(), "cross-entropy", (X, Y), np.int64(2), seed=torch.tensor(3))
    same = evenly.hessian_spectrum(network(), "cross-entropy", (X, Y), 2, seed=3)
    assert torch.equal(found.eigenvalues, same.eigenvalues)
    assert len(evenly.ForgettingTracker(np.int32(4)).last) == 4


def test_every_result_is_saved_as_json(tmp_path: Any) -> None:
    model, tracker = network(), evenly.ForgettingTracker((X, Y))
    tracker(model, 5)
    results = {
        "audit": evenly.audit(model, Data(train=(X, Y)), top=1),
        "spectrum": evenly.hessian_spectrum(model, "cross-entropy", (X, Y), top=1, vectors=True),
        "probe": evenly.probe(model, (X, Y), "label", against=()),
        "card": evenly.stability_card(model, "cross-entropy", (X, Y), lr=0.1, batch_size=4),
        "map": evenly.importance_map([1.0, 2.0], [0.0, 1.0], [0.0, 1.0], bins=2),
        "tracker": tracker,
    }
    for name, result in results.items():
        result.save(tmp_path / name)
        assert json.loads((tmp_path / name).read_text()) == json.loads(json.dumps(result.to_dict())) != {}
    assert results["map"].to_dict()["median"] == [[1.0, None], [None, 2.0]]
    assert tracker.to_dict()["history"][0]["step"] == 5
