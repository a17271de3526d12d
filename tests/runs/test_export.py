"""Networks for elsewhere: the files are read by other libraries, which get the same outputs."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_model
from torch import nn

from evenly.data.preprocessing import ArrayPreprocessing, ImagePreprocessing, TablePreprocessing, TextPreprocessing
from evenly.errors import EvenlyError
from evenly.models import factory
from evenly.models.standardised import Standardised
from evenly.runs.export import export_onnx, export_safetensors

TEXTS = ["a good film", "a bad film", "good book", "bad book"]
CLASSES = ("no", "yes")


def mlp():
    return (
        factory("mlp", (3,), 2, 0)[0](),
        TablePreprocessing(("a", "b", "c"), (0.0,) * 3, (1.0,) * 3),
        torch.randn(4, 3),
    )


def resnet18():
    network = Standardised(factory("resnet18", (3, 32, 32), 2, 0)[0](), [0.4, 0.5, 0.6], [0.2, 0.3, 0.1])
    for _ in range(3):
        network(torch.rand(8, 3, 32, 32))  # running statistics of their own
    return network, ImagePreprocessing((3, 32, 32)), torch.rand(3, 3, 32, 32)


def bag_of_words():
    network = factory("bag_of_words", (), 2, 0, texts=TEXTS, min_count=1)[0]()
    return network, TextPreprocessing(length=3), network.encode(["good good book", "a very bad film", "nothing"])


def one_output():
    return factory("cubic-cnn", (3, 5), 2, 0)[0](), ArrayPreprocessing((3, 5)), torch.randn(4, 3, 5)


CASES = {"mlp": mlp, "resnet18": resnet18, "bag of words": bag_of_words, "cubic": one_output}


@pytest.mark.parametrize("case", CASES)
def test_onnxruntime_gives_the_networks_outputs(case, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'evenly[onnx]'")
    pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'evenly[onnx]'")
    torch.manual_seed(0)
    network, preprocessing, inputs = CASES[case]()
    path = export_onnx(network, preprocessing, tmp_path / "new" / "model.onnx", CLASSES)
    assert network.training
    assert [file.name for file in path.parent.iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {"input": inputs.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(outputs, network.eval()(inputs).numpy(), rtol=1e-5, atol=1e-5)
    assert session.run(None, {"input": inputs[:1].numpy()})[0].shape[0] == 1
    stored = session.get_modelmeta().custom_metadata_map
    assert json.loads(stored["preprocessing"]) == preprocessing.to_dict()
    assert json.loads(stored["class_names"]) == list(CLASSES)
    if case == "resnet18":
        assert "pixels in [0, 1]" in stored["input"]


class DataDependent(nn.Linear):
    def forward(self, x):
        return super().forward(x) if float(x.sum()) > 0 else -super().forward(x)


class Drawing(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.rand(1)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (DataDependent(3, 2), r"^DataDependent cannot be written as ONNX \(.*\); export it as safetensors$"),
        (Drawing(3, 2), r"^Drawing is not the same as ONNX \(outputs differ by .*\); export it as safetensors$"),
    ],
)
def test_what_cannot_be_exported_is_refused_by_name(network, message, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'evenly[onnx]'")
    pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'evenly[onnx]'")
    with pytest.raises(EvenlyError, match=message) as refusal:
        export_onnx(network, ArrayPreprocessing((3,)), tmp_path / "model.onnx")
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


def test_without_the_libraries_the_way_to_get_them_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(EvenlyError, match=r"ONNX needs onnx\w*, which is missing; run: pip install 'evenly\[onnx\]'"):
        export_onnx(*mlp()[:2], tmp_path / "model.onnx")


def test_safetensors_are_read_by_their_own_library(tmp_path):
    network, preprocessing, inputs = mlp()
    path = export_safetensors(network, preprocessing, tmp_path / "new" / "model.safetensors", CLASSES)
    other = factory("mlp", (3,), 2, 9)[0]()
    load_model(other, path)
    with torch.no_grad():
        assert torch.equal(network(inputs), other(inputs))
    with safe_open(path, "pt") as file:
        stored = file.metadata()
    assert json.loads(stored["preprocessing"]) == preprocessing.to_dict()
    assert json.loads(stored["class_names"]) == list(CLASSES)
