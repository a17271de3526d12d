"""What is learned from: the contract for a data set, the laws and files it can come from, and the samplers over it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from evenly.data import images
from evenly.data.arrays import npz
from evenly.data.contract import Data, Split
from evenly.data.digits import partial_digits, shortcut_digits
from evenly.data.patches import PatchLaw, patches, spurious_patches
from evenly.data.samplers import Everything, GroupBalanced, ProgressiveExpansion, Upsample
from evenly.data.spiral import SpiralLaw, spiral
from evenly.errors import EvenlyError, unknown
from evenly.options import checked, kinds_of, options_of

__all__ = [
    "DATASETS",
    "Data",
    "Everything",
    "GroupBalanced",
    "PatchLaw",
    "ProgressiveExpansion",
    "SpiralLaw",
    "Split",
    "Upsample",
    "law_options",
    "load",
]

DATASETS: dict[str, Callable[..., Data]] = {
    "patches": patches,
    "spurious-patches": spurious_patches,
    "spiral": spiral,
    "shortcut-digits": shortcut_digits,
    "partial-digits": partial_digits,
    "cifar10": images.cifar10,
    "cifar100": images.cifar100,
    "stl10": images.stl10,
    "cinic10": images.cinic10,
    "tiny-imagenet": images.tiny_imagenet,
    "mnist": images.mnist,
    "fashion-mnist": images.fashion_mnist,
}


def load(source: str | Path, seed: int = 0, **options: Any) -> Data:
    """A data set by its name in `DATASETS`, from an `.npz` file, or from a folder of images."""
    name = str(source)
    if name.endswith(".npz"):
        if options:
            raise EvenlyError(
                f"option {next(iter(options))!r} does not apply to a file; the arrays are used as they are"
            )
        return npz(name, seed=seed)
    if name not in DATASETS and Path(source).is_dir():
        kinds = kinds_of(images.image_folder)
        known = {option: kinds[option] for option in options_of(images.image_folder, leave_out=("path", "seed"))}
        return images.image_folder(source, **checked("option of a folder of images", options, known), seed=seed)
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    law, kinds, defaults = DATASETS[name], kinds_of(DATASETS[name]), law_options(name)
    asked = checked(f"option of {name}", options, {option: kinds[option] for option in defaults})
    data = law(**asked, seed=seed)
    data.options = {**defaults, **asked, "seed": seed}  # what makes it again
    return data


def law_options(name: str) -> dict[str, Any]:
    """The options of a named law, with their defaults."""
    return options_of(DATASETS[name], leave_out=("seed",))
