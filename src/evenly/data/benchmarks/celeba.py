"""CelebA (Liu, Luo, Wang and Tang 2015): faces with forty attributes; hair colour is learned, gender comes with it.

The official files, or the first 10,000 images in one zip archive, whose splits are drawn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenly.data.benchmarks.places import Folder, find_layout
from evenly.data.benchmarks.rows import SPLITS, files_in, read_spaced, translated
from evenly.data.images.decoding import MEMORY, Decoded, Reading, Squeezed, decode_zip
from evenly.data.images.listing import Listing, assembled
from evenly.data.images.parts import GROUPED, ImageData, Integers, ranks
from evenly.data.rows import read_rows
from evenly.errors import EvenlyError, unknown

SHARES = (0.5, 0.1)  # of train and validation among the first 10,000; the rest is the test set
DFR = {"strengths": [3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003]}
"""The penalties that the authors of DFR choose from on CelebA."""
RECIPES = {
    "pde-paper": {
        "model": "resnet50",
        "data_options": {"size": 224},
        "lr": 1e-2,
        "weight_decay": 1e-4,
        "batch_size": 128,
        "epochs": 66,
        "options": {"pde": {"warmup_epochs": 16, "every": 10, "add": 50}},
    },
    "group-dro-paper": {
        "model": "resnet50",
        "data_options": {"size": 224},
        "lr": 1e-5,
        "weight_decay": 0.1,
        "batch_size": 128,
        "epochs": 50,
    },
    "balanced-paper": {
        "model": "resnet18",
        "batch_size": 128,
        "epochs": 20,
        "schedule": "cosine",
        "weight_decay": 1e-4,
        "sweep": {"lr": [5e-4, 1e-3, 5e-3, 1e-2], "rho": [0.0, 0.01, 0.02, 0.05, 0.07]},
    },
}
"""Settings of papers: PDE's (Deng et al. 2023, Table 8; their number of epochs is not given, 66 are five expansions),
Group DRO's (Table 9 there), and those of Springer et al. (2024, App. B). All of them start from ImageNet's weights."""
_ZIP = "images_89x109_jpg.zip"
_IMAGES = "img_align_celeba"
_LAYOUTS = {
    "txt": ("celeba", ("list_attr_celeba.txt", "list_eval_partition.txt", _IMAGES)),
    "csv": ("celeba_v1.0", ("list_attr_celeba.csv", "list_eval_partition.csv", _IMAGES)),
    "zip": ("", (_ZIP, "attributes.npy", "attribute_names.json")),
}


def celeba(
    folder: Folder = None,
    label: str = "Blond_Hair",
    attribute: str = "Male",
    size: int | None = 64,
    memory: float = MEMORY,
    seed: int = 0,
) -> ImageData:
    """CelebA, uint8 (N, 3, size, size), groups (label, attribute), from `folder` or EVENLY_DATA/celeba (celeba10k).

    Of the official files the splits are the official ones and nothing depends on the seed. The first 10,000 images,
    which are all from the official training set, are split 50/10/40 within every group by the seed.

    Args:
        folder: holds list_attr_celeba.txt, list_eval_partition.txt (or .csv) and img_align_celeba, itself or in its
            celeba (torchvision) or celeba_v1.0 (WILDS); or images_89x109_jpg.zip, attributes.npy (the 40 attributes of
            each image, packed to 5 bytes) and attribute_names.json.
        label: which of the 40 attributes is learned.
        attribute: which one the groups are made with.
        size: the whole image is brought to `size` x `size`, 64 as in Springer et al. (2024): a network for small
            images trains on it without a GPU, and MobileNetV2 or a ResNet are left a map of 2 x 2. None keeps 178 x
            218, or 89 x 109 of the first 10,000.
        memory: as in `image_folder`; the first 10,000 are always held in memory.
    """
    if label == attribute:
        raise EvenlyError(f"label and attribute must differ, got {label!r} for both; give two attributes")
    layout, root = find_layout("celeba", folder, _LAYOUTS, other="celeba10k")
    target_size = None if size is None else Squeezed(size, size)
    read = _first if layout == "zip" else _official
    files, columns, splits = read(root, layout, [label, attribute])
    if splits is None:
        rank = ranks(2 * columns[label] + columns[attribute], seed, "split")
        splits = np.select([rank < SHARES[0], rank < sum(SHARES)], ["train", "validation"], "test")
    decoded: Decoded | None = decode_zip(root / _ZIP, files, size=target_size) if layout == "zip" else None
    classes, values = ((f"not {name}", name) for name in (_readable(label), _readable(attribute)))
    data = assembled(
        Listing(root, files, columns[label], classes, splits, {attribute: columns[attribute]}, {attribute: values}),
        name="celeba",
        about=f"CelebA: photographs of faces, {_readable(label)} or not; groups by {_readable(attribute)} or not.",
        reading=Reading(size=target_size, channels=3, memory=memory),
        seed=seed,
        groups=f"label,{attribute}",
        recipe=GROUPED | {"augment": "none", "epochs": 20, "select": "worst-group-argmax", "options": {"dfr": DFR}},
        decoded=decoded,
    )
    data.group_names = [f"{one}, {other}" for one in classes for other in values]
    return data


def _official(
    root: Path, layout: str, names: list[str]
) -> tuple[list[str], dict[str, Integers], np.ndarray[Any, Any] | None]:
    """File names, the columns of these names, and splits, in the order of the list of attributes."""
    if layout == "txt":
        table = read_spaced(root / "list_attr_celeba.txt")
        partition = read_spaced(root / "list_eval_partition.txt", ("image_id", "partition"))
    else:
        table, partition = (read_rows(root / f"list_{name}.csv") for name in ("attr_celeba", "eval_partition"))
    _check_names(names, [name for name in table.names if name != "image_id"])
    columns = {name: translated(table, name, {"-1": 0, "1": 1}) for name in names}
    split_of = dict(zip(partition.take("image_id"), translated(partition, "partition", SPLITS), strict=True))
    nested = (root / _IMAGES / _IMAGES).is_dir()  # as some archives unpack
    files = files_in(table, "image_id", root, f"{_IMAGES}/{_IMAGES}/" if nested else f"{_IMAGES}/")
    images = [file.rsplit("/", 1)[1] for file in files]
    if missing := next((image for image in images if image not in split_of), None):
        raise EvenlyError(f"{partition.path} has no row for {missing!r}; unpack its archive again")
    return files, columns, np.array([split_of[image] for image in images])


def _first(root: Path, layout: str, names: list[str]) -> tuple[list[str], dict[str, Integers], None]:
    """The same for the first 10,000 images, which have no splits."""
    try:
        known = json.loads((root / "attribute_names.json").read_bytes())
        bits = np.unpackbits(np.load(root / "attributes.npy", allow_pickle=False), axis=1)[:, : len(known)]
        if bits.shape[1] != len(known):
            raise ValueError(f"{bits.shape[1]} bits for {len(known)} names")
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise EvenlyError(f"the attributes in {root} cannot be read ({error}); get them again") from None
    _check_names(names, known)
    files = [f"{i + 1:06d}.jpg" for i in range(len(bits))]
    return files, {name: bits[:, known.index(name)].astype(np.int64) for name in names}, None


def _check_names(names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise unknown("attribute of celeba", name, known)


def _readable(attribute: str) -> str:
    return attribute.replace("_", " ").lower()
