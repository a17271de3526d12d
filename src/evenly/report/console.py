"""A comparison as a table for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evenly.report import words

if TYPE_CHECKING:
    from rich.table import Table

    from evenly.comparison import Comparison

MARKS = {"raised": "green", "lowered": "red", "unclear": "", "untold": "dim"}


def comparison_table(table: Comparison) -> Table:
    """A row per arm and, dimmed under it, its control; the difference from it in points with its 95% interval."""
    from rich.table import Table as RichTable
    from rich.text import Text

    metric = words.headline(table)
    worst = "worst_group" if any("worst_group" in entry for entry in table.summary) else "worst_class"
    what = {"accuracy": "accuracy", "worst_group": "worst group"}[metric]
    caption = f"{words.measured_on(table)} set; {words.RULE_NAMES.get(table.plan.get('rule', ''), '')}"
    shown = RichTable(
        title=Text(str(table.data)), caption=Text(caption), box=None, padding=(0, 1), pad_edge=False,
        title_justify="left", caption_justify="left", title_style="bold",
    )  # fmt: skip
    shown.add_column("\narm", overflow="ellipsis", no_wrap=True, max_width=23)
    for name in ("accuracy\n%", worst.replace("_", " ") + "\n%", "cost\nx ERM"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column(f"{what} vs\ncontrol, points", justify="right", no_wrap=True)

    by_arm = {entry["arm"]: entry for entry in table.summary}
    for entry in table.summary:
        if entry.get("control_of") in by_arm:
            continue
        difference = entry.get(metric, {}).get("difference")
        told, style = "", ""
        if difference is not None:
            told = f"{words.points(difference)} {words.interval(difference)}".strip()
            style = MARKS[words.outcome(difference)]
        numbers = [_value(entry, "accuracy"), _value(entry, worst), words.times(entry["cost_multiple"]).rstrip("x")]
        shown.add_row(Text(words.short_arm(entry["arm"])), *numbers, Text(told, style=style))
        control = by_arm.get(entry.get("control") or "")
        if control is not None:
            numbers = [
                _value(control, "accuracy"),
                _value(control, worst),
                words.times(control["cost_multiple"]).rstrip("x"),
            ]
            shown.add_row(Text(f"  {words.short_arm(control['arm'])}"), *numbers, Text("control"), style="dim")
    return shown


def _value(entry: Mapping[str, Any], metric: str) -> str:
    value = entry.get(metric)
    if value is None:
        return "–"
    spread = f" ±{100 * value['sd']:4.1f}" if entry["seeds"] > 1 else ""
    return words.number(value["mean"]) + spread
