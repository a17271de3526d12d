"""The methods by name. A method is a function of (model factory, data, fit) and its own options that returns a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evenly.data.contract import Data
from evenly.engine import Fit, Run
from evenly.errors import EvenlyError, unknown
from evenly.models import Factory
from evenly.options import checked, kinds_of, options_of

__all__ = ["METHODS", "Factory", "Method", "find", "method"]


@dataclass(frozen=True)
class Method:
    """A method: what it does in a line, whether it needs groups, and the method that is its control at equal cost."""

    name: str
    run: Callable[..., Run]
    summary: str
    needs_groups: bool
    control: str

    @property
    def options(self) -> dict[str, Any]:
        """The method's own options with their defaults."""
        return options_of(self.run)

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options given, if the method has them and can use their values."""
        kinds = kinds_of(self.run)
        return checked(f"option of {self.name}", options, {name: kinds[name] for name in self.options})

    def __call__(self, model: Factory, data: Data, fit: Fit, **options: Any) -> Run:
        """Check what the method asks for, then run it."""
        options = self.checked(options)
        if self.needs_groups:
            if data.train.groups is None:
                raise EvenlyError(
                    f"{self.name} needs groups and the data has none; give groups, infer them with groups='infer', or "
                    "use a method without: erm, useful"
                )
            if data.train.groups.ndim == 2:
                raise EvenlyError(f"{self.name} needs one group per example and the groups overlap; give integers (N,)")
        fit.check_selection(data)
        return self.run(model, data, fit, **options)


METHODS: dict[str, Method] = {}


def method(*, needs_groups: bool = False, control: str = "erm") -> Callable[[Callable[..., Run]], Callable[..., Run]]:
    """Register a method under its function's name; the first line of its docstring is its summary."""

    def register(function: Callable[..., Run]) -> Callable[..., Run]:
        name = function.__name__
        summary = (function.__doc__ or "").strip().splitlines()[0].rstrip(".")
        METHODS[name] = Method(name, function, summary, needs_groups, control)
        return function

    return register


def find(name: str) -> Method:
    """A method by name."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
