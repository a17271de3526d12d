"""Weights from a file: every kind of file, fresh heads, and what is refused."""

import os
import sys
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evenly import EvenlyError
from evenly.models import DenseNet, Loaded, PreActResNet, factory, load_weights

State = dict[str, Tensor]


@pytest.fixture(autouse=True)
def _same_weights_every_time():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


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


# What is taken


@pytest.mark.parametrize("kind", SAVERS)
def test_every_kind_of_file(kind, tmp_path):
    values, model = state(), network()
    SAVERS[kind](values, tmp_path / f"w{kind}")
    held = list(model.parameters())
    loaded = load_weights(model, str(tmp_path / f"w{kind}"))
    assert set(loaded.taken) == set(values)
    assert loaded == Loaded(loaded.taken)
    assert unchanged(model, values)
    assert all(a is b for a, b in zip(held, model.parameters(), strict=True))


@pytest.mark.parametrize("wrapper", ["state_dict", "model_state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "model."])
def test_a_state_dict_inside_a_checkpoint_or_under_a_prefix(wrapper, prefix, tmp_path):
    values, model = state(), network()
    torch.save({wrapper: {f"{prefix}{k}": v for k, v in values.items()}, "epoch": 3}, tmp_path / "w.pt")
    load_weights(model, tmp_path / "w.pt")
    assert unchanged(model, values)


def test_a_prefix_of_the_model_itself_stays(tmp_path):
    model = nn.Sequential(OrderedDict(module=nn.Linear(2, 2)))
    values = {name: torch.rand_like(value) for name, value in model.state_dict().items()}
    torch.save(values, tmp_path / "w.pt")
    load_weights(model, tmp_path / "w.pt")
    assert unchanged(model, values)


def test_counts_of_batches_may_be_missing(tmp_path):
    values, model = state(), network()
    del values["norm.num_batches_tracked"]
    saved_npz(values, tmp_path / "w.npz")
    loaded = load_weights(model, tmp_path / "w.npz")
    assert loaded == Loaded(tuple(values))
    assert int(model.norm.num_batches_tracked) == 0


@pytest.mark.parametrize(("of_file", "of_model"), [("half", "float"), ("double", "float"), ("float", "bfloat16")])
def test_values_are_converted_to_the_models_type(of_file, of_model, tmp_path):
    values, model = state(), getattr(network(), of_model)()
    values = {k: getattr(v, of_file)() if v.is_floating_point() else v for k, v in values.items()}
    torch.save(values, tmp_path / "w.pt")
    load_weights(model, tmp_path / "w.pt")
    for name, value in model.state_dict().items():
        assert value.dtype == (getattr(torch, of_model) if value.is_floating_point() else torch.int64)
        assert torch.equal(value, values[name].to(value.dtype))


def test_names_of_published_densenets(tmp_path):
    small = {"blocks": (2, 1), "growth": 2}
    source, model = DenseNet(1, 3, **small), DenseNet(1, 3, **small)
    old = {
        name.replace(".norm1.", ".norm.1.").replace(".norm2.", ".norm.2.").replace(".conv1.", ".conv.1.")
        .replace(".conv2.", ".conv.2."): value
        for name, value in source.state_dict().items()
    }  # fmt: skip
    assert "features.denseblock1.denselayer2.conv.1.weight" in old
    assert not unchanged(model, source.state_dict())
    torch.save(old, tmp_path / "w.pth")
    load_weights(model, tmp_path / "w.pth")
    assert unchanged(model, source.state_dict())


# Heads


def test_a_head_for_other_classes_stays_fresh_and_is_named(tmp_path):
    values, model = state(classes=10), network(3)
    before = copied(model)
    torch.save(values, tmp_path / "w.pt")
    loaded = load_weights(model, tmp_path / "w.pt")
    assert loaded.fresh == ("fc.weight", "fc.bias")
    assert set(loaded.taken) == set(values) - set(loaded.fresh)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name] if name.startswith("fc") else values[name])


