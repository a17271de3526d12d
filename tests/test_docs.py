"""Code blocks of the pages that are marked to run do run; pages of results follow from what was measured."""

from __future__ import annotations

import importlib
import json
import re
import textwrap
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch
from torch import nn

import evenly
from evenly.runs.comparison import Comparison
from evenly.runs.results import RunResult
from evenly.runs.summary import summarise

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


def benchmark(name, monkeypatch):
    monkeypatch.syspath_prepend(PAGES.parent / "benchmarks")
    return importlib.import_module(name)


@pytest.fixture
def real_images(monkeypatch):
    return benchmark("real_images", monkeypatch)


@pytest.mark.parametrize("name", ["cifar-mnist", "fashion-mnist-mnist", "celeba", "celeba-tuned", "pacs-photo"])
def test_pages_of_results_follow_from_what_was_measured(name, tmp_path, real_images):
    """Every mean, interval and chosen value on a page is computed from the runs beside it."""
    (tmp_path / f"{name}.json").write_text((PAGES / "results" / f"{name}.json").read_text())
    real_images._page(tmp_path / f"{name}.json")
    assert (tmp_path / f"{name}.md").read_text() == (PAGES / "results" / f"{name}.md").read_text()


def test_the_page_of_cifar10_follows_from_what_was_measured(monkeypatch):
    measured = json.loads((PAGES / "results" / "cifar10.json").read_text())
    lines = benchmark("cifar10", monkeypatch)._lines(measured)
    assert "\n".join(lines) + "\n" == (PAGES / "results" / "cifar10.md").read_text()
    table = Comparison.from_dict(measured["comparison"])
    assert table.summary == summarise(table.rows)


def test_the_page_of_200_epochs_follows_from_what_was_measured(tmp_path, monkeypatch):
    file = PAGES / "results/cifar10-sgd-200.json"
    (tmp_path / file.name).write_text(file.read_text())
    benchmark("gpu", monkeypatch)._page(tmp_path / file.name)
    assert (tmp_path / "cifar10-sgd-200.md").read_text() == file.with_suffix(".md").read_text()
    rows = json.loads(file.read_text())["rows"]
    for row in rows:
        counts = {int(times): count for times, count in row["forgotten_times"].items()}
        assert sum(counts.values()) + row["never_right"] == 50_000
        forgotten = sum(times * count for times, count in counts.items())
        assert row["mean_forgetting"] == pytest.approx(forgotten / sum(counts.values()))
        splits = RunResult.from_dict(row["results"]).splits
        assert row["test_error"] == pytest.approx(100 - 100 * splits["test"].accuracy)
        assert row["right"][-1] == splits["train"].accuracy
    errors = f"{mean(row['test_error'] for row in rows):.2f} ± {stdev(row['test_error'] for row in rows):.2f}%"
    assert f"(results/cifar10-sgd-200.md): test error {errors}" in (PAGES / "images.md").read_text()


def test_the_table_of_celeba_follows_from_what_was_measured(real_images):
    """The table in docs/groups.md."""
    lines = (PAGES / "groups.md").read_text().splitlines()
    table = {line.split("|")[1].strip(): line for line in lines if line.startswith("|") and " / " in line}
    names = {"dfr, on train": "`dfr` on training", "dfr, on validation": "`dfr` on validation"}
    for column, name in ((2, "celeba"), (3, "celeba-tuned")):
        rows = json.loads((PAGES / "results" / f"{name}.json").read_text())["rows"]
        for label, runs in real_images._by_label([real_images.Row.from_dict(row) for row in rows]).items():
            if runs[0].arm.control_of is None:
                worst, average = (
                    100 * mean(run.test.metric(key) for run in runs) for key in ("worst_group", "accuracy")
                )
                cell = table[names.get(label, f"`{label}`")].split("|")[column].strip()
                assert cell == f"{worst:.1f} / {average:.1f}", label
