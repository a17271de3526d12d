"""The contract of a data set: what it takes, what it refuses and in which words, what its fingerprint sees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from evenly import Data, EvenlyError, Split

X = torch.arange(12.0).reshape(6, 2)
Y = torch.tensor([0, 1, 0, 1, 1, 0])
G = torch.tensor([0, 1, 2, 3, 1, 0])
OVERLAPPING = torch.tensor([[1, 0], [1, 1], [0, 1], [0, 0], [1, 0], [0, 1]]).bool()
NAN = torch.where(torch.arange(12).reshape(6, 2) == 7, torch.nan, X)


class Rows(Dataset):
    """Rows of X with their labels, like a user's own Dataset; `reads` counts what was looked at."""

    def __init__(self, x: Tensor = X, y: Tensor = Y) -> None:
        self.x, self.y, self.reads = x, y, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        self.reads += 1
        return self.x[i], int(self.y[i])


class RowsWithTargets(Rows):
    """A Dataset in torchvision's manner."""

    @property
    def targets(self) -> list[int]:
        return self.y.tolist()


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no example": (lambda: Data((X[:0], Y[:0])), "the train set is empty"),
    "no validation example": (lambda: Data((X, Y), (X[:0], Y[:0])), "the validation set is empty"),
    "no labels": (lambda: Data(X), r"no labels; give labels of shape \(6,\)"),
    "one-dimensional inputs": (lambda: Data((X[:, 0], Y)), r"train inputs have shape \(6,\)"),
    "inputs that are no data": (lambda: Data((3.0, Y)), "train inputs are a float"),
    "tuple of four": (lambda: Data((X, Y, G, G)), "a tuple of 4"),
    "NaN": (lambda: Data((NAN, Y)), "1 of 6 train inputs hold NaN or infinity, the first at index 3"),
    "infinity in an array": (lambda: Data((X, Y), test=(np.full((2, 2), np.inf), Y[:2])), "2 of 2 test .* index 0"),
    "labels too short": (lambda: Data((X, Y[:5])), r"train labels have shape \(5,\) for 6 examples"),
    "one-hot labels": (lambda: Data((X, torch.eye(2)[Y])), r"train labels have shape \(6, 2\)"),
    "labels between": (lambda: Data((X, Y + 0.5)), r"not whole numbers \(e\.g\. 0\.5\)"),
    "labels ±1": (lambda: Data((X, 2 * Y - 1)), r"0\.\.K-1 .*found -1, 1: renumber"),
    "labels from 1": (lambda: Data((X, Y + 1)), r"0\.\.K-1 .*found 1, 2"),
    "a class missing": (lambda: Data((X, Y * 2)), r"0\.\.K-1 .*found 0, 2"),
    "one class": (lambda: Data((X, Y * 0)), "one class only"),
    "unseen test label": (lambda: Data((X, Y), test=(X, Y + 1)), "test label 2 never occurs in training"),
    "unseen validation label": (lambda: Data((X, Y), (X, Y + 4)), "validation label 4 never occurs in training"),
    "shapes differ": (
        lambda: Data((X, Y), test=(X[:, :1], Y)),
        r"test inputs have shape \(1,\), training inputs \(2,\)",
    ),
    "groups too short": (lambda: Data((X, Y, G[:5])), r"train groups have shape \(5,\) for 6 examples"),
    "rows of groups too few": (lambda: Data((X, Y, OVERLAPPING[:5])), "train groups have 5 rows for 6 examples"),
    "groups from -1": (lambda: Data((X, Y, G - 1)), "train groups hold -1; number the groups from 0"),
    "groups in train only": (lambda: Data((X, Y, G), test=(X, Y)), "one of train and test only"),
    "groups in test only": (lambda: Data((X, Y), test=(X, Y, G)), "one of train and test only"),
    "attribute too short": (lambda: Split(X, Y, attributes={"hair": Y[:5]}), "train attribute 'hair' have shape"),
    "class names": (lambda: Data((X, Y), class_names=["cat"]), "1 class names for 2"),
    "group names": (lambda: Data((X, Y, G), group_names=["a", "b", "c"]), "3 group names for 4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_in_a_line_that_names_the_value(case: str) -> None:
    build, message = REFUSED[case]
    with pytest.raises(EvenlyError, match=message) as refusal:
        build()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.float64, torch.float32),
        (np.float32, torch.float32),
        (np.uint8, torch.uint8),
        (np.float16, torch.float16),
        (torch.float64, torch.float64),
        (torch.uint8, torch.uint8),
    ],
)
def test_only_float64_arrays_change_their_type(given: type, kept: torch.dtype) -> None:
    inputs = X.to(given) if isinstance(given, torch.dtype) else X.numpy().astype(given)
    split = Data((inputs, Y)).train
    assert split.inputs.dtype == kept
    assert torch.equal(split.inputs.double(), X.double())


