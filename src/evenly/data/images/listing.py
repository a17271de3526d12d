"""A list of image files with their labels, and the `Data` that it becomes: decoded, split, checked."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evenly.data.contract import SPLITS, Split
from evenly.data.images.decoding import SUFFIXES, Decoded, Size, Squeezed, decode
from evenly.data.images.parts import ImageData, Integers, own_images
from evenly.data.metadata import divided, grouped
from evenly.data.preprocessing import ImagePreprocessing
from evenly.errors import EvenlyError


@dataclass
class Listing:
    """Image files under a root, not yet read.

    Args:
        root: the resolved folder; nothing outside it is read.
        files: names from the root, with forward slashes.
        labels: (N,) in 0..K-1, by `class_names`.
        splits: (N,) names in `SPLITS`, or None where they are to be drawn.
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
    about: str = "",
    memory: float,
    seed: int,
    size: Size = None,
    validation: float | None = None,
    group_by: str | None = None,
    groups: str | None = None,
    skip_bad: bool = False,
    channels: int | None = None,
    recipe: Mapping[str, Any] | None = None,
    decoded: Decoded | None = None,
) -> ImageData:
    """Read the files of a listing and split them; the arguments are those of `image_folder`.

    Args:
        channels: 1 or 3; without it 1 if all images are gray.
        recipe: settings of `evenly.train` that suit the data; without it those of the user's own images.
        decoded: the images of the listing, where they are read already.
        group_by: an attribute; groups are then (label, value).
    """
    if group_by is not None:
        groups = f"label,{group_by}"
    if groups is not None:  # refused before any image is read
        grouped(groups, listing.labels, listing.class_names, listing.attributes, listing.attribute_names)
    if decoded is None:
        decoded = decode(listing.root, listing.files, size=size, channels=channels, memory=memory, skip_bad=skip_bad)
    labels = listing.labels[decoded.kept]
    attributes = {key: column[decoded.kept] for key, column in listing.attributes.items()}
    by = None
    if groups is not None:
        by = grouped(groups, labels, listing.class_names, attributes, listing.attribute_names)
    splits = None if listing.splits is None else listing.splits[decoded.kept]
    strata = labels if by is None else labels * len(by.names) + by.groups
    splits = divided(strata, splits, validation, None, seed, labels)
    _check_classes(listing, labels, splits, validation)
    parts: dict[str, Any] = {}
    for part in SPLITS:
        index = np.flatnonzero(splits == part)
        if len(index):
            parts[part] = Split(
                decoded.part(index, labels[index]),
                labels[index],
                None if by is None else by.groups[index],
                {key: column[index] for key, column in attributes.items()},
                name=part,
                evaluation_groups=None if by is None or by.evaluation is None else by.evaluation[index],
            )
    if decoded.bad:
        about = f"{about} {len(decoded.bad)} of {len(listing.files)} images could not be read and are left out.".strip()
    return ImageData(
        **parts,
        name=name,
        about=about,
        class_names=list(listing.class_names),
        group_names=None if by is None else by.names,
        evaluation_group_names=None if by is None else by.evaluation_names,
        attribute_names=listing.attribute_names,
        recipe=own_images(decoded.shape) if recipe is None else recipe,
        options={
            "folder": str(listing.root),
            "size": size,
            "validation": validation,
            "groups": groups or "none",
            "class_names": list(listing.class_names),
            "memory": memory,
            "skipped": len(decoded.bad),
            "seed": seed,
        },
        preprocessing=ImagePreprocessing(decoded.shape, size.whole if isinstance(size, Squeezed) else None),
    )


def _check_classes(listing: Listing, labels: Integers, splits: np.ndarray[Any, Any], validation: float | None) -> None:
    """Every class is in every split there is: a number for the worst class would leave a missing one out unsaid."""
    present = [part for part in SPLITS if part == "train" or (splits == part).any()]
    listed = np.bincount(listing.labels, minlength=len(listing.class_names))
    for k, class_name in enumerate(listing.class_names):
        counts = Counter(splits[labels == k].tolist())
        left = sum(counts.values())
        missing = next((part for part in present if not counts[part]), None)
        if missing is None:
            continue
        if left == 0:
            why = f"none of its {listed[k]} can be read" if listed[k] else f"looked for {', '.join(SUFFIXES)}"
            raise EvenlyError(
                f"class {class_name!r} has no image in {listing.root} ({why}); add some, or remove the class"
            )
        there = ", ".join(f"{part} {counts[part]}" for part in present)
        if listing.splits is None:
            raise EvenlyError(
                f"class {class_name!r} has {left} image{'s' * (left > 1)} in {listing.root}, too few for its splits "
                f"({there}); add some, remove the class, or give the splits yourself"
            )
        share = "hold out another share, " if validation and missing != "test" else ""
        raise EvenlyError(
            f"class {class_name!r} has no image in the {missing} split of {listing.root} ({there}); "
            f"{share}add some, or remove the class from all splits"
        )
