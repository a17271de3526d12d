"""Groups on a page: their accuracy and how it went, where a method's examples came from, what it cost to lift them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from evenly.comparison import Comparison
from evenly.data.contract import Data
from evenly.experiment import Run
from evenly.report import figures, words
from evenly.report.blocks import Cell, Panel, Panels, Row, Table
from evenly.report.figures import Curve, Look

MOST_LINES = figures.COLOURS - 1
"""Groups in a panel of curves at most: the worst ones of the first arm."""
MOST_ROWS = 40
"""Groups in a table at most: likewise."""


def over_epochs(arms: Mapping[str, Sequence[Run]], names: Sequence[str], prefix: str) -> Panels | None:
    """Validation accuracy of each group over epochs, a panel per arm, with the growth of the training set marked.

    Args:
        arms: the runs of each arm, one per seed.
        names: of the data's groups; groups that were inferred go by their own.
    """
    looks: dict[str, Look] = {}
    panels, notes = [], []
    inferred: dict[str, list[str]] = {}
    for number, (arm, runs) in enumerate(arms.items()):
        lines = _lines(runs, names, looks)
        if not lines:
            continue
        grown, last = growth(runs[0]), runs[0].history[-1]
        label, marks = f"Validation accuracy of each group by epoch, {arm}", [epoch for epoch, _ in grown]
        svg = figures.curves(lines, prefix=f"{prefix}{number}", label=label, shares=True, marks=marks)
        panels.append(Panel(arm, svg))
        if grown:
            sizes = f"{runs[0].history[0]['examples']:,} to {grown[-1][1]:,} examples"
            notes.append(f"{arm}: the training set grew at the dotted lines, from {sizes}")
        if "inferred_groups" in runs[0].results:
            inferred.setdefault(" / ".join(runs[0].results["inferred_groups"]["names"]), []).append(arm)
        if runs[0].cost > last["cost"]:
            notes.append(f"{arm}: before what it did after its last epoch")
    if not panels:
        return None
    caption = "Validation accuracy of each group after every epoch that looked at it."
    if len(names) > MOST_LINES:
        caption += f" Of {len(names)} groups, the {MOST_LINES} where {panels[0].title} does worst."
    for called, those in inferred.items():
        caption += f" The groups of {words.listed(those)} are inferred ones: {called}."
    if notes:
        caption += f" {'; '.join(notes)}."
    return Panels("Groups over epochs", panels, caption, list(looks.items()))


def growth(run: Run) -> list[tuple[int, int]]:
    """(epochs done, examples from then on) wherever an epoch held more examples than the one before."""
    rows = pairwise(run.history)
    return [(row["epoch"] - 1, row["examples"]) for before, row in rows if row["examples"] > before["examples"]]


def accuracies(table: Comparison, data: Data | None) -> Table | None:
    """Accuracy of every group by arm, with Wilson's interval, and how many examples each was measured on."""
    arms = [entry for entry in _arms(table) if "group_intervals" in entry]
    if not arms:
        return None
    where, several = words.measured_on(table), len(table.plan.get("seeds", ())) > 1
    shown = _worst_first(arms[0]["groups"], MOST_ROWS)
    rows = [
        Row(
            _name(data, g),
            [
                Cell(f"{arms[0]['group_counts'][g]:,.0f}"),
                *(Cell(words.number(e["groups"][g]), words.bounds(e["group_intervals"][g])) for e in arms),
            ],
        )
        for g in shown
    ]
    columns = ["group", f"{where} examples", *(f"{words.table_name(entry)}, %" for entry in arms)]
    caption = f"{where.capitalize()} accuracy of each group" + (", mean over seeds" if several else "")
    caption += ", and Wilson's 95% interval for as many examples as one seed measures." + _cut(arms[0], shown)
    return Table(columns, rows, caption, "Groups in numbers")


def origins(table: Comparison, data: Data | None) -> Table | None:
    """Of every group how many different training examples each arm used, and how often it showed them."""
    arms = [entry for entry in _arms(table) if "used" in entry]
    sizes = (table.rows[0].get("train") or {}).get("group_counts") if table.rows else None
    if sizes is None or all(entry["method"] == "erm" for entry in arms):
        return None
    shown = _worst_first(arms[0].get("groups") or [None] * len(sizes), MOST_ROWS)
    rows = [
        Row(
            _name(data, g),
            [
                Cell(f"{sizes[g]:,}"),
                *(_use(entry["used"]["groups"][g], entry["used"]["groups_shown"][g]) for entry in arms),
            ],
        )
        for g in shown
    ]
    columns = ["group", "in training", *(f"{words.table_name(entry)}, used" for entry in arms)]
    names = [_name(data, g) for g in range(len(sizes))]
    told = [words.used(words.table_name(entry), entry["used"]["groups"], sizes, names) for entry in arms]
    caption = f"{USED} × how often each was shown, on average. {' '.join(filter(None, told))}".strip()
    return Table(columns, rows, caption + _cut(arms[0], shown), "Where the examples came from")


