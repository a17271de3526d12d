"""CivilComments-WILDS, on a file of its layout that is written here."""

import numpy as np
import pytest
import torch

import evenly
from evenly.data import load

IDENTITIES = ["male", "female", "LGBTQ", "christian", "muslim", "other_religions", "black", "white"]
SPLITS = ("train", "val", "test")


@pytest.fixture
def rows():
    """120 comments; how far each mentions an identity is drawn, some are exactly half and some not annotated."""
    draw = np.random.default_rng(0)
    made = []
    for i in range(120):
        toxicity = (0.0, 0.5, 0.49, 1.0)[i % 4]
        row = {"": str(i), "id": str(5000 + i), "comment_text": f'{"vile" if i % 2 else "kind"}, "so"\nsaid {i}'}
        row |= {"split": SPLITS[i // 4 % 3], "toxicity": str(toxicity), "identity_any": ("1.0", "0.2", "0.5")[i % 3]}
        row |= {name: ("", "0.0", "0.5", "0.49", "1.0")[draw.integers(5)] for name in IDENTITIES}
        made.append(row)
    return made


@pytest.fixture
def folder(rows, tmp_path):
    inner = tmp_path / "civilcomments" / "civilcomments_v1.0"
    inner.mkdir(parents=True)
    lines = [",".join(rows[0])]
    for row in rows:
        lines.append(",".join('"' + cell.replace('"', '""') + '"' for cell in row.values()))
    (inner / "all_data_with_identities.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def test_labels_splits_and_both_kinds_of_groups(rows, folder, monkeypatch):
    monkeypatch.setenv("EVENLY_DATA", str(folder))
    data = load("civilcomments")
    assert list(data.class_names) == ["not toxic", "toxic"]
    assert len(data.group_names) == 512
    assert len(data.measured_names) == 16
    for part, name in zip(("train", "validation", "test"), SPLITS, strict=True):
        split = data.splits[part]
        mine = [row for row in rows if row["split"] == name]
        assert split.texts == [row["comment_text"] for row in mine]
        labels = [int(float(row["toxicity"]) >= 0.5) for row in mine]
        assert split.labels.tolist() == labels
        mentions = [[bool(row[i]) and float(row[i]) >= 0.5 for i in IDENTITIES] for row in mine]
        for g, name_of in enumerate(data.measured_names):
            label, identity = name_of.rsplit(", ", 1)
            expected = [
                bool(m[IDENTITIES.index(identity)]) and ("not toxic", "toxic")[y] == label
                for m, y in zip(mentions, labels, strict=True)
            ]
            assert split.evaluation_groups[:, g].tolist() == expected
        number = [int("".join(str(int(bit)) for bit in (y, *m)), 2) for m, y in zip(mentions, labels, strict=True)]
        assert split.groups.tolist() == number
        assert split.attributes["LGBTQ"].tolist() == [int(m[2]) for m in mentions]


def test_four_groups_can_be_asked_for_and_the_sixteen_are_measured_all_the_same(rows, folder, refused):
    place = {"folder": str(folder / "civilcomments")}
    data, usual = load("civilcomments", groups="label,identity_any", **place), load("civilcomments", **place)
    assert data.group_names[:2] == ["not toxic, identity_any 0", "not toxic, identity_any 1"]
    mine = [row for row in rows if row["split"] == "train"]
    expected = [2 * (float(row["toxicity"]) >= 0.5) + (float(row["identity_any"]) >= 0.5) for row in mine]
    assert data.train.groups.tolist() == expected
    assert data.measured_names == usual.measured_names
    assert torch.equal(data.test.evaluation_groups, usual.test.evaluation_groups)
    refused(
        "no attribute to group by is called 'tall'; there are: label, male",
        load,
        "civilcomments",
        groups="tall",
        **place,
    )


def test_accuracy_is_measured_on_the_overlapping_groups_and_pde_balances_the_distinct_ones(folder):
    data = load("civilcomments", folder=str(folder / "civilcomments"))
    run = evenly.train(data, method="pde", epochs=4, warmup_epochs=2, cap=3, device="cpu")
    measured = run.results.splits["test"]
    assert len(measured.groups) == 16
    assert list(measured.group_counts) == data.test.evaluation_groups.sum(0).tolist()
    outputs = run.model(run.model.encode(data.test.texts))
    right = (outputs.argmax(1) == data.test.labels).double()
    members = data.test.evaluation_groups
    by_hand = [float(right[members[:, g]].mean()) for g in range(16)]
    assert measured.groups == pytest.approx(by_hand, abs=1e-12)
    assert measured.worst_group == pytest.approx(min(by_hand), abs=1e-12)
    share = data.train.evaluation_groups.sum(0).double()
    assert measured.train_weighted == pytest.approx(float((share * torch.tensor(by_hand)).sum() / share.sum()))
    assert run.results.rule == "worst-group-argmax"
    assert (run.results.data.groups, len(run.results.data.group_names)) == (512, 16)
    distinct = torch.bincount(data.train.groups)
    assert run.history[0]["examples"] == int(distinct.clamp(max=3).sum()) < 3 * int((distinct > 0).sum())


def test_damaged_files_are_refused(folder, refused):
    file = folder / "civilcomments" / "civilcomments_v1.0" / "all_data_with_identities.csv"
    whole = file.read_text()
    for before, after, message in (
        ("LGBTQ", "lgbt", "has no column 'LGBTQ'; unpack its archive again"),
        ("split", "part", "has no column 'split'"),
        ("toxicity", "toxic", "has no column 'toxicity'"),
        ('"0.49"', '"much"', "is not a number .*; unpack its archive again"),
    ):
        file.write_text(whole.replace(before, after))
        refused(message, load, "civilcomments", folder=str(file.parent))
