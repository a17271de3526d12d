"""What is learned from: the contract for a data set, the laws and files it can come from, and the samplers over it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evenly.data import benchmarks, digits, images, patches, spiral
from evenly.data.arrays import npz
from evenly.data.contract import Data, Split
from evenly.data.metadata import METADATA, read_rows
from evenly.data.patches import PatchLaw
from evenly.data.samplers import Everything, GroupBalanced, ProgressiveExpansion, Upsample
from evenly.data.spiral import SpiralLaw
from evenly.data.tables import table
from evenly.data.texts import Texts
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
    "Texts",
    "Upsample",
    "law_options",
    "load",
    "reader_options",
]

DATASETS: dict[str, Callable[..., Data]] = {
    "patches": patches.patches,
    "spurious-patches": patches.spurious_patches,
    "spiral": spiral.spiral,
    "shortcut-digits": digits.shortcut_digits,
    "partial-digits": digits.partial_digits,
    **benchmarks.READERS,
}


def load(source: str | Path, seed: int = 0, **options: Any) -> Data:
    """A data set by its name in `DATASETS`, from an `.npz` or `.csv` file, or from a folder of images."""
    name = str(source)
    if name.endswith(".npz"):
        if options:
            raise EvenlyError(
                f"option {next(iter(options))!r} does not apply to a file; the arrays are used as they are"
            )
        return npz(name, seed=seed)
    if name not in DATASETS and (Path(source).is_dir() or name.endswith((".csv", ".csv.gz"))):
        place = Path(source)
        listed = place / METADATA
        if listed.is_file() and read_rows(listed).called("file") is None:
            place = listed  # of texts or numbers
        read, what = (images.image_folder, "folder of images") if place.is_dir() else (table, "table")
        kinds, known = kinds_of(read), options_of(read, leave_out=("seed",))
        asked = checked(f"option of a {what}", options, {option: kinds[option] for option in known})
        return read(place, **asked, seed=seed)
    if name not in DATASETS:
        given = Path(source)
        if given.is_file():
            raise EvenlyError(f"{name!r} is a file of a kind that is not read; give .npz, .csv or a folder of images")
        if given.suffix or given.name != name:
            raise EvenlyError(f"there is no file or folder {name!r}; look where it lies, or see `evenly datasets`")
        raise unknown("data set", name, DATASETS)
    law, kinds, defaults = DATASETS[name], kinds_of(DATASETS[name]), law_options(name)
    asked = checked(f"option of {name}", options, {option: kinds[option] for option in defaults})
    data = law(**asked, seed=seed)
    data.options = {**defaults, **asked, "seed": seed}  # what makes it again
    return data


def reader_options(made: Mapping[str, Any]) -> dict[str, Any]:
    """Of the `options` of data that was read from a folder or a table, those that read it again."""
    if str(made.get("file", "")).endswith(".npz"):
        return {"seed": made["seed"]} if "seed" in made else {}
    read = table if "file" in made else images.image_folder
    again = {option: made[option] for option in options_of(read) if option in made}
    return again | ({"skip_bad": made["skipped"] > 0} if "skipped" in made else {})


def law_options(name: str) -> dict[str, Any]:
    """The options of a named law, with their defaults."""
    return options_of(DATASETS[name], leave_out=("seed",))
