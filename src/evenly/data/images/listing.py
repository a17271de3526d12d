"""A list of image files with their labels, and the `Data` that it becomes: decoded, split, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evenly.data.contract import Places
from evenly.data.images.decoding import SUFFIXES, Decoded, Reading, Squeezed, decode
from evenly.data.images.parts import ImageData, Integers, own_images
from evenly.data.metadata import check_classes, divided, grouped, in_splits, strata
from evenly.data.preprocessing import ImagePreprocessing
from evenly.errors import EvenlyError


@dataclass
class Listing:
    """Image files under a root, not yet read.

    Args:
        root: the resolved folder; nothing outside it is read.
        files: names from the root, with forward slashes.
        labels: (N,) in 0..K-1, by `class_names`.
        splits: (N,) names of splits, or None where they are to be drawn.
        attributes: (N,) values in 0..V-1, by `attribute_names`.
    """

    root: Path
    files: Sequence[str]
    labels: Integers
    class_names: Sequence[str]
    splits: np.ndarray[Any, Any] | None = None
    attributes: Mapping[str, Integers] = field(default_factory=dict)
    attribute_names: Mapping[str, Sequence[str]] = field(default_factory=dict)


def inside(root: Path, path: Path) -> bool:
    """Whether a path, all links followed, stays in the (resolved) root."""
    return Path(os.path.realpath(path)).is_relative_to(root)


def assembled(
    listing: Listing,
    *,
    name: str,
    reading: Reading,
    seed: int,
    about: str = "",
    validation: float | None = None,
    groups: str | None = None,
    recipe: Mapping[str, Any] | None = None,
    decoded: Decoded | None = None,
) -> ImageData:
    """Read the files of a listing and split them; the arguments are those of `image_folder`.

    Args:
        recipe: settings of `evenly.train` that suit the data; without it those of the user's own images.
        decoded: the images of the listing, where they are read already.
    """
    if groups is not None:  # refused before any image is read
        grouped(groups, listing.labels, listing.class_names, listing.attributes, listing.attribute_names)
    if decoded is None:
        decoded = decode(listing.root, listing.files, reading)
    images, labels = decoded, listing.labels[decoded.readable]
    attributes = {key: column[decoded.readable] for key, column in listing.attributes.items()}
    by_group = None
    if groups is not None:
        by_group = grouped(groups, labels, listing.class_names, attributes, listing.attribute_names)
    splits = None if listing.splits is None else listing.splits[decoded.readable]
    splits = divided(strata(labels, by_group), splits, validation, None, seed, labels)
    _check_classes(listing, labels, splits, validation)
    if decoded.bad:
        about = f"{about} {len(decoded.bad)} of {len(listing.files)} images could not be read and are left out.".strip()
    size = reading.size
    return ImageData(
        **in_splits(
            lambda index: images.part(index, labels[index]),
            labels,
            attributes,
            by_group,
            splits,
            Places([decoded.files[i] for i in decoded.readable]),
        ),
        name=name,
        about=about,
        class_names=list(listing.class_names),
        group_names=None if by_group is None else by_group.names,
        evaluation_group_names=None if by_group is None else by_group.evaluation_names,
        attribute_names=listing.attribute_names,
        recipe=own_images(decoded.shape) if recipe is None else recipe,
        options={
            "folder": str(listing.root),
            "size": size,
            "validation": validation,
            "groups": groups or "none",
            "class_names": list(listing.class_names),
            "memory": reading.memory,
            "skipped": len(decoded.bad),
            "seed": seed,
        },
        preprocessing=ImagePreprocessing(decoded.shape, size.whole if isinstance(size, Squeezed) else None),
    )


def _check_classes(listing: Listing, labels: Integers, splits: np.ndarray[Any, Any], validation: float | None) -> None:
    """Every class has an image, and one in every split there is."""
    for k, name in enumerate(listing.class_names):
        if not (labels == k).any():
            listed = int((listing.labels == k).sum())
            why = f"none of its {listed} can be read" if listed else f"searched for {', '.join(SUFFIXES)}"
            raise EvenlyError(f"class {name!r} has no image in {listing.root} ({why}); add some, or remove the class")
    ways = "add some, remove the class, or give the splits yourself"
    if listing.splits is not None:
        ways = f"{'hold out another share, ' if validation else ''}add some, or remove the class from all splits"
    check_classes(listing.root, listing.class_names, labels, splits, ways)
