"""Malformed arrays, files and samplers: one line that names the value, or the obvious reading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import evenly
from evenly import Data, EvenlyError, GroupBalanced, ProgressiveExpansion, Upsample
from evenly.data import load

X = torch.arange(12.0).reshape(6, 2)
Y = torch.tensor([0, 1, 0, 1, 1, 0])
G = torch.tensor([0, 1, 2, 3, 1, 0])

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "labels that are words": (lambda: Data((X, np.array(list("ababab")))), "train labels .*integers"),
    "groups that are words": (lambda: Data((X, Y, np.array(list("ababab")))), "train groups .*integers"),
    "inputs that are words": (lambda: Data((np.array([["a"]] * 6), Y)), "train inputs"),
    "nested lists as inputs": (lambda: Data((X.tolist(), Y)), "train inputs are a list"),
    "a test label below 0": (lambda: Data((X, Y), test=(X, 2 * Y - 1)), "test label -1 never occurs"),
    "overlapping groups that differ in number": (
        lambda: Data((X, Y, torch.ones(6, 2).bool()), test=(X, Y, torch.ones(6, 3).bool())),
        "groups",
    ),
    "overlapping groups in one split only": (lambda: Data((X, Y, G), test=(X, Y, torch.ones(6, 4).bool())), "groups"),
    "a negative index among good ones": (lambda: Upsample([-1, 2], 5), "hard index -1 is outside"),
    "a mask instead of indices": (lambda: Upsample([False, True], 2), "indices"),
    "an addition that is a word": (lambda: ProgressiveExpansion([0, 1, 1], add="some"), "add 'some'"),
    "an addition between": (lambda: ProgressiveExpansion([0, 1, 1], add=2.5), "add 2.5"),
    "nothing to balance": (lambda: GroupBalanced([]), "groups of shape"),
    "overlapping groups to balance": (lambda: GroupBalanced(torch.ones(4, 2).bool()), "groups of shape"),
    "a negative total": (lambda: GroupBalanced([0, 1], total=-3), "total -3"),
    "noise below 0": (lambda: load("patches", n=20, noise=-1.0), "noise -1.0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_in_a_line(case: str) -> None:
    build, message = REFUSED[case]
    with pytest.raises(EvenlyError, match=message):
        build()


COLUMNS: dict[str, dict[str, Any]] = {
    "x is a number": {"x": 3.0, "y": 1},
    "one-hot labels": {"x": X, "y": np.eye(2)[Y]},
    "a column of labels, and groups": {"x": X, "y": Y[:, None], "groups": Y},
    "labels that are words": {"x": X, "y": list("ababab")},
    "groups that are words": {"x": X, "y": Y, "groups": list("ababab")},
    "a column of splits": {"x": X, "y": Y, "split": [["train"]] * 6},
}


@pytest.mark.parametrize("case", COLUMNS)
def test_npz_refuses_columns(tmp_path: Path, case: str) -> None:
    np.savez(tmp_path / "mine.npz", **COLUMNS[case])
    with pytest.raises(EvenlyError):
        load(tmp_path / "mine.npz")


def test_npz_names_the_label_that_is_no_number(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=X, y=np.array([0, 1, 0, 1, np.nan, 0]))
    with pytest.raises(EvenlyError, match="labels are not whole numbers"):
        load(tmp_path / "mine.npz")


def broken(kind: str) -> bytes:
    import io

    buffer = io.BytesIO()
    if kind == "npy":
        np.save(buffer, X)
        return buffer.getvalue()
    np.savez_compressed(buffer, x=np.random.default_rng(0).normal(size=(100, 10)), y=np.arange(100) % 2)
    content = bytearray(buffer.getvalue())
    content[200:300] = b"\xff" * 100
    return {"empty": b"", "cut short": b"PK\x03\x04 cut short", "damaged": bytes(content)}[kind]


@pytest.mark.parametrize("kind", ["empty", "npy", "cut short", "damaged"])
def test_npz_refuses_broken_files_and_closes_them(tmp_path: Path, kind: str) -> None:
    (tmp_path / "mine.npz").write_bytes(broken(kind))
    with pytest.raises(EvenlyError, match="cannot be read as plain arrays"):
        load(tmp_path / "mine.npz")


def test_numpy_numbers_serve_as_additions() -> None:
    assert ProgressiveExpansion([0, 1, 1, 1], 1, 1, np.int64(1)).size(1) == 3
    assert ProgressiveExpansion([0, 1, 1, 1], 1, 1, np.array([1, 1])).size(2) == 4


def test_a_state_dict_brings_its_seed_and_so_its_sets() -> None:
    groups = torch.arange(40) % 3
    saved, resumed = (ProgressiveExpansion(groups, 1, 1, 2, seed=seed) for seed in (1, 0))
    resumed.load_state_dict(saved.state_dict())
    assert resumed.indices().tolist() == saved.indices().tolist()


def test_every_split_reports_every_group() -> None:
    results = evenly.train("mlp", Data((X, Y, Y), test=(X, Y, G)), epochs=1).results
    assert len(results["train"]["groups"]) == len(results["test"]["groups"]) == 4
