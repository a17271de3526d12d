"""Groups on a page: their accuracy, how it changed in training, where a method's examples came from, and what it cost
to raise the worst group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from evenly.report import figures
from evenly.report.blocks import Cell, Panel, Panels, Row, Table
from evenly.report.comparison_words import seeds_reached, unknown_costs
from evenly.report.figures import Bar, Curve, Style
from evenly.report.formats import bounds, listed, multiple, number, sentence
from evenly.report.names import group_name
from evenly.runs.comparison import Comparison
from evenly.runs.cost_to_reach import Level, changed_after_training
from evenly.runs.differences import signed
from evenly.runs.results import SHOWN, RunResult, Usage
from evenly.runs.run import Run
from evenly.runs.summary import Summary
from evenly.values import cut

MOST_LINES = figures.COLOURS - 1
"""Groups in a panel of curves at most: the worst ones of the first method."""
MOST_BARS = 12
"""Groups with a panel of bars at most: likewise."""
WIDEST_BAR_NAME = 26
"""Characters of a name that fit beside a bar."""
MOST_ROWS = 40
"""Groups in a table at most: likewise."""


def over_epochs(runs: Mapping[str, Sequence[Run]], prefix: str) -> Panels | None:
    """Validation accuracy of each group over epochs, a panel per method, with the growth of the training set marked.

    Args:
        runs: the runs of each method, one per seed, by the method's label.
    """
    styles: dict[str, Style] = {}
    panels, notes = [], []
    inferred: dict[str, list[str]] = {}
    for panel, (label, of_method) in enumerate(runs.items()):
        first = of_method[0]
        lines = _lines(of_method, styles)
        if not lines:
            continue
        steps = growth(first)
        svg = figures.curves(
            lines,
            prefix=f"{prefix}{panel}",
            label=f"Validation accuracy of each group by epoch, {label}",
            shares=True,
            marks=[epoch for epoch, _ in steps],
        )
        panels.append(Panel(label, svg))
        if steps:
            sizes = f"{first.history[0]['examples']:,} to {steps[-1][1]:,} examples"
            notes.append(f"{label}: the training set grew at the dotted lines, from {sizes}.")
        if first.results.inferred_groups is not None:
            inferred.setdefault(" / ".join(first.results.inferred_groups.names), []).append(label)
        if changed_after_training(first):
            notes.append(f"{label}: the curves do not show what the method did after its last epoch.")
    if not panels:
        return None
    caption = "Validation accuracy of each group, after every epoch with an evaluation."
    count = len(next(iter(runs.values()))[0].results.data.group_names)
    caption += left_out(count, range(MOST_LINES), panels[0].title)
    notes = [f"The groups of {listed(labels)} are inferred: {names}." for names, labels in inferred.items()] + notes
    return Panels("Groups over epochs", panels, " ".join([caption, *notes]), list(styles.items()))


def growth(run: Run) -> list[tuple[int, int]]:
    """(epochs done, examples from then on) wherever an epoch held more examples than the one before."""
    rows = pairwise(run.history)
    return [(row["epoch"] - 1, row["examples"]) for before, row in rows if row["examples"] > before["examples"]]


def _lines(runs: Sequence[Run], styles: dict[str, Style]) -> list[Curve]:
    """A curve per group; a group has one style in every panel, and new ones get the next."""
    result = runs[0].results
    key = "groups" if result.inferred_groups is None else "inferred_groups"
    known = result.data.group_names if result.inferred_groups is None else result.inferred_groups.names
    rows = [[row for row in run.history if (row.get("validation") or {}).get(key)] for run in runs]
    if not rows[0]:
        return []
    last = rows[0][-1]["validation"][key]
    names = [group_name(known, g) for g in range(len(last))]
    if not styles.keys() & set(names):
        for g in worst_first(last, MOST_LINES):
            styles[names[g]] = Style(1 + len(styles) % MOST_LINES, len(styles) // MOST_LINES)
    lines = []
    for g, name in enumerate(names):
        seeds = [
            ([row["epoch"] for row in of_run], [row["validation"][key][g] for row in of_run])
            for of_run in rows
            if of_run and of_run[0]["validation"][key][g] is not None
        ]
        if name in styles and seeds:
            lines.append(Curve(name, styles[name], seeds))
    return lines


def accuracy_bars(comparison: Comparison, styles: Mapping[str, Style], prefix: str) -> Panels | None:
    """Accuracy of every group by method, a panel per group."""
    arms = [each for each in comparison.arms if each.groups]
    if not arms:
        return None
    groups = worst_first(arms[0].groups, MOST_BARS)
    first = comparison.rows[0].result
    names, sizes = first.data.group_names, first.splits["train"].group_counts if "train" in first.splits else ()
    panels = []
    for g in groups:
        rows = [_bar(comparison, each, styles[each.arm.name], g) for each in arms]
        note = f"{sizes[g]:,} of {sum(sizes):,} training examples" if g < len(sizes) else ""
        note += f" · worst of {arms[0].arm.pair}" if g == groups[0] else ""
        svg = figures.bars(rows, prefix=f"{prefix}{g}", label=f"Accuracy in group {group_name(names, g)}")
        panels.append(Panel(group_name(names, g), svg, note))
    caption = f"{SHOWN[comparison.plan.judged].capitalize()} accuracy of each group."
    caption += " Bars are means, circles are seeds." if len(comparison.plan.seeds) > 1 else ""
    caption += " A vertical stroke marks the control of equal cost." if any(each.control for each in arms) else ""
    return Panels("Accuracy by group", panels, caption + left_out(len(arms[0].groups), groups, arms[0].arm.name))


def accuracy_table(comparison: Comparison) -> Table | None:
    """Accuracy of every group by method, with Wilson's interval, and how many examples each was measured on."""
    arms = [each for each in comparison.arms if each.groups]
    if not arms:
        return None
    split, names = SHOWN[comparison.plan.judged], comparison.rows[0].result.data.group_names
    groups = worst_first(arms[0].groups)
    rows = []
    for g in groups:
        cells = [Cell(number(each.groups[g]), bounds(each.group_intervals[g])) for each in arms]
        note = f"worst of {arms[0].arm.pair}" if g == groups[0] else ""
        rows.append(Row(group_name(names, g), [Cell(f"{arms[0].group_counts[g]:,.0f}"), *cells], note=note))
    columns = ["group", f"{split} examples", *(f"{each.arm.pair}, %" for each in arms)]
    averaged = ", mean over seeds" if len(comparison.plan.seeds) > 1 else ""
    caption = (
        f"{split.capitalize()} accuracy of each group{averaged}. The brackets are Wilson's 95% interval for the number "
        "of examples that one seed measures."
    )
    return Table(columns, rows, caption + left_out(len(arms[0].groups), groups, arms[0].arm.name), "Groups in numbers")