def origins_of_run(run: Run, data: Data) -> Table | None:
    """The same of one run; nothing where every example was shown equally often."""
    used, sizes = run.results.get("used") or {}, (run.results.get("train") or {}).get("group_counts")
    if sizes is None or "groups" not in used:
        return None
    pairs = list(zip(used["groups"], used["groups_shown"], strict=True))
    if [count for count, _ in pairs] == sizes and len({times / count for count, times in pairs if count}) == 1:
        return None
    shown = _worst_first(run.results["train"]["groups"], MOST_ROWS)
    rows = [
        Row(
            data.measured_names[g],
            [
                Cell(f"{sizes[g]:,}"),
                Cell(f"{pairs[g][0]:,}"),
                Cell(words.number(pairs[g][0] / sizes[g] if sizes[g] else None)),
                Cell(f"{pairs[g][1] / pairs[g][0]:,.1f}" if pairs[g][0] else "–"),
            ],
        )
        for g in shown
    ]
    told = words.used(words.spoken(run.results), used["groups"], sizes, data.measured_names)
    columns = ["group", "in training", "used", "used, %", "shown, times each"]
    return Table(columns, rows, f"{USED} {told}".strip(), "Where the examples came from")


USED = "Different training examples of each group that the kept weights were trained on, in the last stage."


def reaching(table: Comparison) -> Table | None:
    """What it cost each arm to bring the worst group of validation as far as ERM's best, and further."""
    arms = [entry for entry in _arms(table) if "cost_to_reach" in entry]
    if all(entry["method"] == "erm" for entry in arms):
        return None
    heads = [
        "ERM's best" if not level["above_erm"] else f"{words.signed(level['above_erm'], 0)} points"
        for level in arms[0]["cost_to_reach"]
    ]
    rows = [Row(words.table_name(entry), [_cost(level) for level in entry["cost_to_reach"]]) for entry in arms]
    caption = (
        "Example-gradients until validation accuracy in the worst group first reached ERM's best of the same seed, or "
        "so many points more; beside them the multiple of what ERM costs in all. Validation is looked at after whole "
        "epochs, so arms with short epochs are looked at more often and caught earlier."
    )
    if len(table.plan.get("seeds", ())) > 1:
        caption += (
            " Medians over all seeds, one that never came so far counting as dearer than any other; beside them how "
            "many came."
        )
    if others := words.left_out(_arms(table)):
        caption += f" {others[:1].upper()}{others[1:]}."
    return Table(["arm", *heads], rows, caption, "Cost to reach a worst group")


def reaching_of_run(run: Run) -> Table | None:
    """The epochs of one run at which validation accuracy in the worst group first passed a multiple of ten percent."""
    rows = [row for row in run.history if "worst_group" in (row.get("validation") or {})]
    if not rows or run.cost > run.history[-1]["cost"]:
        return None
    unit = run.results["cost"] / run.results["cost_multiple"]
    best, shown = 0, []
    for row in rows:
        tens = math.floor(10 * row["validation"]["worst_group"] + 1e-9)
        if tens > best:
            best, cost = tens, row["cost"]
            cells = [Cell(f"{row['epoch']:,}"), Cell(f"{cost:,.0f}"), Cell(words.times(cost / unit).rstrip("x"))]
            shown.append(Row(f"{10 * tens}%", cells))
    columns = ["worst group", "epoch", "example-gradients", "cost, × ERM"]
    caption = "When validation accuracy in the worst group first reached a level; of several at once the highest."
    return Table(columns, shown, caption, "Cost to reach a worst group") if shown else None


def _lines(runs: Sequence[Run], names: Sequence[str], looks: dict[str, Look]) -> list[Curve]:
    """A curve per group; a group is drawn alike wherever it is drawn, and new ones get the next look."""
    inferred = runs[0].results.get("inferred_groups")
    key = "inferred_groups" if inferred else "groups"
    rows = [[row for row in run.history if (row.get("validation") or {}).get(key)] for run in runs]
    if not rows[0]:
        return []
    last = rows[0][-1]["validation"][key]
    given = inferred["names"] if inferred else names
    called = [given[g] if g < len(given) else f"group {g}" for g in range(len(last))]
    if not looks.keys() & set(called):
        for g in _worst_first(last, MOST_LINES):
            looks[called[g]] = Look(1 + len(looks) % MOST_LINES, len(looks) // MOST_LINES)
    lines = []
    for g, name in enumerate(called):
        seeds = [
            ([row["epoch"] for row in of_run], [row["validation"][key][g] for row in of_run])
            for of_run in rows
            if of_run and of_run[0]["validation"][key][g] is not None
        ]
        if name in looks and seeds:
            lines.append(Curve(name, looks[name], seeds))
    return lines


def _arms(table: Comparison) -> list[dict[str, Any]]:
    return [entry for entry in table.summary if not entry.get("control_of")]


def _worst_first(accuracies: Sequence[float | None], most: int) -> list[int]:
    """The groups with the lowest accuracies, in their own order."""
    ranked = sorted((math.inf if accuracy is None else accuracy, g) for g, accuracy in enumerate(accuracies))
    return sorted(g for _, g in ranked[:most])


def _name(data: Data | None, g: int) -> str:
    return data.measured_names[g] if data is not None and g < len(data.measured_names) else f"group {g}"


def _cut(first: Mapping[str, Any], shown: Sequence[int]) -> str:
    total = len(first.get("groups") or shown)
    return f" Of {total} groups, the {len(shown)} where {first['arm']} does worst." if len(shown) < total else ""


def _use(used: float, shown: float) -> Cell:
    return Cell(f"{used:,.0f}", f"× {shown / used:,.1f}" if used else "")


def _cost(level: Mapping[str, Any]) -> Cell:
    """The median cost, its multiple of ERM's, and of several seeds how many came so far."""
    cost, multiple = level["median_cost"], level["median_cost_multiple"]
    told = [] if cost is None else [f"{words.times(multiple).rstrip('x')}×"]
    told += [words.came(level)] if level["seeds"] > 1 else []
    return Cell("never" if cost is None else f"{cost:,.0f}", ", ".join(told))
