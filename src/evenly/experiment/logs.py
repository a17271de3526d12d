"""Checks of where the metrics of runs go as they are trained: a logger, and a callback."""

from __future__ import annotations

import pickle
from typing import Any

from evenly.engine.world import current
from evenly.errors import EvenlyError
from evenly.experiment.execute import device_for
from evenly.integrations.loggers import connect
from evenly.settings import Execution


def check_log(execution: Execution, out: Any, callback: Any = None, arguments: str = "") -> None:
    """Refuse a log that cannot be written or a callback that cannot be called, before anything is loaded or trained.

    Args:
        arguments: what the callback is called with, in words.
    """
    _check_callback(callback, arguments, execution)
    if (name := execution.log) is None:
        return
    if out is None:
        raise EvenlyError(f"log {name!r} is made from the run's folder; give a folder as out")
    current(device_for(execution)).on_first(lambda: connect(name).close())


def _check_callback(callback: Any, arguments: str, execution: Execution) -> None:
    """Refuse what cannot be called, or not in the processes that train."""
    if callback is not None and not callable(callback):
        raise EvenlyError(f"callback must be a function of {arguments}, got {callback!r}")
    if callback is None or (execution.jobs == 1 and execution.engine == "local"):
        return
    try:
        pickle.dumps(callback)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise EvenlyError(
            f"callback cannot be sent to the processes that train ({error}); give a function of a module, or use jobs 1"
        ) from None
