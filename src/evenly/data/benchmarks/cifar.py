"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 training and 10,000 test images of 32 x 32 in their official order.

Read from the python version's pickles, the binary version's records or, for CIFAR-10, atlases of tiles. Nothing in a
pickle is executed: it may name five harmless things only, and stand-ins for these store their arguments.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evenly.data.benchmarks.atlases import cifar10_atlases
from evenly.data.benchmarks.places import Folder, find_layout
from evenly.data.images.parts import PHOTOGRAPHS, ImageData, Images, Integers, benchmark
from evenly.errors import EvenlyError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPE = (3, 32, 32)
PIXELS = 3072
_TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
_LAYOUTS_10 = {
    "pickles": ("cifar-10-batches-py", (*_TRAIN, "test_batch")),
    "records": ("cifar-10-batches-bin", (*(f"{name}.bin" for name in _TRAIN), "test_batch.bin")),
    "atlases": ("", (*(f"train_{i}.webp" for i in range(5)), "train_labels.npy", "test.webp", "test_labels.npy")),
}
_LAYOUTS_100 = {
    "pickles": ("cifar-100-python", ("train", "test", "meta")),
    "records": ("cifar-100-binary", ("train.bin", "test.bin", "fine_label_names.txt", "coarse_label_names.txt")),
}


def cifar10(folder: Folder = None, validation: float = 0.0, n: int | None = None, seed: int = 0) -> ImageData:
    """CIFAR-10, uint8 (N, 3, 32, 32), from `folder` or EVENLY_DATA/cifar10.

    Args:
        folder: holds data_batch_1 ... (python version), data_batch_1.bin ... (binary version) or train_0.webp ...
            (atlases), itself or in the archive's own folder.
        validation: the share of the training images held out for validation, stratified, drawn from the seed.
        n: use only that many training and at most that many test images, stratified.
    """
    layout, place = find_layout("cifar10", folder, _LAYOUTS_10)
    if layout == "atlases":
        train, test = cifar10_atlases(place)
    else:
        read = _pickle_batch if layout == "pickles" else _record_batch
        files = _LAYOUTS_10[layout][1]
        parts = [read(place / file, {"labels": 10}) for file in files]
        train, test = _joined(parts[:-1], "labels"), _joined(parts[-1:], "labels")
    about = "CIFAR-10: photographs of 32 x 32 in ten classes of animals and vehicles."
    return benchmark(
        "cifar10", about, train, test, CIFAR10_CLASSES, validation=validation, n=n, seed=seed, recipe=PHOTOGRAPHS
    )


def cifar100(folder: Folder = None, validation: float = 0.0, n: int | None = None, seed: int = 0) -> ImageData:
    """CIFAR-100, uint8 (N, 3, 32, 32), from `folder` or EVENLY_DATA/cifar100; attribute "superclass" (20 values).

    The arguments are those of `cifar10`.
    """
    layout, place = find_layout("cifar100", folder, _LAYOUTS_100)
    if layout == "pickles":
        meta = _unpickled(place / "meta")
        fine, coarse = (
            _names(meta.get(key), place / "meta", key) for key in ("fine_label_names", "coarse_label_names")
        )
        read, files = _pickle_batch, ("train", "test")
    else:
        fine, coarse = (
            (place / f"{key}_label_names.txt").read_text(encoding="utf-8").split() for key in ("fine", "coarse")
        )
        read, files = _record_batch, ("train.bin", "test.bin")
    kinds = {"coarse_labels": len(coarse), "fine_labels": len(fine)}
    train, test = (_joined([read(place / file, kinds)], "fine_labels") for file in files)
    about = "CIFAR-100: photographs of 32 x 32 in a hundred classes, five to each of twenty superclasses."
    recipe = PHOTOGRAPHS | {"model": "preact_resnet34"}
    return benchmark(
        "cifar100", about, train, test, fine, validation=validation, n=n, seed=seed, recipe=recipe,
        attribute_names={"superclass": coarse},
    )  # fmt: skip


def _joined(parts: Sequence[tuple[Bytes, Mapping[str, Integers]]], target: str) -> Images:
    pixels = torch.from_numpy(np.concatenate([pixels for pixels, _ in parts]).reshape(-1, *SHAPE))
    columns = {key: np.concatenate([columns[key] for _, columns in parts]) for key in parts[0][1]}
    coarse = {"superclass": columns["coarse_labels"]} if "coarse_labels" in columns else {}
    return Images(pixels, columns[target], coarse)