def accuracy_blocks(
    arms: Sequence[tuple[str, Style, Summary]], names: Sequence[str], split: str, control: Summary | None = None
) -> list[Panels | Table]:
    """Accuracy of every group by method: a panel per group, or one for a single method, and a table.

    Args:
        arms: each method's label, style and summary; the worst group of the first comes first.
        control: of the last method, drawn as a stroke.
    """
    arms = [(name, style, each) for name, style, each in arms if each.groups]
    if not arms:
        return []
    label, _, first = arms[0]
    groups = worst_first(first.groups)
    shown, panels = groups[:MOST_BARS], []
    if len(arms) == 1:
        bars = [Bar(cut(group_name(names, g), WIDEST_BAR_NAME), Style(1), _share(first, g)) for g in shown]
        panels = [Panel(label, figures.bars(bars, prefix=f"{split}-groups", label=f"{split} accuracy of {label}"))]
    else:
        for g in shown:
            bars = [Bar(name, style, _share(each, g)) for name, style, each in arms]
            if control is not None and g < len(control.groups):
                bars[-1] = Bar(bars[-1].name, bars[-1].style, bars[-1].value, (), control.groups[g])
            name, note = group_name(names, g), f"worst of {label}" if g == groups[0] else ""
            svg = figures.bars(bars, prefix=f"{split}-group{g}", label=f"{split} accuracy in {name}")
            panels.append(Panel(name, svg, note))
    averaged = ", mean over seeds" if first.seeds > 1 else ""
    where = f"{SHOWN[split].capitalize()} accuracy of each group{averaged}."
    drawn = f"{where} A vertical stroke marks the control of equal cost." if control is not None else where
    rows = [
        Row(
            group_name(names, g),
            [Cell(f"{first.group_counts[g]:,}"), *(_group_cell(each, g) for _, _, each in arms)],
            note=f"worst of {label}" if g == groups[0] else "",
        )
        for g in groups
    ]
    caption = f"{where} The brackets are Wilson's 95% interval for the number of examples that one seed measures."
    caption += left_out(len(first.groups), groups, label)
    columns = ["group", f"{SHOWN[split]} examples", *(f"{name}, %" for name, _, _ in arms)]
    return [
        Panels("Accuracy by group", panels, drawn + left_out(len(first.groups), shown, label)),
        Table(columns, rows, caption, "Groups in numbers"),
    ]


