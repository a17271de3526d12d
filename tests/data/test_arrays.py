"""Arrays from an `.npz` file: what is read, how it is split, what is refused."""

import io
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from evenly.data import Texts, from_arrays, load

SPLITS = ("train", "validation", "test")
X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 1, 0])


def arrays(n=200):
    """The first column is the example's own number."""
    random = np.random.default_rng(0)
    x = np.column_stack([np.arange(n), random.normal(size=n)])
    return {"x": x, "y": np.arange(n) % 2, "groups": random.integers(0, 3, n)}


@pytest.fixture
def saved(tmp_path):
    def save(**columns):
        np.savez(tmp_path / "mine.npz", **columns)
        return str(tmp_path / "mine.npz")

    return save


def numbers(data):
    return {name: split.inputs[:, 0].long().tolist() for name, split in data.splits.items()}


def test_a_split_column_is_followed_in_the_order_of_storage(saved):
    columns = arrays()
    split = np.random.default_rng(1).choice(SPLITS, size=200)
    data = load(saved(**columns, split=split))
    assert data.name == "mine"
    for name, part in data.splits.items():
        assert numbers(data)[name] == np.flatnonzero(split == name).tolist()
        assert torch.equal(part.labels, torch.from_numpy(columns["y"][split == name]))
        assert torch.equal(part.groups, torch.from_numpy(columns["groups"][split == name]))
        assert part.inputs.dtype == torch.float32
    for names in (["train"] * 6, ["train", "train", "train", "train", "test", "test"]):
        data = load(saved(x=X, y=Y, split=names))
        assert list(data.splits) == list(dict.fromkeys(names))
        assert data.train.groups is None


@pytest.mark.parametrize("grouped", [True, False])
def test_without_one_every_stratum_is_split_60_20_20_by_the_seed(saved, grouped):
    columns = arrays()
    if not grouped:
        del columns["groups"]
    data, again, other = (load(saved(**columns), seed=seed) for seed in (5, 5, 6))
    assert numbers(data) == numbers(again) != numbers(other)
    assert sorted(n for part in numbers(data).values() for n in part) == list(range(200))
    strata = columns["y"] * 3 + columns.get("groups", 0)
    for stratum in np.unique(strata):
        size = (strata == stratum).sum()
        for name, share in zip(SPLITS, (0.6, 0.2, 0.2), strict=True):
            assert abs((strata[numbers(data)[name]] == stratum).sum() - share * size) <= 1


def test_overlapping_groups_and_images_are_read_as_they_are(saved):
    images = np.arange(20 * 3 * 2 * 2, dtype=np.uint8).reshape(20, 3, 2, 2)
    groups = np.random.default_rng(0).random((20, 4)) < 0.5
    data = load(saved(x=images, y=np.arange(20) % 2, groups=groups))
    assert data.train.inputs.dtype == torch.uint8
    assert data.train.example_shape == (3, 2, 2)
    assert data.train.groups.dtype == torch.bool
    assert data.group_count == 4


class Explosive:
    """Unpickling this would raise a warning, which is an error here."""

    def __reduce__(self):
        return warnings.warn, ("a pickle in the file was executed",)


SIX = ["train", "train", "validation", "validation", "test", "test"]
TWO = {"x": np.eye(2), "y": [0, 1]}
REFUSED = [
    ({"x": np.eye(2)}, "lacks y; save it with"),
    ({}, "lacks x and y"),
    (TWO | {"labels": [0, 1]}, "holds labels; evenly reads x, y, groups"),
    (TWO | {"y": [0]}, "y in .* has 1 rows, x has 2"),
    (TWO | {"groups": [0]}, "groups in .* has 1 rows, x has 2"),
    (TWO | {"split": ["train"]}, "split in .* has 1 rows, x has 2"),
    (TWO | {"split": ["train", "dev"]}, "split 'dev' in .* is not known"),
    (TWO | {"split": ["test", "test"]}, "the train set is empty"),
    (TWO | {"y": np.array([0, None], dtype=object)}, "cannot be read as plain arrays"),
    (TWO | {"x": np.array([Explosive(), Explosive()], dtype=object)}, "cannot be read as plain arrays"),
    (TWO | {"x": [[np.nan], [1.0]], "split": ["train", "train"]}, "NaN or infinity, the first at index 0"),
    ({"x": np.empty((0, 2)), "y": []}, "is empty"),
    ({"x": 3.0, "y": 1}, "x in .* has shape"),
    ({"x": X, "y": np.eye(2)[Y]}, "y in .* has shape"),
    ({"x": X, "y": Y[:, None], "groups": Y}, "y in .* has shape"),
    ({"x": X, "y": list("ababab")}, "train labels .*integers"),
    ({"x": X, "y": np.where(np.arange(6) == 4, np.nan, Y)}, "labels are not whole numbers"),
    ({"x": X, "y": Y, "groups": list("ababab")}, "train groups .*integers"),
    ({"x": X, "y": Y, "split": [["train"]] * 6}, "split in .* has shape"),
    (
        {"x": X, "y": [0, 1, 0, 1, 0, 0], "split": SIX},
        r"class 1 has no example in the test split of .*mine.npz \(train 1, validation 1, test 0\); add some, or",
    ),
    ({"x": X, "y": [0, 1, 1, 1, 0, 1], "split": SIX}, "class 0 has no example in the validation split"),
    ({"x": np.eye(12), "y": [0] * 10 + [1] * 2}, r"class 1 has no example in the test split .*; add .*, or give split"),
]


