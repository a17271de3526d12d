"""Code blocks of the pages that are marked to run do run; pages of results follow from what was measured."""

from __future__ import annotations

import json
import re
import runpy
import textwrap
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch
from torch import nn

import evenly

PAGES = Path(__file__).parents[1] / "docs"
MARKED = re.compile(r"<!-- runs -->\n```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("wrapper", [evenly.SAM, evenly.ASAM, evenly.RandomPerturbation])
def test_the_optimizers_page_runs(wrapper, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt = wrapper(base)
    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    names = {
        "torch": torch, "evenly": evenly, "model": model, "base": base, "opt": opt, "batches": [(x, y)] * 3,
        "x": x, "y": y, "scheduler": torch.optim.lr_scheduler.StepLR(opt, 1, 0.9),
        "loss_function": nn.functional.cross_entropy, "path": tmp_path / "saved.pt", "device": "cpu",
        "dtype": torch.bfloat16,
    }  # fmt: skip
    blocks = MARKED.findall((PAGES / "optimizers.md").read_text())
    assert len(blocks) == 5
    for block in blocks:
        before = [p.detach().clone() for p in model.parameters()]
        exec(textwrap.dedent(block), names)
        moved = any(not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        assert moved == ("backward" in block)
    assert not opt.ascended


def test_the_audit_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    x, y = torch.randn(40, 4), torch.arange(40) % 2
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    (tmp_path / "checkpoints").mkdir()

    def train_one_epoch(model):
        nn.functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight.sub_(0.1 * weight.grad)
                weight.grad = None

    names = {
        "evenly": evenly, "torch": torch, "model": model, "data": evenly.Data(train=(x, y), test=(x, y)),
        "train_one_epoch": train_one_epoch,
    }  # fmt: skip
    audit, record, loop, series = MARKED.findall((PAGES / "audit.md").read_text())
    exec(audit, names)
    assert (tmp_path / "audit.html").exists()
    exec(record, names)
    assert "Times forgotten" in (tmp_path / "audit.html").read_text()
    exec(loop, names)
    exec(series, names)
    assert [row["name"] for row in names["series"].history] == [f"epoch-{epoch}" for epoch in range(1, 5)]
    recorded = [row["gini_real"] for row in names["recorder"].history]
    assert [row["gini_real"] for row in names["series"].history][1::2] == recorded


def test_the_stability_page_runs():
    torch.manual_seed(0)
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    names = {"evenly": evenly, "model": model, "x": x, "y": y, "gradients": torch.randn(6, 9)}
    (block,) = MARKED.findall((PAGES / "stability.md").read_text())
    exec(block, names)
    assert len(names["tracker"].history) == 2
    assert names["card"].lrs.exact


@pytest.mark.parametrize("name", ["cifar-mnist", "fashion-mnist-mnist", "celeba", "celeba-tuned", "pacs-photo"])
def test_pages_of_results_follow_from_what_was_measured(name, tmp_path):
    """Every mean, interval and chosen value on a page is made from the runs beside it, and so are those in the docs."""
    measured = (PAGES / "results" / f"{name}.json").read_text()
    (tmp_path / f"{name}.json").write_text(measured)
    runpy.run_path(str(PAGES.parent / "benchmarks" / "real_images.py"))["_page"](tmp_path / f"{name}.json")
    assert (tmp_path / f"{name}.md").read_text() == (PAGES / "results" / f"{name}.md").read_text()


def test_the_page_of_200_epochs_follows_from_what_was_measured(tmp_path):
    file = PAGES / "results/cifar10-sgd-200.json"
    (tmp_path / file.name).write_text(file.read_text())
    runpy.run_path(str(PAGES.parent / "benchmarks/gpu.py"))["_page"](tmp_path / file.name)
    assert (tmp_path / "cifar10-sgd-200.md").read_text() == file.with_suffix(".md").read_text()
    rows = json.loads(file.read_text())["rows"]
    for row in rows:
        counts = {int(times): count for times, count in row["forgotten_times"].items()}
        assert sum(counts.values()) + row["never_right"] == 50_000
        forgotten = sum(times * count for times, count in counts.items())
        assert row["mean_forgetting"] == pytest.approx(forgotten / sum(counts.values()))
        assert row["test_error"] == pytest.approx(100 - 100 * row["results"]["test"]["accuracy"])
        assert row["right"][-1] == row["results"]["train"]["accuracy"]
    errors = f"{mean(row['test_error'] for row in rows):.2f} ± {stdev(row['test_error'] for row in rows):.2f}%"
    assert f"(results/cifar10-sgd-200.md): test error {errors}" in (PAGES / "images.md").read_text()


def test_groups_of_celeba_are_told_as_measured():
    """The table in docs/groups.md, from the runs."""
    lines = (PAGES / "groups.md").read_text().splitlines()
    told = {line.split("|")[1].strip(): line for line in lines if line.startswith("|") and " / " in line}
    named = {"dfr, on train": "`dfr` on training", "dfr, on validation": "`dfr` on validation"}
    for column, name in ((2, "celeba"), (3, "celeba-tuned")):
        rows = [row for row in json.loads((PAGES / "results" / f"{name}.json").read_text())["rows"] if row["chosen"]]
        for arm in {row["arm"] for row in rows if " at the cost of " not in row["arm"]}:
            its = [row["test"] for row in rows if row["arm"] == arm]
            worst, average = (100 * mean(test[key] for test in its) for key in ("worst_group", "accuracy"))
            assert told[named.get(arm, f"`{arm}`")].split("|")[column].strip() == f"{worst:.1f} / {average:.1f}", arm