def _share(summary: Summary, group: int) -> float:
    value = summary.groups[group] if group < len(summary.groups) else None
    return math.nan if value is None else value


def _group_cell(summary: Summary, group: int) -> Cell:
    limits = summary.group_intervals[group] if group < len(summary.group_intervals) else None
    return Cell(number(_share(summary, group)), bounds(limits))


def origins(usages: Mapping[str, Usage], result: RunResult, which: str = "") -> Table | None:
    """How many different training examples of every group each method used, and how often it showed them; nothing where
    every method showed every example equally often.

    Args:
        usages: by the method's label.
        result: of one of the runs, for the names and sizes of the groups.
        which: of several runs of each method, the one that the numbers are of: "seed 3".
    """
    train = result.splits.get("train")
    sizes = () if train is None else train.group_counts
    usages = {label: used for label, used in usages.items() if used.groups}
    if not sizes or all(_uniform(used, sizes) for used in usages.values()):
        return None
    names, groups, rows = result.data.group_names, worst_first(result.measured.groups), []
    for g in groups:
        pairs = [(used.groups[g], used.groups_shown[g]) for used in usages.values()]
        cells = [Cell(f"{count:,.0f}", f"× {times / count:,.1f}" if count else "") for count, times in pairs]
        rows.append(Row(group_name(names, g), [Cell(f"{sizes[g]:,}"), *cells], note="worst" if g == groups[0] else ""))
    notes = [
        f"Different training examples of each group that the weights used were trained on, in the last stage"
        f"{f', of {which}' if which else ''}.",
        "× is how often each was shown, on average.",
    ]
    notes += filter(None, (_least_used(label, used.groups, sizes, names) for label, used in usages.items()))
    caption = " ".join(notes) + left_out(len(sizes), groups, next(iter(usages)))
    columns = ["group", "in training", *(f"{label}, used" for label in usages)]
    return Table(columns, rows, caption, "Where the examples came from")


def _uniform(used: Usage, sizes: Sequence[int]) -> bool:
    rates = {round(times / count, 6) for count, times in zip(used.groups, used.groups_shown, strict=True) if count}
    return tuple(used.groups) == tuple(sizes) and len(rates) == 1


