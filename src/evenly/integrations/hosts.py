"""The error if a host library is not installed."""

from __future__ import annotations

from evenly.errors import EvenlyError


def missing(host: str, error: ModuleNotFoundError) -> EvenlyError:
    """The error for a host that cannot be imported; ``host`` is also the name of evenly's extra."""
    return EvenlyError(
        f"evenly.integrations.{host} needs {error.name}, which is not installed; run: pip install 'evenly[{host}]'"
    )
