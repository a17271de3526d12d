"""Results for a terminal of 80 columns: a run, comparisons, audits, a card or a diagram of stability, lists."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evenly.engine.accuracy import group_accuracy, wilson
from evenly.report.comparison_words import sentences
from evenly.report.formats import bounds, counted, listed, multiple, number, percent, times
from evenly.report.names import METRIC_NAMES, RULES, has_metric
from evenly.report.run_words import erm_in_full, inferred_groups, last_epoch, uncaptured, worst_group
from evenly.runs.arms import point_name
from evenly.runs.comparison import Comparison
from evenly.runs.differences import Difference, Outcome
from evenly.runs.predictions import Predictions
from evenly.runs.results import SHOWN
from evenly.runs.run import Run
from evenly.runs.summary import Summary
from evenly.values import cut

if TYPE_CHECKING:
    from evenly.diagnose.audit_values import Findings
    from evenly.diagnose.stability import CardPage
    from evenly.theory.stability import PhaseDiagram

MOST_SLICES = 3
"""Slices that the terminal lists at most; the page has all."""
WIDEST_NAME = 23
WIDEST_WITH_SEEDS = 19  # as many columns as the control with the longest name has, less a comma and a space
CLEAR: dict[Outcome, tuple[str, str]] = {
    "raised": ("clear", "green"),
    "lowered": ("clear", "red"),
    "raised-for-these": ("for these models", "green"),
    "lowered-for-these": ("for these models", "red"),
    "unclear": ("not clear", ""),
    "unknown": ("not known", ""),
}
"""How clear a difference is, in words and as a colour."""


def show_run(run: Run) -> None:
    """What one run reached and cost."""
    result, measured = run.results, run.results.measured
    full = erm_in_full(result.method, result.cost_multiple)
    cost = f"{result.cost_multiple:.2f}x the cost of plain training{full}"
    epochs = counted(result.epochs, "epoch")
    print_paragraphs([f"{result.data.name}: {result.method} with {result.optimizer}, {epochs}, {cost}"])
    print_line(f"{SHOWN[result.judged]} accuracy", f"{measured.accuracy:.1%}")
    if measured.worst_group is not None:
        which = worst_group(measured, result.data.group_names)
        print_line("worst group", f"{measured.worst_group:.1%}   {which}")
        # none where no group of training is in the split
        print_line("train-weighted", percent(measured.train_weighted))
    weights = f"epoch {result.selected_epoch} of {result.epochs} (rule: {result.rule})"
    print_line("weights used", "; ".join(filter(None, (weights, last_epoch([run])))))
    print_line("cost of these weights", f"{result.selected_after_epochs:.1f} epochs of the full training set")
    if result.evaluation_cost:
        print_line("validation", f"another {times(result.evaluation_cost_multiple)}, not included above")
    inferred = [] if result.inferred_groups is None else [inferred_groups(result.inferred_groups)]
    for remark in filter(None, (*result.remarks, *inferred, uncaptured([result]))):
        print(textwrap.fill(remark, terminal_width(), initial_indent="  ", subsequent_indent="  "))
    if run.folder is not None:
        print(f"  {'page':<22}{run.folder / 'report.html'}")


def show_predictions(predictions: Predictions, file: Path) -> None:
    """How often each class was predicted and, where labels are known, how often that is right."""
    numbers = np.bincount(predictions.labels, minlength=len(predictions.class_names)).tolist()
    counts = dict(zip(predictions.class_names, numbers, strict=True))
    total = len(predictions)
    print(f"{counted(total, 'example')}: {listed(f'{name} {count:,}' for name, count in counts.items() if count)}")
    if predictions.accuracy is not None and predictions.true_labels is not None:
        limits = wilson(round(predictions.accuracy * total), total)
        print_line("accuracy", f"{predictions.accuracy:.1%}   {bounds(limits)}")
        if predictions.groups is not None:
            by_group = group_accuracy(predictions.probabilities, predictions.true_labels, predictions.groups)
            worst, n = by_group.worst_group, int(by_group.counts[by_group.worst_group])
            examples = f"{counted(n, 'example')} {bounds(wilson(round(by_group.worst * n), n))}"
            print_line("worst group", f"{by_group.worst:.1%}   group {worst}: {examples}")
    print(f"  {'file':<22}{file}")


def show_comparisons(comparisons: Iterable[Comparison], page: Path) -> None:
    """Each comparison as a table, and what it says."""
    console = Console()
    for comparison in comparisons:
        console.print(comparison_table(comparison))
        for sentence in sentences(comparison):
            console.print(f"- {sentence}", markup=False, highlight=False)
        console.print()
    print(f"page: {page}")


def comparison_table(comparison: Comparison) -> Table:
    """A row per method and, dimmed under it, its control; the difference from it in points with both its intervals.

    In a sweep the methods stand under the values that they were run at.
    """
    metric, plan = comparison.headline, comparison.plan
    worst = "worst_group" if has_metric(comparison.summary, "worst_group") else "worst_class"
    captured = uncaptured([row.result for row in comparison.rows])
    caption = f"{SHOWN[plan.judged]} set; weights of the {RULES.get(plan.rule, plan.rule)}"
    table = Table(
        title=Text(comparison.data),
        caption=Text(f"{caption}\n{captured}".strip()),
        box=None,
        padding=(0, 1),
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
    )
    table.add_column("\nmethod", overflow="ellipsis", no_wrap=True, max_width=WIDEST_NAME)
    for name in ("accuracy\n%", worst.replace("_", " ") + "\n%", "cost\nx ERM"):
        table.add_column(name, justify="right", no_wrap=True)
    what = METRIC_NAMES[metric].removesuffix(" accuracy").replace("-", " ")
    table.add_column(f"{what} vs\ncontrol, points", justify="right", no_wrap=True)
    heading = ""
    for each, control in comparison.lines():
        point = _point_heading(each)
        if point != heading:
            heading = point
            table.add_row(Text(point, style="bold"))
        said = _difference(each.difference(metric))
        table.add_row(Text(_name(comparison, each)), *_numbers(each, worst), said[0])
        if control is not None:
            table.add_row(Text(f"  {_name(comparison, control, 2)}"), *_numbers(control, worst), said[1], style="dim")
        if said[2]:
            table.add_row("", "", "", "", said[2], style="dim")
    return table


def _name(comparison: Comparison, summary: Summary, indent: int = 0) -> str:
    """An arm in the first column, with the number of its seeds where others have more."""
    seeds = comparison.fewer_seeds(summary)
    if not seeds:
        return summary.arm.pair
    return f"{cut(summary.arm.pair, WIDEST_WITH_SEEDS - indent - len(seeds))}, {seeds}"


def _point_heading(summary: Summary) -> str:
    parts = point_name(summary.arm.swept).split(", ") if summary.arm.swept else []
    return "\n".join(line for part in parts for line in textwrap.wrap(part, WIDEST_NAME))


def _difference(difference: Difference | None) -> tuple[Text, Text, Text]:
    """A difference on three lines: itself and how clear it is, its interval over examples, over seeds."""
    if difference is None:
        return Text(""), Text("control"), Text("")
    examples = difference.over_examples or "not known"
    clear, colour = CLEAR[difference.outcome]
    return (
        Text(f"{difference.points} {clear}", style=colour),
        Text(f"examples {examples}"),
        Text(f"seeds{':' if difference.low is None else ''} {difference.over_seeds}"),
    )


def _numbers(summary: Summary, worst: str) -> list[str]:
    cells = []
    for name in ("accuracy", worst):
        metric = summary.metrics.get(name)
        spread = "" if metric is None or summary.seeds == 1 else f" ±{100 * metric.sd:4.1f}"
        cells.append(number(None if metric is None else metric.mean) + spread)
    return [*cells, multiple(summary.cost_multiple)]


def show_audits(folder: Path, page: Path) -> None:
    """How two models compare, where there are two, what was found of each, and what to do next."""
    from evenly.diagnose.audit_folder import read_audits

    audits, compared = read_audits(folder)
    print_paragraphs(compared)
    print(end="\n" if compared else "")
    for audit in audits:
        print_paragraphs((*audit.verdict, *audit.shrunk))
        _show_slices(audit)
        print()
    print_paragraphs(("Next:", *dict.fromkeys(step for audit in audits for step in audit.next_steps)))
    print()
    print(f"examples: {folder / audits[0].table}")
    print(f"page: {page}")


def _show_slices(audit: Findings) -> None:
    """The first slices on which a model fails, a line or two each."""
    from evenly.diagnose.audit_words import slice_in_words

    slices = () if audit.slices is None else audit.slices.slices
    if len(slices) < 2:
        return  # the one there may be is in the verdict
    print("Slices on which it fails:")
    for each in slices[:MOST_SLICES]:
        print(textwrap.fill(slice_in_words(each), terminal_width(), initial_indent="- ", subsequent_indent="  "))
    if len(slices) > MOST_SLICES:
        print(f"  and {len(slices) - MOST_SLICES} more, on the page")


def show_card(card: CardPage, page: Path) -> None:
    """Whether a minimum is stable, in words, then its limits and numbers."""
    print_paragraphs(card.sentences)
    print()
    for label, value in (*card.limits, *card.numbers):
        print(textwrap.fill(value, terminal_width(), initial_indent=f"{label:<25}", subsequent_indent=" " * 25))
    print(f"{'page':<25}{page}")


def show_diagram(diagram: PhaseDiagram, page: Path) -> None:
    """The shares of runs that diverged, where the terminal is wide enough, and what they say."""
    from evenly.report.stability_pages import diagram_sentences

    width = max(len(f"{value:g}") for value in (*diagram.x_values, 100)) + 1
    label = max(len(diagram.y), *(len(f"{value:g}") for value in diagram.y_values)) + 2
    if label + width * len(diagram.x_values) <= terminal_width():
        print("runs that diverged, in percent")
        for row in range(len(diagram.y_values) - 1, -1, -1):
            cells = "".join(f"{100 * share:>{width}.0f}" for share in diagram.diverged[row])
            print(f"{diagram.y_values[row]:>{label - 2}g} |{cells}")
        values = "".join(f"{value:>{width}g}" for value in diagram.x_values)
        print(f"{diagram.y:>{label - 2}} +{values}  {diagram.x}")
        print()
    print_paragraphs(diagram_sentences(diagram))
    print(f"page: {page}")


def show_list(rows: Mapping[str, str], as_json: bool) -> None:
    """What there is, a name and a line each."""
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    width = max(map(len, rows)) + 2
    for name, summary in rows.items():
        print(
            textwrap.fill(summary, terminal_width(), initial_indent=f"{name:<{width}}", subsequent_indent=" " * width)
        )


def with_options(summary: str, defaults: Mapping[str, object]) -> str:
    """A summary and, in brackets, the options with their defaults."""
    options = listed(f"{name}={value}" for name, value in defaults.items())
    return summary.rstrip(".") + (f" [{options}]" if options else "")


def print_line(label: str, text: str) -> None:
    """A label, and beside it a text on as many lines as it takes."""
    print(textwrap.fill(text, terminal_width(), initial_indent=f"  {label:<22}", subsequent_indent=" " * 24))


def print_paragraphs(sentences: Iterable[str]) -> None:
    """Each sentence on lines of its own."""
    for sentence in sentences:
        print(textwrap.fill(sentence, terminal_width()))


def terminal_width() -> int:
    """The columns there are; 80 where nobody knows."""
    return shutil.get_terminal_size().columns