def cost_to_reach_table(comparison: Comparison) -> Table | None:
    """What it cost each method to bring the worst group of validation as far as ERM's best, and further."""
    arms = [each for each in comparison.arms if each.cost_to_reach]
    if all(each.arm.method == "erm" for each in arms):
        return None
    above = [level.above_erm for level in arms[0].cost_to_reach]
    columns = ["method", *(f"{signed(points, 0)} points" if points else "plain training's best" for points in above)]
    rows = [Row(each.arm.pair, [_level_cell(level) for level in each.cost_to_reach]) for each in arms]
    notes = [
        "Example-gradients until validation accuracy in the worst group first reached plain training's best of the "
        "same seed, or so many points more. Beside them is the multiple of all that plain training costs.",
        "Validation is evaluated after whole epochs, so the cost of a method with short epochs is known more finely.",
    ]
    if len(comparison.plan.seeds) > 1:
        notes.append(
            "Costs are medians over all seeds; a seed that never reached the level counts as more expensive than any "
            "other. Beside them is the number of seeds that reached it."
        )
    notes += [sentence(text) for text in unknown_costs(comparison.arms)]
    return Table(columns, rows, " ".join(notes), "Cost to reach a worst group")


def cost_to_reach_of_run(run: Run) -> Table | None:
    """The epochs of one run at which validation accuracy in the worst group first passed a multiple of ten percent."""
    evaluated = [row for row in run.history if "worst_group" in (row.get("validation") or {})]
    if not evaluated or changed_after_training(run):
        return None
    best, rows = 0, []
    for row in evaluated:
        tens = math.floor(10 * row["validation"]["worst_group"] + 1e-9)
        if tens > best:
            best, cost = tens, row["cost"]
            cells = [Cell(f"{row['epoch']:,}"), Cell(f"{cost:,.0f}"), Cell(multiple(cost / run.results.unit))]
            rows.append(Row(f"{10 * tens}%", cells))
    columns = ["worst group", "epoch", "example-gradients", "cost, × ERM"]
    caption = (
        "When validation accuracy in the worst group first reached a level. Of several levels reached at once, the "
        "highest is listed."
    )
    return Table(columns, rows, caption, "Cost to reach a worst group") if rows else None


def _level_cell(level: Level) -> Cell:
    """The median cost, its multiple of ERM's and, with several seeds, how many reached the level."""
    notes = [] if level.median_cost is None else [f"{multiple(level.median_cost_multiple)}×"]
    notes += [seeds_reached(level)] if level.seeds > 1 else []
    return Cell("never" if level.median_cost is None else f"{level.median_cost:,.0f}", ", ".join(notes))


def _least_used(label: str, counts: Sequence[float], sizes: Sequence[int], names: Sequence[str]) -> str:
    """Of which group the smallest share of training examples was used, in a sentence; nothing if all were."""
    shares = [count / size if size else 1.0 for count, size in zip(counts, sizes, strict=True)]
    g = min(range(len(shares)), key=shares.__getitem__)
    if shares[g] >= 1:
        return ""
    return f"{label} used {counts[g]:,.0f} of {sizes[g]:,} training examples of {group_name(names, g)!r}."


def worst_first(accuracies: Iterable[float | None], most: int = MOST_ROWS) -> list[int]:
    """The groups with the lowest accuracies, the lowest first."""
    ranked = sorted((math.inf if accuracy is None else accuracy, g) for g, accuracy in enumerate(accuracies))
    return [g for _, g in ranked[:most]]


def left_out(total: int, groups: Sequence[int], label: str = "it") -> str:
    """What to add to a caption where not all groups are shown."""
    return f" Of {total} groups, the {len(groups)} where {label} does worst." if len(groups) < total else ""


def _bar(comparison: Comparison, summary: Summary, style: Style, group: int) -> Bar:
    """A method's accuracy in a group, with that of each seed and of its control."""
    value, control = summary.groups[group], comparison.by_arm(summary.control)
    measured = [row.result.measured for row in comparison.rows if row.arm == summary.arm]
    seeds = [each.groups[group] for each in measured if group < len(each.groups)]
    return Bar(
        summary.arm.pair,
        style,
        math.nan if value is None else value,
        [accuracy for accuracy in seeds if accuracy is not None],
        None if control is None else control.groups[group],
    )
