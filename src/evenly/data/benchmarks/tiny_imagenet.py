"""Tiny-ImageNet (Stanford cs231n): 100,000 training images of 64 x 64 in 200 classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evenly.data.benchmarks.places import Folder, find_layout
from evenly.data.images.decoding import MEMORY, Reading
from evenly.data.images.folders import images_in
from evenly.data.images.listing import Listing, assembled, inside
from evenly.data.images.parts import PHOTOGRAPHS, ImageData
from evenly.errors import EvenlyError


def tiny_imagenet(folder: Folder = None, validation: float = 0.0, memory: float = MEMORY, seed: int = 0) -> ImageData:
    """Tiny-ImageNet, uint8 (N, 3, 64, 64), 200 classes by WordNet number, from `folder` or EVENLY_DATA/tiny-imagenet.

    The labels of its test set are not public: as in the papers, its 10,000 validation images are the test set here.

    Args:
        folder: holds wnids.txt, train and val, itself or in its tiny-imagenet-200.
        validation: the share of the training images held out for validation, stratified, drawn from the seed.
        memory: as in `image_folder`.
    """
    files = ("wnids.txt", "train", "val/val_annotations.txt")
    _, root = find_layout("tiny-imagenet", folder, {"folders": ("tiny-imagenet-200", files)})
    wnids = sorted(set((root / "wnids.txt").read_text(encoding="utf-8").split()))
    number = {wnid: k for k, wnid in enumerate(wnids)}
    train = [(file, number[wnid]) for wnid in wnids for file in images_in(root, f"train/{wnid}")]
    test = _annotations(root, number)
    listing = Listing(
        root,
        [file for file, _ in (*train, *test)],
        np.array([label for _, label in (*train, *test)], dtype=np.int64),
        _words(root, wnids),
        np.array(["train"] * len(train) + ["test"] * len(test)),
    )
    about = "Tiny-ImageNet: ImageNet photographs of 64 x 64 in 200 classes; its validation images are the test set."
    reading, name = Reading(channels=3, memory=memory), "tiny-imagenet"
    return assembled(
        listing, name=name, about=about, reading=reading, seed=seed, validation=validation, recipe=PHOTOGRAPHS
    )


def _annotations(root: Path, number: dict[str, int]) -> list[tuple[str, int]]:
    """Files and labels of val_annotations.txt: file name, WordNet number and a box, separated by tabs."""
    path = root / "val" / "val_annotations.txt"
    rows = []
    for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not text.strip():
            continue
        file, wnid, *_ = [*text.split("\t"), ""]
        if wnid not in number:
            raise EvenlyError(f"line {line} of {path} names class {wnid!r}, which wnids.txt does not; unpack it again")
        if not inside(root, root / "val" / "images" / file):
            raise EvenlyError(f"line {line} of {path} names {file!r}, which lies outside {root}; unpack it again")
        rows.append((f"val/images/{file}", number[wnid]))
    return rows


def _words(root: Path, wnids: Sequence[str]) -> list[str]:
    """The first word for each WordNet number in words.txt; the number itself if there is none or two share it."""
    words = {}
    if (root / "words.txt").is_file():
        for line in (root / "words.txt").read_text(encoding="utf-8").splitlines():
            wnid, _, meaning = line.partition("\t")
            words[wnid] = meaning.split(",")[0].strip()
    names = [words.get(wnid) or wnid for wnid in wnids]
    return [name if names.count(name) == 1 else wnid for name, wnid in zip(names, wnids, strict=True)]
