"""The user's own arrays, in memory or from one `.npz` file: `x` (N, ...), `y` (N,), optionally `groups` and `split`.

`split` names each example's part: "train", "validation" or "test". Without it 60/20/20, stratified by label and group,
drawn from the seed. Every class is in every split there is.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Subset

from evenly.data.contract import SPLITS, Data, Places, Split
from evenly.data.images.parts import Integers, ranks, rows
from evenly.data.metadata import Groups, check_classes, in_splits
from evenly.data.texts import Texts
from evenly.errors import EvenlyError


def read_arrays(path: Path, needed: Sequence[str] = ("x",)) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays x, y, groups and split of an `.npz` file, those there are, a row per example; nothing is executed."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            columns = {
                Path(name).stem: np.lib.format.read_array(archive.open(name), allow_pickle=False)
                for name in archive.namelist()
            }
    except FileNotFoundError:
        raise EvenlyError(
            f"there is no file {str(path)!r}; give an .npz file or a name from `evenly datasets`"
        ) from None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, MemoryError) as error:
        said = str(error).removeprefix("File ")  # RuntimeError: encrypted, or packed in a way that is not known
        raise EvenlyError(
            f"{path} cannot be read as plain arrays ({said}); save it with numpy.savez(path, x=..., y=...)"
        ) from None
    if unknown := set(columns) - {"x", "y", "groups", "split"}:
        raise EvenlyError(f"{path} holds {', '.join(sorted(unknown))}; evenly reads x, y, groups and split")
    if missing := set(needed) - set(columns):
        raise EvenlyError(f"{path} lacks {' and '.join(sorted(missing))}; save it with numpy.savez(path, x=..., y=...)")
    x = columns["x"]
    for name, column in columns.items():
        wanted = {"y": "(N,)", "split": "(N,)", "groups": "(N,)"}.get(name, "(N, ...)")
        overlapping = name == "groups" and column.ndim == 2 and column.dtype == np.bool_
        if column.ndim == 0 or (name != "x" and column.ndim != 1 and not overlapping):
            raise EvenlyError(f"{name} in {path} has shape {column.shape}; give {wanted}")
        if len(column) != len(x):
            raise EvenlyError(f"{name} in {path} has {len(column)} rows, x has {len(x)}; give one row for each example")
    return columns


def from_arrays(x: Any, y: Any, groups: Any = None, seed: int = 0) -> Data:
    """A data set of the user's own inputs in memory, in any form that a `Split` takes, divided 60/20/20."""
    whole = Split(x, y, groups)  # what is wrong with a column is said before it is cut into splits
    labels = whole.labels.numpy()
    by_group = None if whole.groups is None else Groups(whole.groups.numpy(), [])
    split = _draw_split(labels, None if by_group is None else by_group.groups, seed)
    names = np.unique(labels).tolist()
    way_out = "give more, or divide them yourself: evenly.Data(train=(x, y), test=(x2, y2))"
    check_classes(Path("the arrays given"), names, np.searchsorted(names, labels), split, way_out)
    places = Places(np.arange(len(labels)), "row")
    return Data(**in_splits(lambda index: inputs_at(whole.inputs, index), labels, {}, by_group, split, places))


def inputs_at(inputs: Any, index: Integers) -> Any:
    """The inputs at these indices, in the form that they have."""
    if isinstance(inputs, Texts):
        return Texts([inputs.texts[i] for i in index])
    return rows(inputs, index) if isinstance(inputs, Tensor) else Subset(inputs, index.tolist())


def npz(path: str | Path, seed: int = 0) -> Data:
    """Read a data set from an `.npz` file; nothing in the file is executed."""
    path = Path(path)
    columns = read_arrays(path, ("x", "y"))
    x, y, groups = columns["x"], columns["y"], columns.get("groups")
    if len(x) == 0:
        raise EvenlyError(f"the training set in {path} is empty; give it at least one example")
    Split(x, y, groups)  # what is wrong with a column is said before it is cut into splits
    split = columns.get("split")
    split = _draw_split(y, groups, seed) if split is None else split.astype(str)
    if strange := set(split.tolist()) - set(SPLITS):
        raise EvenlyError(f"split {sorted(strange)[0]!r} in {path} is not known; use {', '.join(SPLITS)}")
    class_names, labels = np.unique(y, return_inverse=True)
    ways = "add some, or remove the class" if "split" in columns else "add some, remove the class, or give split"
    check_classes(path, [int(name) for name in class_names], labels, split, ways)
    parts = in_splits(
        lambda index: x[index],
        y,
        {},
        None if groups is None else Groups(groups, []),
        split,
        Places(np.arange(len(y)), "row"),
    )
    return Data(
        **parts, name=path.stem, options={"folder": str(path.parent.resolve()), "file": path.name, "seed": seed}
    )


def _draw_split(y: np.ndarray, groups: np.ndarray | None, seed: int) -> np.ndarray:
    """60/20/20, the same shares within every (label, group)."""
    key = y if groups is None or groups.ndim > 1 else np.unique(np.stack([y, groups]), axis=1, return_inverse=True)[1]
    rank = ranks(key, seed, "split")
    return np.select([rank < 0.6, rank < 0.8], ["train", "validation"], "test")
