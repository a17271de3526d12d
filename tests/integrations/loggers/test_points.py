"""Numbers of a row as points: each once, under a tag that every logger takes."""

import re

import pytest

from evenly.integrations.loggers.folders import read_run
from evenly.integrations.loggers.points import part, points_of_row

MLFLOW = re.compile(r"^[/\w.\- ]+$")
"""What MLflow allows on every system."""


def test_every_number_of_a_row_is_a_point_and_nothing_else():
    row = {"stage": "early", "epoch": 3, "loss": 0.5, "text": "x", "none": None, "n": 2, "validation": {
        "groups": [1.0, None, 0.25], "group_counts": [4, 0, 8], "other": [7]}}  # fmt: skip
    points = points_of_row(row, ["a/b", "b", "c"])
    assert {point.tag: point.value for point in points} == {
        "early/loss": 0.5, "early/n": 2, "early/validation/groups/0 a_b": 1, "early/validation/groups/2 c": 0.25,
        "early/validation/group_counts/0 a_b": 4, "early/validation/group_counts/1 b": 0,
        "early/validation/group_counts/2 c": 8, "early/validation/other/0": 7,
    }  # fmt: skip
    assert {point.step for point in points} == {3}


def test_stages_stay_apart():
    first, second = (points_of_row({"stage": stage, "epoch": 1, "loss": 1.0})[0] for stage in ("early", "final"))
    assert first.tag != second.tag


def test_groups_have_numbers_where_their_names_are_not_known():
    (point,) = points_of_row({"stage": "final", "epoch": 1, "validation": {"groups": [0.5]}}, ["a", "b"])
    assert point.tag == "final/validation/groups/0"


@pytest.mark.parametrize("name", ["a/b", "größe", "日本", "(%)", "..", ".", "", " ", "x" * 999, "\udc80", "a\nb", "'"])
def test_odd_names_become_tags_that_every_logger_takes_and_stay_apart(name):
    names = {part(name), part("a_b"), part(f"{name}!"), part(f"{name}?"), part("__")}
    assert len(names) == 5
    tag = f"final/{part(name)}/loss"
    assert MLFLOW.match(tag)
    assert len(tag) < 250
    assert not {"", ".", ".."} & set(tag.split("/"))


def test_the_tags_of_many_groups_are_as_many():
    names = ["the same"] * 5000
    points = points_of_row({"stage": "final", "epoch": 1, "validation": {"groups": [0.5] * 5000}}, names)
    assert len({point.tag for point in points}) == 5000


def test_a_run_has_its_settings_and_results(folder):
    run = read_run(folder)
    assert run.settings["epochs"] == 4
    assert run.settings["patience"] == "none"
    assert run.settings["method_options"]["factor"] == 2
    results = {point.tag: point.value for point in run.results}
    assert 0 <= results["results/test/accuracy"] <= 1
    assert results["results/cost_multiple"] > 1
    assert "results/validation/groups/3 " + "x" * 60 not in results  # it has no example there
    assert "results/test/groups/3 " + "x" * 60 in results
    assert all(MLFLOW.match(point.tag) and len(point.tag) < 250 for point in run.points)
