"""What is learned from: the contract for a data set, the laws and files it can come from, and the samplers over it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evenly.data.arrays import npz
from evenly.data.contract import Data, Split
from evenly.data.digits import partial_digits, shortcut_digits
from evenly.data.patches import PatchLaw, patches, spurious_patches
from evenly.data.samplers import Everything, GroupBalanced, ProgressiveExpansion, Upsample
from evenly.errors import EvenlyError, unknown

__all__ = [
    "DATASETS",
    "Data",
    "Everything",
    "GroupBalanced",
    "PatchLaw",
    "ProgressiveExpansion",
    "Split",
    "Upsample",
    "load",
]

DATASETS: dict[str, Callable[..., Data]] = {
    "patches": patches,
    "spurious-patches": spurious_patches,
    "shortcut-digits": shortcut_digits,
    "partial-digits": partial_digits,
}


def load(source: str | Path, seed: int = 0, **options: Any) -> Data:
    """A data set by its name in `DATASETS`, drawn with this seed, or from an `.npz` file."""
    name = str(source)
    if name.endswith(".npz"):
        if options:
            raise EvenlyError(
                f"option {next(iter(options))!r} does not apply to a file; the arrays are used as they are"
            )
        return npz(name, seed=seed)
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    law = DATASETS[name]
    known = [parameter for parameter in inspect.signature(law).parameters if parameter != "seed"]
    for option in options:
        if option not in known:
            raise unknown(f"option of {name}", option, known)
    return law(**options, seed=seed)
