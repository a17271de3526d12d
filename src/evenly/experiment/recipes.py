"""Recipes of papers by name: `evenly train waterbirds --recipe pde-paper`. What the user gives takes precedence."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from evenly.data.benchmarks import RECIPES
from evenly.errors import EvenlyError, shortened, unknown
from evenly.settings import Option


@frozen
class Recipe:
    """What a paper sets for a data set: the model, options of the data and of methods, a sweep, and settings."""

    model: str | None
    data_options: Mapping[str, Any]
    options: Mapping[str, Mapping[str, Any]]
    sweep: Mapping[str, Any]
    settings: Mapping[str, Any]

    def for_data(self, given: Any) -> Any:
        """The options of the data, with those that the user gives on top; what is no mapping is refused elsewhere."""
        return {**self.data_options, **(given or {})} if isinstance(given, Mapping | None) else given

    def for_method(self, method: Any) -> Mapping[str, Any]:
        """The options of one method; what is no name is refused elsewhere."""
        return self.options.get(method, {}) if isinstance(method, str) else {}

    def for_methods(
        self, methods: Collection[str], given: Mapping[str, Mapping[str, Any]] | None
    ) -> dict[str, Mapping[str, Any]]:
        """The options of these methods, with those that the user gives on top."""
        names = {method.partition("+")[0] for method in methods}
        own = {name: dict(options) for name, options in self.options.items() if name in names}
        given = given or {}
        return {**own, **{name: {**own.get(name, {}), **options} for name, options in given.items()}}


def recipe_of(data: Any, name: str | None) -> Recipe:
    """A recipe by the name of its data set and its own; an empty one where none is asked for."""
    Option("recipe", str | None).checked(name)
    if name is None:
        return Recipe(None, {}, {}, {}, {})
    known = RECIPES.get(str(data), {}) if isinstance(data, str | Path) else {}
    if not known:
        raise EvenlyError(
            f"recipe {shortened(name)} is of a published data set, and this one has none; `evenly datasets` names them"
        )
    if name not in known:
        raise unknown(f"recipe of {data}", name, known)
    values = dict(known[name])
    parts = {part: values.pop(part, {}) for part in ("data_options", "options", "sweep")}
    return Recipe(values.pop("model", None), settings=values, **parts)
