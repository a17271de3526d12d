"""Results of diagnoses as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from evenly.files import write_json


class Result:
    """Gives a dataclass `to_dict` and `save`."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values by field: tensors as lists, None for what is not finite."""
        return {name: plain(value) for name, value in vars(self).items()}

    def save(self, path: str | Path) -> None:
        """Write `to_dict` as JSON."""
        write_json(Path(path), self.to_dict())


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Result):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return plain(vars(value))
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
