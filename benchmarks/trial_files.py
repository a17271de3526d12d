"""Small files of noise in the layouts of the real data sets, so that a benchmark can be tried where these are not.

>>> with_files(Path("runs/trial/data"))         # EVENLY_DATA names that folder from now on, in child processes as well
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from evenly.data.benchmarks.domains import PACS
from evenly.data.benchmarks.places import VARIABLE

FACES_IN_GROUP = 50
"""So that a quarter of the test set has five of each group, the least that a probe is measured on."""
IN_CLASS = {"train": 60, "test": 30}
IN_DOMAIN = 10
"""Of each class."""


def with_files(folder: Path) -> None:
    """Write the files where `folder` is not there yet, and let EVENLY_DATA name it."""
    if not folder.exists():
        random = np.random.default_rng(0)
        _faces(folder / "celeba10k", random)
        _domains(folder / "pacs", random)
        for name in ("mnist", "fashion-mnist"):
            _idx_files(folder / name, random)
        _cifar10(folder / "cifar10", random)
    os.environ[VARIABLE] = str(folder)


def _faces(folder: Path, random: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    names = ["Blond_Hair", "Male"]
    group = np.arange(4 * FACES_IN_GROUP) % 4
    with zipfile.ZipFile(folder / "images_89x109_jpg.zip", "w") as archive:
        for i in range(len(group)):
            content = io.BytesIO()
            Image.fromarray(_noise(random, 12, 9)).save(content, "PNG")
            archive.writestr(f"{i + 1:06d}.jpg", content.getvalue())
    bits = np.stack([group // 2, group % 2], 1).astype(np.uint8)
    np.save(folder / "attributes.npy", np.packbits(bits, axis=1))
    (folder / "attribute_names.json").write_text(json.dumps(names))


def _domains(folder: Path, random: np.random.Generator) -> None:
    for domain in PACS:
        for name in ("dog", "elephant", "giraffe"):
            place = folder / domain / name
            place.mkdir(parents=True)
            for i in range(IN_DOMAIN):
                Image.fromarray(_noise(random, 8, 8)).save(place / f"{i}.png")


def _idx_files(folder: Path, random: np.random.Generator) -> None:
    folder.mkdir()
    for part, stem in (("train", "train"), ("test", "t10k")):
        labels = np.repeat(np.arange(10, dtype=np.uint8), IN_CLASS[part])
        images = random.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
        for values, end in ((images, "images-idx3"), (labels, "labels-idx1")):
            shape = b"".join(side.to_bytes(4, "big") for side in values.shape)
            (folder / f"{stem}-{end}-ubyte").write_bytes(bytes([0, 0, 8, values.ndim]) + shape + values.tobytes())


def _cifar10(folder: Path, random: np.random.Generator) -> None:
    folder.mkdir()
    for part, files in (("train", [f"data_batch_{i}.bin" for i in range(1, 6)]), ("test", ["test_batch.bin"])):
        labels = np.repeat(np.arange(10, dtype=np.uint8), IN_CLASS[part])
        images = random.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        records = np.concatenate([labels[:, None], images], 1)
        for file, some in zip(files, np.array_split(records, len(files)), strict=True):
            (folder / file).write_bytes(some.tobytes())


def _noise(random: np.random.Generator, height: int, width: int) -> np.ndarray:
    return random.integers(0, 256, (height, width, 3), dtype=np.uint8)
