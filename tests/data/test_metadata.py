"""The table that images, texts and numbers have in common: numbered values, groups of columns, drawn splits."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenly import EvenlyError
from evenly.data.metadata import check_classes, divided, grouped, numbered, splits_in, usual_groups
from evenly.data.rows import read_rows

LABELS = np.array([0, 1, 1, 0, 1, 0])
COLUMNS = {
    "place": np.array([0, 1, 2, 2, 0, 1]),
    "male": np.array([1, 0, 1, 1, 0, 0]),
    "old": np.array([1, 1, 0, 1, 0, 0]),
}
NAMES = {"place": ["sea", "wood", "sky"], "male": ["no", "yes"], "old": ["0", "1"]}
CLASSES = ["land", "water"]


def by(spec):
    return grouped(spec, LABELS, CLASSES, COLUMNS, NAMES)


# Values and splits


def test_numbers_are_in_order_of_value_and_names_of_the_alphabet():
    assert numbered(["10", "9", "-1", "9"])[0] == ["-1", "9", "10"]
    assert numbered(["10", "9", "-1", "9"])[1].tolist() == [2, 1, 0, 1]
    assert numbered(["b", "10", "9"])[0] == ["10", "9", "b"]


def test_splits_are_known_by_several_names_or_refused_by_line(tmp_path, refused):
    (tmp_path / "a.csv").write_text("x,Split\n1,Train\n2,val\n3,valid\n4,validation\n5,TEST\n")
    rows = read_rows(tmp_path / "a.csv")
    splits = splits_in(rows)
    assert splits is not None
    assert splits.tolist() == ["train", "validation", "validation", "validation", "test"]
    assert list(rows.columns) == ["x"]
    assert splits_in(rows) is None
    (tmp_path / "a.csv").write_text("x,split\n1,train\n2,dev\n")
    refused("split 'dev' in line 3 of .* is not known; use train, valid", splits_in, read_rows(tmp_path / "a.csv"))


# Groups


@pytest.mark.parametrize("spec", ["place", "label,place", "place,label", "label,place,male", "label"])
def test_groups_are_the_combinations_of_the_columns(spec):
    used = spec.split(",")
    values = {"label": CLASSES} | {name: [f"{name} {value}" for value in NAMES[name]] for name in COLUMNS}
    combinations = list(product(*(range(len(values[name])) for name in used)))
    groups = by(spec)
    assert groups.evaluation is None
    assert groups.names == [", ".join(values[name][k] for name, k in zip(used, c, strict=True)) for c in combinations]
    for i, group in enumerate(groups.groups):
        here = tuple((COLUMNS | {"label": LABELS})[name][i] for name in used)
        assert combinations[group] == here


def test_overlapping_groups_serve_evaluation_and_combinations_the_methods():
    groups = by("label,male+old")
    assert groups.evaluation_names == ["land, male", "water, male", "land, old", "water, old"]
    expected = [[LABELS[i] == k and COLUMNS[n][i] == 1 for n in ("male", "old") for k in (0, 1)] for i in range(6)]
    assert groups.evaluation.tolist() == expected
    assert groups.groups.tolist() == [4 * LABELS[i] + 2 * COLUMNS["male"][i] + COLUMNS["old"][i] for i in range(6)]
    assert groups.names[3] == "land, male yes, old 1"
    alone = by("male+old")
    assert alone.evaluation_names == ["male", "old"]
    assert alone.evaluation.tolist() == [[COLUMNS[n][i] == 1 for n in ("male", "old")] for i in range(6)]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("palce", "no attribute to group by is called 'palce'; there are: label, place, male, old"),
        (
            "label,place+male",
            "column 'place' holds 'sea' and makes no overlapping groups; give 0 and 1, or join it by a",
        ),
        ("label,,place", "groups 'label,,place' cannot be read; name columns once each, as place, label,place or"),
        ("label,label", "cannot be read"),
        ("", "cannot be read"),
        ("male+old,place+male", "cannot be read"),
    ],
)
def test_groups_that_cannot_be_made_are_refused(spec, message, refused):
    refused(message.replace("+", r"\+"), by, spec)


def test_too_many_combinations_are_refused(refused):
    many = {name: np.arange(6) for name in "abcdef"}
    names = {name: [str(k) for k in range(10)] for name in many}
    message = "groups 'a,b,c,d,e,f' make 1000000 combinations, more than 100000"
    refused(message, grouped, "a,b,c,d,e,f", LABELS, CLASSES, many, names)


def test_a_lone_attribute_of_few_values_makes_groups_by_itself():
    assert usual_groups({"place": ["sea", "wood"]}) == "label,place"
    assert usual_groups({"place": ["sea", "wood"], "male": ["0", "1"]}) is None
    assert usual_groups({}) is None
    assert usual_groups({"place": ["sea"]}) is None
    assert usual_groups({"name": [str(k) for k in range(21)]}) is None
    assert usual_groups({"name": [str(k) for k in range(20)]}) == "label,name"


# Splits


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.sampled_from([0.0, 0.1, 0.3]),
    st.sampled_from([0.0, 0.2, 0.5]),
    st.integers(0, 9),
)
def test_every_stratum_has_its_share_of_every_split(strata, validation, test, seed):
    strata = np.array(strata)
    try:
        splits = divided(strata, None, validation, test, seed)
    except EvenlyError as error:
        assert "leaves the" in str(error)  # noqa: PT017
        return
    assert np.array_equal(splits, divided(strata, None, validation, test, seed))
    for stratum in np.unique(strata):
        members = splits[strata == stratum]
        for name, share in (("train", 1 - validation - test), ("validation", validation), ("test", test)):
            assert abs((members == name).sum() - share * len(members)) <= 1


def test_the_seed_decides_and_defaults_are_60_20_20():
    strata = np.repeat([0, 1], 50)
    first, other = divided(strata, None, None, None, 0), divided(strata, None, None, None, 1)
    assert [(first == name).sum() for name in ("train", "validation", "test")] == [60, 20, 20]
    assert not np.array_equal(first, other)


def test_splits_as_given_stay_and_validation_comes_from_train():
    given_splits = np.array(["train"] * 10 + ["test"] * 4)
    strata = np.arange(14) % 2
    assert np.array_equal(divided(strata, given_splits, None, None, 0), given_splits)
    held = divided(strata, given_splits, 0.4, None, 0)
    assert (held[10:] == "test").all()
    assert [int(((held == "validation") & (strata == k)).sum()) for k in (0, 1)] == [2, 2]
    assert given_splits.tolist() == ["train"] * 10 + ["test"] * 4


@pytest.mark.parametrize(
    ("given_splits", "validation", "test", "message"),
    [
        (None, 0.5, 0.5, "validation 0.5 and test 0.5 leave nothing to train on; give smaller"),
        (None, 0.02, None, "a share of 0.02 of 10 examples leaves the validation split empty; give a larger share"),
        (None, None, 0.01, "a share of 0.01 of 10 examples leaves the test split empty"),
        (None, 0.5, 0.49, "leaves the train split empty"),
        (None, 1.5, None, "validation 1.5 is not a share to hold out"),
        (None, None, -0.5, "test -0.5 is not a share to hold out"),
        (["train"] * 8 + ["test"] * 2, None, 0.3, "test 0.3 is asked for, but the data names its splits"),
        (["train"] * 8 + ["validation"] * 2, 0.3, None, "the data has a validation split; leave it out"),
        (["train"] * 10, 0.01, None, "validation 0.01 of 10 training examples leaves the validation split empty"),
        (["train"] * 10, 0.99, None, "leaves the train split empty; give another share"),
        (["test"] * 10, None, None, "no example is in the train split"),
    ],
)
def test_shares_that_leave_a_split_empty_are_refused(given_splits, validation, test, message, refused):
    splits = None if given_splits is None else np.array(given_splits)
    refused(message, divided, np.zeros(10, dtype=np.int64), splits, validation, test, 0)


def test_a_label_missing_from_a_split_is_refused(refused):
    table = Path("a.csv"), ["a", "b"], np.array([0, 1, 0]), np.array(["train", "train", "test"])
    refused(r"class 'b' has no example in the test split of a.csv \(train 1, test 0\); x", check_classes, *table, "x")


def test_groups_too_small_to_be_divided_are_spread_over_the_splits():
    for size in (1, 2, 3):
        splits = divided(np.arange(3000) // size, None, None, None, 0, labels=np.arange(3000) % 2)
        shares = [(splits == name).mean() for name in ("train", "validation", "test")]
        assert shares == pytest.approx([0.6, 0.2, 0.2], abs=0.03)
