"""Groups to measure by beside groups to balance: the contract, the metrics, the selection, the audit."""

from __future__ import annotations

import pytest
import torch

import evenly
from evenly import EvenlyError
from evenly.data import Data, Split, Texts
from evenly.engine import measure
from evenly.engine.batches import Batches

LABELS = torch.tensor([0, 0, 0, 1, 1, 1])
GROUPS = torch.tensor([0, 1, 2, 3, 3, 2])
MEMBERS = torch.tensor([[1, 0], [1, 1], [0, 0], [0, 1], [0, 1], [1, 1]]).bool()


def split(name="train", members=MEMBERS):
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    return Split(x, LABELS, GROUPS, name=name, evaluation_groups=members)


def data(**kept):
    return Data(split(), split("validation"), split("test"), evaluation_group_names=["old", "young"], **kept)


def test_metrics_go_by_the_evaluation_groups():
    whole = data(group_names=list("abcd"))
    assert whole.measured_names == ["old", "young"]
    assert whole.group_count == 4
    outputs = torch.tensor([3.0, -3.0, -1.0, 2.0, -2.0, 5.0])  # right: 1 1 1 1 0 1, as (N,) logits of class 1
    outputs[0] = -1.0
    found = measure(outputs, whole.test, whole)
    assert found["groups"] == pytest.approx([1.0, 3 / 4])
    assert found["group_counts"] == [3, 4]
    assert found["worst_group"] == pytest.approx(0.75)
    assert found["train_weighted"] == pytest.approx((3 * 1.0 + 4 * 0.75) / 7)


def test_without_them_metrics_go_by_the_groups():
    plain = Data((torch.randn(6, 3), LABELS, GROUPS), test=(torch.randn(6, 3), LABELS, GROUPS))
    assert plain.measured_names == ["group 0", "group 1", "group 2", "group 3"]
    assert plain.train.measured_groups is plain.train.groups
    assert measure(torch.randn(6, 2), plain.test, plain)["group_counts"] == [1, 1, 2, 2]
    assert Data((torch.randn(6, 3), LABELS)).measured_names == []


def test_they_move_with_the_split_and_count_in_the_fingerprint():
    whole = data()
    assert torch.equal(whole.train.to(torch.device("cpu")).evaluation_groups, MEMBERS)
    other = MEMBERS.clone()
    other[0, 1] = True
    changed = Data(split(), split("validation"), split("test", other))
    assert changed.fingerprint() != whole.fingerprint()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Data(split(), test=Split(torch.randn(6, 3), LABELS, GROUPS)),
            "evaluation groups are given for one of",
        ),
        (lambda: split(members=MEMBERS[:3]), "3 rows for 6 examples"),
        (
            lambda: Data(split(), evaluation_group_names=["old"]),
            "1 evaluation group names for 2; give one name for each",
        ),
        (lambda: Split(Texts(["a", "b"])), r"has inputs but no labels; give labels of shape \(2,\)"),
        (
            lambda: Data(Split(Texts(["a", "b"]), [0, 1]), test=(torch.randn(2, 3), [0, 1])),
            r"test inputs have shape \(3,\), training inputs \(\); bring them to one shape",
        ),
        (
            lambda: Data((torch.randn(2, 3), [0, 1]), test=Split(Texts(["a", "b"]), [0, 1])),
            r"test inputs have shape \(\), training inputs \(3,\)",
        ),
        (
            lambda: Batches(Split(Texts(["a", "b"]), [0, 1]), 2, torch.device("cpu")),
            "the train inputs are texts; turn them into token ids with",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(make, message):
    with pytest.raises(EvenlyError, match=message):
        make()


def test_the_worst_group_cannot_select_where_validation_lacks_one():
    lacking = torch.tensor([0, 1, 2, 2, 2, 2])
    x = torch.randn(6, 3)
    whole = Data((x, LABELS, GROUPS), (x, LABELS, lacking), group_names=["a", "b", "c", "d"])
    message = (
        r"'d' has no validation example, so select 'worst-group' cannot see it; use select='worst-class' or 'average'"
    )
    with pytest.raises(EvenlyError, match=message):
        evenly.train("mlp", whole, epochs=1, select="worst-group", device="cpu")
    evenly.train("mlp", whole, epochs=1, select="worst-class", device="cpu")
    few = Data((x, LABELS, GROUPS), (x, LABELS, lacking.clamp(max=1)), group_names=["a", "b", "c", "d"])
    with pytest.raises(EvenlyError, match=r"'c' has no validation example \(nor has 1 more group\)"):
        evenly.train("mlp", few, epochs=1, select="worst-group", device="cpu")
    fewer = Data((x, LABELS, GROUPS), (x, LABELS, lacking * 0), group_names=["a", "b", "c", "d"])
    with pytest.raises(EvenlyError, match=r"'b' has no validation example \(nor have 2 more groups\)"):
        evenly.train("mlp", fewer, epochs=1, select="worst-group", device="cpu")
    with pytest.raises(EvenlyError, match="no validation example is in any of the 2 overlapping groups"):
        split("validation", torch.zeros(6, 2, dtype=torch.bool))
    # a group that training lacks, or that is nowhere, is no reason
    nowhere = Data((x, LABELS, GROUPS), (x, LABELS, GROUPS), group_names=["a", "b", "c", "d", "e"])
    evenly.train("mlp", nowhere, epochs=1, select="worst-group", device="cpu")
    evenly.train("mlp", Data((x, LABELS, lacking), (x, LABELS, GROUPS)), epochs=1, select="worst-group", device="cpu")


def test_an_audit_goes_by_them():
    whole = data(group_names=list("abcd"))
    run = evenly.train("mlp", whole, epochs=1, device="cpu")
    found = evenly.audit(run.model, whole, top=0)
    assert {group.name: group.n for group in found.groups} == {"old": 3, "young": 4}
