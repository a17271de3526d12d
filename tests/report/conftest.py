"""Comparisons made by hand: small, quick, and of every shape that a page has to take."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from evenly.comparison import Comparison, summarise
from evenly.data import Data
from evenly.engine.trained import Selection
from evenly.experiment import Run

ARMS = {
    "erm+sgd": ("erm", "sgd", 1.0, None, None, 0.0),
    "useful+sgd": ("useful", "sgd", 1.2, "random_upsample+sgd at the cost of useful+sgd", None, 0.05),
    "random_upsample+sgd at the cost of useful+sgd": ("random_upsample", "sgd", 1.2, None, "useful+sgd", 0.01),
    "pde+sgd": ("pde", "sgd", 0.1, "erm+sgd at the cost of pde+sgd", None, 0.08),
    "erm+sgd at the cost of pde+sgd": ("erm", "sgd", 0.1, None, "pde+sgd", -0.2),
}


def images(groups: bool = True, validation: bool = True, count: int = 40, **names: Any) -> Data:
    """Grey images of two classes in four groups, two of them minorities."""
    draw = torch.Generator().manual_seed(0)

    def split(n: int) -> tuple[Any, ...]:
        labels = torch.arange(n) % 2
        group = 2 * labels + (torch.arange(n) % 10 < 2).long()
        pictures = torch.randint(0, 256, (n, 1, 8, 8), generator=draw, dtype=torch.uint8)
        return (pictures, labels, group) if groups else (pictures, labels)

    return Data(train=split(count), validation=split(20) if validation else None, test=split(20), **names)


def measured(level: float, seed: int, groups: int) -> dict[str, Any]:
    """What a run reaches on a split."""
    accuracy = level + 0.003 * seed
    row: dict[str, Any] = {"accuracy": accuracy, "loss": 0.5, "worst_class": accuracy - 0.05}
    if groups:
        row |= {
            "worst_group": accuracy - 0.1,
            "train_weighted": accuracy + 0.01,
            "groups": [min(accuracy - 0.1 + 0.05 * g, 1.0) for g in range(groups - 1)] + [None],
            "group_counts": [10] * (groups - 1) + [0],
        }
    return row


def finished_run(method: str, level: float, seed: int, *, groups: int = 4, validation: bool = True, test: bool = True,
                 features: bool = True, picked: tuple[int, ...] = (0, 3, 10), **row: Any) -> Run:  # fmt: skip
    """A run as training leaves it, without the training."""
    history = []
    for epoch in range(1, 6):
        line: dict[str, Any] = {
            "stage": "final", "epoch": epoch, "lr": 0.1, "examples": 40, "cost": 40.0 * epoch,
            "train_loss": 0.7 / epoch, "train_accuracy": level - 0.1 / epoch,
        }  # fmt: skip
        if features:
            line |= {"alignment_easy": 0.2 * epoch, "alignment_difficult": 0.01 * epoch + 0.001 * seed}
        if validation and epoch % 2:
            line["validation"] = measured(level - 0.1 / epoch, seed, groups)
        history.append(line)
    selection = None
    if method in ("useful", "random_upsample", "pde"):
        indices = torch.tensor(picked, dtype=torch.long)
        selection = Selection(indices, torch.full_like(indices, 2), "the costlier of two clusters")
    results = {
        "data": "toys", "method": method, "optimizer": "sgd", "seed": seed, "model": "mlp", "rule": "last",
        "selected_epoch": 5, "epochs": 5, "cost": 200.0, "cost_multiple": 1.0, "evaluation_cost": 0.0, "seconds": 1.5,
        "chosen": None if selection is None else len(picked), "train": measured(level, seed, groups), **row,
    }  # fmt: skip
    if validation:
        results["validation"] = measured(level, seed, groups)
    if test:
        results["test"] = measured(level, seed, groups)
    return Run(nn.Identity(), history, results["cost"], "last", 5, seconds=1.5, selection=selection, results=results)


@pytest.fixture
def make_table() -> Callable[..., Comparison]:
    """A whole comparison: ``make_table(seeds=1, arms=["erm+sgd"], groups=0, ...)``."""

    def make(
        seeds: int = 3, arms: list[str] | None = None, name: str = "toys", rule: str = "last", **shape: Any
    ) -> Comparison:
        rows, runs = [], {}
        for seed in range(seeds):
            for arm in arms or list(ARMS):
                method, optimizer, cost, control, control_of, gain = ARMS[arm]
                # seeds that all differ by the same from their control have no interval
                wobble = 1 + 0.01 * (seed - (seeds - 1) / 2) if control_of else 1
                run = finished_run(
                    method, 0.8 + gain * wobble, seed, **shape, data=name, optimizer=optimizer, rule=rule,
                    cost=200 * cost, cost_multiple=cost,
                )  # fmt: skip
                runs[arm, seed] = run
                rows.append({"arm": arm, **run.results, "control": control, "control_of": control_of})
        methods = list(dict.fromkeys(row["method"] for row in rows if not row["control_of"]))
        plan = {
            "methods": methods, "optimizers": ["sgd"], "seeds": list(range(seeds)), "options": {"pde": {"every": 3}},
            "data_options": {"n": 500}, "settings": {"epochs": 5, "lr": 0.1}, "rule": rule, "model": "mlp",
        }  # fmt: skip
        return Comparison(name, rows, summarise(rows), plan, runs)

    return make


@pytest.fixture
def make_sweep(make_table: Callable[..., Comparison]) -> Callable[..., Comparison]:
    """A comparison at several values: ``make_sweep({"batch_size": [32, 64]}, arms=["erm+sgd"], ...)``.

    Arms are those of `make_table`; a name "useful.factor" varies useful and its control. The k-th value of a name lifts
    the accuracy of what it varies by k points.
    """

    def make(sweep: dict[str, list[Any]], **shape: Any) -> Comparison:
        plain = make_table(**shape)
        rows, runs = [], {}
        for values in product(*sweep.values()):
            for row in plain.rows:
                owner = (row["control_of"] or row["arm"]).partition("+")[0]
                pairs = [(name, value) for name, value in zip(sweep, values, strict=True)
                         if name.rpartition(".")[0] in ("", owner)]  # fmt: skip
                tail = "".join(f", {name.rpartition('.')[2]} {value}" for name, value in pairs)
                arm = row["arm"] + tail
                if (arm, row["seed"]) in runs:
                    continue
                lift = 0.01 * sum(sweep[name].index(value) for name, value in pairs)
                runs[arm, row["seed"]] = plain.runs[row["arm"], row["seed"]]
                rows.append({
                    **row, "arm": arm, "sweep": dict(pairs),
                    "test": {**row["test"], "accuracy": row["test"]["accuracy"] + lift},
                    "control": row["control"] and row["control"] + tail,
                    "control_of": row["control_of"] and row["control_of"] + tail,
                })  # fmt: skip
        return Comparison(plain.data, rows, summarise(rows), {**plain.plan, "sweep": sweep}, runs)

    return make


@pytest.fixture
def make_run() -> Callable[..., Run]:
    """A finished run: ``make_run("useful", 0.8, 0, picked=())``."""
    return finished_run


@pytest.fixture
def make_images() -> Callable[..., Data]:
    """Image data: ``make_images(groups=False, class_names=[...])``."""
    return images
