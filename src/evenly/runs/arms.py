"""An arm of a comparison: a method with an optimizer, perhaps at swept values, or the control of another arm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from evenly.optim.registry import base_of
from evenly.values import Value, plain


@frozen(eq=False)
class Arm(Value):
    """One arm.

    Args:
        swept: the swept settings and options that vary this arm, and their values here.
        control_of: the arm whose cost it is trained to; None for an arm of its own.
    """

    method: str
    optimizer: str
    swept: Mapping[str, Any] = field(factory=dict)
    control_of: Arm | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Arm) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.method, self.optimizer, frozenset(self.swept), self.control_of))

    @property
    def pair(self) -> str:
        """The method and the optimizer: "useful+sgd"."""
        return f"{self.method}+{self.optimizer}"

    @property
    def name(self) -> str:
        """The whole name: "useful+sgd, factor 3", "erm+sgd at the cost of pde+sgd"."""
        if self.control_of is not None:
            return f"{self.pair} at the cost of {self.control_of.name}"
        values = [f"{name.rpartition('.')[2]} {value_text(value, name)}" for name, value in self.swept.items()]
        return ", ".join([self.pair, *values])

    def within(self, other: Arm) -> bool:
        """Whether its swept values are among another's."""
        return bool(plain(self.swept).items() <= plain(other.swept).items())


def varies(name: str, method: str, optimizer: str) -> bool:
    """Whether a swept name has to do with an arm."""
    owner, _, setting = name.rpartition(".")
    return owner in ("", method) and (setting != "rho" or base_of(optimizer) is not None)


def point_name(swept: Mapping[str, Any]) -> str:
    """Swept values as a heading: "batch_size 256, useful.factor 3"."""
    return ", ".join(f"{name} {value_text(value, name)}" for name, value in swept.items())


def value_text(value: Any, name: str = "") -> str:
    """A swept value as it stands in an arm's name."""
    if value is None:
        return "full" if name.rpartition(".")[2] == "batch_size" else "none"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={value_text(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return "/".join(value_text(inner) for inner in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
