"""The methods by name. A method is a function of (model factory, data, fit) and its own options that trains a network.

    @method(needs_groups=True, check=check)
    def mine(model: Factory, data: Data, fit: Fit, *, strength: Annotated[float, above(0)] = 1.0) -> Trained:
        \"\"\"What it does, in a line.\"\"\"

What an option may be is in its annotation; `check` refuses what depends on the data or on the settings. Another package
names such a function in its entry points (docs/plugins.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from evenly.data.contract import Data
from evenly.engine import Fit, Trained, check_selection
from evenly.errors import EvenlyError
from evenly.models import Factory
from evenly.plugins import Registry, first_line_of
from evenly.settings import RULES, Option, Settings, checked, options_of

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


_DECORATED: dict[Callable[..., Trained], Method] = {}


def method_of(function: Any) -> Method:
    """The method that `@method` made of a function."""
    if not callable(function) or function not in _DECORATED:
        raise EvenlyError("it is no function with @evenly.methods.registry.method(...) on it")
    return _DECORATED[function]


def _accepted(name: str, function: Any) -> Method:
    """A method of another package."""
    entry = method_of(function)
    _ = entry.options  # refused where its annotations cannot be read
    if entry.name != name:
        raise EvenlyError(f"its function is called {entry.name!r}; give the entry point that name")
    if entry.control not in METHODS:
        raise EvenlyError(f"its control {entry.control!r} is no method")
    if entry.prefers not in (None, *RULES):
        raise EvenlyError(f"it prefers {entry.prefers!r}, which is no selection rule: {', '.join(RULES)}")
    return entry


METHODS = Registry[Method]("method", {}, _accepted)


def method(
    *, needs_groups: bool = False, control: str = "erm", check: Check | None = None, prefers: str | None = None
) -> Callable[[Callable[..., Trained]], Callable[..., Trained]]:
    """Register a method under its function's name; the first line of its docstring is its summary."""

    def register(function: Callable[..., Trained]) -> Callable[..., Trained]:
        name, own = function.__name__, function.__module__.startswith("evenly.")
        if not own and name in METHODS.own:
            raise EvenlyError(
                f"a method of evenly is called {name!r}; give the function in {function.__module__} another"
            )
        entry = Method(name, function, first_line_of(function), needs_groups, control, check, prefers)
        _DECORATED[function] = (METHODS.own if own else METHODS.local)[name] = entry
        return function

    return register


def find(name: str) -> Method:
    """A method by name."""
    return METHODS.find(name)
