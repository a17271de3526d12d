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
from evenly.data.images.decoding import SUFFIXES, decode
from evenly.data.images.parts import ImageData, Integers, held_out, own_images, ranks, share_of
from evenly.errors import EvenlyError, unknown

SHARES = (0.2, 0.2)  # of validation and test, where no splits are given
SPLIT_NAMES = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}


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
    size: int | None = None,
    validation: float | None = None,
    group_by: str | None = None,
    skip_bad: bool = False,
    channels: int | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> ImageData:
    """Read the files of a listing and split them; the arguments are those of `image_folder`.

    Args:
        channels: 1 or 3; without it 1 if all images are gray.
        recipe: settings of `evenly.train` that suit the data; without it those of the user's own images.
    """
    if group_by is not None and group_by not in listing.attributes:
        raise unknown("attribute to group by", group_by, listing.attributes)
    if validation is not None:
        share_of(validation, "validation")
    decoded = decode(listing.root, listing.files, size=size, channels=channels, memory=memory, skip_bad=skip_bad)
    labels = listing.labels[decoded.kept]
    attributes = {key: column[decoded.kept] for key, column in listing.attributes.items()}
    groups = None
    if group_by is not None:
        groups = labels * len(listing.attribute_names[group_by]) + attributes[group_by]
    splits = None if listing.splits is None else listing.splits[decoded.kept]
    splits = _split(labels if groups is None else groups, splits, validation, seed)
    _check_classes(listing, labels, splits, validation)
    parts: dict[str, Any] = {}
    for part in SPLITS:
        index = np.flatnonzero(splits == part)
        if len(index):
            parts[part] = Split(
                decoded.part(index, labels[index]),
                labels[index],
                None if groups is None else groups[index],
                {key: column[index] for key, column in attributes.items()},
                name=part,
            )
    if decoded.bad:
        about = f"{about} {len(decoded.bad)} of {len(listing.files)} images could not be read and are left out.".strip()
    return ImageData(
        **parts,
        name=name,
        about=about,
        class_names=list(listing.class_names),
        group_names=None if group_by is None else _group_names(listing, group_by),
        attribute_names=listing.attribute_names,
        recipe=own_images(decoded.shape) if recipe is None else recipe,
        options={
            "folder": str(listing.root),
            "size": size,
            "validation": validation,
            "group_by": group_by,
            "memory": memory,
            "skipped": len(decoded.bad),
            "seed": seed,
        },
    )


def _split(
    strata: Integers, given: np.ndarray[Any, Any] | None, validation: float | None, seed: int
) -> np.ndarray[Any, Any]:
    """Splits as given, a share of train held out if asked for and there is no validation yet; or drawn anew."""
    if given is None:
        held, test = SHARES[0] if validation is None else validation, SHARES[1]
        if held + test >= 1:
            raise EvenlyError(f"validation {held} and a test share of {test} leave nothing to train on; give less")
        rank = ranks(strata, seed, "split")
        return np.select([rank < 1 - held - test, rank < 1 - test], ["train", "validation"], "test")
    splits = given.astype("<U10")
    if not validation:
        return splits
    if (splits == "validation").any():
        raise EvenlyError(f"validation {validation} is asked for, but the data has a validation split; leave it out")
    train = np.flatnonzero(splits == "train")
    splits[train[held_out(strata[train], validation, seed)]] = "validation"
    return splits


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


def _group_names(listing: Listing, group_by: str) -> list[str]:
    values = listing.attribute_names[group_by]
    return [f"{label}, {group_by} {value}" for label in listing.class_names for value in values]
