"""The package as a user meets it: its names, its version, and how little an import loads."""

import importlib.metadata
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_names_of_training_and_reading_load_little():
    names = ("SAM", "Data", "EvenlyError", "hard_examples", "train", "compare", "load")
    assert loaded_by(f"import evenly\nfor name in {names}: getattr(evenly, name)") == set()
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
        installed = importlib.metadata.distribution("evenly")
    except importlib.metadata.PackageNotFoundError:
        return
    if '"editable": true' not in (installed.read_text("direct_url.json") or ""):  # else it is that of installing
        assert installed.version == declared
