"""One run as the sections of a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from evenly.data.contract import Data
from evenly.engine.accuracy import intervals
from evenly.engine.trained import Selection
from evenly.experiment import Run
from evenly.methods.early import FALLEN, SHRUNK, drop_has_shrunk
from evenly.report import by_group, figures, words
from evenly.report.blocks import Block, Cell, Panel, Panels, Prose, Row, Section, Settings, Table
from evenly.report.comparisons import course, final_rows, gallery
from evenly.report.figures import Curve, Look
from evenly.report.settings import as_text, setting_pairs, size_pairs

LOOKS = {"training": Look(1), "validation": Look(2)}


def sections(run: Run, data: Data, config: Mapping[str, Any]) -> list[Section]:
    """In short, the settings, results on each split and group, the course of training, the examples singled out."""
    blocks: list[Block | None] = [
        settings(run, data, config),
        split_results(run, data),
        group_results(run, data),
        by_group.origins_of_run(run, data),
        courses(run),
        by_group.over_epochs(
            {f"{run.results['method']}+{run.results['optimizer']}": [run]}, data.measured_names, "groups"
        ),
        by_group.reaching_of_run(run),
        alignments(run),
    ]
    if run.selection is not None:
        blocks.append(separation(run.selection))
        blocks.append(gallery(data, run.selection, "Examples singled out", run.results["method"], ("picked", "others")))
    return [
        Section("In short", "short", [Prose(words.run_sentences(run.results))]),
        Section("The run", "run", [block for block in blocks if block is not None]),
    ]


def settings(run: Run, data: Data, config: Mapping[str, Any]) -> Settings:
    """What was asked, from the run's configuration."""
    pairs = [
        ("method", as_text(config["method"]["name"])),
        ("method options", as_text(config["method"].get("options") or {})),
        ("optimizer", as_text(config["optimizer"])),
        ("seed", str(config["seed"])),
        ("model", as_text(config["model"]["name"])),
        *setting_pairs({**config["settings"], "model_options": config["model"].get("options") or {}}, run.rule),
        ("stopped at a cost of", "" if config.get("budget") is None else f"{config['budget']:,.0f} example-gradients"),
        ("data options", as_text(dict(data.options))),
        *size_pairs(data),
    ]
    return Settings([(name, value) for name, value in pairs if value])


def split_results(run: Run, data: Data) -> Table:
    """A row per split: averages and worst cases."""
    heads = {"accuracy": "accuracy, %", "worst_group": "worst group, %", "train_weighted": "train-weighted, %",
             "worst_class": "worst class, %"}  # fmt: skip
    measured = {name: run.results.get(name) or {} for name in data.splits}
    shown = [metric for metric in heads if any(metric in values for values in measured.values())]
    rows = [
        Row(
            "training" if name == "train" else name,
            [
                Cell(f"{len(data.splits[name]):,}"),
                *(Cell(words.number(values.get(metric))) for metric in shown),
                Cell(_loss(values.get("loss"))),
            ],
        )
        for name, values in measured.items()
    ]
    rule = words.RULE_NAMES.get(run.rule, run.rule)
    caption = f"Weights of the {rule} (rule: {run.rule}): epoch {run.selected_epoch}{words.then(run.results)}."
    return Table(["split", "examples", *(heads[metric] for metric in shown), "loss"], rows, caption)


def group_results(run: Run, data: Data) -> Table | None:
    """A row per group: accuracy and size in each split."""
    splits = [name for name in data.splits if "groups" in (run.results.get(name) or {})]
    if not splits:
        return None
    count = max(len(run.results[name]["groups"]) for name in splits)
    rows = []
    for g in range(count):
        cells = []
        for name in splits:
            values, sizes = run.results[name]["groups"], run.results[name]["group_counts"]
            bounds = run.results[name].get("group_intervals") or intervals(values, sizes)
            there = g < len(values)
            accuracy = Cell(words.number(values[g]), words.bounds(bounds[g])) if there else Cell(words.number(None))
            cells += [Cell(f"{sizes[g]:,}" if there else "0"), accuracy]
        rows.append(Row(data.measured_names[g], cells))
    columns = ["group"]
    for name in splits:
        spoken = "training" if name == "train" else name
        columns += [f"{spoken} examples", f"{spoken} accuracy, %"]
    caption = "Accuracy and number of examples of each group in each split, with Wilson's 95% intervals."
    return Table(columns, rows, caption, "By group")


