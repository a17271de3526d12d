"""Packages that plug in, installed into folders of their own."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import evenly

HERE = Path(__file__).parent
EXAMPLE = HERE / "example"
SOURCE = Path(evenly.__file__).parents[1]
collect_ignore = ["example"]


def wheel(folder: Path, version: str | None = None) -> Path:
    """The example as a wheel, made without a build backend: not every environment has one."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    version = version or project["version"]
    name = project["name"].replace("-", "_")
    lines = [line for group, names in project["entry-points"].items()
             for line in (f"[{group}]", *(f"{key} = {value}" for key, value in names.items()))]  # fmt: skip
    info = f"{name}-{version}.dist-info"
    files = {str(file.relative_to(EXAMPLE / "src")): file.read_bytes() for file in EXAMPLE.glob("src/*/*.py")}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = "\n".join(lines).encode()
    record = [f"{path},sha256={_hash(content)},{len(content)}\n" for path, content in files.items()]
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return path


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def install(made: Path, target: Path) -> Path:
    """By pip, into a folder of its own, without a network."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    command += ["--disable-pip-version-check", "--target", str(target), str(made)]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": ""})
    return target


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, installed by pip."""
    folder = tmp_path_factory.mktemp("wheel")
    return install(wheel(folder), folder / "site")


@pytest.fixture(scope="session")
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python in a new process that has evenly and the packages in these folders."""

    def run(*arguments: object, sites: tuple[Path, ...] = (), cwd: Path) -> subprocess.CompletedProcess[str]:
        paths = os.pathsep.join(map(str, (SOURCE, *sites)))
        environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment)

    return run


@pytest.fixture(scope="session")
def shell(python: Any) -> Callable[..., list[tuple[int, str, str]]]:
    """Run command lines of evenly one after the other in a new process: (exit code, stdout, stderr) of each."""

    def run(*commands: str, sites: tuple[Path, ...] = (), cwd: Path) -> list[tuple[int, str, str]]:
        done = python(HERE / "commands.py", *commands, sites=sites, cwd=cwd)
        assert done.returncode == 0, done.stderr
        return [tuple(each) for each in json.loads(done.stdout.splitlines()[-1])]

    return run


@pytest.fixture
def package(tmp_path: Path) -> Callable[..., Path]:
    """Write a package of one module with entry points as pip leaves it; the folder that it is in."""
    site = tmp_path / "site"

    def write(name: str, module: str, version: str = "1.0", **names: str) -> Path:
        module_name = name.replace("-", "_")
        info = site / f"{module_name}-{version}.dist-info"
        info.mkdir(parents=True)
        (site / f"{module_name}.py").write_text(module)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        groups = {kind: text.split() for kind, text in names.items()}
        lines = [line for kind, texts in groups.items() for line in (f"[evenly.{kind}]", *texts)]
        (info / "entry_points.txt").write_text("\n".join(lines))
        return site

    return write
