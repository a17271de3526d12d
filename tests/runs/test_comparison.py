"""Comparisons: read back from JSON and from their folder, as a table for pandas and for notebooks."""

from __future__ import annotations

import json

import pytest
from attrs import evolve

from evenly import EvenlyError, load_comparison
from evenly.files import sealed
from evenly.runs.arms import Arm
from evenly.runs.comparison import Comparison, ComparisonPlan, read_comparison
from evenly.runs.summary import Row, summarise
from evenly.settings import Settings

ERM, USEFUL = Arm("erm", "sgd"), Arm("useful", "sgd", {"useful.factor": 3})
UPSAMPLED = Arm("random_upsample", "sgd", USEFUL.swept, control_of=USEFUL)


@pytest.fixture
def table(result):
    rows = [Row(ERM, seed, result(0.8 + seed / 100, (0.9, 0.7))) for seed in range(2)]
    rows += [Row(USEFUL, seed, result(0.9 + seed / 50, (0.9, 0.8), cost=96.0), UPSAMPLED) for seed in range(2)]
    rows += [Row(UPSAMPLED, seed, result(0.8, (0.9, None), cost=96.0)) for seed in range(2)]
    plan = ComparisonPlan(
        ("erm", "useful"), ("sgd",), (0, 1), "mlp", "last", "test", Settings(), sweep={"useful.factor": (3,)}
    )
    return Comparison("toy <b>", plan, tuple(rows), summarise(rows), others=(rows[0],))


def test_it_comes_back_from_json_and_from_its_folder(table, tmp_path):
    again = Comparison.from_dict(json.loads(json.dumps(table.to_dict(), allow_nan=False)))
    assert again == table
    table.save(tmp_path / "results.json")
    assert load_comparison(tmp_path).summary == table.summary
    assert read_comparison(tmp_path / "nowhere") is None


def test_arms_and_their_summaries(table):
    assert [each.arm for each in table.summary] == [ERM, USEFUL, UPSAMPLED]
    assert [each.arm for each in table.arms] == [ERM, USEFUL]
    assert table.by_arm(USEFUL).control == UPSAMPLED
    assert table.by_arm(None) is None


def test_one_row_per_run_for_pandas(table):
    pytest.importorskip("pandas", reason="needs pandas: pip install 'evenly[pandas]'")
    frame = table.to_pandas()
    assert len(frame) == 6
    row = frame.iloc[3]
    assert (row["arm"], row["control"], row["seed"], row["swept useful.factor"]) == (USEFUL.name, UPSAMPLED.name, 1, 3)
    assert (row["accuracy"], row["worst_group"], row["cost_multiple"], row["split"]) == (0.92, 0.8, 2.0, "test")


def test_one_row_per_method_has_both_uncertainties(table):
    pytest.importorskip("pandas", reason="needs pandas: pip install 'evenly[pandas]'")
    table.summary = (table.summary[0], with_examples(table.summary[1]), table.summary[2])
    frame = table.to_pandas("method")
    assert list(frame["method"]) == [ERM.name, USEFUL.name]
    row = frame.iloc[1]
    assert (row["control"], row["difference_in"], row["mean"]) == (UPSAMPLED.name, "accuracy", pytest.approx(0.11))
    assert (row["examples_low"], row["examples_high"], row["pairs"]) == (0.05, 0.17, 2)
    assert row["outcome"] == "raised-for-these"


def with_examples(summary):
    metric = summary.metrics["accuracy"]
    difference = evolve(metric.difference, examples_low=0.05, examples_high=0.17)
    return evolve(summary, metrics={**summary.metrics, "accuracy": evolve(metric, difference=difference)})


def test_in_a_notebook(table):
    table.summary = (table.summary[0], with_examples(table.summary[1]), table.summary[2])
    shown = table._repr_html_()
    assert shown.count("<tr>") == 4
    assert (
        "<td>useful+sgd, factor 3</td><td>91.0</td><td>80.0</td><td>2.00</td><td>+11.0</td><td>[5.0, 17.0]</td>"
        "<td>3 or more needed</td>"
    ) in shown
    assert "<b>" not in shown


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "holds no finished comparison; give the folder that `evenly compare` left behind"),
        ("[]", "holds no finished comparison"),
        ({"format": 2}, "holds no finished comparison"),
        ('{"rows": []}', r"was written by evenly 0\.1; compare again"),
        ({"format": 2, "rows": []}, r"results\.json is damaged \(.*\); remove it and compare again"),
        (
            '{"format": 2, "rows": []}',
            r"results\.json is damaged \(its checksum is missing\); remove it and compare again",
        ),
        ({"format": 2, "rows": [3], "others": []}, r"results\.json is damaged \(.*\); remove it and compare again"),
    ],
)
def test_what_is_none_is_refused_in_a_line(tmp_path, content, message):
    if content is not None:
        (tmp_path / "results.json").write_text(json.dumps(sealed(content)) if isinstance(content, dict) else content)
    with pytest.raises(EvenlyError, match=message) as refused:
        load_comparison(tmp_path)
    assert "\n" not in str(refused.value)
