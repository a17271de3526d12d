"""The one exception that evenly raises on purpose, and its one warning."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EvenlyError(Exception):
    """Something the user can mend: the message names the value, the cause and the way out."""


class SettingError(EvenlyError):
    """A value that cannot be used. The shell spells the name as it is typed there: --batch-size for batch_size.

    Args:
        requirement: completes "NAME must be ...".
        owner: whose option it is, as "option of pde"; empty for a setting.
    """

    def __init__(self, name: str, value: object, requirement: str, owner: str = "") -> None:
        self.name, self.value, self.requirement, self.owner = name, value, requirement, owner
        super().__init__(self.spelled(name))

    def spelled(self, name: str) -> str:
        """The message with the setting's name in another spelling."""
        owner = f" ({self.owner})" if self.owner and self.owner != "setting" else ""
        return f"{name}{owner} must be {self.requirement}, got {self.value!r}"


class EvenlyWarning(UserWarning):
    """Something that runs and is likely not what the user meant: the message names the value and the way out."""


def unknown(kind: str, name: str, known: Iterable[str]) -> EvenlyError:
    """The error for a name that is not there, with the nearest one that is."""
    known = sorted(known)
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}" if known else "there are none"
    return EvenlyError(f"no {kind} is called {name!r}; {hint}")
