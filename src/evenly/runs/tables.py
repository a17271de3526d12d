"""A comparison as a table for elsewhere: rows of plain values for pandas and csv, a LaTeX table with booktabs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from evenly.runs.differences import Difference
from evenly.runs.results import SHOWN
from evenly.runs.summary import METRICS, Metric, Row, Summary
from evenly.settings import Option

if TYPE_CHECKING:
    from evenly.runs.comparison import Comparison

Per = Literal["run", "method"]
PER = Option("per", Per)
BOOKTABS = "% needs \\usepackage{booktabs}"
SPECIAL = str.maketrans(
    {each: f"\\{each}" for each in "{}$&#_%"}
    | {each: f"{{{each}}}" for each in "[]*"}  # after the end of a line these belong to it
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "\n": " "}
    | {"<": "$<$", ">": "$>$", "±": "$\\pm$", "×": "$\\times$", "−": "$-$"}
)


def rows(comparison: Comparison, per: Per) -> list[dict[str, Any]]:
    """A row per run or per method.

    Per run: the arm, the seed, the cost, and the metrics of the split that is judged. Per method: the means, and the
    difference from its control in the headline metric with both intervals.
    """
    PER.checked(per)
    if per == "method":
        return [_of_method(*line, comparison.headline) for line in comparison.lines()]
    return [_of_run(row) for row in comparison.rows]


def csv_text(table: Sequence[Mapping[str, Any]]) -> str:
    """Rows as csv, under all their names; None is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, dict.fromkeys(name for row in table for name in row), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def latex(comparison: Comparison, per: Per) -> str:
    """A table for LaTeX with the package booktabs: shares in percent, costs as multiples of ERM's.

    Per method, its control under it. The best in the headline metric is bold where it is clearly above its control:
    the correction for several methods is of that metric.
    """
    PER.checked(per)
    names = [name for name in METRICS[:3] if any(name in each.metrics for each in comparison.summary)]
    columns = ["Method", *(name.replace("_", " ").capitalize() for name in names), "Cost"]
    if per == "method":
        columns.append("Difference")
        lines = list(_method_lines(comparison, names))
    else:
        columns.insert(1, "Seed")
        lines = [_run_line(row, names) for row in comparison.rows]
    body = [" & ".join(line) + " \\\\" for line in (columns, *lines)]
    opening = [BOOKTABS, "\\begin{table}", "\\centering", f"\\caption{{{_caption(comparison, per)}}}"]
    opening.append(f"\\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}")
    closing = ["\\bottomrule", "\\end{tabular}", "\\end{table}", ""]
    return "\n".join([*opening, "\\toprule", body[0], "\\midrule", *body[1:], *closing])


def escaped(text: str) -> str:
    """A text as LaTeX prints it."""
    return text.translate(SPECIAL)


def _of_run(row: Row) -> dict[str, Any]:
    result = row.result
    flat: dict[str, Any] = {"method": row.arm.method, "optimizer": row.arm.optimizer, "seed": row.seed}
    flat |= {f"swept {name}": value for name, value in row.arm.swept.items()}
    flat |= {"arm": row.arm.name, "control": None if row.control is None else row.control.name}
    flat |= {"cost": result.cost, "cost_multiple": result.cost_multiple, "split": result.judged}
    return flat | {name: result.measured.metric(name) for name in (*METRICS, "loss")}


def _of_method(summary: Summary, control: Summary | None, headline: str) -> dict[str, Any]:
    flat: dict[str, Any] = {"method": summary.arm.name, "control": None if control is None else control.arm.name}
    flat |= {"seeds": summary.seeds} | {name: summary.mean(name) for name in METRICS}
    flat["cost_multiple"] = summary.cost_multiple
    difference = summary.difference(headline)
    if difference is None:
        return flat
    return flat | {"difference_in": headline, **difference.to_dict(), "outcome": difference.outcome}


def _method_lines(comparison: Comparison, names: Sequence[str]) -> Iterator[list[str]]:
    pairs = list(comparison.lines())
    best = {comparison.headline: max(summary.mean(comparison.headline) or 0.0 for summary, _ in pairs)}
    for summary, control in pairs:
        difference = _difference(summary.difference(comparison.headline))
        name = ", ".join(filter(None, (summary.arm.name, comparison.fewer_seeds(summary))))
        yield [escaped(name), *_numbers(summary, names, best), difference]
        if control is not None:
            pair = ", ".join(filter(None, (control.arm.pair, comparison.fewer_seeds(control))))
            yield [f"\\quad control: {escaped(pair)}", *_numbers(control, names, {}), ""]


def _numbers(summary: Summary, names: Sequence[str], best: Mapping[str, float]) -> list[str]:
    cells = []
    for name in names:
        metric, difference = summary.metrics.get(name), summary.difference(name)
        clear = difference is not None and difference.outcome == "raised" and summary.mean(name) == best.get(name)
        cells.append(_share(metric, summary.seeds, clear))
    return [*cells, f"${summary.cost_multiple:.2f}$"]


def _share(metric: Metric | None, seeds: int, bold: bool) -> str:
    if metric is None:
        return "--"
    text = f"{100 * metric.mean:.1f}" + (f" \\pm {100 * metric.sd:.1f}" if seeds > 1 else "")
    return f"$\\mathbf{{{text}}}$" if bold else f"${text}$"


def _difference(difference: Difference | None) -> str:
    if difference is None or not math.isfinite(difference.mean):
        return ""
    interval = f"\\;{difference.over_seeds}" if difference.low is not None else ""
    return f"${difference.points}{interval}$".replace("−", "-")


def _run_line(row: Row, names: Sequence[str]) -> list[str]:
    shares = [row.result.measured.metric(name) for name in names]
    cells = ["--" if share is None else f"${100 * share:.1f}$" for share in shares]
    return [escaped(row.arm.name), str(row.seed), *cells, f"${row.result.cost_multiple:.2f}$"]


def _caption(comparison: Comparison, per: Per) -> str:
    plan = comparison.plan
    seeds = escaped(comparison.averaged)
    parts = [
        f"{escaped(comparison.data)}, {SHOWN[plan.judged]} set, in percent{f': {seeds}' if per == 'method' else ''}.",
        f"Selection rule: {escaped(plan.rule)}. Costs are multiples of what ERM costs.",
    ]
    if per == "method" and any(each.control for each in comparison.summary):
        headline = comparison.headline.replace("_", " ")
        parts.append(
            f"The difference is in {headline}, from the control of equal cost, in points, with its 95\\% interval over "
            f"seeds. Bold: the best {headline}, where it is clearly above its control."
        )
    return " ".join(parts)
