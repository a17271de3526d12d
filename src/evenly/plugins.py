"""Methods, data sets, optimizers and models of other packages: named in a package's metadata, imported when asked for.

    [project.entry-points."evenly.methods"]
    first_share = "evenly_example.methods:first_share"

A name stands for evenly's own entry first, then for that of an installed package, then for one that this process
registered itself. What cannot be used is one line that names the package; all other names keep working.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, MutableMapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from attrs import frozen

from evenly.errors import EvenlyError, reason_of, unknown

Entry = TypeVar("Entry")
GROUPS = {
    "method": "evenly.methods",
    "data set": "evenly.datasets",
    "optimizer": "evenly.optimizers",
    "model": "evenly.models",
}
"""The group of entry points of each kind."""
NAME = re.compile(r"[A-Za-z]\w*(-\w+)*", re.ASCII)
"""A name that the shell, a folder and "method+optimizer" can hold."""


@frozen
class Plugin:
    """What a package names in its metadata: `package` is its name and version, "evenly-example 1.0"."""

    kind: str
    entry: EntryPoint
    package: str

    @property
    def distribution(self) -> str:
        """The package as pip knows it."""
        return self.package.partition(" ")[0]

    def refused(self, reason: str) -> EvenlyError:
        """The error for a plug-in that cannot be used."""
        return EvenlyError(
            f"the {self.kind} {self.entry.name!r} of {self.package} cannot be used ({reason}); update the package, or "
            f"run: pip uninstall {self.distribution}"
        )


@cache
def discovered(kind: str) -> dict[str, tuple[Plugin, ...]]:
    """What installed packages name, by name. Nothing is imported."""
    plugins: dict[str, tuple[Plugin, ...]] = {}
    for entry in entry_points(group=GROUPS[kind]):
        name, version = (getattr(entry.dist, part, None) for part in ("name", "version"))
        package = f"{name} {version}" if name and version else entry.value.partition(":")[0].split(".")[0]
        plugins[entry.name] = (*plugins.get(entry.name, ()), Plugin(kind, entry, package))
    return plugins


class Registry(MutableMapping[str, Entry]):
    """Entries of one kind by name. Names are listed without an import; a plug-in is imported when it is looked up.

    Args:
        kind: a key of `GROUPS`.
        own: evenly's own entries.
        accept: makes an entry of a plug-in's name and what its entry point names, or raises with the reason.
    """

    def __init__(self, kind: str, own: dict[str, Entry], accept: Callable[[str, Any], Entry]) -> None:
        self.kind, self.own, self._accept = kind, own, accept
        self.local: dict[str, Entry] = {}
        """What this process has registered beside evenly's own."""
        self._loaded: dict[str, Entry] = {}

    def __getitem__(self, name: str) -> Entry:
        for entries in (self.own, self._loaded):
            if name in entries:
                return entries[name]
        if name not in self._plugins():
            return self.local[name]
        self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, entry: Entry) -> None:
        self.own[name] = entry

    def __delitem__(self, name: str) -> None:
        del self.own[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from (name for name in self._plugins() if name not in self.own)
        yield from (name for name in self.local if name not in self.own and name not in self._plugins())

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self._plugins() or name in self.local

    def find(self, name: Any) -> Entry:
        """The entry of a name; an unknown one is refused with the nearest that there is."""
        if not isinstance(name, str) or name not in self:
            raise unknown(self.kind, name, self)
        return self[name]

    def usable(self, name: str) -> Entry | None:
        """The entry of a name; None where there is none, or it cannot be used."""
        try:
            return self.get(name)
        except EvenlyError:
            return None

    def all_usable(self) -> dict[str, Entry]:
        """Every entry that can be used, by name. All plug-ins are imported."""
        return {name: entry for name in self if (entry := self.usable(name)) is not None}

    def problems(self) -> list[str]:
        """A line for each plug-in that cannot be used. All plug-ins are imported."""
        lines = []
        for name, (plugin, *_) in discovered(self.kind).items():
            if name in self.own:
                lines.append(str(plugin.refused("evenly has one of this name")))
            elif name not in self._plugins():
                lines.append(str(plugin.refused("a name is letters, digits, - and _, and begins with a letter")))
            else:
                try:
                    self[name]
                except EvenlyError as error:
                    lines.append(str(error))
        return lines

    def package(self, name: str) -> str | None:
        """The package and version that a name comes from; None of evenly's own, of unknown ones and of this process's.

        Nothing is imported.
        """
        plugins = self._plugins().get(name, ())
        return plugins[0].package if len(plugins) == 1 and name not in self.own else None

    def _plugins(self) -> dict[str, tuple[Plugin, ...]]:
        return {name: each for name, each in discovered(self.kind).items() if NAME.fullmatch(name)}

    def _load(self, name: str) -> Entry:
        plugin, *others = self._plugins()[name]
        if others:
            raise plugin.refused(f"{others[0].package} has one of this name")
        try:
            return self._accept(name, plugin.entry.load())
        except (Exception, SystemExit) as error:  # a package can raise anything when it is imported
            raise plugin.refused(reason_of(error)) from error


def missing(kind: str, name: str, packages: str, here: str | None = None) -> EvenlyError:
    """The error for a name that a run has of packages which are not here, or not in these versions.

    Args:
        packages: with their versions: "evenly-example 1.0, other 2.1".
        here: those that the name comes from here.
    """
    state = "not installed here" if here is None else f"here {here}"
    way = " ".join(each.replace(" ", "==") for each in packages.split(", "))
    return EvenlyError(f"the {kind} {name!r} is of {packages}, which is {state}; run: pip install {way}")


def first_line_of(function: Any) -> str:
    """The first line of a docstring, which lists show; refused where there is none."""
    lines = (function.__doc__ or "").strip().splitlines()
    if not lines:
        raise EvenlyError(
            f"{getattr(function, '__name__', function)} has no docstring; its first line is what lists show"
        )
    return str(lines[0]).rstrip(".")
