"""Terminal output: everything in it, within 80 columns."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from attrs import evolve
from rich.console import Console

from evenly.diagnose.stability import judge
from evenly.engine.accuracy import wilson
from evenly.report.console import comparison_table, show_card, show_predictions, show_run, with_options
from evenly.runs.differences import Difference
from evenly.runs.predictions import Predictions
from evenly.theory.stability import Hessians


def printed(comparison):
    stream = io.StringIO()
    Console(file=stream, width=80, color_system=None).print(comparison_table(comparison))
    text = stream.getvalue()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    return text


@pytest.mark.parametrize("rule", ["last", "worst-group"])
@pytest.mark.parametrize("groups", [4, 0])
@pytest.mark.parametrize("seeds", [1, 3])
def test_a_comparison_fits_a_terminal(build, seeds, groups, rule):
    text = printed(build.comparison(seeds, groups=groups, rule=rule))
    assert "…" not in text
    for name in ("toys", "useful+sgd", "random_upsample+sgd", "pde+sgd", "accuracy", "cost", "control", "0.10", "+4.0"):
        assert name in text
    assert ("seeds [4.0, 4.0]" in text) is (seeds > 1)
    assert ("seeds: 3 or more needed" in text) is (seeds == 1)


def test_fewer_seeds_stand_beside_the_name(build):
    table = build.comparison(seeds=3)
    text = printed(build.of_rows([row for row in table.rows if row.seed or row.arm != build.UPSAMPLED], table.runs))
    assert re.search(r"^  rando…\S*sgd, 2 seeds ", text, re.MULTILINE)
    assert text.count("…") == 1
    assert text.count("seeds ") == text.count("seeds [") + text.count("seeds needs") + 1


def test_both_uncertainties_stand_under_a_difference(build):
    comparison = build.comparison()
    said = Difference(0.267, None, None, 2, 0.05, 0.182, 0.345)
    metrics = {"accuracy": evolve(comparison.summary[1].metrics["accuracy"], difference=said)}
    comparison.summary = (
        comparison.summary[0],
        evolve(comparison.summary[1], metrics=metrics),
        *comparison.summary[2:],
    )
    lines = [line.strip() for line in printed(comparison).splitlines()]
    at = next(k for k, line in enumerate(lines) if line.startswith("useful+sgd"))
    assert lines[at].endswith("+26.7 for these models")
    assert lines[at + 1].endswith("examples [18.2, 34.5]")
    assert lines[at + 2] == "seeds: 3 or more needed"


def test_wide_numbers_fit_too(build):
    comparison = build.comparison(rule="worst-group")
    wide = Difference(-1.0, -1.0, -0.9, 3, 0.1, -1.0, -0.9)
    summaries = []
    for each in comparison.summary:
        metrics = {name: evolve(metric, mean=1.0, sd=0.123, difference=metric.difference and wide)
                   for name, metric in each.metrics.items()}  # fmt: skip
        summaries.append(evolve(each, cost_multiple=12.345, metrics=metrics))
    text = printed(evolve(comparison, summary=tuple(summaries)))
    assert "−100.0 clear" in text
    assert "examples [−100.0, −90.0]" in text


def test_markup_in_a_name_is_printed_as_it_is(build):
    assert "[bold]toys[/bold]" in printed(build.comparison(arms=[build.ERM], data="[bold]toys[/bold]"))


def test_a_sweep_stands_under_its_values(build):
    values = {"batch_size": [32, 64], "useful.factor": [2, 3]}
    text = printed(build.sweep(values, arms=[build.ERM, build.USEFUL, build.UPSAMPLED]))
    assert "…" not in text
    names = [name for line in text.splitlines()[3:] if (name := line[:23].strip())]
    block = ["useful+sgd", "random_upsample+sgd"]
    assert names == [
        "batch_size 32", "erm+sgd", "batch_size 32", "useful.factor 2", *block,
        "batch_size 32", "useful.factor 3", *block,
        "batch_size 64", "erm+sgd", "batch_size 64", "useful.factor 2", *block,
        "batch_size 64", "useful.factor 3", *block, "test set; weights of th",
    ]  # fmt: skip
    accuracies = [line.split()[1] for line in text.splitlines() if line.startswith(("erm+sgd", "useful+sgd"))]
    assert accuracies == ["80.3", "85.3", "86.3", "81.3", "86.3", "87.3"]
    text = printed(build.sweep({"model": ["torchvision:a_model_of_a_long_name"]}, arms=[build.ERM]))
    assert "torchvision:a_model_of_a_long_name" in "".join(line[:23].strip() for line in text.splitlines())


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_steps_that_were_not_captured_are_reported(build, device):
    comparison = build.comparison(seeds=1, device=device, step="captured")
    assert "captured" not in printed(comparison)
    row = evolve(comparison.rows[1], result=evolve(comparison.rows[1].result, step="plain: the model asks the CPU"))
    comparison.rows = (comparison.rows[0], row, *comparison.rows[2:])
    reported = "steps were not captured in 1 of 5 runs: the model asks the CPU" in printed(comparison)
    assert reported is (device == "cuda")


@pytest.fixture
def lines(build, capsys, monkeypatch):
    """What is printed of a run."""
    monkeypatch.setenv("COLUMNS", "80")

    def show(**changes):
        run = build.run("pde", 0.875, cost=250.0, names=("a", "b", "c", "d"))
        run.results, run.folder = evolve(run.results, **changes), Path("runs/a")
        show_run(run)
        printed = capsys.readouterr().out.splitlines()
        assert max(map(len, printed)) <= 80
        return printed

    return show


def test_a_run_in_a_few_lines(build, lines):
    low, high = wilson(8, 10)
    assert lines(epochs=7, selected_epoch=3, rule="worst-group") == [
        "toys: pde with sgd, 7 epochs, 1.25x the cost of plain training",
        "  test accuracy         87.5%",
        f"  worst group           77.5%   a: 10 examples [{100 * low:.1f}, {100 * high:.1f}]",
        "  train-weighted        88.5%",
        "  weights used          epoch 3 of 7 (rule: worst-group); the last epoch would",
        "                        give 85.5% accuracy and 75.5% in the worst group on",
        "                        validation, where these weights have 84.2% accuracy and",
        "                        74.2% in the worst group",
        "  cost of these weights 5.0 epochs of the full training set",
        "  page                  runs/a/report.html",
    ]
    test = evolve(build.measured(0.8), train_weighted=None)
    assert lines(splits={"test": test})[3] == "  train-weighted        –"
    assert "  weights used          epoch 5 of 5 (rule: last)" in lines()
    assert "1 epoch," in lines(epochs=1)[0]
    ungrouped = lines(splits={"train": build.measured(0.8, groups=0)}, device="cuda", step="plain: it asks the CPU")
    assert ungrouped[1].startswith("  training accuracy     80.0%")
    assert "it asks the CPU" in ungrouped[4]
    assert "0.50x the cost of plain training for all the" in lines(method="erm", cost=100.0)[0]


def test_what_else_has_to_be_known_of_a_run(lines):
    remark = "after the epochs, the last layer was fitted again to group-balanced draws of validation examples"
    printed = lines(remarks=(remark,), evaluation_cost=40.0)
    assert "  validation            another 0.20x, not included above" in printed
    assert remark in " ".join(line.strip() for line in printed)


def test_predictions_are_counted_and_judged_where_labels_are_known(capsys):
    labels, groups = np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1])
    plain = Predictions(labels, np.eye(2)[labels], ("cat", "dog"))
    show_predictions(plain, Path("p.csv"))
    assert capsys.readouterr().out.split("\n")[0] == "4 examples: cat 1, dog 3"
    show_predictions(evolve(plain, true_labels=np.array([0, 1, 0, 1]), groups=groups), Path("p.csv"))
    accuracy, worst, file = capsys.readouterr().out.splitlines()[1:]
    assert accuracy.startswith("  accuracy              75.0%   [")
    assert worst.startswith("  worst group           50.0%   group 1: 2 examples [")
    assert file.endswith("p.csv")


def test_options_stand_behind_the_summary():
    assert with_options("A method.", {}) == "A method"
    assert with_options("A method.", {"factor": 2, "by": None}) == "A method [factor=2, by=None]"


def test_a_card_has_its_words_then_every_limit_and_number(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    card = judge(Hessians.rank_one(torch.eye(3, dtype=torch.float64)), lr=0.5, batch_size=3)
    note = "A note that is long enough to be broken where a line of sixty columns ends."
    show_card(card.page("mine", [note]), Path("page.html"))
    text = capsys.readouterr().out
    words, table = text.split("\n\n")
    assert words.split() == " ".join([*card.sentences(), note]).split()
    labels = [label for label, _ in (*card.limits(), *card.numbers())] + ["page"]
    assert [line[:25].strip() for line in table.splitlines() if line[:25].strip()] == labels
    assert max(map(len, text.splitlines())) <= 60
    assert table.endswith(f"{'page':<25}page.html\n")