def test_a_head_for_the_same_classes_is_taken(tmp_path):
    values, model = state(), network()
    torch.save(values, tmp_path / "w.pt")
    assert load_weights(model, tmp_path / "w.pt").fresh == ()
    assert torch.equal(model.fc.weight, values["fc.weight"])


def test_only_the_last_layer_is_a_head(tmp_path):
    values, model = state(), network()
    values["hidden.weight"], values["hidden.bias"] = torch.rand(6, 8), torch.rand(6)
    torch.save(values, tmp_path / "w.pt")
    with pytest.raises(EvenlyError, match=r"hidden.weight in .* has shape \(6, 8\), in the model \(5, 8\); choose"):
        load_weights(model, tmp_path / "w.pt")


def test_a_head_of_another_width_is_refused(tmp_path):
    values = state() | {"fc.weight": torch.rand(10, 6), "fc.bias": torch.rand(10)}
    torch.save(values, tmp_path / "w.pt")
    refused(network(), tmp_path / "w.pt", r"fc.weight in .* has shape \(10, 6\), in the model \(3, 5\)")


def test_a_linear_model_is_its_own_head(tmp_path):
    torch.save(nn.Linear(4, 9).state_dict(), tmp_path / "w.pt")
    assert load_weights(nn.Linear(4, 2), tmp_path / "w.pt") == Loaded((), ("weight", "bias"))


# What is refused, and leaves the model as it was


def refused(model, path, message, **settings):
    before = copied(model)
    with pytest.raises(EvenlyError, match=message) as said:
        load_weights(model, path, **settings)
    assert "\n" not in str(said.value)
    assert unchanged(model, before)


def changed(**changes):
    values = state() | {name.replace("_", ".", 1): value for name, value in changes.items()}
    return {name: value for name, value in values.items() if value is not None}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            changed(hidden_weight=None),
            r"w.pt lacks hidden.weight; choose the model it was saved from \(in Python strict=False takes what fits\)",
        ),
        (changed(extra_weight=torch.zeros(1)), "w.pt has, and the model lacks, extra.weight; choose the model"),
        (
            changed(conv_weight=torch.zeros(2, 1, 5, 5)),
            r"conv.weight in .* has shape \(2, 1, 5, 5\), in the model \(2, 1",
        ),
        (changed(conv_weight=torch.zeros(7, 1, 3, 3)), r"conv.weight in .* has shape \(7, 1, 3, 3\)"),
        (changed(fc_weight=torch.zeros(3, 6)), r"fc.weight in .* has shape \(3, 6\), in the model \(3, 5\)"),
        (changed(fc_weight=torch.zeros(3)), r"fc.weight in .* has shape \(3,\)"),
        (changed(fc_bias=torch.tensor([0, 1, 2])), "fc.bias in .* is of type torch.int64, in the model torch.float32"),
        (changed(fc_bias=torch.zeros(3, dtype=torch.complex64)), "is of type torch.complex64"),
        (
            changed(fc_bias=torch.tensor([0, 1, torch.nan])),
            "fc.bias in .* holds NaN or infinity; its training diverged",
        ),
        ({"a": torch.zeros(1), "b": torch.zeros(1)}, "holds no weight of this Sequential, but a, b; give another file"),
        ({f"x{i}": torch.zeros(1) for i in range(5)}, "but x0, x1, x2 and 2 more; give another file"),
    ],
)
def test_refused_values(values, message, tmp_path):
    torch.save(values, tmp_path / "w.pt")
    refused(network(), tmp_path / "w.pt", message)


def test_another_head_is_refused_where_asked(tmp_path):
    torch.save(state(10), tmp_path / "w.pt")
    refused(network(3), tmp_path / "w.pt", r"fc.weight in .* has shape \(10, 5\)", replace_head=False)


