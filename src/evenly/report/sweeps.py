"""A sweep on a page: methods over the swept values, then at every combination of values what a comparison has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from attrs import evolve

from evenly.report import figures
from evenly.report.blocks import Block, Panel, Panels
from evenly.report.figures import Curve, Style
from evenly.report.groups import accuracy_bars
from evenly.report.names import METRIC_NAMES, setting_name
from evenly.report.results_table import results_table, scale_of
from evenly.report.training_figures import alignments, legend, training, what_lines_are
from evenly.runs.arms import Arm, point_name
from evenly.runs.comparison import Comparison
from evenly.runs.results import SHOWN
from evenly.runs.run import Run
from evenly.runs.summary import Summary

MOST_POINTS = 6
"""Combinations of swept values whose curves and groups are drawn at most; every one has its table."""


def sweep_blocks(comparison: Comparison, styles: Mapping[str, Style], prefix: str) -> list[Block | None]:
    """Everything about a sweep."""
    scale = scale_of(comparison)
    blocks: list[Block | None] = [over_values(comparison, styles, f"{prefix}-sweep")]
    for k, (name, arms) in enumerate(by_point(comparison)):
        part = _part(comparison, arms)
        table = replace(results_table(part, styles, scale), title=f"Results at {name}")
        blocks.append(table if k == 0 else replace(table, caption=f"As above, at {name}."))
        if k < MOST_POINTS:
            drawn = [
                alignments(runs_by_arm(part), styles, f"{prefix}-{k}-alignment"),
                training(runs_by_arm(part), styles, f"{prefix}-{k}-training"),
                accuracy_bars(part, styles, f"{prefix}-{k}-group"),
            ]
            blocks += [replace(block, title=f"{block.title}, {name}") for block in drawn if block is not None]
    return blocks


def arm_styles(comparison: Comparison) -> dict[str, Style]:
    """A style for every arm that is no control, by its name."""
    styles = figures.styles([(each.arm.method, each.arm.optimizer) for each in comparison.arms])
    return {each.arm.name: styles[each.arm.method, each.arm.optimizer] for each in comparison.arms}


def runs_by_arm(comparison: Comparison) -> dict[str, list[Run]]:
    """The runs of every arm that is no control, one per seed, by its name; arms without runs are left out."""
    runs: dict[str, list[Run]] = {}
    for (arm, _), run in comparison.runs.items():
        if arm.control_of is None:
            runs.setdefault(arm.name, []).append(run)
    return runs


def by_point(comparison: Comparison) -> list[tuple[str, list[Summary]]]:
    """(swept values, arms at these values) for every combination there is, in the table's order.

    An arm that a name does not vary stands under each of its values; without a sweep all arms stand under none.
    """
    arms, points = comparison.arms, list[Arm]()
    for each in arms:
        point = Arm("", "", each.arm.swept)
        narrower = any(point.within(other.arm) and not other.arm.within(point) for other in arms)
        if point not in points and not narrower:
            points.append(point)
    return [(point_name(point.swept), [each for each in arms if each.arm.within(point)]) for point in points]


def over_values(comparison: Comparison, styles: Mapping[str, Style], prefix: str) -> Panels | None:
    """The headline metric against each swept number, a line per arm; a panel for each combination of other values."""
    metric, sweep = comparison.headline, comparison.plan.sweep
    arms = [each for each in comparison.arms if metric in each.metrics]
    drawn: dict[str, list[Curve]] = {}
    panels: list[Panel] = []
    for name, values in sweep.items():
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            continue
        for rest in _other_values(name, arms):
            title = f"{METRIC_NAMES[metric]} against {setting_name(name)}"
            title += f", {point_name(rest.swept)}" if rest.swept else ""
            at_rest = [each for each in arms if _without(name, each.arm).within(rest)]
            drawn[title] = _lines(name, values, at_rest, comparison, styles)
            svg = figures.curves(
                drawn[title],
                prefix=f"{prefix}{len(panels)}",
                label=title.capitalize(),
                x_name=setting_name(name),
                shares=True,
                log_x=figures.spans([float(value) for value in values], 20),
            )
            panels.append(Panel(title, svg))
    if not panels:
        return None
    notes = [f"Measured on the {SHOWN[comparison.plan.judged]} set.", what_lines_are(drawn.values())]
    if any(each.arm.swept.keys() < sweep.keys() for each in arms):
        notes.append("A level line is a method that the value does not vary.")
    notes.append("Controls are left out; the tables below have them.")
    return Panels("Over the swept values", panels, " ".join(notes), legend(drawn.values()))


def _other_values(name: str, arms: Sequence[Summary]) -> list[Arm]:
    """The combinations of the other swept values, beside a swept name; without those that are part of another."""
    others = [_without(name, each.arm) for each in arms if name in each.arm.swept]
    widest = [one for one in others if not any(one.within(other) and one != other for other in others)]
    return list(dict.fromkeys(widest))


def _without(name: str, arm: Arm) -> Arm:
    """An arm's swept values but one, as an arm without a method."""
    return Arm("", "", {other: value for other, value in arm.swept.items() if other != name})


def _lines(
    name: str, values: Sequence[float], arms: Sequence[Summary], comparison: Comparison, styles: Mapping[str, Style]
) -> list[Curve]:
    """A curve over a swept number for each method with its optimizer; level for arms that the number does not vary."""
    points: dict[str, list[tuple[float, Summary]]] = {}
    for each in arms:
        xs = [each.arm.swept[name]] if name in each.arm.swept else [min(values), max(values)]
        points.setdefault(each.arm.pair, []).extend((float(x), each) for x in xs)
    metric, lines = comparison.headline, []
    by_seed = {(row.arm, row.seed): row.result.measured.metric(metric) or 0.0 for row in comparison.rows}
    for pair, of_pair in points.items():
        of_pair.sort(key=lambda point: point[0])
        xs = [x for x, _ in of_pair]
        keys = [[(each.arm, seed) for _, each in of_pair] for seed in comparison.plan.seeds]
        seeds = [[by_seed[key] for key in of_seed] for of_seed in keys if by_seed.keys() >= set(of_seed)]
        seeds = seeds or [[each.metrics[metric].mean for _, each in of_pair]]  # no seed is at every value
        lines.append(Curve(pair, styles[of_pair[0][1].arm.name], [(xs, ys) for ys in seeds]))
    return lines


def _part(comparison: Comparison, arms: Sequence[Summary]) -> Comparison:
    """A comparison of some of the arms and their controls."""
    names = {each.arm for each in arms} | {each.control for each in arms}
    return evolve(
        comparison,
        rows=tuple(row for row in comparison.rows if row.arm in names),
        summary=tuple(each for each in comparison.summary if each.arm in names),
        runs={key: run for key, run in comparison.runs.items() if key[0] in names},
    )
