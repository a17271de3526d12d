"""Data sets by name and from `.npz` files: what is read, how it is split, what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from evenly import EvenlyError
from evenly.data import DATASETS, load

SPLITS = ("train", "validation", "test")


def arrays(n: int = 200) -> dict[str, np.ndarray]:
    """The first column is the example's own number."""
    random = np.random.default_rng(0)
    x = np.column_stack([np.arange(n), random.normal(size=n)])
    return {"x": x, "y": np.arange(n) % 2, "groups": random.integers(0, 3, n)}


def saved(folder: Path, **columns: Any) -> str:
    np.savez(folder / "mine.npz", **columns)
    return str(folder / "mine.npz")


def numbers(data: Any) -> dict[str, list[int]]:
    return {name: split.inputs[:, 0].long().tolist() for name, split in data.splits.items()}


def test_a_split_column_is_followed_in_the_order_of_storage(tmp_path: Path) -> None:
    columns = arrays()
    split = np.random.default_rng(1).choice(SPLITS, size=200)
    data = load(saved(tmp_path, **columns, split=split))
    assert data.name == "mine"
    for name, part in data.splits.items():
        assert numbers(data)[name] == np.flatnonzero(split == name).tolist()
        assert torch.equal(part.labels, torch.from_numpy(columns["y"][split == name]))
        assert torch.equal(part.groups, torch.from_numpy(columns["groups"][split == name]))
        assert part.inputs.dtype == torch.float32


def test_only_the_splits_that_are_named_are_there(tmp_path: Path) -> None:
    data = load(saved(tmp_path, x=np.eye(4), y=[0, 1, 0, 1], split=["train", "train", "test", "test"]))
    assert list(data.splits) == ["train", "test"]
    assert data.train.groups is None


def test_a_training_class_missing_from_a_split_is_refused(tmp_path: Path) -> None:
    parts = ["train", "train", "validation", "validation", "test", "test"]
    for labels, missing, there in (
        ([0, 1, 0, 1, 0, 0], "class 1 has no example in the test split", "train 1, validation 1, test 0"),
        ([0, 1, 1, 1, 0, 1], "class 0 has no example in the validation split", "train 1, validation 0, test 1"),
    ):
        with pytest.raises(EvenlyError, match=f"{missing} of .*mine.npz .{there}.; add some, or remove") as refusal:
            load(saved(tmp_path, x=np.eye(6), y=labels, split=parts))
        assert "\n" not in str(refusal.value)
    with pytest.raises(EvenlyError, match=r"class 1 has no example in the test split .*; add .*, or give split"):
        load(saved(tmp_path, x=np.eye(12), y=[0] * 10 + [1] * 2))
    parts = ["train"] * 6
    assert list(load(saved(tmp_path, x=np.eye(6), y=[0, 1] * 3, split=parts)).splits) == ["train"]


@pytest.mark.parametrize("grouped", [True, False])
def test_without_one_every_stratum_is_split_60_20_20(tmp_path: Path, grouped: bool) -> None:
    columns = arrays()
    if not grouped:
        del columns["groups"]
    data = load(saved(tmp_path, **columns), seed=5)
    assert sorted(n for part in numbers(data).values() for n in part) == list(range(200))
    strata = columns["y"] * 3 + columns.get("groups", 0)
    for stratum in np.unique(strata):
        size = (strata == stratum).sum()
        for name, share in zip(SPLITS, (0.6, 0.2, 0.2), strict=True):
            assert abs((strata[numbers(data)[name]] == stratum).sum() - share * size) <= 1


def test_the_seed_decides_the_split(tmp_path: Path) -> None:
    path = saved(tmp_path, **arrays())
    assert numbers(load(path, seed=1)) == numbers(load(path, seed=1)) != numbers(load(path, seed=2))


