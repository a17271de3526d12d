"""The rooms of the package import one way: a room imports only rooms before it in `ORDER`, lazy imports included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "evenly"
ORDER = [
    "errors", "values", "plugins", "launch", "files", "randomness", "settings", "analyses", "data", "optim", "theory",
    "models", "engine", "methods", "runs", "diagnose", "report", "integrations", "parallel", "experiment", "testing",
    "papers", "cli",
]  # fmt: skip
"""From the ground up."""
MODULES = sorted(path for path in SRC.rglob("*.py") if path.parent != SRC or not path.name.startswith("__"))


def name_of(path: Path) -> str:
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, *, types: bool = True) -> Iterator[str]:
    """The modules of evenly that a file imports, in a function or at its top; those for annotations on request."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if id(node) in for_types and not types:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("evenly"):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if _is_module(whole) else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("evenly."))


def _is_module(name: str) -> bool:
    path = SRC.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_every_room_has_a_place_in_the_order() -> None:
    rooms = {path.relative_to(SRC).parts[0].removesuffix(".py") for path in MODULES}
    assert rooms <= set(ORDER), rooms - set(ORDER)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_room_imports_only_rooms_before_it(path: Path) -> None:
    room = path.relative_to(SRC).parts[0].removesuffix(".py")
    for module in imported(path):
        other = [*module.split("."), ""][1]
        if other and other != room:
            assert ORDER.index(other) < ORDER.index(room), f"{name_of(path)} imports {module}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    edges = {name_of(path): set(imported(path, types=False)) for path in MODULES}
    left = {name: {other for other in others if other != name and other in edges} for name, others in edges.items()}
    packages = {name for name in left if any(other.startswith(f"{name}.") for other in left)}
    left = {name: others - packages for name, others in left.items()}  # a package's own imports are its modules'
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"modules that import each other in a circle: {sorted(left)}"


def test_no_package_exports_a_name_that_is_one_of_its_modules() -> None:
    clashes = []
    for path in SRC.rglob("__init__.py"):
        if path.parent in (SRC, SRC / "methods"):  # a method's file is found by the method's name
            continue
        modules = {each.stem for each in path.parent.iterdir() if each.suffix == ".py" or each.is_dir()}
        exported = {
            alias.asname or alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and not _is_module(f"{node.module}.{node.names[0].name}")
            for alias in node.names
        }
        clashes += [f"{name_of(path)}.{name}" for name in sorted(modules & exported)]
    assert not clashes
