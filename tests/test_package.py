"""The package as a user meets it: its names, its version, and how little an import costs."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import evenly

HEAVY = {"sklearn", "matplotlib", "rich", "typer", "jinja2", "PIL", "pandas", "scipy"}


def loaded_by(code: str) -> set[str]:
    """The heavy packages that are loaded after running some code in a new process."""
    code = f"import sys\n{code}\nprint(*{HEAVY} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(Path(evenly.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_is_light_and_so_are_all_names():
    assert loaded_by("import evenly\nfor name in evenly.__all__: getattr(evenly, name)") == set()


def test_the_check_itself_sees_what_is_loaded():
    assert loaded_by("import jinja2") == {"jinja2"}


def test_every_name_is_there_and_documented():
    assert set(evenly.__all__) <= set(dir(evenly))
    for name in set(evenly.__all__) - {"__version__"}:
        assert getattr(evenly, name).__doc__
    for name in evenly.diagnose.__all__:
        assert getattr(evenly.diagnose, name).__doc__
    with pytest.raises(AttributeError, match="module 'evenly' has no attribute 'sam'"):
        _ = evenly.sam


def test_one_version():
    declared = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["version"]
    assert evenly.__version__ == declared
    try:
        installed = importlib.metadata.version("evenly")
    except importlib.metadata.PackageNotFoundError:
        return
    assert installed == declared


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "evenly", "methods"], capture_output=True, text=True, check=True)
    assert "useful" in done.stdout
