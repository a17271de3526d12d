"""The error if a host library is not installed."""

from __future__ import annotations

from evenly.errors import EvenlyError


def missing(host: str, error: ModuleNotFoundError, extra: str | None = None) -> EvenlyError:
    """The error for a host that cannot be imported; ``extra`` of evenly installs it, by default one of its name."""
    return EvenlyError(
        f"evenly.integrations.{host} needs {error.name}, which is not installed; "
        f"run: pip install 'evenly[{extra or host}]'"
    )
