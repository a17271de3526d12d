"""What the tests of comparisons elsewhere share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def results() -> Callable[[Path], Any]:
    """What the `results.json` of a folder holds but for times."""

    def untimed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: untimed(part) for key, part in value.items() if key not in ("seconds", "crc32")}
        return [untimed(part) for part in value] if isinstance(value, list) else value

    return lambda folder: untimed(json.loads((folder / "results.json").read_text()))


@pytest.fixture(scope="session")
def write_rows() -> Callable[[Path], None]:
    """Write a table of 120 rows in four groups."""

    def write(path: Path) -> None:
        x = np.random.default_rng(0).normal(size=(120, 4)).astype("float32")
        y = (x[:, 0] > 0).astype(int)
        np.savez(path, x=x, y=y, groups=2 * y + (x[:, 1] > 0))

    return write
