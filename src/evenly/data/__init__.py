"""What is learned from: the contract for a data set, synthetic and published sets, the user's files, and samplers."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evenly.data import benchmarks, digits, images, patches, spiral
from evenly.data.arrays import from_arrays, npz
from evenly.data.contract import Data, Split
from evenly.data.metadata import metadata_in
from evenly.data.patches import PatchDistribution
from evenly.data.rows import FILE_COLUMNS, called, read_header
from evenly.data.samplers import Everything, GroupBalanced, ProgressiveExpansion, Upsample
from evenly.data.sharding import Sharded
from evenly.data.spiral import SpiralDistribution
from evenly.data.tables import TableOptions, table
from evenly.data.texts import Texts
from evenly.errors import EvenlyError
from evenly.plugins import Registry, first_line_of
from evenly.settings import checked, options_of, settings_of

__all__ = [
    "DATASETS",
    "Data",
    "Everything",
    "GroupBalanced",
    "PatchDistribution",
    "ProgressiveExpansion",
    "Sharded",
    "SpiralDistribution",
    "Split",
    "Texts",
    "Upsample",
    "dataset_options",
    "from_arrays",
    "load",
]


def _accepted(name: str, function: Any) -> Callable[..., Data]:
    """A data set of another package: a function of options, each with a default, and of a seed."""
    if not callable(function):
        raise EvenlyError(f"it is a {type(function).__name__}, not a function that returns an evenly.Data")
    parameters = inspect.signature(function).parameters.values()
    if "seed" not in {each.name for each in parameters}:
        raise EvenlyError("its function has no parameter seed")
    fixed = {each.name for each in parameters if each.default is each.empty and each.name != "seed"}
    if fixed:
        raise EvenlyError(f"the parameter {min(fixed)} of its function has no default")
    options_of(function)
    first_line_of(function)
    return function  # type: ignore[no-any-return]


DATASETS = Registry[Callable[..., Data]](
    "data set",
    {
        "patches": patches.patches,
        "spurious-patches": patches.spurious_patches,
        "spiral": spiral.spiral,
        "shortcut-digits": digits.shortcut_digits,
        "partial-digits": digits.partial_digits,
        **benchmarks.READERS,
    },
    _accepted,
)


LONGEST_NAME = 255
"""Characters of a file's name, in most systems."""


def load(source: str | Path, seed: int = 0, *, largest: int | None = None, **options: Any) -> Data:
    """A data set by its name in `DATASETS`, from an `.npz` or `.csv` file, or from a folder of images.

    Args:
        largest: of a folder of images, the side that larger ones are brought to where the options have no size.
    """
    name = str(source)
    if not name.strip() or max(map(len, Path(name).parts), default=0) > LONGEST_NAME:
        what = "too long" if name.strip() else "empty"
        raise EvenlyError(f"the name of the data is {what}; give a file, a folder or a name from `evenly datasets`")
    if name.endswith(".npz"):
        if options:
            raise EvenlyError(
                f"option {next(iter(options))!r} does not apply to an .npz file; its arrays are used as they are"
            )
        return npz(name, seed=seed)
    if name not in DATASETS and (Path(source).is_dir() or name.endswith((".csv", ".csv.gz"))):
        path = Path(source)
        metadata = metadata_in(path)
        if metadata is not None and not any(called(name, read_header(metadata)) for name in FILE_COLUMNS):
            path = metadata  # a table of texts or numbers, not a list of images
        if path.is_dir():
            known = options_of(images.image_folder, leave_out=("seed", "largest"))
            values = checked("option of a folder of images", options, known)
            return images.image_folder(path, **values, seed=seed, largest=largest)
        return table(path, seed, **checked("option of a table", options, settings_of(TableOptions)))
    if name not in DATASETS:
        path = Path(source)
        if path.is_file():
            raise EvenlyError(f"evenly does not read files like {name!r}; give .npz, .csv or a folder of images")
        around = [*DATASETS, *(str(path.parent / each.name) for each in _siblings(path))]
        near = difflib.get_close_matches(str(path), around, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}?" if near else "check the path, or see `evenly datasets`"
        raise EvenlyError(f"there is no file, folder or data set {name!r}; {hint}")
    values = checked(f"option of {name}", options, options_of(DATASETS[name], leave_out=("seed",)))
    data = DATASETS[name](**values, seed=seed)
    if not isinstance(data, Data):
        raise EvenlyError(f"the data set {name} of {DATASETS.package(name)} is a {type(data).__name__}, no evenly.Data")
    if DATASETS.package(name) is not None:
        data.name = name  # a run brings its data back by this name
    data.options = {**dataset_options(name), **values, "seed": seed}  # what makes the same data again
    return data


def _siblings(path: Path) -> list[Path]:
    try:
        return list(path.parent.iterdir())
    except OSError:
        return []


def dataset_options(name: str) -> dict[str, Any]:
    """The options of a data set by name, with their defaults."""
    return {name: option.default for name, option in options_of(DATASETS.find(name), leave_out=("seed",)).items()}
