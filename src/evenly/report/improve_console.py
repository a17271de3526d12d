"""An improvement, and the demo, for a terminal of 80 columns."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from evenly.report.console import CLEAR, print_paragraphs, show_comparisons
from evenly.report.formats import both_intervals, multiple, number
from evenly.report.improve_words import methods_tried, predict_command, short
from evenly.runs.demonstration import Demo
from evenly.runs.differences import Difference
from evenly.runs.improvement import BEST, Improvement
from evenly.values import cut

WIDEST_NAME = 25
METRICS = {"accuracy": "accuracy", "worst_group": "worst group", "worst_class": "worst class"}


def show_improvement(improvement: Improvement, page: Path) -> None:
    """What came of it, what was tried, before and after on the test set, the page, and how to use the model."""
    _show_tables(improvement)
    print(f"page: {page}")
    _show_model(improvement, page.parent / BEST)


def show_demo(demo: Demo, page: Path) -> None:
    """The improvements, the comparisons, the page of both, and how to use the models."""
    for improvement in demo.improvements:
        _show_tables(improvement)
    show_comparisons(demo.comparisons, page)
    for improvement in demo.improvements:
        if improvement.out is not None:
            _show_model(improvement, improvement.out / BEST)


def _show_tables(improvement: Improvement) -> None:
    console = Console(highlight=False)
    print_paragraphs(short(improvement))
    print()
    if methods_tried(improvement):
        console.print(tried_lines(improvement))
        print()
    console.print(before_and_after(improvement))
    print()


def _show_model(improvement: Improvement, best: Path) -> None:
    """Where the model is, and how to use it."""
    print(f"model: {best}")
    print(f"new data: {predict_command(best)}")
    for k, line in enumerate(improvement.loads):
        print(f"{'in Python: ' if not k else ' ' * 11}{line}")


def tried_lines(improvement: Improvement) -> Table:
    """A row per method that was tried: its metric on validation, the difference from ERM, the cost."""
    table = _table("What was tried, on validation")
    table.add_column("\nmethod", overflow="ellipsis", no_wrap=True, max_width=WIDEST_NAME)
    for name in ("\nseeds", f"{METRICS[improvement.metric]}\n%", "cost\nx ERM", "against ERM\npoints"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for each in improvement.tried:
        summary, is_chosen = each.on_validation, each.arm == improvement.choice.arm
        difference = summary.difference(improvement.metric)
        mark = Text("chosen", style="bold") if is_chosen else Text("")
        numbers = [number(summary.mean(improvement.metric)), multiple(summary.cost_multiple)]
        method = Text(cut(each.arm.name, WIDEST_NAME), style="bold" if is_chosen else "")
        table.add_row(method, str(summary.seeds), *numbers, _points(difference), mark)
    return table


def before_and_after(improvement: Improvement) -> Table:
    """A row per metric on the test set: plain training and, where another method is chosen, that and the difference."""
    before, after, better = improvement.baseline.summary, improvement.chosen.summary, improvement.is_better
    seeds = len(improvement.seeds)
    table = _table(f"On the test set{f', means over {seeds} seeds' if seeds > 1 else ''}")
    table.add_column("", no_wrap=True)
    for name in (
        ("before\n%", "after\n%", "difference\npoints", "95% intervals\n") if better else ("plain training\n%",)
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for metric, name in METRICS.items():
        if metric not in before.metrics:
            continue
        difference, cells = after.difference(metric), [Text(number(before.mean(metric)))]
        if better:
            cells += [
                Text(number(after.mean(metric))),
                _points(difference),
                Text("" if difference is None else both_intervals(difference)),
            ]
        table.add_row(Text(name, style="bold" if metric == improvement.metric else ""), *cells)
    return table


def _points(difference: Difference | None) -> Text:
    """A difference, and how clear it is."""
    if difference is None:
        return Text("")
    clear, colour = CLEAR[difference.outcome]
    return Text(f"{difference.points} {clear}", style=colour)


def _table(title: str) -> Table:
    return Table(title=Text(title), title_style="bold", title_justify="left", box=None, padding=(0, 1), pad_edge=False)
