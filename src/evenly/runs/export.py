"""A trained network for elsewhere: weights as safetensors, or the whole network as ONNX.

Both files carry in their metadata what the input is: `preprocessing` (as JSON), `class_names` (a JSON list), and in
words `input` and `output`.
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from evenly.data.preprocessing import ArrayPreprocessing, Preprocessing, TextPreprocessing
from evenly.errors import EvenlyError, first_line
from evenly.files import atomic, make_folder
from evenly.runs.network import write_weights
from evenly.runs.run import Run

OPSET = 18
TOLERANCE = 1e-5
EXAMPLES = (2, 5)
"""Sizes of the batches that an ONNX file is made from and checked on."""


def export_safetensors(
    network: nn.Module, preprocessing: Preprocessing, path: str | Path, class_names: Sequence[str] = ()
) -> Path:
    """Write a network's state dict as one safetensors file."""
    make_folder(Path(path).parent)
    write_weights(network, Path(path), _metadata(preprocessing, class_names))
    return Path(path)


def export_onnx(
    network: nn.Module, preprocessing: Preprocessing, path: str | Path, class_names: Sequence[str] = ()
) -> Path:
    """Write a network, with the scaling of its inputs, as one ONNX file; onnxruntime has to give the same outputs.

    The input is what the network takes after preprocessing: images are pixels in [0, 1], texts are token ids. It may
    have any number of rows, and token ids any length.
    """
    runtime = _runtime()
    name = type(network).__name__
    network = copy.deepcopy(network).cpu().eval()
    try:
        first, second = (_inputs(network, preprocessing, count) for count in EXAMPLES)
        model = _exported(network, preprocessing, first)
        for key, text in _metadata(preprocessing, class_names).items():
            entry = model.metadata_props.add()
            entry.key, entry.value = key, text
        content: bytes = model.SerializeToString()
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
        error = max(_difference(network, session, inputs) for inputs in (first, second))
    except Exception as problem:  # the exporter can raise anything
        raise EvenlyError(
            f"{name} cannot be written as ONNX ({first_line(problem)}); export it as safetensors"
        ) from None
    if not error <= TOLERANCE:
        raise EvenlyError(
            f"{name} is not the same as ONNX (outputs differ by {error:.1e}, more than {TOLERANCE:.0e}); "
            "export it as safetensors"
        )
    make_folder(Path(path).parent)
    with atomic(Path(path)) as file:
        file.write(content)
    return Path(path)


def _runtime() -> Any:
    try:
        return [import_module(library) for library in ("onnx", "onnxscript", "onnxruntime")][-1]
    except ImportError as error:
        raise EvenlyError(f"ONNX needs {error.name}, which is missing; run: pip install 'evenly[onnx]'") from None


def _exported(network: nn.Module, preprocessing: Preprocessing, inputs: Tensor) -> Any:
    sizes = {0: "batch", 1: "length"} if isinstance(preprocessing, TextPreprocessing) else {0: "batch"}
    with _quiet(), torch.no_grad():
        program: Any = torch.onnx.export(
            network,
            (inputs,),
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=(sizes,),
            input_names=["input"],
            output_names=["output"],
            verbose=False,
        )
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes on libraries that are not installed and on its own future."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)


def _inputs(network: nn.Module, preprocessing: Preprocessing, count: int) -> Tensor:
    """Random inputs such as the network takes, the same at every call."""
    random = torch.Generator().manual_seed(count)
    if isinstance(preprocessing, TextPreprocessing):
        tables = [layer for layer in network.modules() if isinstance(layer, nn.Embedding)]
        words = tables[0].num_embeddings if tables else 2
        return torch.randint(0, words, (count, min(preprocessing.length or 8, 4 + count)), generator=random)
    dtype = torch.float32
    if isinstance(preprocessing, ArrayPreprocessing) and preprocessing.dtype != "uint8":  # bytes are given as floats
        dtype = getattr(torch, preprocessing.dtype)
    x = torch.rand(count, *preprocessing.shape, generator=random)
    return x.to(dtype) if dtype.is_floating_point else (2 * x).to(dtype)


def _difference(network: nn.Module, session: Any, inputs: Tensor) -> float:
    """The largest difference between the network's outputs and onnxruntime's, relative where outputs are beyond 1."""
    with torch.no_grad():
        expected = network(inputs).numpy()
    outputs = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})[0]
    return float((np.abs(outputs - expected) / np.maximum(1, np.abs(expected))).max())


def _metadata(preprocessing: Preprocessing, class_names: Sequence[str]) -> dict[str, str]:
    return {
        "input": preprocessing.inputs,
        "output": "logits (N, K); a softmax gives probabilities; of a single one, the logit of the second class",
        "preprocessing": json.dumps(preprocessing.to_dict()),
        "class_names": json.dumps([str(name) for name in class_names]),
    }


def export_run(run: Run, path: str | Path, to: Literal["safetensors", "onnx"]) -> Path:
    """Write the network of a run to a file."""
    export = export_onnx if to == "onnx" else export_safetensors
    return export(run.model, run.preprocessing, path, run.config.class_names)
