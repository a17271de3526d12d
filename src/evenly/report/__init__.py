"""Pages, sentences and terminal output from results and from the folders that hold them.

Names are found on first use, so that sentences do not wait for matplotlib.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenly.report.comparison_words import sentences as sentences
    from evenly.report.pages import write_report as write_report

_HOMES = {"sentences": "evenly.report.comparison_words", "write_report": "evenly.report.pages"}

__all__ = ["sentences", "write_report"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'evenly.report' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
