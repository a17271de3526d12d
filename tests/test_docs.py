"""Code and commands in README and docs run as pasted; pages of results follow from what was measured."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev

import pytest
import typer

import evenly
from evenly.cli.app import app
from evenly.runs.comparison import Comparison
from evenly.runs.improvement import read_improvement
from evenly.runs.results import RunResult
from evenly.runs.summary import summarise

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs"
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(PAGES.glob("*.md"))]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"(?:^    (?:\$ )?|`|&& |; )(evenly (?:[a-z]+|--)[^\n`;#]*)", re.MULTILINE)


BLOCKS = {
    f"{page.name}-{number}": block for page in TEXTS for number, block in enumerate(BLOCK.findall(page.read_text()))
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_a_block_of_python_runs_as_pasted(block, tmp_path):
    """By itself: in a new process and folder, with nothing imported or defined before."""
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_commands_have_the_options_that_they_use():
    commands = typer.main.get_command(app).commands
    seen = set()
    for page in TEXTS:
        text = page.read_text().replace("\\\n", " ")
        for command in COMMAND.findall(text):
            _, verb, *words = shlex.split(command.split("  ")[0].split("&&")[0])
            if verb in ("--help", "--version"):
                continue
            assert verb in commands, (page.name, command)
            if words and not re.search(r"[A-Z]{3}|\.\.\.|\|", " ".join(words)):  # RUN stands for a folder
                commands[verb].make_context(verb, words)
                seen.add(verb)
    assert {"train", "compare", "predict", "export", "audit", "stability"} <= seen


def test_links_and_named_files_are_there():
    for page in TEXTS:
        text = page.read_text()
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
            assert (page.parent / target).exists(), (page.name, target)
        for path in re.findall(
            r"`(?:python |pytest [^`]*?)?((?:tests|benchmarks|examples|docs|\.ci|src)/[\w/.-]+)", text
        ):
            assert (ROOT / path).exists(), (page.name, path)
    assert evenly.__version__ in (ROOT / "CHANGELOG.md").read_text()


def benchmark(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module(name)


@pytest.fixture
def real_images(monkeypatch):
    return benchmark("real_image_pages", monkeypatch)


def stored(key):
    """Files in docs/results that have such a key."""
    return sorted(file for file in (PAGES / "results").glob("*.json") if key in json.loads(file.read_text()))


@pytest.mark.parametrize("file", stored("diverged"), ids=lambda file: file.stem)
def test_pages_of_results_follow_from_what_was_measured(file, tmp_path, real_images):
    """Every mean, interval and chosen value on a page is computed from the runs beside it."""
    (tmp_path / file.name).write_text(file.read_text())
    real_images.write_page(tmp_path / file.name)
    assert (tmp_path / f"{file.stem}.md").read_text() == file.with_suffix(".md").read_text()


def test_the_page_of_cifar10_follows_from_what_was_measured(monkeypatch):
    measured = json.loads((PAGES / "results" / "cifar10.json").read_text())
    lines = benchmark("cifar10", monkeypatch)._lines(measured)
    assert "\n".join(lines) + "\n" == (PAGES / "results" / "cifar10.md").read_text()
    table = Comparison.from_dict(measured["comparison"])
    assert table.summary == summarise(table.rows)


@pytest.mark.parametrize("file", stored("unit"), ids=lambda file: file.stem)
def test_the_pages_of_200_epochs_follow_from_what_was_measured(file, tmp_path, monkeypatch):
    (tmp_path / file.name).write_text(file.read_text())
    benchmark("gpu_pages", monkeypatch).write_page(tmp_path / file.name)
    assert (tmp_path / file.with_suffix(".md").name).read_text() == file.with_suffix(".md").read_text()
    measured = json.loads(file.read_text())
    unit, rows = benchmark("gpu_units", monkeypatch).UNITS[measured["unit"]], measured["rows"]
    assert (unit.page, len(rows)) == (file.stem, len(unit.seeds))
    for row in rows:
        assert (row["results"]["method"], row["results"]["optimizer"]) == (unit.method, unit.optimizer)
        splits = RunResult.from_dict(row["results"]).splits
        assert row["test_error"] == pytest.approx(100 - 100 * splits["test"].accuracy)
        if "forgotten_times" not in row:
            continue
        counts = {int(times): count for times, count in row["forgotten_times"].items()}
        assert sum(counts.values()) + row["never_right"] == 50_000
        forgotten = sum(times * count for times, count in counts.items())
        assert row["mean_forgetting"] == pytest.approx(forgotten / sum(counts.values()))
        assert row["right"][-1] == splits["train"].accuracy
    errors = f"{mean(row['test_error'] for row in rows):.2f} ± {stdev(row['test_error'] for row in rows):.2f}"
    text = (PAGES / "images.md").read_text()
    assert f"(results/{file.stem}.md) | {errors} |" in text or f"results/{file.stem}.md" not in text


def test_the_pages_of_series_follow_from_what_was_measured(tmp_path, monkeypatch):
    for file in stored("series"):
        (tmp_path / file.name).write_text(file.read_text())
        benchmark("gpu_pages", monkeypatch).write_page(tmp_path / file.name)
        assert (tmp_path / file.with_suffix(".md").name).read_text() == file.with_suffix(".md").read_text()
    arms = json.loads((PAGES / "results" / "cifar10-mlp.json").read_text())["arms"]
    text = (PAGES / "images.md").read_text()
    for arm in arms.values():
        errors = [row["test_error"] for row in arm["rows"]]
        assert (
            f"{mean(errors):.2f} ± {stdev(errors):.2f} | {mean(r['cost_multiple'] for r in arm['rows']):.2f}x" in text
        )


def test_the_table_of_celeba_follows_from_what_was_measured(real_images):
    """The table in docs/groups.md."""
    lines = (PAGES / "groups.md").read_text().splitlines()
    table = {line.split("|")[1].strip(): line for line in lines if line.startswith("|") and " / " in line}
    names = {"dfr, on train": "`dfr` on training", "dfr, on validation": "`dfr` on validation"}
    for column, name in ((2, "celeba"), (3, "celeba-tuned"), (3, "celeba-tuned-rivals")):
        rows = json.loads((PAGES / "results" / f"{name}.json").read_text())["rows"]
        for label, runs in real_images.by_label([real_images.Row.from_dict(row) for row in rows]).items():
            if name == "celeba-tuned-rivals" and label in ("erm", *names):
                continue  # the table has their earlier run
            worst, average = (100 * mean(run.test.metric(key) for run in runs) for key in ("worst_group", "accuracy"))
            quoted = " at the cost of ".join(f"`{name}`" for name in label.split(" at the cost of "))
            cell = table[names.get(label, quoted)].split("|")[column].strip()
            assert cell == f"{worst:.1f} / {average:.1f}", label


def test_the_page_of_an_improvement_follows_from_what_was_measured(tmp_path):
    stored = json.loads((PAGES / "results" / "improve-celeba.json").read_text())
    text = (PAGES / "results" / "improve-celeba.md").read_text()
    (tmp_path / "improve.json").write_text(json.dumps(stored["improvement"]))
    improvement = read_improvement(tmp_path)
    assert improvement.verdict == "too-few"
    for each in ("## The verdict: too few", stored["machine"], stored["torch"], stored["commit"][:12]):
        assert each in text
    assert f"{improvement.spent / improvement.unit:.2f} runs of ERM" in text
    for split, counts in improvement.profile.group_counts.items():
        assert f"| {'training' if split == 'train' else split} | {' | '.join(f'{n:,}' for n in counts)} |" in text
    for each in improvement.tried:
        summary = each.on_validation
        worst, name = summary.metrics["worst_group"], f"`{each.arm.method}`"
        cells = [name if each.arm.optimizer == "sgd" else f"{name} with SAM", str(summary.seeds)]
        cells += [f"{summary.cost_multiple:.2f}x", f"{100 * summary.metrics['accuracy'].mean:.1f}"]
        cells += [f"{100 * worst.mean:.1f}"]
        if (gain := worst.difference) is not None:
            cells += [f"{100 * gain.mean:+.1f}", f"[{100 * gain.examples_low:.1f}, {100 * gain.examples_high:.1f}]"]
            cells += ["" if gain.low is None else f"[{100 * gain.low:.1f}, {100 * gain.high:.1f}]"]
        assert f"| {' | '.join(cells)} |".replace("|  |", "| |") in text
    for name, metric in improvement.chosen.summary.metrics.items():
        if name != "train_weighted":
            values = " | ".join(f"{100 * value:.1f}" for value in (metric.mean, *metric.values))
            assert f"| {name.replace('_', ' ')}, % | {values} |" in text
