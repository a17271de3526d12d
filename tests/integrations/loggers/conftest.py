"""A run that leaves every kind of number: two stages, groups with odd names, recorded values."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import evenly
from evenly.files import sealed

GROUPS = ["a/b", "a_b", "größe (%)", "x" * 300]
SETTINGS: dict[str, Any] = {"model": "mlp", "method": "useful", "epochs": 4, "device": "cpu"}


def split(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    groups = torch.arange(count) // 2 % 2 * 2 + y
    if seed == 1:
        groups[groups == 3] = 0  # a group without an example in validation is None in its row
    return torch.randn(count, 3, generator=draw) + (2 * y - 1)[:, None], y, groups


def toy(seed: int = 0) -> evenly.Data:
    parts = {"train": split(40, 0), "validation": split(20, 1), "test": split(60, 2)}
    return evenly.Data(**parts, group_names=GROUPS, name="toy")


@pytest.fixture
def toy_data() -> evenly.Data:
    return toy()


@pytest.fixture(scope="session")
def _finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("finished") / "a"
    evenly.train(toy(), **SETTINGS, record={"l1": True, "every": 2}, out=folder, progress=lambda share, note: None)
    return folder


@pytest.fixture
def folder(_finished: Path, tmp_path: Path) -> Path:
    """The folder of a finished run."""
    return Path(shutil.copytree(_finished, tmp_path / "a"))


@pytest.fixture
def cut() -> Callable[[Path, int], Callable[[], None]]:
    """Make a finished run one that has come so many rows far; call what is returned, and it goes on to its end."""

    def shorten(folder: Path, rows: int) -> Callable[[], None]:
        whole = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "results.json")}
        (folder / "results.json").unlink()
        (folder / "metrics.jsonl").write_bytes(b"".join(whole["metrics.jsonl"].splitlines(keepends=True)[:rows]))

        def go_on() -> None:
            for name, content in whole.items():
                (folder / name).write_bytes(content)

        return go_on

    return shorten


def numbers(value: Any, *path: str) -> Iterator[tuple[tuple[str, ...], float]]:
    if isinstance(value, int | float):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, *path, key)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from numbers(inner, *path, str(place))


@pytest.fixture
def metrics() -> Callable[[Path], dict[tuple[str, ...], dict[int, float]]]:
    """Every number of `metrics.jsonl` by its path, stage first, and its epoch: read here by other means."""

    def read(folder: Path) -> dict[tuple[str, ...], dict[int, float]]:
        found: dict[tuple[str, ...], dict[int, float]] = {}
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            row = json.loads(line)
            stage, epoch, _ = row.pop("stage"), row.pop("epoch"), row.pop("crc32")
            for path, value in numbers(row, stage):
                assert epoch not in found.setdefault(path, {})
                found[path][epoch] = value
        return found

    return read


@pytest.fixture
def path_of() -> Callable[[str], tuple[str, ...]]:
    """The path of a tag: of a group only its number."""
    return lambda tag: tuple(part.split(" ")[0] if part[0].isdigit() else part for part in tag.split("/"))


@pytest.fixture
def line_of() -> Callable[..., bytes]:
    """A line of the metrics: ``line_of(stage="final", epoch=1, ...)``."""
    return lambda **row: json.dumps(sealed(row)).encode() + b"\n"
