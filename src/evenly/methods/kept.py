"""What a method works out between its fits, kept with the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evenly.engine import Fit


def kept(fit: Fit, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The tensors and plain values that `make` gives, kept in the run's folder and read back where the run goes on.

    On other hardware the same network rounds otherwise, and would choose others in the middle of a run.
    """
    found = None if fit.folder is None else fit.folder.load(name)
    if found is None:
        found = make()
        if fit.folder is not None and not fit.reading:
            fit.folder.save(name, found)
    return found