def _record_batch(path: Path, kinds: Mapping[str, int]) -> tuple[Bytes, dict[str, Integers]]:
    """Records of the binary version: a byte for each kind of label (coarse before fine), then 3,072 bytes of pixels."""
    length = len(kinds) + PIXELS
    raw = np.fromfile(path, dtype=np.uint8)
    if len(raw) == 0 or len(raw) % length:
        raise EvenlyError(f"{path} has {len(raw)} bytes, not records of {length}; unpack its archive again")
    records = raw.reshape(-1, length)
    columns = {key: _labels(records[:, i].tolist(), count, path, key) for i, (key, count) in enumerate(kinds.items())}
    return records[:, len(kinds) :], columns


def _pickle_batch(path: Path, kinds: Mapping[str, int]) -> tuple[Bytes, dict[str, Integers]]:
    """A batch of the python version: "data" (N, 3072) uint8 and a list of labels of each kind."""
    batch = _unpickled(path)
    pixels = batch["data"].array() if isinstance(batch.get("data"), _Array) else None
    if pixels is None or pixels.ndim != 2 or pixels.shape[1] != PIXELS:
        raise EvenlyError(f"{path} holds no uint8 array (N, {PIXELS}) under 'data'; unpack its archive again")
    columns = {key: _labels(batch.get(key), count, path, key) for key, count in kinds.items()}
    for key, column in columns.items():
        if len(column) != len(pixels):
            raise EvenlyError(f"{path} has {len(column)} {key} for {len(pixels)} images; unpack its archive again")
    return pixels, columns


def _labels(values: Any, count: int, path: Path, key: str) -> Integers:
    good = isinstance(values, list) and all(type(value) is int and 0 <= value < count for value in values)
    if not good:
        raise EvenlyError(f"{key} in {path} are not whole numbers from 0 to {count - 1}; unpack its archive again")
    return np.array(values, dtype=np.int64)


def _names(values: Any, path: Path, key: str) -> list[str]:
    if not isinstance(values, list) or not values or not all(isinstance(value, bytes | str) for value in values):
        raise EvenlyError(f"{path} holds no names under {key!r}; unpack its archive again")
    return [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values]


class _StandIn:
    """Stands in for a thing that a pickle names: it stores its arguments and does nothing else."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Kind(_StandIn):
    """Stands in for numpy.dtype."""


class _Array(_StandIn):
    """Stands in for numpy's array and for the function that makes an empty one, filled in afterwards."""

    def array(self) -> Bytes | None:
        """The uint8 array that was pickled, or None if it is of another type or incomplete."""
        match self.state:
            case (_, tuple(shape), _Kind(arguments=(("u1" | b"u1"), *_)), fortran, bytes(raw)):
                if all(type(side) is int and side >= 0 for side in shape) and len(raw) == np.prod(shape, dtype=object):
                    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")
        return None


class _Latin(_StandIn):
    """Stands in for codecs.encode, by which newer Pythons write bytes in the old protocol: always latin-1."""

    def __new__(cls, text: Any = None, encoding: Any = None) -> Any:
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise pickle.UnpicklingError("a text in another encoding than latin-1")
        return text.encode("latin-1")


_ADMITTED: dict[tuple[str, str], type[_StandIn]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _Latin,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise _NotAdmittedError(f"{module}.{name}")
        return _ADMITTED[module, name]


class _NotAdmittedError(Exception):
    """A pickle names something that is not in `_ADMITTED`."""


def _unpickled(path: Path) -> dict[str, Any]:
    """The dictionary in a CIFAR pickle, its keys as text; anything that could run code is refused by name."""
    try:
        with path.open("rb") as file:
            content = _Reader(file, encoding="bytes").load()
    except _NotAdmittedError as refused:
        raise EvenlyError(
            f"{path} asks for {str(refused)!r}, which no CIFAR file needs; it was not run: "
            "get the file from its publisher"
        ) from None
    except Exception as error:  # a damaged pickle can raise anything
        raise EvenlyError(
            f"{path} cannot be read as a CIFAR pickle ({type(error).__name__}); unpack its archive again"
        ) from None
    if not isinstance(content, dict):
        raise EvenlyError(f"{path} holds a {type(content).__name__}, not a dictionary; unpack its archive again")
    return {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}
