"""The one exception that evenly raises on purpose, and its one warning."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

LONGEST = 1500
"""Characters of a message."""


class EvenlyError(Exception):
    """Something the user can mend: the message, one line, names the value, the cause and the way out."""

    def __init__(self, message: str = "") -> None:
        line = " ".join(str(message).split())
        super().__init__(line if len(line) <= LONGEST else f"{line[:LONGEST]} ...")


class SettingError(EvenlyError):
    """A value that cannot be used. The shell spells the name as it is typed there: --batch-size for batch_size.

    Args:
        requirement: completes "NAME must be ...".
        owner: whose option it is, as "option of pde"; empty for a setting.
    """

    def __init__(self, name: str, value: object, requirement: str, owner: str = "") -> None:
        self.name, self.value, self.requirement, self.owner = name, value, requirement, owner
        super().__init__(self.spelled(name))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.value, self.requirement, self.owner)  # from a process to another

    def spelled(self, name: str) -> str:
        """The message with the setting's name in another spelling."""
        owner = f" ({self.owner})" if self.owner and self.owner != "setting" else ""
        return f"{name}{owner} must be {self.requirement}, got {shortened(self.value)}"


class InUseError(EvenlyError):
    """Another process writes there now, and may end."""


class EvenlyWarning(UserWarning):
    """Something that runs and is likely not what the user meant: the message names the value and the way out."""


def unknown(kind: str, name: str, known: Iterable[str]) -> EvenlyError:
    """The error for a name that is not there, with the nearest one that is."""
    known = sorted(known)
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}" if known else "there are none"
    return EvenlyError(f"no {kind} is called {shortened(name)}; {hint}")


def shortened(value: object) -> str:
    """A value in a message, cut where it is long."""
    try:
        text = repr(value)
    except Exception:  # a whole number of thousands of digits has no text, and an object of the user's may raise
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:80]}..."


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its type."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def reason_of(error: BaseException) -> str:
    """Why something failed, in one line: the text of evenly's own error, of another its type as well."""
    name = "" if isinstance(error, EvenlyError) else f"{type(error).__name__}: "
    return str(EvenlyError(f"{name}{error}")).removesuffix(": ")


def may_pass(error: BaseException | None) -> bool:
    """Whether an error comes from the disk or from another process, so that the same call may succeed later."""
    while error is not None and not isinstance(error, OSError | InUseError):
        error = error.__cause__ or error.__context__  # also what "from None" hides
    return error is not None


def lack_of_memory(error: BaseException) -> str | None:
    """What was too large, where an error of Python, numpy or torch is for lack of memory."""
    text = first_line(error)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in text:
        return text.rpartition("DefaultCPUAllocator: ")[2].partition(". Error code")[0]
    return None
