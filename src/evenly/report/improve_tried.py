"""What an improvement tried: one picture of gain against cost, the same in numbers, and what was left out."""

from __future__ import annotations

import math

from evenly.report import figures
from evenly.report.blocks import Block, Cell, Fact, Facts, Panel, Panels, Prose, Row, Table
from evenly.report.figures import Style
from evenly.report.formats import multiple, number, sentence
from evenly.report.improve_figures import Gain, gains
from evenly.report.improve_words import baseline_on_validation, methods_tried, metric_name, reasons_not_tried
from evenly.report.names import METRIC_COLUMNS
from evenly.report.results_table import Scale, difference_cells, scale_over
from evenly.runs.arms import Arm
from evenly.runs.differences import Difference, signed
from evenly.runs.improvement import Improvement
from evenly.runs.summary import Summary

INTERVALS = (
    "The 95% interval over {examples} is for these models; that over seeds is for new runs. The thick line is the "
    "first, the thin one the second."
)


def tried(improvement: Improvement) -> list[Block | None]:
    """The picture, the table, what was left out, and what has to be known of the runs."""
    facts = [Fact(name, reason) for name, reason in reasons_not_tried(improvement)]
    return [
        gain_and_cost(improvement),
        tried_table(improvement),
        Facts(facts, "Not tried") if facts else None,
        Prose([sentence(note) for note in improvement.notes]),
    ]


def gain_and_cost(improvement: Improvement) -> Panels | None:
    """One picture of every method that was tried: what it gains on validation, what it costs."""
    erm, metric = baseline_on_validation(improvement), improvement.metric
    styles, points = arm_styles(improvement), []
    for each in methods_tried(improvement):
        difference = each.on_validation.difference(metric)
        if difference is None or not math.isfinite(difference.mean):
            continue
        by_seed = difference.low is not None
        points.append(
            Gain(
                each.arm.name,
                styles[each.arm],
                each.on_validation.cost_multiple,
                difference.mean,
                difference.low if by_seed else difference.examples_low,
                difference.high if by_seed else difference.examples_high,
                each.final or len(improvement.seeds) == 1,
                each.arm == improvement.choice.arm,
                _control_point(improvement, each.control, erm),
            )
        )
    if not points:
        return None
    baseline = improvement.choice.baseline
    points.insert(0, Gain(baseline.name, styles[baseline], 1.0, 0.0, chosen=not improvement.is_better))
    what, unit = f"{metric_name(improvement)} on validation", "points above ERM"
    notes = [f"What each method gains on validation, and what it costs. {_interval_note(improvement)}"]
    if any(not point.filled for point in points):
        notes.append(f"Filled points ran on all {len(improvement.seeds)} seeds, hollow ones on the first only.")
    notes.append("The large point with a bold name was chosen.")
    if any(point.control is not None for point in points):
        notes.append("A horizontal stroke in a method's colour marks its control of equal cost.")
    notes.append("Methods that cost the same are drawn side by side.")
    return Panels(
        "Gain against cost",
        [Panel(what, gains(points, prefix="gains", label=f"{what}, {unit}"), unit)],
        " ".join(notes),
    )


def _interval_note(improvement: Improvement) -> str:
    differences = [each.on_validation.difference(improvement.metric) for each in methods_tried(improvement)]
    over_seeds = [each.low is not None for each in differences if each is not None]
    if all(over_seeds):
        return "Vertical lines are 95% intervals over seeds."
    examples = "over validation examples"
    return f"Vertical lines are 95% intervals {f'over seeds, or else {examples}' if any(over_seeds) else examples}."


def _control_point(
    improvement: Improvement, control: Summary | None, erm: Summary | None
) -> tuple[float, float] | None:
    """Cost and difference from ERM of a control; None where it is ERM itself, or not known."""
    difference = _from_erm(improvement, control, erm)
    return None if control is None or difference is None else (control.cost_multiple, difference.mean)


def _from_erm(improvement: Improvement, control: Summary | None, erm: Summary | None) -> Difference | None:
    """A control's difference from ERM; without an interval where only both means are known."""
    if control is None or control.arm == improvement.choice.baseline:
        return None
    metric = improvement.metric
    if (known := control.difference(metric)) is not None:
        return known
    one, other = control.mean(metric), None if erm is None else erm.mean(metric)
    return None if one is None or other is None else Difference(one - other, None, None, 0)


def arm_styles(improvement: Improvement) -> dict[Arm, Style]:
    """How each method is drawn: a colour for each, in the order in which they were tried; ERM is neutral."""
    arms = [each.arm for each in methods_tried(improvement)]
    colours = figures.COLOURS - 1
    return {improvement.choice.baseline: Style()} | {arm: Style(1 + k % colours) for k, arm in enumerate(arms)}


def tried_table(improvement: Improvement) -> Table | None:
    """The picture's numbers: a row per method with the reason it was tried and, under it, its control."""
    erm, methods, metric = baseline_on_validation(improvement), methods_tried(improvement), improvement.metric
    if not methods:
        return None
    styles, baseline = arm_styles(improvement), improvement.choice.baseline
    scale = scale_over(each.on_validation.difference(metric) for each in methods)
    rows = []
    if erm is not None:
        cells = [*method_cells(erm, metric), Cell(), *difference_cells(None, scale)]
        rows.append(Row(baseline.name, cells, note="plain training", style=styles[baseline]))
    for each in methods:
        summary, against = each.on_validation, each.against_control
        against_cell = Cell() if against is None else Cell(against.points, outcome=against.outcome)
        cells = [
            *method_cells(summary, metric),
            against_cell,
            *difference_cells(summary.difference(metric), scale),
        ]
        note = "chosen: " * (each.arm == improvement.choice.arm) + each.reason
        rows.append(Row(each.arm.name, cells, note=note, style=styles[each.arm]))
        if each.control is not None and each.control.arm != baseline:
            rows.append(_control_row(improvement, each.control, erm, scale))
    columns = ["method", "seeds", METRIC_COLUMNS[metric], "cost, × ERM", "against its control, points"]
    columns += ["against ERM, points", "95% intervals", ""] if scale is not None else []
    caption = (
        f"Measured on the validation set, which chose the method: the numbers are optimistic. Differences are in "
        f"{metric_name(improvement)}. {INTERVALS.format(examples='validation examples')}"
    )
    return Table(columns, rows, caption, "The same in numbers", None if scale is None else scale.place(0.0))


def _control_row(improvement: Improvement, control: Summary, erm: Summary | None, scale: Scale | None) -> Row:
    difference = _from_erm(improvement, control, erm)
    points = Cell("" if difference is None else signed(difference.mean))
    drawn = [points, Cell(), Cell()] if scale is not None else []
    cells = [*method_cells(control, improvement.metric), Cell(), *drawn]
    return Row(control.arm.pair, cells, muted=True, note="control")


def method_cells(summary: Summary, metric: str) -> list[Cell]:
    """A method's number of seeds, a metric with its spread over them, and the cost."""
    known = summary.metrics.get(metric)
    spread = "" if known is None or summary.seeds == 1 else f"± {number(known.sd)}"
    share = Cell(number(None if known is None else known.mean), spread)
    return [Cell(f"{summary.seeds}"), share, Cell(multiple(summary.cost_multiple))]
