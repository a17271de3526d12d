"""The contract of a data set: what it takes, what it refuses and in which words, what its fingerprint sees."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import evenly
from evenly import Data, Split, Texts
from evenly.data.contract import Places
from evenly.engine import measure
from evenly.engine.batches import Batches

X = torch.arange(12.0).reshape(6, 2)
Y = torch.tensor([0, 1, 0, 1, 1, 0])
G = torch.tensor([0, 1, 2, 3, 1, 0])
OVERLAPPING = torch.tensor([[1, 0], [1, 1], [0, 1], [0, 0], [1, 0], [0, 1]]).bool()
ALL = torch.ones(6, 2).bool()
TWO = Split(Texts(["a", "b"]), [0, 1])
NAN = torch.where(torch.arange(12).reshape(6, 2) == 7, torch.nan, X)


class Rows(Dataset):
    """Rows of X with their labels, like a user's own Dataset; `reads` counts what was looked at."""

    def __init__(self, x=X, y=Y):
        self.x, self.y, self.reads = x, y, 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.reads += 1
        return self.x[i], int(self.y[i])


class RowsWithTargets(Rows):
    """A Dataset in torchvision's manner."""

    @property
    def targets(self):
        return self.y.tolist()


REFUSED = [
    (lambda: Data((X[:0], Y[:0])), "the train set is empty"),
    (lambda: Data((X, Y), (X[:0], Y[:0])), "the validation set is empty"),
    (lambda: Data(X), r"no labels; give labels of shape \(6,\)"),
    (lambda: Split(Texts(["a", "b"])), r"has inputs but no labels; give labels of shape \(2,\)"),
    (lambda: Data((X[:, 0], Y)), r"train inputs have shape \(6,\)"),
    (lambda: Data((3.0, Y)), "train inputs are a float"),
    (lambda: Data((X.tolist(), Y)), "train inputs are a list"),
    (lambda: Data((np.array([["a"]] * 6), Y)), "train inputs are of type"),
    (lambda: Data((X, Y, G, G)), "a tuple of 4"),
    (lambda: Data((NAN, Y)), "1 of 6 train inputs hold NaN or infinity, the first at index 3"),
    (lambda: Data((X, Y), test=(np.full((2, 2), np.inf), Y[:2])), "2 of 2 test .* index 0"),
    (lambda: Data((X, Y[:5])), r"train labels have shape \(5,\) for 6 examples"),
    (lambda: Data((X, torch.eye(2)[Y])), r"train labels have shape \(6, 2\)"),
    (lambda: Data((X, Y + 0.5)), r"not whole numbers \(e\.g\. 0\.5\)"),
    (lambda: Data((X, np.array(list("ababab")))), "train labels .*integers"),
    (lambda: Data((X, 2 * Y - 1)), r"0\.\.K-1 .*got -1, 1; renumber"),
    (lambda: Data((X, Y + 1)), r"0\.\.K-1 .*got 1, 2"),
    (lambda: Data((X, Y * 2)), r"0\.\.K-1 .*got 0, 2"),
    (lambda: Data((X, Y * 0)), "one class only"),
    (lambda: Data((X, Y), test=(X, Y + 1)), "test label 2 never occurs in training"),
    (lambda: Data((X, Y), test=(X, 2 * Y - 1)), "test label -1 never occurs"),
    (lambda: Data((X, Y), (X, Y + 4)), "validation label 4 never occurs in training"),
    (lambda: Data((X, Y), test=(X[:, :1], Y)), r"test inputs have shape \(1,\), training inputs \(2,\)"),
    (lambda: Data(TWO, test=(X, Y)), r"test inputs have shape \(2,\), training inputs \(\); bring them to one shape"),
    (lambda: Data((X, Y), test=TWO), r"test inputs have shape \(\), training inputs \(2,\)"),
    (lambda: Data((X, Y, G[:5])), r"train groups have shape \(5,\) for 6 examples"),
    (lambda: Data((X, Y, np.array(list("ababab")))), "train groups .*integers"),
    (lambda: Data((X, Y, OVERLAPPING[:5])), "train groups have 5 rows for 6 examples"),
    (lambda: Split(X, Y, G, evaluation_groups=ALL[:3]), "3 rows for 6 examples"),
    (lambda: Data((X, Y, G - 1)), "train groups hold -1; number the groups from 0"),
    (lambda: Data((X, Y, G), test=(X, Y)), "one of train and test only"),
    (lambda: Data((X, Y), test=(X, Y, G)), "one of train and test only"),
    (lambda: Data((X, Y, G), test=(X, Y, torch.ones(6, 4).bool())), "one of train and test only"),
    (lambda: Data((X, Y, ALL), test=(X, Y, torch.ones(6, 3).bool())), "one of train and test only"),
    (lambda: Data(Split(X, Y, G, evaluation_groups=ALL), test=(X, Y, G)), "evaluation groups are given for one of"),
    (lambda: Data((X, Y, ALL), test=(X, Y, ~ALL)), "no test example is in any of the 2 overlapping groups"),
    (lambda: Split(X, Y, G, evaluation_groups=~ALL), "no train example is in any of the 2 overlapping groups"),
    (lambda: Split(X, Y, attributes={"hair": Y[:5]}), "train attribute 'hair' have shape"),
    (lambda: Data((X, Y), class_names=["cat"]), "1 class names for 2"),
    (lambda: Data((X, Y, G), group_names=["a", "b", "c"]), "3 group names for 4"),
    (
        lambda: Data(Split(X, Y, G, evaluation_groups=ALL), evaluation_group_names=["old"]),
        "1 evaluation group names for 2; give one name for each",
    ),
    (lambda: Batches(TWO, 2, torch.device("cpu")), "inputs are texts; turn them into token ids with"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refusals(refused, call, message):
    refused(message, call)


def test_only_float64_arrays_change_their_type():
    for dtype in (torch.float64, torch.float32, torch.float16, torch.uint8):
        for inputs in (X.to(dtype), X.to(dtype).numpy()):
            split = Data((inputs, Y)).train
            assert split.inputs.dtype == (torch.float32 if inputs.dtype == np.float64 else dtype)
            assert torch.equal(split.inputs.double(), X.double())


def test_lists_and_whole_floats_serve_as_labels_and_groups():
    data = Data((X, Y.double().numpy(), G.tolist()))
    assert data.train.labels.dtype == data.train.groups.dtype == torch.int64
    assert torch.equal(data.train.labels, Y)
    assert torch.equal(data.train.groups, G)


def test_counts_classes_over_training_and_groups_over_all_splits():
    data = Data((X, Y, Y), test=(X, Y, G))
    assert (data.classes, data.group_count) == (2, 4)
    assert Data((X, Y, OVERLAPPING)).group_count == 2
    assert Data((X, Y)).group_count == 0
    assert list(data.splits) == ["train", "test"]


def test_a_split_takes_the_name_of_its_place():
    data = Data(Split(X, Y), validation=Split(X, Y), test=Split(X, Y))
    assert [split.name for split in data.splits.values()] == ["train", "validation", "test"]


def test_moving_a_split_keeps_everything():
    split = Split(X, Y, G, {"hair": Y}, name="test")
    moved = split.to(torch.device("cpu"))
    assert (moved.name, len(moved), moved.example_shape) == ("test", 6, (2,))
    assert all(torch.equal(getattr(moved, part), getattr(split, part)) for part in ("inputs", "labels", "groups"))
    assert torch.equal(moved.attributes["hair"], Y)


@pytest.mark.parametrize(("kind", "reads"), [(Rows, 6), (RowsWithTargets, 0)])
def test_labels_of_a_dataset_come_from_targets_or_from_one_pass(kind, reads):
    dataset = kind()
    split = Split(dataset)
    assert torch.equal(split.labels, Y)
    assert dataset.reads == reads
    assert split.inputs is dataset
    assert (len(split), split.example_shape) == (6, (2,))


def test_labels_given_beside_a_dataset_win():
    assert torch.equal(Split(Rows(), 1 - Y).labels, 1 - Y)


def changed(tensor):
    tensor = tensor.clone()
    tensor[-1] = ~tensor[-1] if tensor.dtype == torch.bool else 1 - tensor[-1]
    return tensor


CHANGES = {
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


def test_fingerprints_are_those_of_earlier_versions():
    """Runs are known by them: another one would train all of them again."""
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6) % 2
    data = Data(train=(x, y, y), test=(x + 1, y, 1 - y))
    assert (data.fingerprint(), data.fingerprint("test")) == ("664dc63017de8c72", "5299c4c91aad095d")


def test_equal_places_have_equal_identities():
    rows = Places(np.array([3, 5, 4]), "row")
    assert rows.identities.tolist() == [3, 5, 4]
    assert Places(range(7, 9), "line").identities.tolist() == [7, 8]
    files = Places(["a/1.png", "é.png", "a/1.png"])
    assert files.identities.dtype == np.uint64
    assert files.identities[0] == files.identities[2] != files.identities[1]
    assert files.at(np.array([1])).identities.tolist() == files.identities[1:2].tolist()


def test_fingerprint_changes_with_every_change_and_with_nothing_else():
    prints = {case: build().fingerprint() for case, build in CHANGES.items()}
    assert len(set(prints.values())) == len(CHANGES), prints
    assert prints == {case: build().fingerprint() for case, build in CHANGES.items()}
    assert all(len(fingerprint) == 16 for fingerprint in prints.values())
    strided = torch.stack([X, X], dim=2)[..., 0]
    assert not strided.is_contiguous()
    assert Data((strided, Y), name="other", class_names="ab").fingerprint() == Data((X.clone(), Y)).fingerprint()


# Groups to measure by beside groups to balance

LABELS = torch.tensor([0, 0, 0, 1, 1, 1])
GROUPS = torch.tensor([0, 1, 2, 3, 3, 2])
MEMBERS = torch.tensor([[1, 0], [1, 1], [0, 0], [0, 1], [0, 1], [1, 1]]).bool()
NAMES = list("abcd")


def measured(members=MEMBERS, **names):
    splits = [Split(X, LABELS, GROUPS, evaluation_groups=each) for each in (MEMBERS, MEMBERS, members)]
    return Data(*splits, evaluation_group_names=["old", "young"], **names)


def test_metrics_and_audits_go_by_the_evaluation_groups_or_else_by_the_groups():
    data = measured(group_names=NAMES)
    assert data.measured_names == ["old", "young"]
    assert data.group_count == 4
    outputs = torch.tensor([-1.0, -3.0, -1.0, 2.0, -2.0, 5.0])  # (N,) logits of class 1; the fifth is wrong
    metrics = measure(outputs, data.test, data)
    assert metrics.groups == pytest.approx((1.0, 3 / 4))
    assert metrics.group_counts == (3, 4)
    assert metrics.worst_group == pytest.approx(0.75)
    assert metrics.train_weighted == pytest.approx((3 * 1.0 + 4 * 0.75) / 7)
    run = evenly.train(data, model="mlp", epochs=1, device="cpu")
    audit = evenly.audit(run.model, data, top=0)
    assert {group.name: group.n for group in audit.groups} == {"old": 3, "young": 4}
    plain = Data((X, LABELS, GROUPS), test=(X, LABELS, GROUPS))
    assert plain.measured_names == ["group 0", "group 1", "group 2", "group 3"]
    assert plain.train.measured_groups is plain.train.groups
    assert measure(torch.randn(6, 2), plain.test, plain).group_counts == (1, 1, 2, 2)
    assert Data((X, LABELS)).measured_names == []


def test_every_split_reports_every_group():
    splits = evenly.train(Data((X, Y, Y), test=(X, Y, G)), model="mlp", epochs=1).results.splits
    assert len(splits["train"].groups) == len(splits["test"].groups) == 4


def test_evaluation_groups_move_with_the_split_and_count_in_the_fingerprint():
    assert torch.equal(measured().train.to(torch.device("cpu")).evaluation_groups, MEMBERS)
    assert measured(~MEMBERS).fingerprint() != measured().fingerprint()


def test_the_worst_group_cannot_select_where_validation_lacks_one(refused):
    def train(train_groups, validation_groups, names=NAMES, select="worst-group"):
        data = Data((X, LABELS, train_groups), (X, LABELS, validation_groups), group_names=names)
        evenly.train(data, model="mlp", epochs=1, select=select, device="cpu")

    fewer = torch.tensor([0, 1, 2, 2, 2, 2])
    message = (
        "'d' has no validation example, so select 'worst-group' cannot see it; use select='worst-class' or 'average'"
    )
    refused(message, train, GROUPS, fewer)
    refused(r"'c' has no validation example \(nor has 1 more group\)", train, GROUPS, fewer.clamp(max=1))
    refused(r"'b' has no validation example \(nor have 2 more groups\)", train, GROUPS, fewer * 0)
    train(GROUPS, fewer, select="worst-class")
    train(GROUPS, GROUPS, [*NAMES, "e"])  # a group that is nowhere is no reason,
    train(fewer, GROUPS, None)  # nor is one that training lacks
