"""Results made by hand: small, quick, and of every shape that a page has to take."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve

from evenly.data import Data
from evenly.engine.accuracy import intervals
from evenly.engine.trained import Selection
from evenly.files import sealed, write_json
from evenly.runs.arms import Arm
from evenly.runs.comparison import Comparison, ComparisonPlan
from evenly.runs.examples import save_examples
from evenly.runs.folder import FORMAT, Config
from evenly.runs.network import NetworkSpec
from evenly.runs.plan import DataSpec, MethodSpec, ModelSpec, OptimizerSpec, Plan
from evenly.runs.results import DataSummary, Measured, RunResult
from evenly.runs.run import InMemory, Run
from evenly.runs.summary import Row, summarise
from evenly.settings import Settings

UNIT = 200.0
ERM, USEFUL, PDE = (Arm(method, "sgd") for method in ("erm", "useful", "pde"))
UPSAMPLED, ERM_CUT = Arm("random_upsample", "sgd", control_of=USEFUL), Arm("erm", "sgd", control_of=PDE)
ARMS = {ERM: (1.0, None, 0.0), USEFUL: (1.2, UPSAMPLED, 0.05), UPSAMPLED: (1.2, None, 0.01), PDE: (0.1, ERM_CUT, 0.08),
        ERM_CUT: (0.1, None, -0.2)}  # fmt: skip
"""The cost of each arm, its control, and how much higher its accuracy is than ERM's."""


def measured(level: float, seed: int = 0, groups: int = 4) -> Measured:
    """What a run reaches on a split; the last group has no examples."""
    accuracy = level + 0.003 * seed
    if not groups:
        return Measured(accuracy, 0.5, accuracy - 0.05)
    shares = (*(min(accuracy - 0.1 + 0.05 * g, 1.0) for g in range(groups - 1)), None)
    counts = (*[10] * (groups - 1), 0)
    worst, weighted, limits = accuracy - 0.1, accuracy + 0.01, intervals(shares, counts)
    return Measured(accuracy, 0.5, accuracy - 0.05, worst, weighted, shares, counts, limits)


def result(
    method: str = "erm", level: float = 0.8, seed: int = 0, groups: int = 4, splits: str = "train validation test",
    data: str = "toys", names: tuple[str, ...] = (), **changes: Any,
) -> RunResult:  # fmt: skip
    """What a run reached and cost."""
    summary = DataSummary(data, "", dict.fromkeys(splits.split(), 40), ("cat", "dog"), names, groups)
    return evolve(
        RunResult(
            data=summary, method=method, optimizer="sgd", seed=seed, model="mlp", rule="last", selected_epoch=5,
            selected_after_epochs=5.0, epochs=5, cost=UNIT, unit=UNIT, evaluation_cost=0.0, seconds=1.5, device="cpu",
            step="plain", splits={name: measured(level, seed, groups) for name in splits.split()},
        ),
        **changes,
    )  # fmt: skip


def run(
    method: str = "erm", level: float = 0.8, seed: int = 0, features: bool = True, picked: tuple[int, ...] = (0, 3, 10),
    plan: dict[str, Any] | None = None, **shape: Any,
) -> Run:  # fmt: skip
    """A run as training leaves it, without the training."""
    reached = result(method, level, seed, **shape)
    history = []
    for epoch in range(1, 6):
        line: dict[str, Any] = {
            "stage": "final", "epoch": epoch, "lr": 0.1, "examples": 40, "cost": reached.cost * epoch / 5,
            "train_loss": 0.7 / epoch, "train_accuracy": level - 0.1 / epoch,
        }  # fmt: skip
        if features:
            line |= {"alignment_easy": 0.2 * epoch, "alignment_difficult": 0.01 * epoch + 0.001 * seed}
        if "validation" in reached.splits and epoch % 2:
            line["validation"] = measured(level - 0.1 / epoch, seed, reached.data.groups).to_dict()
            if not reached.data.groups:
                del line["validation"]["worst_group"]
        history.append(line)
    selection = None
    if method in ("useful", "random_upsample", "pde"):
        indices = torch.tensor(picked, dtype=torch.long)
        selection = Selection(indices, torch.full_like(indices, 2), "the higher-loss cluster")
        reached = evolve(reached, chosen=len(picked))
    asked = Plan(
        DataSpec(reached.data.name), ModelSpec("mlp", {"width": 32}), MethodSpec(method, {"factor": 2}),
        OptimizerSpec("sgd"), Settings(epochs=5, batch_size=None), seed=seed,
    )  # fmt: skip
    config = Config(evolve(asked, **plan or {}), NetworkSpec("mlp"), {}, reached.data.class_names)
    return Run(config, reached, None, InMemory(history, selection))


