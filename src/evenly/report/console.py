"""A comparison as a table for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evenly.comparison import point_name
from evenly.report import words

if TYPE_CHECKING:
    from rich.table import Table

    from evenly.comparison import Comparison

WIDEST_NAME = 23
MARKS = {"raised": "green", "lowered": "red", "unclear": "", "untold": "dim"}


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