def test_overlapping_groups_and_images_are_read_as_they_are(tmp_path: Path) -> None:
    images = np.arange(20 * 3 * 2 * 2, dtype=np.uint8).reshape(20, 3, 2, 2)
    groups = np.random.default_rng(0).random((20, 4)) < 0.5
    data = load(saved(tmp_path, x=images, y=np.arange(20) % 2, groups=groups))
    assert data.train.inputs.dtype == torch.uint8
    assert data.train.example_shape == (3, 2, 2)
    assert data.train.groups.dtype == torch.bool
    assert data.group_count == 4


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": ({"x": np.eye(2)}, "lacks y; save it with"),
    "nothing": ({}, "lacks x and y"),
    "another name": ({"x": np.eye(2), "y": [0, 1], "labels": [0, 1]}, "holds labels; evenly reads x, y, groups"),
    "fewer labels": ({"x": np.eye(2), "y": [0]}, "y in .* has 1 rows, x has 2"),
    "fewer groups": ({"x": np.eye(2), "y": [0, 1], "groups": [0]}, "groups in .* has 1 rows, x has 2"),
    "fewer split names": ({"x": np.eye(2), "y": [0, 1], "split": ["train"]}, "split in .* has 1 rows, x has 2"),
    "another split": ({"x": np.eye(2), "y": [0, 1], "split": ["train", "dev"]}, "split 'dev' in .* is not known"),
    "no training rows": ({"x": np.eye(2), "y": [0, 1], "split": ["test", "test"]}, "the train set is empty"),
    "no rows": ({"x": np.empty((0, 2)), "y": []}, "is empty"),
    "objects": ({"x": np.eye(2), "y": np.array([0, None], dtype=object)}, "cannot be read as plain arrays"),
    "NaN": (
        {"x": [[np.nan], [1.0]], "y": [0, 1], "split": ["train", "train"]},
        "NaN or infinity, the first at index 0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_a_file_in_one_line(tmp_path: Path, case: str) -> None:
    columns, message = REFUSED[case]
    path = saved(tmp_path, **columns)
    with pytest.raises(EvenlyError, match=message) as refusal:
        load(path)
    assert "\n" not in str(refusal.value)


class Explosive:
    """Unpickling this would raise a warning, which is an error here."""

    def __reduce__(self) -> tuple[Any, ...]:
        return warnings.warn, ("a pickle in the file was executed",)


def test_nothing_pickled_is_executed(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.array([Explosive(), Explosive()], dtype=object), y=[0, 1])
    with pytest.raises(EvenlyError, match="cannot be read as plain arrays"):
        load(path)


def test_refuses_a_file_that_is_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(b"hello")
    with pytest.raises(EvenlyError, match="cannot be read as plain arrays"):
        load(path)


def test_refuses_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(EvenlyError, match="cannot be read"):
        load(tmp_path / "folder.npz")
    with pytest.raises(EvenlyError, match=r"there is no file .*missing"):
        load(tmp_path / "missing.npz")


def test_unknown_names_and_options_are_met_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(EvenlyError, match="no data set is called 'patchs'; did you mean 'patches'"):
        load("patchs")
    with pytest.raises(EvenlyError, match="no option of patches is called 'alhpa'; did you mean 'alpha'"):
        load("patches", alhpa=0.5)
    with pytest.raises(EvenlyError, match="no option of patches is called 'zzz'; there are: alpha, beta_d"):
        load("patches", zzz=1)
    with pytest.raises(EvenlyError, match="option 'n' does not apply to a file"):
        load(saved(tmp_path, **arrays()), n=3)
    with pytest.raises(EvenlyError, match="there is no file or folder 'photos/birds'"):
        load("photos/birds")
    with pytest.raises(EvenlyError, match=r"no file or folder 'table\.parquet'"):
        load("table.parquet")
    with pytest.raises(EvenlyError, match="is a file of a kind that is not read"):
        load(__file__)


IMAGES = (
    *("cifar10", "cifar100", "stl10", "cinic10", "tiny-imagenet", "mnist", "fashion-mnist"),
    *("waterbirds", "celeba", "pacs", "office-home", "vlcs"),
)
COMPOSITES = ("cifar-mnist", "fashion-mnist-mnist", "coloured-mnist")


@pytest.mark.parametrize("name", IMAGES)
def test_image_sets_say_where_they_were_looked_for(name: str, tmp_path: Path) -> None:
    with pytest.raises(EvenlyError, match=rf"no folder is given for {name} .*EVENLY_DATA"):
        load(name)
    with pytest.raises(EvenlyError, match=str(tmp_path)):
        load(name, folder=str(tmp_path))


def test_a_folder_of_images_is_loaded_by_its_path(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for i in range(5):
            Image.new("RGB", (8, 8), (20 * i, 0, 0)).save(tmp_path / label / f"{i}.png")
    data = load(tmp_path, seed=1, size=4)
    assert data.train.example_shape == (3, 4, 4)
    assert data.classes == 2
    with pytest.raises(EvenlyError, match="no option of a folder of images is called 'sise'"):
        load(tmp_path, sise=4)


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in (*IMAGES, *COMPOSITES, "civilcomments")])
def test_every_named_law_says_what_it_is_and_how_it_was_made(name: str) -> None:
    data = load(name, seed=2)
    assert data.name == name
    assert DATASETS[name].__doc__
    assert data.options["seed"] == 2
    assert list(data.splits) == list(SPLITS)
    assert data.group_count == len(data.group_names) == 4
    assert "model" in data.recipe
