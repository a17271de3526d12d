"""Weights from a local file: `.safetensors`, `.npz`, or a state dict saved by torch; nothing in a file is executed.

    loaded = load_weights(model, "mobilenet_v2-b0353104.npz")
    loaded.fresh        # ("classifier.1.weight", "classifier.1.bias") where the number of classes differs

Names are those of the model's state dict. A model is changed only when the whole file has been checked against it.
"""

from __future__ import annotations

import json
import pickle
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from evenly.data.contract import check_dense
from evenly.errors import EvenlyError, first_line, shortened
from evenly.files import CHECKSUM, as_path
from evenly.settings import checks_options

WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts save the state dict beside other things."""

PREFIXES = ("module.", "_orig_mod.", "model.")
"""What data parallelism, compilation and training frameworks prepend to every name."""

_OLD_DENSE_NAME = re.compile(r"(\.denselayer\d+\.(?:norm|conv))\.([12])\.")
"""torchvision's published DenseNets have norm.1 in place of the network's norm1."""


@dataclass(frozen=True)
class Loaded:
    """The result of loading.

    Args:
        taken: names whose values were read from the file.
        fresh: names of the head, unchanged because the file's head has another number of classes.
        missing: other names that the file lacks, unchanged (only with strict=False).
        unexpected: names in the file that the model lacks (only with strict=False).
    """

    taken: tuple[str, ...]
    fresh: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


@checks_options
def load_weights(model: nn.Module, path: str | Path, *, strict: bool = True, replace_head: bool = True) -> Loaded:
    """Copy the weights in a file into the model, to its own types and devices.

    Args:
        strict: refuse a file that lacks a weight of the model or has one that the model lacks. BatchNorm's counts of
            batches may be missing: old files have none.
        replace_head: if the last linear layers of the model and of the file differ only in the number of classes,
            leave the model's as it is instead of refusing the file.
    """
    path = as_path(path, "path")
    if not isinstance(model, nn.Module):
        raise EvenlyError(f"model must be a module to load weights into, got {shortened(model)}")
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    values = _renamed(read_weights(path), own)
    counts = {name for name in own if name.endswith("num_batches_tracked")}
    missing = [name for name in own if name not in values and name not in counts]
    unexpected = [name for name in values if name not in own]
    if len(unexpected) == len(values):
        raise EvenlyError(
            f"{path} holds no weight of this {type(model).__name__}, but {_some(values)}; give another file"
        )
    for names, what in ((missing, "lacks"), (unexpected, "has, and the model lacks,")):
        if strict and names:
            raise EvenlyError(
                f"{path} {what} {_some(names)}; choose the model it was saved from "
                "(in Python strict=False takes what fits)"
            )
    head = _head(model) if replace_head else ()
    shared = {name: value for name, value in values.items() if name in own}
    fresh = [name for name in head if name in shared and _other_classes(shared[name], own[name])]
    for name, value in shared.items():
        if name not in fresh:
            _check(name, value, own[name], path)
    taken = {name: value for name, value in shared.items() if name not in fresh}
    with torch.no_grad():
        for name, value in taken.items():
            own[name].copy_(value)
    return Loaded(tuple(taken), tuple(fresh), tuple(missing), tuple(unexpected))


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors in a weights file by name, on the CPU."""
    path = as_path(path, "weights")
    if path.suffix not in READERS:
        raise EvenlyError(f"weights must be a file {', '.join(READERS)}, got {str(path)!r}")
    if not path.is_file():
        raise EvenlyError(f"there is no file {str(path)!r}; give a file of weights on this machine")
    try:
        values = READERS[path.suffix](path)
    except EvenlyError:
        raise
    except Exception as error:  # a damaged file can raise anything in the readers
        raise EvenlyError(
            f"{path} cannot be read as weights ({first_line(error)}); save the state dict again"
        ) from None
    if not values or not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in values.items()):
        raise EvenlyError(f"{path} holds no tensors by name; save model.state_dict() or the arrays of it")
    return values


def _read_npz(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        return {
            member.removesuffix(".npy"): torch.from_numpy(
                np.lib.format.read_array(archive.open(member), allow_pickle=False)
            )
            for member in archive.namelist()
        }


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata; where these have a checksum, which evenly's own files do, it is verified."""
    with safe_open(path, "pt") as file:
        values = {name: file.get_tensor(name) for name in list(file.keys())}
        metadata = dict(file.metadata() or {})
    if CHECKSUM in metadata and metadata[CHECKSUM] != checksum(values, metadata):
        raise ValueError("its content does not match its checksum")
    return values, metadata


def checksum(values: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """The CRC of tensors on the CPU with their names, types and shapes, and of the metadata but for the CRC itself."""
    described = [(name, str(value.dtype), list(value.shape)) for name, value in sorted(values.items())]
    others = sorted(item for item in metadata.items() if item[0] != CHECKSUM)
    crc = zlib.crc32(json.dumps([described, others]).encode())
    for name in sorted(values):
        crc = zlib.crc32(values[name].contiguous().reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def _read_torch(path: Path) -> dict[str, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            raise EvenlyError(
                f"{path} holds more than a state dict; opening it could run code: save model.state_dict() alone"
            ) from None
    for wrapper in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
            break
    return dict(content) if isinstance(content, Mapping) else {}


READERS: dict[str, Callable[[Path], dict[str, Tensor]]] = {
    ".safetensors": lambda path: read_safetensors(path)[0],
    ".npz": _read_npz,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".bin": _read_torch,
}


def _renamed(values: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the model's names: without a prefix that all share, old names as new ones."""
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in values) and not any(name.startswith(prefix) for name in own):
            values = {name.removeprefix(prefix): value for name, value in values.items()}
    return {_OLD_DENSE_NAME.sub(r"\1\2.", name): value for name, value in values.items()}


def _head(model: nn.Module) -> tuple[str, ...]:
    """The names of the weight and bias of the last linear layer."""
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return tuple(f"{linear[-1]}.{part}".lstrip(".") for part in ("weight", "bias")) if linear else ()


def _other_classes(value: Tensor, own: Tensor) -> bool:
    return value.ndim == own.ndim and value.shape[1:] == own.shape[1:] and len(value) != len(own)


def _check(name: str, value: Tensor, own: Tensor, path: Path) -> None:
    if value.shape != own.shape:
        raise EvenlyError(
            f"{name} in {path} has shape {tuple(value.shape)}, in the model {tuple(own.shape)}; "
            "choose the model it was saved from"
        )
    if value.is_floating_point() != own.is_floating_point():
        raise EvenlyError(f"{name} in {path} is of type {value.dtype}, in the model {own.dtype}; save it as that type")
    check_dense(value, f"values of {name} in {path}")
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise EvenlyError(f"{name} in {path} holds NaN or infinity; its training diverged, give other weights")


def _some(names: Sequence[str] | Mapping[str, Any]) -> str:
    first = ", ".join(list(names)[:3])
    return f"{first} and {len(names) - 3} more" if len(names) > 3 else first
