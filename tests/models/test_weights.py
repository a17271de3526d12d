"""Weights from a file: every kind of file, fresh heads, and what is refused."""

import os
import re
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evenly.models import DenseNet, Loaded, PreActResNet, load_weights

State = dict[str, Tensor]


def network(classes=3):
    """Convolution, BatchNorm, a hidden and a last linear layer."""
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(1, 2, 3), norm=nn.BatchNorm2d(2), flat=nn.Flatten(), hidden=nn.Linear(8, 5),
            fc=nn.Linear(5, classes),
        )
    )  # fmt: skip


def state(classes=3):
    """A state that no fresh network has, the statistics of BatchNorm included."""
    return {
        name: torch.rand_like(value) if value.is_floating_point() else torch.full_like(value, 7)
        for name, value in network(classes).state_dict().items()
    }


def saved_npz(values, path):
    np.savez(path, **{name: value.numpy() for name, value in values.items()})


def saved_safetensors(values, path):
    pytest.importorskip("safetensors.torch").save_file(values, path)


SAVERS = {
    ".npz": saved_npz,
    ".safetensors": saved_safetensors,
    ".pt": torch.save,
    ".pth": lambda values, path: torch.save(values, path, _use_new_zipfile_serialization=False),
    ".bin": torch.save,
}


