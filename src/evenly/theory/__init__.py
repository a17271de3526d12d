"""Theorems as functions: coherence and linear stability of minima, constructed networks, growth of features, the spiral
experiment and the gradient norms by which SAM balances features."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["coherence", "cubic", "gradient_norms", "growth", "parity", "recursion", "spiral", "stability"]


def __getattr__(name: str) -> Any:
    """Modules are imported on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'evenly.theory' has no attribute {name!r}")
    return importlib.import_module(f"evenly.theory.{name}")
