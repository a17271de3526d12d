"""CINIC-10 (Darlow et al. 2018): three splits of 90,000 images of 32 x 32 in CIFAR-10's classes, a folder for each."""

from __future__ import annotations

from evenly.data.benchmarks.cifar import CIFAR10_CLASSES
from evenly.data.benchmarks.places import Folder, find_layout
from evenly.data.images.decoding import MEMORY, Reading
from evenly.data.images.folders import split_folders
from evenly.data.images.listing import assembled
from evenly.data.images.parts import PHOTOGRAPHS, ImageData
from evenly.errors import EvenlyError


def cinic10(folder: Folder = None, memory: float = MEMORY, seed: int = 0) -> ImageData:
    """CINIC-10, uint8 (N, 3, 32, 32), three splits of 90,000 images, from `folder` or EVENLY_DATA/cinic10.

    Args:
        folder: holds train, valid and test with a folder per class, itself or in its CINIC-10.
        memory: as in `image_folder`.
    """
    _, root = find_layout("cinic10", folder, {"folders": ("CINIC-10", ("train", "valid", "test"))})
    listing = split_folders(root, {"train": "train", "valid": "validation", "test": "test"})
    if tuple(listing.class_names) != CIFAR10_CLASSES:
        other = next(iter(set(listing.class_names) ^ set(CIFAR10_CLASSES)))
        raise EvenlyError(f"cinic10 in {root} does not have CIFAR-10's ten classes (see {other!r}); unpack it again")
    about = "CINIC-10: CIFAR-10 and ImageNet photographs of 32 x 32 in CIFAR-10's ten classes."
    reading = Reading(channels=3, memory=memory)
    return assembled(listing, name="cinic10", about=about, reading=reading, seed=seed, recipe=PHOTOGRAPHS)
