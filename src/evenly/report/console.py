"""What is found, for a terminal of 80 columns: a run, a comparison, a card or a diagram of stability, audits, lists."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenly.report import words
from evenly.sweep import point_name

if TYPE_CHECKING:
    from rich.table import Table

    from evenly.comparison import Comparison
    from evenly.diagnose.audit import Audit
    from evenly.diagnose.stability_card import StabilityCard
    from evenly.theory.stability import PhaseDiagram

WIDEST_NAME = 23
MARKS = {"raised": "green", "lowered": "red", "unclear": "", "untold": "dim"}


def show_run(row: Mapping[str, Any], page: Path) -> None:
    """What one run reached and cost, from its results."""
    where = next(name for name in ("test", "validation", "train") if name in row)
    measured = row[where]
    print(
        f"{row['data']}: {row['method']} with {row['optimizer']}, {words.counted(row['epochs'], 'epoch')}, "
        f"{row['cost_multiple']:.2f}x the cost of ERM{words.in_all(row)}"
    )
    print(
        f"  {where} accuracy   {measured['accuracy']:.1%}"
        f"   (weights of epoch {row['selected_epoch']}, rule: {row['rule']})"
    )
    if "worst_group" in measured:
        which = words.worst_group(measured, row.get("group_names", ()))
        _line("worst group", f"{measured['worst_group']:.1%}   {which}")
        # none where no group of training is in the split
        _line("train-weighted", words.percent(measured["train_weighted"]))
    if "selected_after_epochs" in row:
        _line("kept after", f"{row['selected_after_epochs']:.1f} epochs' worth of the full training set")
    if row.get("evaluation_cost_multiple"):
        _line("evaluation", f"{words.times(row['evaluation_cost_multiple'])} the cost of ERM, counted apart")
    inferred = words.inferred(row["inferred_groups"]) if "inferred_groups" in row else ""
    for remark in filter(None, (words.refitted(row), words.none_chosen(row), inferred)):
        width = shutil.get_terminal_size().columns
        print(textwrap.fill(remark, width, initial_indent="  ", subsequent_indent="  "))
    if steps := words.uncaptured([row]):
        print(f"  {steps}")
    print(f"  page            {page}")


def _line(label: str, text: str) -> None:
    """What is told of a run, under its label, on as many lines as it takes."""
    width = shutil.get_terminal_size().columns
    print(textwrap.fill(text, width, initial_indent=f"  {label:<16}", subsequent_indent=" " * 18))


def show_audits(audits: Iterable[Audit], compared: Sequence[str], page: Path) -> None:
    """How two models compare, where there are two, and what was found of each, in words."""
    _say(compared)
    print(end="\n" if compared else "")
    for audit in audits:
        _say(audit.verdict())
        print()
    print(f"page: {page}")


def show_card(card: StabilityCard, notes: Sequence[str], page: Path) -> None:
    """Whether a minimum is stable, in words, then its limits and numbers."""
    _say((*card.sentences(), *notes))
    print()
    width = shutil.get_terminal_size().columns
    for label, value in (*card.limits(), *card.numbers()):
        print(textwrap.fill(value, width, initial_indent=f"{label:<25}", subsequent_indent=" " * 25))
    print(f"{'page':<25}{page}")


def show_diagram(diagram: PhaseDiagram, page: Path) -> None:
    """The shares of runs that diverged, where the terminal is wide enough, and what they say."""
    from evenly.report.stability_pages import diagram_sentences

    width = max(len(f"{value:g}") for value in (*diagram.x_values, 100)) + 1
    label = max(len(diagram.y), *(len(f"{value:g}") for value in diagram.y_values)) + 2
    if label + width * len(diagram.x_values) <= shutil.get_terminal_size().columns:
        print("runs that diverged, in percent")
        for row in range(len(diagram.y_values) - 1, -1, -1):
            cells = "".join(f"{100 * share:>{width}.0f}" for share in diagram.diverged[row])
            print(f"{diagram.y_values[row]:>{label - 2}g} |{cells}")
        values = "".join(f"{value:>{width}g}" for value in diagram.x_values)
        print(f"{diagram.y:>{label - 2}} +{values}  {diagram.x}")
        print()
    _say(diagram_sentences(diagram))
    print(f"page: {page}")


def _say(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        print(textwrap.fill(sentence, shutil.get_terminal_size().columns))


def show_comparisons(tables: Iterable[Comparison], page: Path) -> None:
    """Each comparison as a table, and what it says."""
    from rich.console import Console

    console = Console()
    for table in tables:
        console.print(comparison_table(table))
        for sentence in words.sentences(table):
            console.print(f"- {sentence}", markup=False, highlight=False)
        console.print()
    print(f"page: {page}")


def show_results(tables: Iterable[Comparison], out: Path, as_json: bool) -> None:
    """Comparisons and the folder they are in, as tables and sentences or as the JSON that is there."""
    if as_json:
        print((out / "results.json").read_text(), end="")
        return
    show_comparisons(tables, out / "report.html")


def comparison_table(table: Comparison) -> Table:
    """A row per arm and, dimmed under it, its control; the difference from it in points with its 95% interval.

    In a sweep the arms stand under the values that they were run at.
    """
    from rich.table import Table as RichTable
    from rich.text import Text

    metric = words.headline(table)
    worst = "worst_group" if any("worst_group" in entry for entry in table.summary) else "worst_class"
    what = {"accuracy": "accuracy", "worst_group": "worst group"}[metric]
    caption = f"{words.measured_on(table)} set; {words.RULE_NAMES.get(table.plan.get('rule', ''), '')}"
    if steps := words.uncaptured(table.rows):
        caption += f"\n{steps}"
    shown = RichTable(
        title=Text(str(table.data)), caption=Text(caption), box=None, padding=(0, 1), pad_edge=False,
        title_justify="left", caption_justify="left", title_style="bold",
    )  # fmt: skip
    shown.add_column("\narm", overflow="ellipsis", no_wrap=True, max_width=WIDEST_NAME)
    for name in ("accuracy\n%", worst.replace("_", " ") + "\n%", "cost\nx ERM"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column(f"{what} vs\ncontrol, points", justify="right", no_wrap=True)

    by_arm = {entry["arm"]: entry for entry in table.summary}
    at: Mapping[str, Any] = {}
    for entry in table.summary:
        if entry.get("control_of") in by_arm:
            continue
        if entry.get("sweep", {}) != at:
            at = entry["sweep"]
            lines = [line for part in point_name(at).split(", ") for line in textwrap.wrap(part, WIDEST_NAME)]
            shown.add_row(Text("\n".join(lines), style="bold"))
        difference = entry.get(metric, {}).get("difference")
        told, style = "", ""
        if difference is not None:
            told = f"{words.points(difference)} {words.interval(difference)}".strip()
            style = MARKS[words.outcome(difference)]
        shown.add_row(Text(words.table_name(entry)), *_numbers(entry, worst), Text(told, style=style))
        control = by_arm.get(entry.get("control") or "")
        if control is not None:
            its_name = Text(f"  {words.table_name(control)}")
            shown.add_row(its_name, *_numbers(control, worst), Text("control"), style="dim")
    return shown


def _numbers(entry: Mapping[str, Any], worst: str) -> list[str]:
    return [_value(entry, "accuracy"), _value(entry, worst), words.times(entry["cost_multiple"]).rstrip("x")]


def _value(entry: Mapping[str, Any], metric: str) -> str:
    value = entry.get(metric)
    if value is None:
        return "–"
    spread = f" ±{100 * value['sd']:4.1f}" if entry["seeds"] > 1 else ""
    return words.number(value["mean"]) + spread


def show_list(rows: Mapping[str, str], as_json: bool) -> None:
    """What there is, a name and a line each."""
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    width = max(map(len, rows)) + 2
    columns = shutil.get_terminal_size().columns
    for name, summary in rows.items():
        print(textwrap.fill(summary, columns, initial_indent=f"{name:<{width}}", subsequent_indent=" " * width))


def with_options(summary: str, options: Mapping[str, Any]) -> str:
    """A summary and, in brackets, the options with their defaults."""
    shown = ", ".join(f"{name}={value}" for name, value in options.items())
    return summary.rstrip(".") + (f" [{shown}]" if shown else "")