def save(finished: Run, folder: Path, data: Data | None = None) -> Run:
    """The run, in a folder that can be read back."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", finished.config.to_dict())
    write_json(folder / "results.json", {"format": FORMAT, **finished.results.to_dict()})
    (folder / "metrics.jsonl").write_text("\n".join(json.dumps(sealed(row)) for row in finished.history))
    if finished.selection is not None:
        finished.selection.save(folder / "selection.npz")
        if data is not None:
            save_examples(data, finished.selection, folder)
    finished.folder = folder
    return finished


def of_rows(rows: Any, runs: Any = None, **plan: Any) -> Comparison:
    """A comparison of these rows."""
    first = rows[0].result
    methods = dict.fromkeys(row.arm.method for row in rows if row.arm.control_of is None)
    asked = ComparisonPlan(
        tuple(methods), ("sgd",), tuple(dict.fromkeys(row.seed for row in rows)), "mlp", first.rule, first.judged,
        Settings(epochs=5), options={"pde": {"every": 3}}, data_options={"n": 500},
    )  # fmt: skip
    return Comparison(first.data.name, evolve(asked, **plan), tuple(rows), summarise(rows, runs), runs=dict(runs or {}))


def comparison(seeds: int = 3, arms: Any = tuple(ARMS), **shape: Any) -> Comparison:
    """A whole comparison: ``comparison(seeds=1, arms=[ERM], groups=0, ...)``."""
    rows, runs = [], {}
    for seed, arm in product(range(seeds), arms):
        cost, control, gain = ARMS[arm]
        # seeds that all differ by the same from their control have no interval
        wobble = 1 + 0.01 * (seed - (seeds - 1) / 2) if arm.control_of else 1
        runs[arm, seed] = run(arm.method, 0.8 + gain * wobble, seed, cost=UNIT * cost, **shape)
        rows.append(Row(arm, seed, runs[arm, seed].results, control))
    return of_rows(rows, runs)


def sweep(values: dict[str, list[Any]], **shape: Any) -> Comparison:
    """A comparison at several values: ``sweep({"batch_size": [32, 64]}, arms=[ERM], ...)``.

    A name "useful.factor" varies useful and its control. The k-th value of a name raises the accuracy of what it varies
    by k points.
    """
    plain, rows, runs = comparison(**shape), [], {}
    for point in product(*values.values()):
        for row in plain.rows:
            owner = (row.arm.control_of or row.arm).method
            pairs = zip(values, point, strict=True)
            swept = {name: value for name, value in pairs if name.rpartition(".")[0] in ("", owner)}
            arm, control = (_swept(each, swept) for each in (row.arm, row.control))
            if (arm, row.seed) in runs:
                continue
            lift = 0.01 * sum(values[name].index(value) for name, value in swept.items())
            test = evolve(row.result.splits["test"], accuracy=row.result.splits["test"].accuracy + lift)
            reached = evolve(row.result, splits={**row.result.splits, "test": test})
            runs[arm, row.seed] = plain.runs[row.arm, row.seed]
            rows.append(Row(arm, row.seed, reached, control))
    return of_rows(rows, runs, sweep={name: tuple(each) for name, each in values.items()})


def _swept(arm: Arm | None, swept: dict[str, Any]) -> Any:
    return None if arm is None else evolve(arm, swept=swept, control_of=_swept(arm.control_of, swept))


def images(groups: bool = True, count: int = 40, **names: Any) -> Data:
    """Grey images of two classes in four groups, two of them minorities."""
    labels = torch.arange(count) % 2
    group = 2 * labels + (torch.arange(count) % 10 < 2).long()
    pictures = torch.randint(0, 256, (count, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return Data(train=(pictures, labels, group) if groups else (pictures, labels), **names)


@pytest.fixture
def build() -> SimpleNamespace:
    """The functions above: ``build.comparison(seeds=1)``."""
    functions = (measured, result, run, save, of_rows, comparison, sweep, images)
    arms = {"ERM": ERM, "USEFUL": USEFUL, "PDE": PDE, "UPSAMPLED": UPSAMPLED, "ERM_CUT": ERM_CUT}
    return SimpleNamespace(**{each.__name__: each for each in functions}, **arms)


@pytest.fixture
def in_browser(tmp_path: Path) -> Any:
    """Run a script of the test in a page, without the policy that admits no scripts; what it puts into data-found."""
    if shutil.which("chromium") is None:
        pytest.skip("needs chromium")

    def show(page: Path, script: str, *flags: str, virtual_time: bool = True) -> Any:
        watch = (
            "<script>window.failures = []; addEventListener('error', e => failures.push(e.message));"
            "addEventListener('unhandledrejection', e => failures.push(String(e.reason)));</script>"
        )
        text = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", watch, page.read_text())
        watched = tmp_path / "watched.html"
        watched.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
                   "--disable-background-networking", "--disable-component-update",
                   f"--user-data-dir={tmp_path / 'profile'}", *flags]  # fmt: skip
        command += ["--virtual-time-budget=4000"] if virtual_time else []
        done = subprocess.run(
            [*command, "--dump-dom", f"file://{watched}"], check=True, capture_output=True, text=True, timeout=90
        )
        return json.loads(html.unescape(re.search(r'data-found="([^"]*)"', done.stdout)[1]))

    return show
