"""The verbs together. Exit codes: 0, 1 (it ran and the answer is no), 2 (the input is wrong; one line on stderr)."""

from __future__ import annotations

import io
import logging
import os
import re
import shlex
import sys
import textwrap
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import cache
from typing import Annotated, Any, NoReturn

import typer

from evenly import __version__
from evenly.analyses import AuditSettings, Axes, CardSettings, Quadratic, Runs
from evenly.cli import audit, compare, demo, improve, lists, reproduce, stability, status, train, use
from evenly.cli import log as logs
from evenly.errors import EvenlyError, EvenlyWarning, SettingError, lack_of_memory
from evenly.launch import is_launched, rank
from evenly.settings import Execution, Improving, Searching, Settings, settings_of

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Make networks learn every predictive feature in their data, not only the easy ones, and see if they did.",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
for verb in (
    demo.demo, improve.improve, train.train, compare.compare, use.predict, use.export, audit.audit,
    stability.stability, reproduce.reproduce, use.report, status.status, logs.log, lists.methods, lists.datasets,
    lists.models, lists.optimizers, lists.cache,
):  # fmt: skip
    app.command()(verb)

log = logging.getLogger("evenly")
INTERRUPTED = 130  # what typer makes of Ctrl-C
DEFECT = 70  # of the software, by the convention of sysexits.h
FIRST = rank() == 0
"""Whether this process is the first, or the only one, that torchrun started."""
OTHERS_WAIT = 5.0
"""Seconds after which another process reports an error that the first one has not met."""

_UsageError: type[Any] = typer.BadParameter.__bases__[0]  # click's, which newer versions of typer bring along


@app.callback(invoke_without_command=True)
def version(
    context: typer.Context, show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if show:
        print(f"evenly {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command line; what the user can mend is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± still gets its table
    log.setLevel(logging.INFO)
    log.addHandler(lines := _Lines() if FIRST else logging.NullHandler())
    try:
        with warnings.catch_warnings(), _quiet_unless_first():
            warnings.simplefilter("default", EvenlyWarning)
            warnings.showwarning = _in_one_line(warnings.showwarning)
            _check_verb(sys.argv[1:])
            code = app(standalone_mode=False)
    except SettingError as error:
        _fail(_spelled(error))
    except EvenlyError as error:
        _fail(_typed(str(error)))
    except _UsageError as error:
        _fail(_misread(error))
    except (KeyboardInterrupt, typer.Abort):
        _stopped()
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except Exception as error:
        if (reason := _reason(error)) is not None:
            _fail(reason)
        traceback.print_exc()  # a defect of ours; its exit code must not be taken for an answer
        sys.exit(DEFECT)
    else:
        if code == INTERRUPTED:
            _stopped()
        sys.exit(code if isinstance(code, int) else 0)
    finally:
        log.removeHandler(lines)


@contextmanager
def _quiet_unless_first() -> Iterator[None]:
    """Of the processes that torchrun started, the first one prints; its warnings are those of all."""
    if FIRST:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        yield


def _check_verb(arguments: Sequence[str]) -> None:
    """Refuse to start a verb several times over that does not share its work among them."""
    verb = next((each for each in arguments if not each.startswith("-")), "")
    if is_launched() and verb not in ("train", "compare", ""):
        raise EvenlyError(f"torchrun starts `evenly {verb}` several times over; it is for train and compare")


class _Lines(logging.Handler):
    """What is reported on the way, on stderr as it is now: a bar there moves aside for it."""

    def emit(self, record: logging.LogRecord) -> None:
        for line in _typed(record.getMessage()).splitlines():
            print(textwrap.fill(line, 80, subsequent_indent="    ", break_long_words=False), file=sys.stderr)


def _reason(error: Exception) -> str | None:
    """What the user can mend, of an error that is none of ours."""
    if (memory := lack_of_memory(error)) is not None:
        return f"the memory does not suffice ({memory}); use fewer examples, or smaller ones"
    return f"{error}; give a file or folder" if str(error).startswith("Symlink loop") else None


def _in_one_line(otherwise: Callable[..., None]) -> Callable[..., None]:
    """How warnings are shown: evenly's own in one line."""

    def show(message: Warning | str, category: type[Warning], *place: Any, **kwargs: Any) -> None:
        if not FIRST:
            return
        if not issubclass(category, EvenlyWarning):
            otherwise(message, category, *place, **kwargs)
            return
        print(f"evenly: {_typed(str(message))}", file=sys.stderr)

    return show


def _stopped() -> NoReturn:
    print("evenly: stopped; the same command goes on where it stopped", file=sys.stderr)
    sys.exit(INTERRUPTED)


def _spelled(error: SettingError) -> str:
    """A refused setting as it is typed here: batch_size is --batch-size, an option of a method -o NAME."""
    if error.name.startswith("search "):
        return error.spelled(f"--{error.name}")
    classes = (Settings, Execution, Searching, Improving, AuditSettings, CardSettings, Axes, Quadratic, Runs)
    if error.owner in ("", "setting") and any(error.name in settings_of(each) for each in classes):
        return error.spelled(f"--{error.name.replace('_', '-')}")
    return str(error)


def _typed(message: str) -> str:
    """Hints in Python's spelling as they are typed here.

    select='last' is --select last, of the data skip_bad=True is -d skip_bad=true, of a method on='train' is on=train.
    """
    options = settings_of(Settings) | settings_of(Execution)

    def typed(hint: re.Match[str]) -> str:
        name, quoted, plain = hint.groups()
        if name in (*options, "out") and (quoted or name == "groups"):
            return f"--{name.replace('_', '-')} {shlex.quote(quoted or plain)}"
        if name in options and plain in ("True", "False"):
            return f"--{'no-' * (plain == 'False')}{name.replace('_', '-')}"
        if name in _data_options():
            return f"-d {name}={quoted or {'True': 'true', 'False': 'false'}.get(plain, plain)}"
        return f"{name}={quoted}" if quoted else hint.group()

    message = re.sub(r"\b(another|as|an) out\b", r"\1 --out", message)
    message = re.sub(r"model_options=\{'weights': ('[^']+')\}", r"--model-option weights=\1", message)
    return re.sub(r"(?<![^\s(])(?<!-d )([a-z_]+)=(?:'([^']+)'|([\w,+-]+))", typed, message)


@cache
def _data_options() -> set[str]:
    """What `-d` can be given, of one data set or another."""
    from evenly.data import DATASETS, dataset_options, images
    from evenly.data.tables import TableOptions
    from evenly.settings import options_of

    readers = [settings_of(TableOptions), options_of(images.image_folder, leave_out=("seed", "largest"))]
    return {name for known in (*map(dataset_options, DATASETS.own), *readers) for name in known}


def _misread(error: Any) -> str:
    """Typer's message about an argument; where a number was expected, with the value, which typer may leave out."""
    message: str = error.format_message()
    errors = getattr(error.__cause__, "errors", None)
    if not callable(errors):
        return message
    first = errors()[0]
    kind = {"int": "a whole number", "float": "a number"}.get(first["type"].partition("_")[0])
    return message if kind is None else f"{error.param.opts[-1]} must be {kind}, got {first['input']!r}"


def _fail(message: str) -> NoReturn:
    if not FIRST:  # the first process says what is wrong for all, and torchrun then ends this one
        time.sleep(OTHERS_WAIT)
        message = f"process {rank()}: {message}"
    print(f"evenly: {EvenlyError(message)}", file=sys.stderr)
    sys.exit(2)
