"""The methods by name. A method is a function of (model factory, data, fit) and its own options that trains a network.

    @method(needs_groups=True, check=check)
    def mine(model: Factory, data: Data, fit: Fit, *, strength: Annotated[float, above(0)] = 1.0) -> Trained:
        \"\"\"What it does, in a line.\"\"\"

What an option may be is in its annotation; `check` refuses what depends on the data or on the settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from evenly.data.contract import Data
from evenly.engine import Fit, Trained, check_selection
from evenly.errors import EvenlyError, unknown
from evenly.models import Factory
from evenly.settings import Option, Settings, checked, options_of

__all__ = ["METHODS", "Factory", "Method", "find", "method"]

Check = Callable[..., None]
"""Called as ``check(data, settings, seed=..., **options)`` with every option of the method."""


@frozen
class Method:
    """A method: what it does in a line, whether it needs groups, and the method that is its control at equal cost.

    `prefers` is the selection rule that its paper has. It holds where neither the user nor a recipe names one and the
    data allows it, and then for every method of a comparison.
    """

    name: str
    run: Callable[..., Trained]
    summary: str
    needs_groups: bool
    control: str
    own_check: Check | None = None
    prefers: str | None = None

    @property
    def options(self) -> dict[str, Option]:
        """The method's own options."""
        return options_of(self.run)

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options given, if the method has them and can use their values."""
        return checked(f"option of {self.name}", options, self.options)

    def check(self, data: Data, settings: Settings, options: Mapping[str, Any], seed: int = 0) -> None:
        """Refuse what cannot work before anything is trained.

        Args:
            data: where groups will be inferred, `evenly.methods.inferred.by_class` of it.
            seed: of the run; DFR's draws depend on it.
        """
        options = {name: option.default for name, option in self.options.items()} | self.checked(options)
        if self.needs_groups and data.train.groups is None:
            raise EvenlyError(
                f"{self.name} needs groups and the data has none; give groups, infer them with groups='infer', or "
                "use a method without: erm, useful"
            )
        if self.needs_groups and data.train.groups.ndim == 2:
            raise EvenlyError(f"{self.name} needs one group per example and the groups overlap; give integers (N,)")
        check_selection(data, settings)
        if self.own_check is not None:
            self.own_check(data, settings, seed=seed, **options)

    def __call__(self, model: Factory, data: Data, fit: Fit, **options: Any) -> Trained:
        """Check what is asked for, then run the method."""
        self.check(data, fit.settings, options, fit.seed)
        return self.run(model, data, fit, **self.checked(options))


METHODS: dict[str, Method] = {}


def method(
    *, needs_groups: bool = False, control: str = "erm", check: Check | None = None, prefers: str | None = None
) -> Callable[[Callable[..., Trained]], Callable[..., Trained]]:
    """Register a method under its function's name; the first line of its docstring is its summary."""

    def register(function: Callable[..., Trained]) -> Callable[..., Trained]:
        name = function.__name__
        summary = (function.__doc__ or "").strip().splitlines()[0].rstrip(".")
        METHODS[name] = Method(name, function, summary, needs_groups, control, check, prefers)
        return function

    return register


def find(name: str) -> Method:
    """A method by name."""
    if not isinstance(name, str) or name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
