"""A search on a page: the values chosen for each method and its control, and all trials as dots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenly.report import figures
from evenly.report.blocks import Block, Cell, Panel, Panels, Row, Table
from evenly.report.facts import as_text
from evenly.report.figures import Curve, Style
from evenly.report.formats import counted, listed, multiple, number, percent, times
from evenly.report.names import METRIC_NAMES, arm_label, setting_name
from evenly.report.training_figures import legend
from evenly.runs.comparison import Comparison
from evenly.runs.search import Search, Searched


def search_blocks(comparison: Comparison, styles: Mapping[str, Style], prefix: str) -> list[Block | None]:
    """What a search chose, and its trials."""
    if comparison.search is None:
        return []
    return [_table(comparison.search), _trials(comparison.search, styles, prefix)]


def search_sentence(searched: Searched) -> str:
    """What was chosen for a method, in a sentence for the terminal."""
    arm, spent = searched.arm, f"{counted(len(searched.trials), 'trial')}, {times(searched.cost_multiple)} ERM"
    name = arm_label(arm) if arm.control_of is None else f"{arm_label(arm)}, control of {arm_label(arm.control_of)}"
    if searched.chosen is None:
        return f"search: {name}: no trial could be trained ({searched.trials[0].reason}); {spent}"
    values = listed(f"{setting} {as_text(value, setting)}" for setting, value in searched.values.items())
    score = f"validation {METRIC_NAMES[searched.metric]} {percent(searched.chosen.score)}"
    return f"search: {name}: {values or 'nothing to choose'}, {score}; {spent}"


def _table(search: Search) -> Table:
    metric = METRIC_NAMES[search.searched[0].metric] if search.searched else ""
    names = [space.name for space in search.spaces]
    columns = ["method", *map(setting_name, names), f"validation {metric}, %", "before the search, %", "trials"]
    rows = []
    arms = [each.arm for each in search.searched if each.arm.control_of is None]
    for each in sorted(search.searched, key=lambda each: arms.index(each.arm.control_of or each.arm)):
        chosen = each.chosen
        cells = [_value(each, name) for name in names]
        cells += [_share(None if chosen is None else chosen.score), _share(each.trials[0].score)]
        cells += [Cell(f"{len(each.trials)}"), Cell(multiple(each.cost_multiple))]
        control = each.arm.control_of is not None
        note = f"control of {each.arm.control_of.name}" if each.arm.control_of is not None else ""
        rows.append(Row(each.arm.pair, cells, muted=control, note=note))
    caption = (
        f"Values searched on validation, with a seed of its own ({search.seed}); that seed's test set was withheld. "
        f"Every method, and every control, could spend {search.trials} times the cost of ERM on trials, so that a more "
        "expensive method has fewer of them, one at least. The first trial of each has the values before the search. "
        f"The best trial's values are used for all seeds. Proposals: {search.searcher}. No other cost on this page "
        "includes the search."
    )
    return Table([*columns, "cost of all trials, × ERM"], rows, caption, title="Values chosen by the search")


def _value(searched: Searched, name: str) -> Cell:
    space = next((setting for setting, space in searched.spaces.items() if space.name == name), None)
    value: Any = None if space is None else searched.values.get(space)
    if space is None or space not in searched.values:
        return Cell("–")
    return Cell(as_text(value, space), value=value if isinstance(value, int | float) else None)


def _share(score: float | None) -> Cell:
    return Cell(number(score), value=score)


def _trials(search: Search, styles: Mapping[str, Style], prefix: str) -> Panels | None:
    """The score against each searched number, a dot per trial."""
    panels: list[Panel] = []
    drawn: list[list[Curve]] = []
    for space in search.spaces:
        if space.kind == "choice":
            continue
        lines = []
        for each in search.searched:
            if space not in each.spaces.values() or each.arm.control_of is not None:
                continue
            points = [(trial.values[space.setting], trial.score) for trial in each.trials if trial.score is not None]
            points = [(float(x), y) for x, y in points if x is not None]
            if points:
                xs, ys = zip(*points, strict=True)
                lines.append(Curve(each.arm.name, styles.get(each.arm.name, Style()), [(xs, ys)], dots=True))
        if lines:
            title = f"score against {setting_name(space.name)}"
            svg = figures.curves(
                lines,
                prefix=f"{prefix}{len(panels)}",
                label=title.capitalize(),
                x_name=setting_name(space.name),
                shares=True,
                log_x=space.kind == "log",
            )
            panels.append(Panel(title, svg))
            drawn.append(lines)
    caption = "A dot is a trial: its score on validation, whatever its other values. Controls are left out."
    return Panels("Trials of the search", panels, caption, legend(drawn)) if panels else None