@pytest.mark.parametrize(("columns", "message"), REFUSED)
def test_refusals(saved, refused, columns, message):
    refused(message, load, saved(**columns))


@pytest.mark.parametrize("dtype", [">f4", ">f8", np.longdouble, ">i2", "<f2"])
def test_numbers_of_any_type_are_read(saved, dtype):
    data = load(saved(x=X.astype(dtype), y=Y.astype(">i8"), groups=Y.astype(">u2"), split=["train"] * 6))
    np.testing.assert_array_equal(data.train.inputs.numpy(), X)
    assert data.train.labels.tolist() == data.train.groups.tolist() == Y.tolist()


def test_arrays_that_hold_no_numbers_or_more_than_fits_are_refused(saved, tmp_path, refused):
    void = np.zeros(6, [("a", "f4")])
    for columns, message in (
        ({"x": X.astype(complex), "y": Y}, "the train inputs are of type complex128; give numbers"),
        ({"x": void, "y": Y}, "inputs are of type .*; give numbers"),
        ({"x": X, "y": Y.astype(complex)}, "train labels are of type complex128; give numbers"),
        ({"x": X, "y": Y, "groups": void}, "train groups are of type .*; give numbers"),
    ):
        refused(message, load, saved(**columns))
    path = tmp_path / "mine.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (1_000_000, 500_000)}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue() + b"\0" * 99)
    refused(r"cannot be read as plain arrays \(Unable to allocate 3.64 TiB|EOF: reading array", load, path)
    content = bytearray(Path(saved(x=X, y=Y)).read_bytes())
    for start in (content.find(b"PK\1\2") + 8, content.find(b"PK\3\4") + 6):
        content[start] |= 1  # the flag of an encrypted file
    path.write_bytes(content)
    refused(r"cannot be read as plain arrays \('?x.npy'? is encrypted", load, path)


def test_arrays_in_memory_are_divided_like_the_rows_of_a_file(refused):
    columns = arrays()
    given = [columns[name] for name in ("x", "y", "groups")]
    data = from_arrays(*given, seed=5)
    assert [len(split) for split in data.splits.values()] == [120, 41, 39]
    assert numbers(data) == numbers(from_arrays(*map(torch.from_numpy, given), seed=5)) != numbers(from_arrays(*given))
    texts = from_arrays(Texts([str(i) for i in range(200)]), columns["y"], seed=5)
    assert [int(text) % 2 for text in texts.test.texts] == texts.test.labels.tolist()
    refused(
        "class 0 has no example in the validation split .*; give more, or divide them yourself",
        from_arrays,
        X,
        [0] + [1] * 5,
    )


def damaged():
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.random.default_rng(0).normal(size=(100, 10)), y=np.arange(100) % 2)
    content = bytearray(buffer.getvalue())
    content[200:300] = b"\xff" * 100
    return bytes(content)


def test_what_is_no_archive_is_refused_and_closed(tmp_path, refused):
    np.save(tmp_path / "mine.npy", X)
    for content in (b"", b"hello", b"PK\x03\x04 cut short", damaged(), (tmp_path / "mine.npy").read_bytes()):
        (tmp_path / "mine.npz").write_bytes(content)
        refused("cannot be read as plain arrays", load, tmp_path / "mine.npz")
    (tmp_path / "folder.npz").mkdir()
    refused("cannot be read", load, tmp_path / "folder.npz")
    refused(r"there is no file .*missing", load, tmp_path / "missing.npz")
    refused("option 'n' does not apply to an .npz file", load, tmp_path / "mine.npz", n=3)
