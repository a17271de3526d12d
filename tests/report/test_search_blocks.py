"""A search on a page and in the terminal: what was chosen for whom, at which cost, and every trial."""

from __future__ import annotations

import pytest
from attrs import evolve

from evenly.report.facts import comparison_facts
from evenly.report.search_blocks import search_blocks, search_sentence
from evenly.report.sweeps import arm_styles
from evenly.runs.comparison import Comparison
from evenly.runs.search import Search, Searched, Space, Trial
from evenly.runs.summary import Row

LR, FACTOR = Space("lr", "log", 1e-4, 0.1), Space("useful.factor", "choice", choices=(2, 3))


@pytest.fixture
def searched(build):
    trials = (Trial({"lr": 0.05}, 200.0, 0.7, 0.5), Trial({"lr": 0.01}, 200.0, 0.8, 0.4))
    failed = Trial({"lr": 0.1, "factor": 3}, 300.0, reason="the loss became NaN")
    useful = (Trial({"lr": 0.05, "factor": 2}, 300.0, 0.75, 0.5), failed)
    return (
        Searched(build.ERM, {"lr": LR}, trials, 200.0, "worst_group", 1),
        Searched(build.USEFUL, {"lr": LR, "factor": FACTOR}, useful, 200.0, "worst_group", 0),
        Searched(build.UPSAMPLED, {"lr": LR}, trials[:1], 200.0, "worst_group", 0),
    )


def test_the_page_shows_what_was_chosen_and_every_trial(build, searched):
    rows = [Row(arm, 0, build.result(arm.method)) for arm in (build.ERM, build.USEFUL, build.UPSAMPLED)]
    table = evolve(build.of_rows(rows), search=Search((LR, FACTOR), 2, "random", 7, searched))
    assert Comparison.from_dict(table.to_dict()).search == table.search
    chosen, trials = search_blocks(table, arm_styles(table), "s")
    assert chosen.columns[:3] == ["method", "learning rate", "useful's factor"]
    cells = {row.name: [cell.text for cell in row.cells] for row in chosen.rows}
    assert cells == {
        "erm+sgd": ["0.01", "–", "80.0", "70.0", "2", "2.00"],
        "useful+sgd": ["0.05", "2", "75.0", "75.0", "2", "3.00"],
        "random_upsample+sgd": ["0.05", "–", "70.0", "70.0", "1", "1.00"],
    }
    assert [row.note for row in chosen.rows] == ["", "", "control of useful+sgd"]
    assert "could spend 2 times the cost of ERM" in chosen.caption
    assert [panel.title for panel in trials.panels] == ["score against learning rate"]
    assert trials.panels[0].svg.count("<use") >= 3
    facts = {fact.name: fact.value for fact in comparison_facts(table).facts}
    assert facts["learning rate, searched"] == "log:0.0001:0.1"
    assert facts["useful's factor, searched"] == "2,3"
    assert "learning rate" not in facts


def test_sentences(build, searched):
    assert [search_sentence(each) for each in searched] == [
        "search: plain training with sgd: lr 0.01, validation worst-group accuracy 80.0%; 2 trials, 2.00x ERM",
        "search: useful with sgd: lr 0.05, factor 2, validation worst-group accuracy 75.0%; 2 trials, 3.00x ERM",
        "search: random upsampling with sgd, control of useful with sgd: lr 0.05, validation worst-group accuracy "
        "70.0%; 1 trial, 1.00x ERM",
    ]
    none = evolve(searched[1], trials=searched[1].trials[1:], best=None)
    assert search_sentence(none).endswith("no trial could be trained (the loss became NaN); 1 trial, 1.50x ERM")
