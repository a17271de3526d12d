"""The terminal's table: everything on it, within 80 columns."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from evenly.diagnose.stability_card import judge
from evenly.engine.accuracy import wilson
from evenly.report.console import comparison_table, show_card, show_run
from evenly.theory.stability import Hessians

CONTROL = "random_upsample+sgd at the cost of useful+sgd"


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


def test_a_sweep_stands_under_its_values(make_sweep):
    sweep = {"batch_size": [32, 64], "useful.factor": [2, 3]}
    text = printed(make_sweep(sweep, arms=["erm+sgd", "useful+sgd", CONTROL]))
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "…" not in text
    names = [line[:23].strip() for line in text.splitlines()]
    block = ["useful+sgd", "random_upsample+sgd"]
    assert names[3:] == [
        "batch_size 32", "erm+sgd", "batch_size 32", "useful.factor 2", *block,
        "batch_size 32", "useful.factor 3", *block,
        "batch_size 64", "erm+sgd", "batch_size 64", "useful.factor 2", *block,
        "batch_size 64", "useful.factor 3", *block, "test set; last epoch",
    ]  # fmt: skip
    accuracies = [line.split()[1] for line in text.splitlines() if line.startswith(("erm+sgd", "useful+sgd"))]
    assert accuracies == ["80.3", "85.3", "86.3", "81.3", "86.3", "87.3"]


def test_long_values_are_wrapped_not_cut(make_sweep):
    text = printed(make_sweep({"model": ["torchvision:a_model_of_a_long_name"]}, arms=["erm+sgd"]))
    assert "…" not in text
    assert "torchvision:a_model_of_a_long_name" in "".join(line[:23].strip() for line in text.splitlines())


@pytest.mark.parametrize(("device", "told"), [("cuda", True), ("cpu", False)])
def test_steps_that_were_not_captured_are_told(make_table, device, told):
    table = make_table(seeds=1)
    for row in table.rows:
        row |= {"device": device, "step": "captured"}
    assert "captured" not in printed(table)
    table.rows[1]["step"] = "plain: the model asks the CPU"
    assert ("steps were not captured in 1 of 5 runs: the model asks the CPU" in printed(table)) is told


ROW = {
    "data": "toys", "method": "pde", "optimizer": "sam", "epochs": 7, "cost_multiple": 1.25, "selected_epoch": 3,
    "rule": "worst-group", "test": {"accuracy": 0.875, "worst_group": 0.5, "train_weighted": 0.9},
    "validation": {"accuracy": 0.1}, "device": "cpu", "step": "plain",
}  # fmt: skip


def told(capsys, **more):
    show_run(ROW | more, Path("runs/a/report.html"))
    return capsys.readouterr().out.splitlines()


def test_a_run_is_told_in_a_few_lines(capsys):
    assert told(capsys) == [
        "toys: pde with sam, 7 epochs, 1.25x the cost of ERM",
        "  test accuracy   87.5%   (weights of epoch 3, rule: worst-group)",
        "  worst group     50.0%",
        "  train-weighted  90.0%",
        "  page            runs/a/report.html",
    ]
    assert told(capsys, test=ROW["test"] | {"train_weighted": None})[3] == "  train-weighted  –"
    assert told(capsys, epochs=1)[0] == "toys: pde with sam, 1 epoch, 1.25x the cost of ERM"
    lines = told(capsys, test={"accuracy": 0.9}, device="cuda", step="plain: it asks the CPU")
    assert "it asks the CPU" in lines[2]
    assert len(lines) == 4


def test_what_else_has_to_be_known_of_a_run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert "  nothing was repeated: the first model made no errors" in told(capsys, method="jtt", chosen=0)
    lines = told(capsys, method="dfr", chosen=0)
    assert "  after the epochs the last layer was fitted anew to group-balanced draws of" in lines
    assert max(map(len, lines)) <= 80
    assert told(capsys, method="erm", cost_multiple=0.5)[0].endswith("0.50x the cost of ERM for all the epochs set")


def test_evaluation_is_told_apart_from_the_cost(capsys):
    assert "  evaluation      0.20x the cost of ERM, counted apart" in told(capsys, evaluation_cost_multiple=0.2)
    assert not any("evaluation" in line for line in told(capsys, evaluation_cost_multiple=0.0))


def test_the_worst_group_is_named_with_its_examples_and_interval(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    measured = ROW["test"] | {"worst_group": 0.0, "groups": [0.0, 1.0, 0.0, None], "group_counts": [3, 9, 1000, 0]}
    lines = told(capsys, test=measured, group_names=["a", "b", "c", "d"])
    _, high = wilson(0, 1000)
    assert lines[2] == f"  worst group     0.0%   c: 1,000 examples [0.0, {100 * high:.1f}]; 1 more as low"
    assert "group 2: 1,000 examples" in told(capsys, test=measured)[2]  # a run of before names were kept
    one = measured | {"groups": [0.0, 1.0, 0.5, None], "group_counts": [1, 9, 4, 0]}
    assert told(capsys, test=one, group_names=["a", "b", "c", "d"])[2].startswith(
        "  worst group     0.0%   a: 1 example ["
    )
    long = told(capsys, test=measured, group_names=["a", "b", "a name of many words " * 9, "d"])
    assert max(map(len, long)) <= 80
    assert "many words" in long[4]


def test_a_card_has_its_words_then_every_limit_and_number(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    card = judge(Hessians.rank_one(torch.eye(3, dtype=torch.float64)), lr=0.5, batch_size=3)
    note = "A note that is long enough to be broken where a line of sixty columns ends."
    show_card(card, [note], Path("page.html"))
    text = capsys.readouterr().out
    words, table = text.split("\n\n")
    assert words.split() == " ".join([*card.sentences(), note]).split()
    labels = [label for label, _ in (*card.limits(), *card.numbers())] + ["page"]
    assert [line[:25].strip() for line in table.splitlines() if line[:25].strip()] == labels
    assert max(map(len, text.splitlines())) <= 60
    assert table.endswith(f"{'page':<25}page.html\n")
