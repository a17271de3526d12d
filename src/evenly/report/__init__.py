"""Figures and pages: what came of it, for people.

Names are looked up when first used, so that `sentences` does not wait for matplotlib.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenly.report.pages import comparison_page as comparison_page
    from evenly.report.pages import run_page as run_page
    from evenly.report.words import sentences as sentences

__all__ = ["comparison_page", "run_page", "sentences"]

_HOMES = {
    "comparison_page": "evenly.report.pages",
    "run_page": "evenly.report.pages",
    "sentences": "evenly.report.words",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'evenly.report' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
