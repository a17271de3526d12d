"""How training went: losses, accuracies and the growth of features over epochs or cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evenly.report import figures
from evenly.report.blocks import Panel, Panels
from evenly.report.figures import Curve, Style
from evenly.runs.run import History, Run

STYLES = {"training": Style(1), "validation": Style(2)}
ALIGNMENT = "alignment_"
"""What the metrics of planted features begin with."""


def series(history: History, path: Sequence[str], unit: float | None = None) -> tuple[list[float], list[float]]:
    """A metric at the epochs that have it, over epochs or, where a unit of cost is given, over cost."""
    xs, ys = [], []
    for row in history:
        value: Any = row
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, int | float) and math.isfinite(value):
            xs.append(float(row["epoch"] if unit is None else row["cost"] / unit))
            ys.append(float(value))
    return xs, ys


def training(runs: Mapping[str, Sequence[Run]], styles: Mapping[str, Style], prefix: str) -> Panels | None:
    """Training loss over epochs; validation accuracy and worst group over cost.

    Args:
        runs: the runs of each method, one per seed, by the method's label.
    """
    metrics = {
        "training loss": "train_loss",
        "validation accuracy": "accuracy",
        "validation, worst group": "worst_group",
    }
    panels, drawn = [], []
    for k, (title, metric) in enumerate(metrics.items(), 1):
        loss = metric == "train_loss"
        lines = _curves(runs, styles, (metric,) if loss else ("validation", metric), over_cost=not loss)
        if not lines:
            continue
        drawn.append(lines)
        means = [line.mean() for line in lines]
        far_apart = figures.spans([x[0] for x, _ in means], 8) or figures.spans([x[-1] for x, _ in means], 3)
        svg = figures.curves(
            lines,
            prefix=f"{prefix}{k}",
            label=f"{title.capitalize()} by {'epoch' if loss else 'cost'}",
            x_name="epoch" if loss else "cost, multiple of plain training's",
            shares=not loss,
            log_x=not loss and far_apart,
            log_y=loss and figures.spans([value for _, y in means for value in y], 30),
        )
        panels.append(Panel(title, svg))
    if not panels:
        return None
    caption = f"{what_lines_are(drawn)} Controls are left out."
    caption += " Over cost, a method that spends on an early stage starts further right." if len(drawn) > 1 else ""
    return Panels("How training went", panels, caption, legend(drawn))


def alignments(runs: Mapping[str, Sequence[Run]], styles: Mapping[str, Style], prefix: str) -> Panels | None:
    """Growth of the planted features, where the histories have it."""
    last = (run.history[-1] for of_method in runs.values() for run in of_method if run.history)
    features = dict.fromkeys(key for row in last for key in row if key.startswith(ALIGNMENT))
    panels, drawn = [], []
    for k, feature in enumerate(features, 1):
        lines, name = _curves(runs, styles, (feature,)), feature.removeprefix(ALIGNMENT).replace("_", " ")
        values = [y for line in lines for _, ys in line.seeds for y in ys]
        if not values:
            continue
        drawn.append(lines)
        low, high = min(*values, 0.0), max(*values, 0.0)
        room = (low - 0.04 * (high - low), high + 0.06 * (high - low) or 1.0)
        label = f"Alignment with the {name} feature by epoch"
        panels.append(Panel(f"{name} feature", figures.curves(lines, prefix=f"{prefix}{k}", label=label, y_range=room)))
    caption = (
        "Alignment is the largest inner product of a filter with the planted direction: how much of that feature the "
        f"network has. Each panel has its own scale, from 0. {what_lines_are(drawn)}"
    )
    return Panels("Features learned", panels, caption, legend(drawn)) if panels else None


def training_of_run(run: Run) -> Panels | None:
    """Loss, accuracy and worst group over epochs, on training and validation."""
    metrics: dict[str, dict[str, tuple[str, ...]]] = {
        "loss": {"training": ("train_loss",), "validation": ("validation", "loss")},
        "accuracy": {"training": ("train_accuracy",), "validation": ("validation", "accuracy")},
        "worst group": {"validation": ("validation", "worst_group")},
    }
    panels, drawn = [], []
    for k, (title, paths) in enumerate(metrics.items(), 1):
        all_points = {name: series(run.history, path) for name, path in paths.items()}
        lines = [Curve(name, STYLES[name], [points]) for name, points in all_points.items() if points[0]]
        if not lines:
            continue
        drawn.append(lines)
        log = title == "loss" and figures.spans([y for line in lines for y in line.mean()[1]], 30)
        label = f"{title.capitalize()} by epoch"
        svg = figures.curves(lines, prefix=f"training{k}", label=label, shares=title != "loss", log_y=log)
        panels.append(Panel(title, svg))
    caption = "Training values are means over an epoch, while the weights change. Validation is measured after it."
    return Panels("How training went", panels, caption, legend(drawn)) if panels else None


def legend(drawn: Iterable[Sequence[Curve]]) -> list[tuple[str, Style]]:
    """The lines of some panels by name, each once."""
    return list({line.name: line.style for lines in drawn for line in lines}.items())


def what_lines_are(drawn: Iterable[Sequence[Curve]]) -> str:
    """Whether the lines of some panels are means or single seeds."""
    panels = list(drawn)
    if all(len(line.seeds) == 1 for lines in panels for line in lines):
        return "One seed."
    if all(figures.shows_seeds(lines) for lines in panels):
        return "Thick lines are means over the seeds, thin lines single seeds."
    return "Lines are means over the seeds."


def _curves(
    runs: Mapping[str, Sequence[Run]], styles: Mapping[str, Style], path: Sequence[str], over_cost: bool = False
) -> list[Curve]:
    lines = []
    for label, of_method in runs.items():
        seeds = [series(run.history, path, run.results.unit if over_cost else None) for run in of_method]
        if seeds := [(x, y) for x, y in seeds if x]:
            lines.append(Curve(label, styles[label], seeds))
    return lines
