"""What diagnoses are asked with: networks of odd types, loaders that shuffle, sets that are one and the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

import evenly
from evenly.data import Data
from evenly.diagnose.samples import split_of
from evenly.errors import EvenlyError

N = 60
Y = torch.arange(N) % 2
X = torch.randn(N, 5, generator=torch.Generator().manual_seed(0)) + Y[:, None]


def refused(match, call):
    with pytest.raises(EvenlyError, match=match) as error:
        call()
    assert "\n" not in str(error.value)


def shuffling(**options):
    return DataLoader(TensorDataset(X, Y), batch_size=16, **options)


@pytest.mark.parametrize(
    "loader",
    [
        shuffling(shuffle=True),
        shuffling(sampler=SubsetRandomSampler(range(30))),
        DataLoader(TensorDataset(X, Y), batch_sampler=[[2, 1], [0]]),
    ],
)
def test_what_is_told_by_example_refuses_an_order_that_is_drawn(loader):
    model = nn.Linear(5, 2)
    said = r"draws its order \(.*; give its .dataset, or a loader with shuffle=False"
    refused(said, lambda: evenly.ForgettingTracker(N).look(model, loader))
    refused(said, lambda: evenly.importance_weights(model, loader))
    refused(said, lambda: evenly.representations(model, loader))
    refused(said, lambda: evenly.Recorder(loader, forgetting=True))
    refused(said, lambda: evenly.hessian_spectrum(model, "cross-entropy", loader, top=1, by=Y))


def test_a_network_that_stands_still_forgets_nothing_by_any_loader_that_is_taken():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(X, Y, strict=True))

    for data in (shuffling(), shuffling(shuffle=True).dataset, DataLoader(Stream(), batch_size=7)):
        model, tracker = nn.Linear(5, 2), evenly.ForgettingTracker(N)
        for _ in range(4):
            torch.rand(7)
            tracker.look(model, data)
        assert int(tracker.forgotten.sum()) == 0
        right = model(X).argmax(1) == Y
        assert torch.equal(tracker.last, right)
    assert torch.equal(split_of(shuffling()).inputs, X)


class Mixed(nn.Module):
    """A linear network with one more parameter before it."""

    def __init__(self, first):
        super().__init__()
        self.first, self.layer = first, nn.Linear(5, 2)

    def forward(self, x):
        return self.layer(x) * self.first.abs().float()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.complex64])
def test_inputs_are_given_in_the_type_of_the_first_real_parameter(dtype):
    model = Mixed(nn.Parameter(torch.ones(1, dtype=dtype), requires_grad=False))
    model.layer.double()
    inputs = []
    model.layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    plain = nn.Linear(5, 2).double()
    plain.load_state_dict(model.layer.state_dict())
    found = evenly.importance_weights(model, (X, Y), rho=0.05)
    assert torch.allclose(found, evenly.importance_weights(plain, (X, Y), rho=0.05), atol=1e-12)
    mine, its = (evenly.hessian_spectrum(each, "cross-entropy", (X, Y), top=2) for each in (model, plain))
    assert torch.allclose(mine.eigenvalues, its.eigenvalues)
    assert evenly.audit(model, Data(train=(X, Y)), top=0).overall.right == int((plain(X.double()).argmax(1) == Y).sum())
    assert {each.dtype for each in inputs} == {torch.float64}


def test_complex_parameters_are_refused_where_real_ones_are_meant():
    model = Mixed(nn.Parameter(torch.ones(1, dtype=torch.complex64)))
    data = Data(train=(X, Y))
    said = "parameter first of Mixed is complex, .*; keep its real and imaginary part as two parameters"
    refused(said, lambda: evenly.audit(model, data))
    refused(said, lambda: evenly.hessian_spectrum(model, "cross-entropy", data))
    refused(said, lambda: evenly.importance_weights(model, data, rho=0.1))
    refused(said, lambda: evenly.train(data, model=model, epochs=1, record={"spectrum": 1}))
    assert evenly.hessian_spectrum(model, "cross-entropy", data, top=1, parameters="layer").converged.all()
    assert evenly.audit(model, data, rho=0, top=0).overall.n == N


def test_networks_without_weights_and_what_is_no_network_are_refused():
    with torch.device("meta"):
        empty = nn.Linear(5, 2)
        maps = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(18, 2))
    for model, said in ((empty, "on the meta device, .*; build it on the cpu"), (None, "model is a NoneType; give")):
        refused(said, lambda model=model: evenly.audit(model, Data(train=(X, Y))))
        refused(said, lambda model=model: evenly.hessian_spectrum(model, "cross-entropy", (X, Y)))
        refused(said, lambda model=model: evenly.probe(model, (X, Y), "label", against=()))
        refused(said, lambda model=model: evenly.importance_weights(model, (X, Y)))
        refused(said, lambda model=model: evenly.ForgettingTracker(N).look(model, (X, Y)))
        refused(said, lambda model=model: evenly.representations(model, (X, Y)))
    refused("LazyLinear has lazy parameters", lambda: evenly.audit(nn.LazyLinear(2), Data(train=(X, Y))))
    refused("on the meta device", lambda: evenly.grad_cam(maps, torch.rand(2, 1, 3, 3)))
    refused("model is a int", lambda: evenly.grad_cam(3, torch.rand(2, 1, 3, 3)))


def test_a_probe_is_not_measured_on_what_it_was_fitted_on():
    model = nn.Linear(5, 2)
    refused("are the same set", lambda: evenly.probes(model, (X, Y), ["label"], held_out=(X, Y), against=()))
    found = evenly.probes(model, (X, Y), ["label"], held_out=(X.clone(), Y), against=())["label"]
    assert found.n == N
    few = (X[:8], Y[:8])
    refused("8 in all; add examples$|add examples$", lambda: evenly.probe(model, few, "label", against=()))


def test_an_example_that_cannot_be_read_is_named():
    class Broken(Dataset):
        def __len__(self):
            return N

        def __getitem__(self, i):
            if i == 50:
                raise OSError("disk\ngone")
            return X[i], int(Y[i])

    model, said = nn.Linear(5, 2), r"example 50 of the data cannot be read \(OSError: disk\); mend it, or leave it out"
    refused(said, lambda: evenly.hessian_spectrum(model, "cross-entropy", Broken(), top=1))
    refused(said, lambda: evenly.ForgettingTracker(N).look(model, Broken()))


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_losses_and_options_of_a_spectrum_that_cannot_be_used_are_said_in_a_line():
    model = nn.Linear(5, 2)

    def ask(loss="cross-entropy", **options):
        return lambda: evenly.hessian_spectrum(model, loss, (X, Y), top=1, **options)

    for loss, called in ((None, "None"), (3, "3"), (nn.NLLLoss, "NLLLoss")):
        refused(f"loss {called} is no function; give 'cross-entropy'", ask(loss))
    refused(r"the loss L1Loss cannot take outputs \(60, 2\) and targets \(60,\) .*; give a loss", ask(nn.L1Loss()))
    refused("by is .*give an integer for each", ask(by=["a"] * N))
    refused("by is .*give an integer for each", ask(by={}))
    refused("parameters is a int; give names", ask(parameters=3))
    refused("batch_size 0 is no number of samples", ask(batch_size=0))
    refused("memory -1 is no number of bytes; give 0", ask(memory=-1))


CONVOLUTION = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(18, 2))
ASKED = {
    "spectrum": (lambda **options: evenly.hessian_spectrum(nn.Linear(5, 2), "cross-entropy", (X, Y), **options),
                 {"top": "a", "tolerance": "a", "runs": 1.5, "least_steps": None, "most_steps": "2", "pilot": 1,
                  "vectors": "yes", "batch_size": 2.5, "memory": "1 GB", "seed": "a", "which": "top", "mode": 3}),
    "coherence": (lambda **options: evenly.coherence(nn.Linear(5, 2), "cross-entropy", (X, Y), **options),
                  {"ascent": "a", "hessian": 1, "sketch": 2.5, "chunk": "a", "memory": "1 GB", "seed": None}),
    "coherence tracker": (lambda **options: evenly.CoherenceTracker("cross-entropy", (X, Y), **options),
                          {"every": "a", "ascent": None}),
    "importance": (lambda **options: evenly.importance_weights(nn.Linear(5, 2), (X, Y), **options),
                   {"rho": "a", "kind": None, "batch_size": 2.5, "seed": 0.5}),
    "probe": (lambda **options: evenly.probe(nn.Linear(5, 2), (X, Y), "label", **options),
              {"against": 3, "balance": "no", "layer": 7, "seed": "a"}),
    "probes": (lambda **options: evenly.probes(nn.Linear(5, 2), (X, Y), ["label"], **options),
               {"against": [3], "balance": None, "layer": 7, "seed": [0]}),
    "heat maps": (lambda **options: evenly.grad_cam(CONVOLUTION, torch.rand(2, 1, 3, 3), **options), {"layer": 7}),
    "tracker": (evenly.ForgettingTracker, {"total": "a"}),
    "features": (lambda **options: evenly.representations(nn.Linear(5, 2), (X, Y), **options), {"layer": 7}),
    "map": (lambda **options: evenly.embedding(X, **options), {"perplexity": "a", "seed": 1.5}),
    "card": (lambda **options: evenly.stability_card(
                 nn.Linear(5, 2), "cross-entropy", (X, Y), **{"lr": 0.1, "batch_size": 8, **options}),
             {"lr": "a", "batch_size": 2.5, "rho": "a", "samples": 1.5, "seed": "a", "chunk": "a", "memory": None}),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "option"), [(asked, option) for asked in ASKED for option in ASKED[asked][1]])
def test_options_of_another_kind_are_said_in_a_line(asked, option):
    ask, wrong = ASKED[asked]
    refused(f"^{option} must be .*, got ", lambda: ask(**{option: wrong[option]}))


def test_numbers_of_numpy_and_torch_are_numbers():
    model = nn.Linear(5, 2)
    found = evenly.hessian_spectrum(model, "cross-entropy", (X, Y), np.int64(2), seed=torch.tensor(3))
    assert torch.equal(
        found.eigenvalues, evenly.hessian_spectrum(model, "cross-entropy", (X, Y), 2, seed=3).eigenvalues
    )
    assert len(evenly.ForgettingTracker(np.int32(4)).last) == 4


@pytest.mark.parametrize("values", [None, "a", ["a"], [[1], [2, 3]]])
def test_what_is_no_array_is_said_in_a_line(values):
    said = "cannot be read as numbers; give"
    refused(f"images {said}", lambda: evenly.grad_cam(CONVOLUTION, values))
    refused(f"features {said}", lambda: evenly.embedding(values))
    refused(f"index {said}", lambda: evenly.ForgettingTracker(3)(values, [True]))
    refused(f"right {said}", lambda: evenly.ForgettingTracker(3)([0], values))
    refused(f"easy {said}", lambda: evenly.importance_map([1.0], values, [1.0]))
    if values is not None:
        refused(f"targets {said}", lambda: evenly.grad_cam(CONVOLUTION, torch.rand(2, 1, 3, 3), values))


@pytest.mark.parametrize("weights", [None, ["a"]])
def test_weights_that_are_no_numbers_are_said_in_a_line(weights):
    refused("weights cannot be read as numbers", lambda: evenly.gini(weights))
    refused("weights cannot be read as numbers", lambda: evenly.lorenz(weights))