def courses(run: Run) -> Panels | None:
    """Loss, accuracy and worst group over epochs, on training and validation."""
    wanted: dict[str, dict[str, tuple[str, ...]]] = {
        "loss": {"training": ("train_loss",), "validation": ("validation", "loss")},
        "accuracy": {"training": ("train_accuracy",), "validation": ("validation", "accuracy")},
        "worst group": {"validation": ("validation", "worst_group")},
    }
    panels: list[Panel] = []
    legend: dict[str, Look] = {}
    for number, (title, lines) in enumerate(wanted.items(), 1):
        courses = {name: course(run, path) for name, path in lines.items()}
        drawn = [Curve(name, LOOKS[name], [points]) for name, points in courses.items() if points[0]]
        if not drawn:
            continue
        legend |= {line.name: line.look for line in drawn}
        values = [y for line in drawn for y in line.mean()[1]]
        svg = figures.curves(
            drawn, prefix=f"course{number}", label=f"{title.capitalize()} by epoch", shares=title != "loss",
            log_y=title == "loss" and figures.spans(values, 30),
        )  # fmt: skip
        panels.append(Panel(title, svg))
    if not panels:
        return None
    caption = "Training values are means over an epoch, while the weights still move; validation is measured after it."
    return Panels("How training went", panels, caption, list(legend.items()))


def separation(selection: Selection) -> Panels | None:
    """What set the separating epoch, where the method has an early stage: its training loss and the drops of it."""
    losses = [float(loss) for loss in selection.details.get("early_losses", ())]
    if not losses:
        return None
    epochs, epoch = list(range(1, len(losses) + 1)), len(losses)
    drops = [before - after for before, after in pairwise(losses)]
    enough = [SHRUNK * largest for largest in accumulate(drops, max)]
    threshold = Curve(f"{SHRUNK:.0%} of the largest drop so far", Look(0, 1), [(epochs[1:], enough)])
    courses = {"training loss": (epochs, losses), "drop from the epoch before": (epochs[1:], drops)}
    panels: list[Panel] = []
    legend: dict[str, Look] = {}
    for number, (title, (x, y)) in enumerate(courses.items(), 1):
        if not x:
            continue  # a single epoch has no drop
        early = Curve("early stage", LOOKS["training"], [(x, y)])
        mark = Curve("separating epoch", Look(2), [([epoch], y[-1:])])
        lines = [early, threshold, mark] if y is drops else [early, mark]
        legend |= {line.name: line.look for line in lines}
        label = f"{title.capitalize()}, by early epoch"
        panels.append(Panel(title, figures.curves(lines, prefix=f"separation{number}", label=label)))
    caption = f"{_why_then(losses, selection.details['decided'])} Losses are means over an epoch."
    return Panels("When the examples were separated", panels, caption, list(legend.items()))


def _why_then(losses: Sequence[float], decided: str) -> str:
    """What set the separating epoch, in a sentence or two."""
    epoch = len(losses)
    rule = (
        f"the first epoch at which the training loss has fallen by {FALLEN:.0%} and its last drop is under "
        f"{SHRUNK:.0%} of the largest so far"
    )
    if decided == "rule":
        return f"The examples were separated at epoch {epoch}, {rule}."
    if decided == "end":
        return f"The rule waits for {rule}; there was none, so the end of the run was taken, epoch {epoch}."
    own = next((t for t in range(1, epoch + 1) if drop_has_shrunk(list(losses[:t]))), None)
    would = f"would have waited for {rule}" if own is None else f"would have taken epoch {own}, {rule}"
    return f"The separating epoch was given: {epoch}. The rule {would}."


def alignments(run: Run) -> Panels | None:
    """Growth of the planted features, where the history has it."""
    features = [key for row in final_rows(run)[-1:] for key in row if key.startswith("alignment_")]
    lines = [
        Curve(feature.removeprefix("alignment_"), Look(number), [course(run, (feature,))])
        for number, feature in enumerate(features, 1)
    ]
    if not lines:
        return None
    svg = figures.curves(lines, prefix="alignment", label="Alignment with the planted features by epoch")
    caption = "The largest inner product of a filter with each planted direction."
    return Panels("What the network learned", [Panel("alignment with each feature", svg)], caption,
                  [(f"{line.name} feature", line.look) for line in lines])  # fmt: skip


def _loss(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.3f}"