def test_not_strict_takes_what_fits_and_says_what_does_not(tmp_path):
    values, model = changed(hidden_weight=None, extra_weight=torch.zeros(1)), network()
    torch.save(values, tmp_path / "w.pt")
    loaded = load_weights(model, tmp_path / "w.pt", strict=False)
    assert (loaded.missing, loaded.unexpected, loaded.fresh) == (("hidden.weight",), ("extra.weight",), ())
    assert set(loaded.taken) == set(values) - {"extra.weight"}
    assert torch.equal(model.hidden.bias, values["hidden.bias"])
    torch.save({"a": torch.zeros(1)}, tmp_path / "w.pt")
    refused(model, tmp_path / "w.pt", "holds no weight of this Sequential", strict=False)
    torch.save(changed(conv_weight=torch.zeros(7, 1, 3, 3)), tmp_path / "w.pt")
    refused(model, tmp_path / "w.pt", "has shape", strict=False)


class Marks:
    """Leaves a mark where a file that holds it is opened without care."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_file_is_executed(tmp_path):
    torch.save(state() | {"extra": Marks(tmp_path / "mark")}, tmp_path / "w.pt")
    refused(network(), tmp_path / "w.pt", "w.pt holds more than a state dict; opening it could run code")
    np.savez(tmp_path / "w.npz", extra=np.array(Marks(tmp_path / "mark")))
    refused(network(), tmp_path / "w.npz", "w.npz cannot be read as weights .*allow_pickle")
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("kind", SAVERS)
@pytest.mark.parametrize("content", [b"", b"no weights at all", b"PK\x03\x04 damaged"])
def test_files_that_are_no_weights(kind, content, tmp_path):
    path = tmp_path / f"w{kind}"
    path.write_bytes(content)
    refused(network(), path, f"w{kind} (cannot be read as weights|holds more than a state dict)")


@pytest.mark.parametrize("kind", SAVERS)
def test_a_file_cut_short(kind, tmp_path):
    path = tmp_path / f"w{kind}"
    SAVERS[kind](state(), path)
    path.write_bytes(path.read_bytes()[:-200])
    refused(network(), path, f"w{kind} (cannot be read as weights|holds more than a state dict)")


@pytest.mark.parametrize("content", [{}, [torch.zeros(1)], torch.zeros(2), {"epoch": 3}, {3: torch.zeros(1)}])
def test_files_without_tensors_by_name(content, tmp_path):
    torch.save(content, tmp_path / "w.pt")
    refused(network(), tmp_path / "w.pt", "w.pt holds no tensors by name; save model.state_dict")


def test_other_paths(tmp_path):
    refused(network(), tmp_path / "w.pt", "there is no file .*w.pt'; give a file of weights on this machine")
    refused(network(), tmp_path / "w.h5", r"weights must be a file .safetensors, .npz, .pt, .pth, .bin, got .*w.h5")
    (tmp_path / "folder.pt").mkdir()
    refused(network(), tmp_path / "folder.pt", "there is no file")


def test_without_safetensors(tmp_path, monkeypatch):
    (tmp_path / "w.safetensors").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    refused(network(), tmp_path / "w.safetensors", "needs the library safetensors, .*; pip install safetensors")


# By a model's name


def test_a_named_model_starts_from_a_file(tmp_path):
    source = PreActResNet(3, 10, width=4)
    torch.save(source.state_dict(), tmp_path / "w.pt")

    def start(seed, classes):
        fresh = factory("preact_resnet18", (3, 8, 8), classes, seed, width=4, weights=str(tmp_path / "w.pt"))[0]
        return fresh().state_dict()

    assert all(torch.equal(value, source.state_dict()[name]) for name, value in start(0, 10).items())
    first, again, other = start(0, 2), start(0, 2), start(1, 2)
    for name, value in first.items():
        assert torch.equal(value, again[name])
        if name == "fc.weight":
            assert not torch.equal(value, other[name])
        elif name != "fc.bias":
            assert torch.equal(value, source.state_dict()[name])


def test_weights_are_for_a_model_by_name():
    with pytest.raises(EvenlyError, match="model option 'weights' is for a model by name"):
        factory(nn.Linear(2, 2), (2,), 2, 0, weights="w.pt")
    with pytest.raises(EvenlyError, match=r"there is no file 'nowhere\.pt'"):
        factory("mlp", (2,), 2, 0, weights="nowhere.pt")[0]()
