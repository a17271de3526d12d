"""The page of one run: its settings, results on each split, how training went, the examples selected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from evenly.engine.trained import Selection
from evenly.report import figures
from evenly.report.blocks import Block, Cell, Gallery, Page, Panel, Panels, Picture, Prose, Row, Section, Table, present
from evenly.report.facts import run_facts
from evenly.report.figures import Curve, Style, data_uri
from evenly.report.formats import bounds, number, percent, sentence
from evenly.report.groups import cost_to_reach_of_run, left_out, origins, over_epochs, worst_first
from evenly.report.names import METRIC_COLUMNS, group_name, run_label
from evenly.report.rendering import footer
from evenly.report.run_words import last_epoch, next_steps, run_sentences, weights_used
from evenly.report.training_figures import STYLES, alignments, legend, training_of_run
from evenly.runs.arms import Arm
from evenly.runs.examples import Example, Examples, read_examples
from evenly.runs.results import SHOWN, Measured, RunResult
from evenly.runs.run import Run


def run_page(run: Run) -> Page:
    """What the page of a run holds."""
    result, pair = run.results, Arm(run.results.method, run.results.optimizer).pair
    blocks: list[Block | None] = [
        run_facts(run),
        split_table(result),
        group_table(result),
        None if result.used is None else origins({pair: result.used}, result),
        training_of_run(run),
        over_epochs({pair: [run]}, "groups"),
        cost_to_reach_of_run(run),
        alignments({pair: [run]}, {pair: Style(1)}, "alignment"),
        None if run.selection is None else separation(run.selection),
        gallery(run, result.method),
    ]
    said = run_sentences(result)
    said[2:2] = [sentence(last)] if (last := last_epoch([run])) else []
    short = Section("In short", "short", [Prose(said)])
    steps = Section("What to do next", "next", [Prose(next_steps(run))])
    title = f"{run_label(result)} on {result.data.name}"
    role = f"Control of {run.config.control_of}." if run.config.control_of else ""
    return Page(title, role, [short, steps, Section("The run", "run", present(blocks))], footer())


def split_table(result: RunResult) -> Table:
    """A row per split: averages and worst cases."""
    metrics = [name for name in METRIC_COLUMNS if any(each.metric(name) is not None for each in result.splits.values())]
    rows = []
    for name, measured in result.splits.items():
        size = Cell(f"{result.data.sizes[name]:,}")
        cells = [Cell(number(measured.metric(metric))) for metric in metrics]
        rows.append(Row(SHOWN[name], [size, *cells, Cell(_loss(measured))]))
    caption = f"{sentence(weights_used(result))} Selection rule: {result.rule}."
    return Table(["split", "examples", *(METRIC_COLUMNS[metric] for metric in metrics), "loss"], rows, caption)


def group_table(result: RunResult) -> Table | None:
    """A row per group: accuracy and size in each split."""
    splits = {name: measured for name, measured in result.splits.items() if measured.groups}
    if not splits:
        return None
    judged = result.judged if result.judged in splits else next(iter(splits))
    groups, rows = worst_first(splits[judged].groups), []
    for g in groups:
        cells = [cell for each in splits.values() for cell in _group_cells(each, g)]
        rows.append(Row(group_name(result.data.group_names, g), cells, note="worst" if g == groups[0] else ""))
    columns = ["group"]
    for name in splits:
        columns += [f"{SHOWN[name]} examples", f"{SHOWN[name]} accuracy, %"]
    caption = "Accuracy and number of examples of each group in each split, with Wilson's 95% intervals. "
    caption += f"The worst group on the {SHOWN[judged]} set is first." + left_out(len(splits[judged].groups), groups)
    return Table(columns, rows, caption, "By group")


def _group_cells(measured: Measured, group: int) -> list[Cell]:
    if group >= len(measured.groups):
        return [Cell("0"), Cell(number(None))]
    limits = measured.group_intervals[group] if measured.group_intervals else None
    return [Cell(f"{measured.group_counts[group]:,}"), Cell(number(measured.groups[group]), bounds(limits))]


def separation(selection: Selection) -> Panels | None:
    """What set the separating epoch, where the method has an early stage: its training loss and the drops of it."""
    losses = [float(loss) for loss in selection.details.get("early_losses", ())]
    if not losses:
        return None
    epochs = list(range(1, len(losses) + 1))
    drops = [before - after for before, after in pairwise(losses)]
    limits = [float(limit) for limit in selection.details.get("early_limits", ())]
    threshold = [Curve("threshold of the rule", Style(0, 1), [(epochs[1:], limits)])] if limits else []
    drawn = [[_early(epochs, losses), _separating(epochs, losses)]]
    if drops:
        drawn.append([_early(epochs[1:], drops), *threshold, _separating(epochs, drops)])
    panels = []
    for k, (title, lines) in enumerate(zip(("training loss", "drop from the epoch before"), drawn, strict=False), 1):
        label = f"{title.capitalize()}, by early epoch"
        panels.append(Panel(title, figures.curves(lines, prefix=f"separation{k}", label=label)))
    caption = f"{selection.details.get('separation', '')} Losses are means over an epoch.".strip()
    return Panels("When the examples were separated", panels, caption, legend(drawn))


def _early(epochs: Sequence[float], values: Sequence[float]) -> Curve:
    return Curve("early stage", STYLES["training"], [(epochs, values)])


def _separating(epochs: Sequence[float], values: Sequence[float]) -> Curve:
    return Curve("separating epoch", Style(2), [(epochs[-1:], values[-1:])])


def gallery(run: Run, label: str) -> Gallery | None:
    """What a run's method selected and why, with the examples in its folder; None where it selects none by design."""
    if run.selection is None:
        return None
    examples = (None if run.folder is None else read_examples(run.folder)) or Examples()
    total, count = run.results.data.sizes["train"], len(run.selection.indices)
    caption = f"{label} selected {f'{count:,}' if count else 'none'} of {total:,} training examples"
    notes = [f"{caption}: {run.selection.why}."]
    for share in examples.shares:
        if share.selected and share.total_minority:
            grouping = "" if share.grouping == "group" else f" (by {share.grouping})"
            within, overall = share.selected_minority / share.selected, share.total_minority / share.total
            notes.append(
                f"Of these, {share.selected_minority:,} ({percent(within)}) are from minority groups{grouping}, "
                f"which hold {percent(overall)} of the training set."
            )
    if any(example.minority for example in (*examples.selected, *examples.others)):
        notes.append("Outlined: from a group with less than half as many examples as the average group.")
    kinds = (("selected", count, examples.selected), ("others", total - count, examples.others))
    sets = [
        (f"{kind}: {len(pictures)} of {of_kind:,}, drawn at random", pictures)
        for kind, of_kind, drawn in kinds
        if (pictures := _pictures(drawn))
    ]
    return Gallery("Examples selected", sets, " ".join(notes))


def _pictures(examples: Sequence[Example]) -> list[Picture]:
    return [
        Picture(
            each.group or each.label,
            each.description,
            "" if each.png is None else data_uri(each.png),
            each.text,
            each.minority,
        )
        for each in examples
        if each.text or each.png is not None
    ]


def _loss(measured: Measured) -> str:
    return "–" if measured.loss is None or not math.isfinite(measured.loss) else f"{measured.loss:.3f}"