def unchanged(model, before):
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def copied(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.fixture
def load(tmp_path):
    """Save values and load them into a model."""

    def into(model, values, kind=".pt", **settings):
        SAVERS[kind](values, tmp_path / f"w{kind}")
        return load_weights(model, str(tmp_path / f"w{kind}"), **settings)

    return into


# What is taken


@pytest.mark.parametrize("kind", SAVERS)
def test_every_kind_of_file(kind, load):
    values, model = state(), network()
    held = list(model.parameters())
    loaded = load(model, values, kind)
    assert set(loaded.taken) == set(values)
    assert loaded == Loaded(loaded.taken)
    assert unchanged(model, values)
    assert all(a is b for a, b in zip(held, model.parameters(), strict=True))


@pytest.mark.parametrize("wrapper", ["state_dict", "model_state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "model."])
def test_a_state_dict_inside_a_checkpoint_or_under_a_prefix(wrapper, prefix, load):
    values, model = state(), network()
    load(model, {wrapper: {f"{prefix}{k}": v for k, v in values.items()}, "epoch": 3})
    assert unchanged(model, values)


def test_a_prefix_of_the_model_itself_stays(load):
    model = nn.Sequential(OrderedDict(module=nn.Linear(2, 2)))
    values = {name: torch.rand_like(value) for name, value in model.state_dict().items()}
    load(model, values)
    assert unchanged(model, values)


def test_counts_of_batches_may_be_missing(load):
    values, model = state(), network()
    del values["norm.num_batches_tracked"]
    assert load(model, values, ".npz") == Loaded(tuple(values))
    assert int(model.norm.num_batches_tracked) == 0


@pytest.mark.parametrize(("of_file", "of_model"), [("half", "float"), ("double", "float"), ("float", "bfloat16")])
def test_values_are_converted_to_the_models_type(of_file, of_model, load):
    model = getattr(network(), of_model)()
    values = {k: getattr(v, of_file)() if v.is_floating_point() else v for k, v in state().items()}
    load(model, values)
    for name, value in model.state_dict().items():
        assert value.dtype == (getattr(torch, of_model) if value.is_floating_point() else torch.int64)
        assert torch.equal(value, values[name].to(value.dtype))


def test_names_of_published_densenets(load):
    source, model = (DenseNet(1, 3, blocks=(2, 1), growth=2) for _ in range(2))
    old = {re.sub(r"\.(norm|conv)([12])\.", r".\1.\2.", name): value for name, value in source.state_dict().items()}
    assert "features.denseblock1.denselayer2.conv.1.weight" in old
    assert not unchanged(model, source.state_dict())
    load(model, old, ".pth")
    assert unchanged(model, source.state_dict())


def test_a_head_for_other_classes_stays_fresh_and_is_named(load):
    values, model = state(classes=10), network(3)
    before = copied(model)
    loaded = load(model, values)
    assert loaded.fresh == ("fc.weight", "fc.bias")
    assert set(loaded.taken) == set(values) - set(loaded.fresh)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name] if name.startswith("fc") else values[name])
    assert load(nn.Linear(4, 2), nn.Linear(4, 9).state_dict()) == Loaded((), ("weight", "bias"))


def test_not_strict_takes_what_fits_and_says_what_does_not(load):
    values, model = changed(hidden_weight=None, extra_weight=torch.zeros(1)), network()
    loaded = load(model, values, strict=False)
    assert (loaded.missing, loaded.unexpected, loaded.fresh) == (("hidden.weight",), ("extra.weight",), ())
    assert set(loaded.taken) == set(values) - {"extra.weight"}
    assert torch.equal(model.hidden.bias, values["hidden.bias"])


# What is refused, and leaves the model as it was


def changed(**changes):
    values = state() | {name.replace("_", ".", 1): value for name, value in changes.items()}
    return {name: value for name, value in values.items() if value is not None}


ONE = torch.zeros(1)
WIDER = {"fc_weight": torch.rand(10, 6), "fc_bias": torch.rand(10)}
REFUSED = [
    (
        changed(hidden_weight=None),
        r"w.pt lacks hidden.weight; choose the model .* \(in Python strict=False takes what",
    ),
    (changed(extra_weight=ONE), "w.pt has, and the model lacks, extra.weight; choose the model"),
    (changed(conv_weight=torch.zeros(2, 1, 5, 5)), r"conv.weight .* has shape \(2, 1, 5, 5\), in the model \(2, 1"),
    (changed(conv_weight=torch.zeros(7, 1, 3, 3)), r"conv.weight in .* has shape \(7, 1, 3, 3\)"),
    (
        changed(hidden_weight=torch.rand(6, 8), hidden_bias=torch.rand(6)),
        r"shape \(6, 8\), in the model \(5, 8\)",
    ),
    (changed(fc_weight=torch.zeros(3, 6)), r"fc.weight in .* has shape \(3, 6\), in the model \(3, 5\)"),
    (changed(**WIDER), r"fc.weight in .* has shape \(10, 6\), in the model \(3, 5\)"),
    (changed(fc_weight=torch.zeros(3)), r"fc.weight in .* has shape \(3,\)"),
    (changed(fc_bias=torch.tensor([0, 1, 2])), "fc.bias in .* is of type torch.int64, in the model torch.float32"),
    (changed(fc_bias=torch.zeros(3, dtype=torch.complex64)), "is of type torch.complex64"),
    (changed(fc_bias=torch.tensor([0, 1, torch.nan])), "fc.bias in .* holds NaN or infinity; its training diverged"),
    ({"a": ONE, "b": ONE}, "holds no weight of this Sequential, but a, b; give another file"),
    ({f"x{i}": ONE for i in range(5)}, "but x0, x1, x2 and 2 more; give another file"),
    *((content, "w.pt holds no tensors by name") for content in ({}, [ONE], torch.zeros(2), {"epoch": 3}, {3: ONE})),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_refused_values(values, message, load, refused):
    model = network()
    before = copied(model)
    refused(message, load, model, values)
    assert unchanged(model, before)


def test_refused_values_by_settings(load, refused):
    refused(r"fc.weight in .* has shape \(10, 5\)", load, network(3), state(10), replace_head=False)
    refused("holds no weight of this Sequential", load, network(), {"a": ONE}, strict=False)
    refused("has shape", load, network(), changed(conv_weight=torch.zeros(7, 1, 3, 3)), strict=False)


class Marks:
    """Leaves a mark where a file that holds it is opened without care."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_file_is_executed(tmp_path, load, refused):
    marked = state() | {"extra": Marks(tmp_path / "mark")}
    refused("w.pt holds more than a state dict; opening it could run code", load, network(), marked)
    np.savez(tmp_path / "w.npz", extra=np.array(Marks(tmp_path / "mark")))
    refused("w.npz cannot be read as weights .*allow_pickle", load_weights, network(), tmp_path / "w.npz")
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("kind", SAVERS)
def test_files_that_are_no_weights_or_cut_short(kind, tmp_path, refused):
    path = tmp_path / f"w{kind}"
    SAVERS[kind](state(), path)
    for content in (b"", b"no weights at all", b"PK\x03\x04 damaged", path.read_bytes()[:-200]):
        path.write_bytes(content)
        refused(f"w{kind} (cannot be read as weights|holds more than a state dict)", load_weights, network(), path)


def test_other_paths(tmp_path, refused):
    message = "there is no file .*w.pt'; give a file of weights on this machine"
    refused(message, load_weights, network(), tmp_path / "w.pt")
    message = r"weights must be a file .safetensors, .npz, .pt, .pth, .bin, got .*w.h5"
    refused(message, load_weights, network(), tmp_path / "w.h5")
    refused("path must be a path, got None", load_weights, network(), None)
    (tmp_path / "folder.pt").mkdir()
    refused("there is no file", load_weights, network(), tmp_path / "folder.pt")


# By a model's name


def test_a_named_model_starts_from_a_file(tmp_path, built, refused):
    source = PreActResNet(3, 10, width=4)
    torch.save(source.state_dict(), tmp_path / "w.pt")

    def start(seed, classes):
        options = {"width": 4, "weights": str(tmp_path / "w.pt")}
        return built("preact_resnet18", (3, 8, 8), classes, seed, **options).state_dict()

    assert all(torch.equal(value, source.state_dict()[name]) for name, value in start(0, 10).items())
    first, again, other = start(0, 2), start(0, 2), start(1, 2)
    for name, value in first.items():
        assert torch.equal(value, again[name])
        if name == "fc.weight":
            assert not torch.equal(value, other[name])
        elif name != "fc.bias":
            assert torch.equal(value, source.state_dict()[name])
    refused("model option 'weights' is for a model by name", built, nn.Linear(2, 2), (2,), 2, 0, weights="w.pt")
    refused(r"there is no file 'nowhere\.pt'", built, "mlp", (2,), 2, 0, weights="nowhere.pt")


@pytest.mark.parametrize("kind", ["sparse_coo", "float8_e4m3fn"])
def test_weights_that_torch_cannot_train_are_refused(tmp_path, refused, kind):
    state = nn.Linear(3, 2).state_dict()
    weight = state["weight"].to_sparse() if kind == "sparse_coo" else state["weight"].to(torch.float8_e4m3fn)
    torch.save(state | {"weight": weight}, tmp_path / "w.pt")
    message = f"values of weight in .*w.pt are .*{kind}; give a dense tensor"
    refused(message, load_weights, nn.Linear(3, 2), tmp_path / "w.pt")