def test_lists_and_whole_floats_serve_as_labels_and_groups() -> None:
    data = Data((X, Y.double().numpy(), G.tolist()))
    assert data.train.labels.dtype == data.train.groups.dtype == torch.int64
    assert torch.equal(data.train.labels, Y)
    assert torch.equal(data.train.groups, G)


def test_counts_classes_over_training_and_groups_over_all_splits() -> None:
    data = Data((X, Y, Y), test=(X, Y, G))
    assert (data.classes, data.group_count) == (2, 4)
    assert Data((X, Y, OVERLAPPING)).group_count == 2
    assert Data((X, Y)).group_count == 0
    assert list(data.splits) == ["train", "test"]


def test_a_split_takes_the_name_of_its_place() -> None:
    data = Data(Split(X, Y), validation=Split(X, Y), test=Split(X, Y))
    assert [split.name for split in data.splits.values()] == ["train", "validation", "test"]


def test_moving_a_split_keeps_everything() -> None:
    split = Split(X, Y, G, {"hair": Y}, name="test")
    moved = split.to(torch.device("cpu"))
    assert (moved.name, len(moved), moved.example_shape) == ("test", 6, (2,))
    assert all(torch.equal(getattr(moved, part), getattr(split, part)) for part in ("inputs", "labels", "groups"))
    assert torch.equal(moved.attributes["hair"], Y)


@pytest.mark.parametrize(("kind", "reads"), [(Rows, 6), (RowsWithTargets, 0)])
def test_labels_of_a_dataset_come_from_targets_or_from_one_pass(kind: type[Rows], reads: int) -> None:
    dataset = kind()
    split = Split(dataset)
    assert torch.equal(split.labels, Y)
    assert dataset.reads == reads
    assert split.inputs is dataset
    assert (len(split), split.example_shape) == (6, (2,))


def test_labels_given_beside_a_dataset_win() -> None:
    assert torch.equal(Split(Rows(), 1 - Y).labels, 1 - Y)


def changed(tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor[-1] = ~tensor[-1] if tensor.dtype == torch.bool else 1 - tensor[-1]
    return tensor


CHANGES: dict[str, Callable[[], Data]] = {
    "nothing": lambda: Data((X, Y, G), test=(X, Y, G)),
    "an input": lambda: Data((changed(X), Y, G), test=(X, Y, G)),
    "a test input": lambda: Data((X, Y, G), test=(changed(X), Y, G)),
    "a label": lambda: Data((X, changed(Y), G), test=(X, Y, G)),
    "a test label": lambda: Data((X, Y, G), test=(X, changed(Y), G)),
    "a group": lambda: Data((X, Y, changed(G)), test=(X, Y, G)),
    "a test group": lambda: Data((X, Y, G), test=(X, Y, changed(G))),
    "no groups": lambda: Data((X, Y), test=(X, Y)),
    "labels as groups": lambda: Data((X, Y, Y), test=(X, Y, Y)),
    "overlapping groups": lambda: Data((X, Y, OVERLAPPING), test=(X, Y, OVERLAPPING)),
    "an overlapping group": lambda: Data((X, Y, changed(OVERLAPPING)), test=(X, Y, OVERLAPPING)),
    "the order": lambda: Data((X.flip(0), Y.flip(0), G.flip(0)), test=(X, Y, G)),
    "the shape": lambda: Data((X[:, None], Y, G), test=(X[:, None], Y, G)),
    "the type": lambda: Data((X.double(), Y, G), test=(X.double(), Y, G)),
    "bytes": lambda: Data((X.byte(), Y, G), test=(X.byte(), Y, G)),
    "the split": lambda: Data((X, Y, G), validation=(X, Y, G)),
    "a third split": lambda: Data((X, Y, G), (X, Y, G), (X, Y, G)),
    "a Dataset": lambda: Data(Rows()),
    "a label of a Dataset": lambda: Data(Rows(y=changed(Y))),
}


def test_fingerprint_changes_with_every_change() -> None:
    prints = {case: build().fingerprint() for case, build in CHANGES.items()}
    assert len(set(prints.values())) == len(CHANGES), prints
    assert all(len(fingerprint) == 16 for fingerprint in prints.values())


@pytest.mark.parametrize("case", CHANGES)
def test_fingerprint_is_the_same_for_the_same_content(case: str) -> None:
    assert CHANGES[case]().fingerprint() == CHANGES[case]().fingerprint()


def test_fingerprint_does_not_see_memory_layout_or_names() -> None:
    strided = torch.stack([X, X], dim=2)[..., 0]
    assert not strided.is_contiguous()
    assert Data((strided, Y), name="other", class_names="ab").fingerprint() == Data((X.clone(), Y)).fingerprint()


def test_overlapping_groups_without_a_member_are_refused():
    x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    with pytest.raises(EvenlyError, match="no test example is in any of the 2 overlapping groups"):
        Data(train=(x, y, torch.ones(4, 2, dtype=torch.bool)), test=(x, y, torch.zeros(4, 2, dtype=torch.bool)))
