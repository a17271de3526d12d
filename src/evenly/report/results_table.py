"""The table of a comparison: every method, and under it its control of equal cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from attrs import frozen

from evenly.report.blocks import Cell, Row, Table, Whisker
from evenly.report.figures import Style
from evenly.report.formats import both_intervals, multiple, number
from evenly.report.names import METRIC_COLUMNS, METRIC_NAMES, RULES, has_metric
from evenly.runs.comparison import Comparison
from evenly.runs.differences import Difference
from evenly.runs.results import SHOWN
from evenly.runs.summary import Summary

USED_AFTER = "weights used after, full epochs"


@frozen
class Scale:
    """The range that differences are drawn in."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Where a value is, in percent of the scale's length."""
        return round(100 * (value - self.low) / (self.high - self.low), 1)

    def whisker(self, difference: Difference) -> Whisker | None:
        if not math.isfinite(difference.mean):
            return None
        ends = (difference.low, difference.high, difference.examples_low, difference.examples_high)
        return Whisker(self.place(difference.mean), *(None if end is None else self.place(end) for end in ends))


def scale_of(comparison: Comparison) -> Scale | None:
    """A scale for all differences and intervals of a comparison, with 0 in it; None where there are none."""
    return scale_over(each.difference(comparison.headline) for each in comparison.summary)


def scale_over(differences: Iterable[Difference | None]) -> Scale | None:
    """A scale for differences and their intervals, with 0 in it; None where there are none."""
    known = [each for each in differences if each is not None]
    ends = [end for each in known for end in (each.mean, each.low, each.high, each.examples_low, each.examples_high)]
    values = [end for end in ends if end is not None and math.isfinite(end)]
    if not values:
        return None
    low, high = min(*values, 0.0), max(*values, 0.0)
    room = 0.06 * (high - low) or 0.01
    return Scale(low - room, high + room)


def results_table(comparison: Comparison, styles: Mapping[str, Style], scale: Scale | None = None) -> Table:
    """The table; differences are drawn on the comparison's own scale or a given one."""
    metric, scale = comparison.headline, scale or scale_of(comparison)
    metrics = [name for name in METRIC_COLUMNS if name != "worst_class" and has_metric(comparison.summary, name)]
    metrics += [] if "worst_group" in metrics else ["worst_class"]
    chosen = comparison.plan.rule != "last"
    rows = []
    for each, control in comparison.lines():
        cells = _values(each, metrics, chosen) + difference_cells(each.difference(metric), scale)
        style, note = styles.get(each.arm.name), comparison.fewer_seeds(each)
        rows.append(Row(each.arm.pair, cells, each.arm.control_of is not None, note, style=style))
        if control is not None:
            note = "control" if control.arm.control_of else "control, as above"
            cells = _values(control, metrics, chosen) + difference_cells(None, scale)
            note = ", ".join(filter(None, (note, comparison.fewer_seeds(control))))
            rows.append(Row(control.arm.pair, cells, muted=True, note=note))
    columns = ["method", *(METRIC_COLUMNS[name] for name in metrics), *([USED_AFTER] if chosen else []), "cost, × ERM"]
    if scale is not None:
        columns += [f"{METRIC_NAMES[metric]} against control, points", "95% intervals", ""]
    return Table(columns, rows, results_caption(comparison), zero=None if scale is None else scale.place(0.0))


def results_caption(comparison: Comparison) -> str:
    """Where the numbers were measured, which epoch's weights were used, and what the differences are."""
    plan = comparison.plan
    notes = [
        f"Measured on the {SHOWN[plan.judged]} set, {comparison.averaged}.",
        f"The weights used are those of the {RULES.get(plan.rule, plan.rule)} (rule: {plan.rule}).",
    ]
    if plan.judged == "validation" and plan.rule != "last":
        notes.append("There is no test set, and the same validation set chose the epoch: the numbers are optimistic.")
    if plan.judged == "train":
        notes.append("There is neither a test nor a validation set: the numbers say nothing about new data.")
    if plan.rule != "last":
        notes.append("Weights used after: the cost up to these weights, in epochs of the full training set.")
    if any(each.control for each in comparison.summary):
        notes.append(
            f"The difference in {METRIC_NAMES[comparison.headline]} is from the control of equal cost below each "
            f"method. Its 95% interval over {SHOWN[plan.judged]} examples is for these models; that over seeds is for "
            "new runs. The thick line is the first, the thin one the second."
        )
    return " ".join(notes)


def _values(summary: Summary, metrics: Iterable[str], chosen: bool) -> list[Cell]:
    cells = []
    for name in metrics:
        metric = summary.metrics.get(name)
        if metric is None:
            cells.append(Cell("–"))
        else:
            cells.append(Cell(number(metric.mean), f"± {number(metric.sd)}" if summary.seeds > 1 else ""))
    if chosen:
        cells.append(Cell(f"{summary.selected_after_epochs:.1f}"))
    return [*cells, Cell(multiple(summary.cost_multiple))]


def difference_cells(difference: Difference | None, scale: Scale | None) -> list[Cell]:
    """A difference in numbers and drawn; empty cells where there is none, no cells where there is no scale."""
    if scale is None:
        return []
    if difference is None:
        return [Cell()] * 3
    drawn = Cell(outcome=difference.outcome, whisker=scale.whisker(difference))
    return [Cell(difference.points, outcome=difference.outcome), Cell(both_intervals(difference)), drawn]
