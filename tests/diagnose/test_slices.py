"""Slices: a planted failure is named first, noise is not named, and a slice of one split is the same in another."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
import torch

from evenly.data import Data, Split
from evenly.data.tables import table
from evenly.diagnose.slice_columns import MOST_COLUMNS, spelled
from evenly.diagnose.slices import (
    Column,
    Search,
    Slice,
    cluster_column,
    columns_left_out,
    columns_of,
    find_slices,
    members_of,
)


def drawn(seed: int, n: int = 2000, wide: int = 30, values: int = 5) -> tuple[np.random.Generator, list[Column]]:
    random = np.random.default_rng(seed)
    names = tuple(f"v{k}" for k in range(values))
    return random, [Column(f"c{c}", random.integers(0, values, n), names) for c in range(wide)]


def test_a_planted_pair_among_thirty_columns_is_named_first() -> None:
    for seed in range(10):
        random, columns = drawn(seed)
        fails = (columns[3].values == 2) & (columns[17].values == 4)
        right = random.random(2000) < np.where(fails, 0.4, 0.9)
        first = find_slices(right, columns).slices[0]
        assert (first.columns, first.values, first.name) == (("c3", "c17"), ("v2", "v4"), "c3 v2, c17 v4")
        assert (first.n, first.accuracy) == (fails.sum(), right[fails].mean())
        assert first.low < first.accuracy < first.high < first.rest == right[~fails].mean()


def test_without_a_planted_failure_nothing_is_named() -> None:
    named = 0
    for seed in range(100):
        random, columns = drawn(seed, n=1000)
        search = find_slices(random.random(1000) < 0.85, columns)
        named += bool(search.slices)
        assert search.searched > 10_000
    assert named <= 5


def test_a_value_that_fails_as_a_whole_is_named_instead_of_its_pairs() -> None:
    for seed in range(10):
        random, columns = drawn(seed)
        right = random.random(2000) < np.where(columns[5].values == 1, 0.5, 0.9)
        slices = find_slices(right, columns).slices
        assert slices[0].name == "c5 v1"
        assert all(len(each.columns) == 1 or "c5" not in each.columns for each in slices)


def test_a_value_that_fails_only_by_its_pair_is_not_listed() -> None:
    random, columns = drawn(1, n=8000)
    pair = (columns[0].values == 0) & (columns[1].values == 0)
    right = random.random(8000) < np.where(pair, 0.1, 0.9)
    value = (columns[0].values == 0, columns[1].values == 0)
    assert all(right[each].mean() < 0.8 for each in value)  # the two values alone look bad, too
    assert [each.name for each in find_slices(right, columns).slices] == ["c0 v0, c1 v0"]


def test_a_failing_value_and_a_pair_that_is_clearly_worse_are_both_listed() -> None:
    random, columns = drawn(2, n=8000)
    value, pair = columns[0].values == 0, (columns[0].values == 0) & (columns[1].values == 0)
    right = random.random(8000) < np.where(pair, 0.2, np.where(value, 0.7, 0.95))
    assert {each.name for each in find_slices(right, columns).slices} == {"c0 v0", "c0 v0, c1 v0"}


def test_a_column_that_says_the_same_adds_nothing() -> None:
    random, columns = drawn(3)
    twin = Column("twin", columns[5].values, columns[5].names)
    noisy = np.where(random.random(2000) < 0.1, random.integers(0, 5, 2000), columns[5].values)
    right = random.random(2000) < np.where(columns[5].values == 1, 0.5, 0.9)
    search = find_slices(right, [*columns, twin, Column("noisy", noisy, columns[5].names)])
    assert [each.name for each in search.slices] == ["c5 v1"]


def test_p_is_exact_and_corrected_for_every_slice_searched() -> None:
    right = np.array([False] * 9 + [True] * 3 + [False] * 1 + [True] * 27)
    columns = [Column("a", np.repeat([0, 1], [12, 28]), ("x", "y")), Column("b", np.tile([0, 1], 20), ("u", "v"))]
    search = find_slices(right, columns, pairs=False)
    ways = sum(math.comb(12, k) * math.comb(28, 10 - k) for k in range(9, 11)) / math.comb(40, 10)
    assert search == Search(search.slices, searched=4, columns=2)
    assert search.slices[0].p == pytest.approx(4 * ways, rel=1e-9)
    assert find_slices(right, columns).searched == 6  # of the pairs, those of y; of x there are 6 examples each
    assert Slice.from_dict(search.slices[0].to_dict()) == search.slices[0]


def test_overwhelming_evidence_is_still_ordered() -> None:
    """p is 0 in float64 for both; the planted pair still comes before its values."""
    random, columns = drawn(4, n=30_000, wide=4, values=3)
    pair = (columns[0].values == 0) & (columns[1].values == 0)
    search = find_slices(random.random(30_000) < np.where(pair, 0.05, 0.99), columns)
    assert search.slices[0].p == 0
    assert [each.name for each in search.slices] == ["c0 v0, c1 v0"]


@pytest.mark.parametrize("right", [[True] * 40, [False] * 40])
def test_where_all_are_right_or_none_nothing_is_named(right: list[bool]) -> None:
    assert not find_slices(right, [Column("a", np.tile([0, 1], 20), ("x", "y"))]).slices


def test_constant_rare_and_missing_values_are_not_searched() -> None:
    constant = Column("constant", np.zeros(100), ("same",))
    rare = Column("rare", np.repeat([0, 1, -1], [9, 41, 50]), ("few", "enough"))
    assert find_slices(np.arange(100) < 60, [constant, rare]) == Search((), searched=1, columns=1, paired=1)
    assert find_slices(np.arange(100) < 60, []) == Search()


def test_a_wide_table_is_searched_in_pairs_of_its_first_columns() -> None:
    random, columns = drawn(0, n=500, wide=120)
    search = find_slices(random.random(500) < 0.9, columns, left_out=7)
    assert (search.columns, search.paired, search.left_out) == (120, 80, 7)


def test_thirty_columns_of_ten_thousand_examples_take_about_a_second() -> None:
    random, columns = drawn(0, n=10_000)
    right = random.random(10_000) < 0.9
    find_slices(right[:100], [Column("a", columns[0].values[:100], columns[0].names)])  # imports scipy
    started = time.perf_counter()
    find_slices(right, columns)
    assert time.perf_counter() - started < 5  # 0.04 s where nothing else runs


def test_sizes_that_do_not_go_together_are_refused(refused: Any) -> None:
    column = Column("a", np.zeros(3), ("x",))
    refused("give one value", find_slices, [True, False], [column])
    stranger = Slice("b x", ("b",), ("x",), 1, 0.0, 0.0, 1.0, 1.0, 1.0)
    refused("no column 'b'", members_of, stranger, [column])


def test_members_of_a_slice_are_the_same_by_the_columns_of_another_split() -> None:
    random = np.random.default_rng(0)
    parts = {}
    for name in ("train", "test"):
        y, colour, x = random.integers(0, 2, 600), random.integers(3, 6, 600), random.normal(size=(600, 2))
        parts[name] = Split(x.astype(np.float32), y, attributes={"colour": colour, "again": y}, name=name)
    data = Data(**parts)
    fails = (parts["test"].attributes["colour"] == 4) & (parts["test"].inputs[:, 1] > 0)
    columns = columns_of(data.test, data)
    assert [column.name for column in columns] == ["colour", "input 0", "input 1"]  # no label
    (worst,) = find_slices(~fails, columns, most=1).slices
    assert worst.columns == ("colour", "input 1")
    assert worst.values[0] == "4"
    train = members_of(worst, columns_of(data.train, data))
    low = float(worst.values[1].removesuffix(" or more"))
    expected = (data.train.attributes["colour"] == 4) & (data.train.inputs[:, 1] >= low)
    assert (torch.from_numpy(train) == expected).float().mean() > 0.995  # the name is rounded to four digits


def test_columns_of_a_table_are_named_by_its_numbers_and_categories(tmp_path: Any) -> None:
    random = np.random.default_rng(0)
    rows = ["label,size,few,kind,place"]
    for i in range(400):
        size = "" if i % 10 == 0 else f"{1000 + 10 * random.random():.3f}"
        rows.append(f"{'ab'[i % 2]},{size},{i % 3},{('long', 'short')[i // 2 % 2]},{('in', 'out')[i // 4 % 2]}")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    data = table(tmp_path / "t.csv", attributes="place")
    columns = {column.name: column for column in columns_of(data.test, data)}
    assert list(columns) == ["place", "size", "few", "kind"]
    assert columns["place"].names == ("in", "out")
    assert columns["few"].names == ("0", "1", "2")
    assert columns["kind"].names == ("long", "short")
    below, *middle, more, missing = columns["size"].names
    assert (below.split()[0], more.split()[1:], missing) == ("below", ["or", "more"], "missing")
    assert len(middle) == 2
    train = next(column for column in columns_of(data.train, data) if column.name == "size")
    assert train.names == columns["size"].names  # the edges are those of training
    counts = np.bincount(train.values)
    assert counts[:4].min() > 0.2 * counts[:4].sum()
    row = np.asarray(data.test.places.values)
    assert ((columns["size"].values == 4) == (row % 10 == 0)).all()
    assert (columns["kind"].values == row // 2 % 2).all()
    assert (columns["few"].values == row % 3).all()


def test_images_and_texts_have_their_attributes_only() -> None:
    images = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    data = Data(train=Split(images, [0, 1, 0, 1], attributes={"a": [0, 0, 1, 1]}))
    assert [column.name for column in columns_of(data.train, data)] == ["a"]


def test_of_a_very_wide_table_the_first_columns_are_given_and_the_others_counted() -> None:
    x = np.random.default_rng(0).normal(size=(30, MOST_COLUMNS + 40)).astype(np.float32)
    data = Data(train=Split(x, np.arange(30) % 2, attributes={"a": np.arange(30) // 15}))
    assert len(columns_of(data.train, data)) == MOST_COLUMNS
    assert columns_left_out(data.train, data) == 41


def test_numbers_are_spelled_to_as_many_digits_as_keep_them_apart() -> None:
    assert spelled([1.0, 2.5, 1234.5678]) == ["1", "2.5", "1235"]
    assert spelled([10001.0, 10002.0]) == ["10001", "10002"]
    assert spelled([-0.0, 1e-9]) == ["0", "1e-09"]


def test_clusters_are_of_each_predicted_class_and_find_where_it_fails() -> None:
    random = np.random.default_rng(0)
    part = random.integers(0, 2, 400)
    features = random.normal(size=(400, 3)) + 20 * part[:, None]
    predicted = np.repeat([0, 1], 200)
    column = cluster_column(features, predicted, ["no", "yes"])
    assert column.name == "cluster"
    assert all(name.endswith(("predicted no", "predicted yes")) for name in column.names)
    for code in range(len(column.names)):
        members = column.values == code
        assert len(set(predicted[members])) == len(set(part[members])) == 1
    right = ~((predicted == 1) & (part == 0))
    assert all("predicted yes" in each.name for each in find_slices(right, [column], pairs=False).slices)
    assert (cluster_column(np.zeros((400, 3)), predicted, ["no", "yes"]).values == -1).all()
