"""The terminal's table: everything on it, within 80 columns."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from evenly.report.console import comparison_table


def printed(table, width=80):
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(comparison_table(table))
    return stream.getvalue()


@pytest.mark.parametrize("rule", ["last", "worst-group"])
@pytest.mark.parametrize("groups", [4, 0])
@pytest.mark.parametrize("seeds", [1, 3])
def test_fits_a_terminal(make_table, seeds, groups, rule):
    rule = rule if groups else "last"
    text = printed(make_table(seeds=seeds, groups=groups, rule=rule))
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "…" not in text
    for name in ("toys", "useful+sgd", "random_upsample+sgd", "pde+sgd", "accuracy", "cost", "control", "0.10"):
        assert name in text
    assert "+4.0" in text
    assert ("[4.0, 4.0]" in text) is (seeds > 1)


def test_wide_numbers_fit_too(make_table):
    table = make_table(rule="worst-group")
    for entry in table.summary:
        entry["cost_multiple"] = 12.345
        for metric in ("accuracy", "worst_group"):
            entry[metric] |= {"mean": 1.0, "sd": 0.123}
            if "difference" in entry[metric]:
                entry[metric]["difference"] = {"mean": -1.0, "low": -1.0, "high": -0.9, "pairs": 3}
    text = printed(table)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "−100.0 [−100.0, −90.0]" in text


def test_markup_in_a_name_is_printed_as_it_is(make_table):
    assert "[bold]toys[/bold]" in printed(make_table(name="[bold]toys[/bold]"))


def test_one_arm(make_table):
    assert "erm+sgd" in printed(make_table(arms=["erm+sgd"]))
