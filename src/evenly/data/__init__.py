"""What is learned from: the contract for a data set, synthetic and published sets, the user's files, and samplers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from evenly.data import benchmarks, digits, images, patches, spiral
from evenly.data.arrays import npz
from evenly.data.contract import Data, Split
from evenly.data.metadata import METADATA, read_rows
from evenly.data.patches import PatchDistribution
from evenly.data.samplers import Everything, GroupBalanced, ProgressiveExpansion, Upsample
from evenly.data.spiral import SpiralDistribution
from evenly.data.tables import table
from evenly.data.texts import Texts
from evenly.errors import EvenlyError, unknown
from evenly.settings import checked, options_of

__all__ = [
    "DATASETS",
    "Data",
    "Everything",
    "GroupBalanced",
    "PatchDistribution",
    "ProgressiveExpansion",
    "SpiralDistribution",
    "Split",
    "Texts",
    "Upsample",
    "dataset_options",
    "load",
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
                f"option {next(iter(options))!r} does not apply to an .npz file; its arrays are used as they are"
            )
        return npz(name, seed=seed)
    if name not in DATASETS and (Path(source).is_dir() or name.endswith((".csv", ".csv.gz"))):
        path = Path(source)
        if (path / METADATA).is_file() and read_rows(path / METADATA).called("file") is None:
            path = path / METADATA  # a table of texts or numbers, not a list of images
        read, kind = (images.image_folder, "folder of images") if path.is_dir() else (table, "table")
        values = checked(f"option of a {kind}", options, options_of(read, leave_out=("seed",)))
        return read(path, **values, seed=seed)
    if name not in DATASETS:
        path = Path(source)
        if path.is_file():
            raise EvenlyError(f"evenly does not read files like {name!r}; give .npz, .csv or a folder of images")
        if path.suffix or path.name != name:
            raise EvenlyError(f"there is no file or folder {name!r}; check the path, or see `evenly datasets`")
        raise unknown("data set", name, DATASETS)
    values = checked(f"option of {name}", options, options_of(DATASETS[name], leave_out=("seed",)))
    data = DATASETS[name](**values, seed=seed)
    data.options = {**dataset_options(name), **values, "seed": seed}  # what makes the same data again
    return data


def dataset_options(name: str) -> dict[str, Any]:
    """The options of a data set by name, with their defaults."""
    return {name: option.default for name, option in options_of(DATASETS[name], leave_out=("seed",)).items()}
