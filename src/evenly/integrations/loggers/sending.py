"""A logger by its name, and a folder's runs sent to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Protocol

from attrs import frozen

from evenly.errors import EvenlyError, reason_of, unknown
from evenly.files import as_path
from evenly.integrations.loggers.folders import LoggedRun, folders_in, read_run
from evenly.settings import LOGGERS
from evenly.values import Value


class Logger(Protocol):
    """Where runs are logged. `failures` are the errors of the library, or of the disk, that another call may mend."""

    failures: tuple[type[Exception], ...]

    def add(self, run: LoggedRun) -> int:
        """Write what is not there yet; how many points that is."""
        ...

    def where(self, run: LoggedRun) -> str:
        """Where a run's log is."""
        ...

    def close(self) -> None:
        """Finish what was begun. The next `add` begins anew."""
        ...


@frozen
class Logged(Value):
    """What came of a run's log.

    Args:
        rows: epochs of all stages that the run has.
        added: numbers that were not there yet.
        where: the log itself; empty where it failed.
        reason: why it failed.
    """

    folder: str
    rows: int = 0
    added: int = 0
    where: str = ""
    reason: str = ""


def connect(name: str) -> Logger:
    """The logger of a name, ready to write; a library that is missing is named with the command that installs it."""
    if name not in LOGGERS:
        raise unknown("logger", name, LOGGERS)
    try:
        module = import_module(f"evenly.integrations.loggers.{name}")
    except ModuleNotFoundError as error:
        raise EvenlyError(
            f"logging to {name} needs {error.name}, which is not installed; run: pip install 'evenly[{name}]'"
        ) from None
    logger: Logger = module.connect()
    return logger


def log_run(folder: Path, logger: Logger, to: str) -> Logged:
    """Bring a run's log up to date with its folder."""
    run = read_run(folder)
    try:
        with contextlib.closing(logger):
            added = logger.add(run)
            where = logger.where(run)
    except logger.failures as error:
        raise EvenlyError(
            f"{folder} could not be logged to {to} ({reason_of(error)}); run the same command again, it adds what is "
            "missing"
        ) from None
    return Logged(str(folder), len(run.rows), added, where)


def log_folder(
    folder: str | Path, to: str, progress: Callable[[float, str], None] = lambda share, note: None
) -> list[Logged]:
    """Log every run of a folder: a run's, a comparison's, an improvement's, or a folder of these.

    What is logged already stays as it is. A run that is under way is logged as far as it has come. Where there are
    several runs, one that cannot be read is named in its place.

    Args:
        to: "tensorboard", "wandb" or "mlflow".
        progress: called with the share that is done, and a note.
    """
    logger, path = connect(to), as_path(folder, "folder")
    folders = folders_in(path)
    if not folders:
        raise EvenlyError(f"{path} has no run that has begun; log it once one has")
    if len(folders) == 1:
        return [log_run(folders[0], logger, to)]
    logged = []
    for number, each in enumerate(folders, 1):
        try:
            logged.append(log_run(each, logger, to))
        except EvenlyError as error:
            logged.append(Logged(str(each), reason=str(error)))
        progress(number / len(folders), each.name)
    return logged
