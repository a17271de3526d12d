"""What the page of an audit shows of a model's answers: slices, confusion, calibration, rates by group."""

from __future__ import annotations

from collections.abc import Sequence

from evenly.diagnose.audit_values import Calibration, Findings, GroupRates
from evenly.diagnose.slices import Search, Slice
from evenly.report import figures
from evenly.report.blocks import Block, Cell, Panel, Panels, Prose, Row, Table
from evenly.report.figures import Bar, Curve, Style
from evenly.values import cut

MOST_BARS, WIDEST_BAR = 24, 26
"""Groups with a bar of their own at most, and the letters of their names."""
EQUAL = ("accuracy is the confidence", Style(0, 1))


def group_bars(audits: Sequence[Findings], names: Sequence[str], styles: Sequence[Style]) -> Panel | None:
    """Accuracy by group as bars, in the order of the table; of two models, one below the other."""
    by_name = [{"all": each.overall} | {group.name: group for group in each.groups} for each in audits]
    if len(names) > MOST_BARS or len(names) < 2 or any(each.keys() != by_name[0].keys() for each in by_name):
        return None
    bars = [
        Bar(cut(name, WIDEST_BAR) if shares is by_name[0] else "", style, shares[name].accuracy)
        for name in ("all", *names)
        for shares, style in zip(by_name, styles, strict=False)
        if name in shares
    ]
    svg = figures.bars(bars, prefix="groups", label="Accuracy by group")
    both = f"upper bars {audits[0].name}, lower bars {audits[-1].name}" if len(audits) > 1 else ""
    return Panel("Accuracy", svg, both)


def slices(audits: Sequence[Findings]) -> list[Block | None]:
    """Where each model fails by values of columns, and where to look in its own features."""
    blocks: list[Block | None] = []
    for each in audits:
        which = f"{each.name}: " if len(audits) > 1 else ""
        search = each.slices
        if search is not None and search.slices:
            caption = (
                f"{searched_in_words(search)} A slice is listed if its errors are clearly more than those of the other "
                f"{each.split} examples. p is exact, times the number of slices searched; if errors did not depend on "
                "the columns, the chance that anything is listed would be at most 5%."
            )
            blocks.append(_slice_table(search.slices, caption, f"{which}where it fails", with_p=True))
        elif search is not None and search.searched:
            blocks.append(Prose([f"{which}{searched_in_words(search)} None is clearly worse than the rest."]))
        if each.clusters:
            caption = (
                "Clusters of the examples that the model takes for one class, in its own features. It decides from "
                "these, so they are expected to differ. They say where to look."
            )
            blocks.append(_slice_table(each.clusters, caption, f"{which}clusters to look at", with_p=False))
    return blocks


def searched_in_words(search: Search) -> str:
    """How many slices were searched, and what was left out."""
    columns = f"{search.columns:,} {'column' if search.columns == 1 else 'columns'}"
    text = f"{search.searched:,} slices of {columns} were searched: every value"
    if search.paired > 1:
        first = f" of the first {search.paired:,} columns" if search.paired < search.columns else ""
        text += f", and every pair of values{first}"
    left = f" The table is wide: {search.left_out:,} more columns were left out." if search.left_out else ""
    return f"{text}.{left}"


def _slice_table(slices: Sequence[Slice], caption: str, title: str, *, with_p: bool) -> Table:
    rows = [
        Row(
            each.name,
            [
                Cell(f"{each.n:,}", value=each.n),
                Cell(
                    f"{100 * each.accuracy:.1f}",
                    f"{100 * each.low:.1f} to {100 * each.high:.1f}",
                    "lowered" if with_p else "",
                    value=each.accuracy,
                ),
                Cell(f"{100 * each.rest:.1f}", value=each.rest),
                *([Cell(f"{each.p:.1g}", value=each.p)] if with_p else []),
            ],
        )
        for each in slices
    ]
    columns = ["slice", "examples", "accuracy, %", "other examples, %", *(["p, corrected"] if with_p else [])]
    return Table(columns, rows, caption, title[:1].upper() + title[1:], sortable=True)


def confusion(audits: Sequence[Findings]) -> list[Block | None]:
    """How often each label was taken for each class; of many classes the most frequent mistakes."""
    blocks: list[Block | None] = []
    for each in audits:
        if each.confusion is None:
            continue
        names, which = each.data.class_names, f"{each.name}: " if len(audits) > 1 else ""
        if each.confusion.counts:
            title, caption = "Labels and predictions", "A row per label: how many of its examples got each prediction."
            columns = ["label", *names]
            rows = [
                Row(names[k], [_count(n, sum(counts), wrong=j != k) for j, n in enumerate(counts)])
                for k, counts in enumerate(each.confusion.counts)
            ]
        else:
            title, caption = "Most frequent mistakes", f"Of {len(names):,} classes, those confused most often."
            columns = ["label", "prediction", "examples"]
            rows = [
                Row(names[mistake.label], [Cell(names[mistake.predicted]), Cell(f"{mistake.n:,}", value=mistake.n)])
                for mistake in each.confusion.mistakes
            ]
        blocks.append(Table(columns, rows, caption, f"{which}{title}") if rows else None)
    return blocks


def _count(n: int, total: int, *, wrong: bool) -> Cell:
    return Cell(f"{n:,}", f"{100 * n / total:.1f}%" if total and (n or not wrong) else "", value=n)


def calibration(audits: Sequence[Findings], styles: Sequence[Style]) -> Panels | None:
    """The reliability curve of each model."""
    panels = []
    for k, (each, style) in enumerate(zip(audits, styles, strict=False)):
        if each.calibration is None:
            continue
        note = f"expected calibration error {100 * each.calibration.error:.1f} points"
        panels.append(Panel(each.name, _reliability(each.calibration, style, f"reliability{k}"), note))
    caption = (
        "How often predictions of about the same confidence are right. Confidence is the probability of the predicted "
        "class. A dot has about a tenth of the examples, fewer dots where confidences are equal. A dot below the "
        "diagonal is too sure. The expected calibration error is the mean distance from the diagonal over examples, in "
        "these bins of equal size. Chance alone makes it a little larger than 0."
    )
    return Panels("Is it right as often as it says?", panels, caption, [EQUAL]) if panels else None


def _reliability(calibration: Calibration, style: Style, prefix: str) -> str:
    at = [each.confidence for each in calibration.bins]
    line = (at, [each.accuracy for each in calibration.bins])
    start = min(*at, 1.0)
    ends = ([start, 1.0], [start, 1.0])
    curves = [Curve(*EQUAL, [ends]), Curve("accuracy", style, [line]), Curve("accuracy", style, [line], dots=True)]
    label, x_name = "Accuracy by confidence", "mean confidence"
    return figures.curves(curves, prefix=prefix, label=label, x_name=x_name, shares=True)


def rates(audits: Sequence[Findings], columns_for: Sequence[str]) -> Table | None:
    """True and false positive rates and AUC by group, of two classes.

    Args:
        columns_for: the names of the three columns, for each model in turn.
    """
    tables = [{row.name: row for row in each.rates.groups} for each in audits if each.rates is not None]
    if len(tables) < len(audits) or audits[0].rates is None:
        return None
    names = list(dict.fromkeys(name for table in tables for name in table))
    rows = []
    for name in names:
        known = next(table[name] for table in tables if name in table)
        sizes = Cell(f"{known.positives:,} / {known.negatives:,}", value=known.positives)
        rows.append(Row(name, [sizes, *(cell for table in tables for cell in _rate_cells(table.get(name)))]))
    zero, one = audits[0].data.class_names
    caption = (
        f"The true positive rate is the share of the examples of {one} that is found. The false positive rate is the "
        f"share of those of {zero} that is taken for {one}. Both have 95% intervals. AUC is the chance that an example "
        f"of {one} has a higher probability of {one} than one of {zero}."
    )
    by = audits[0].rates.by
    return Table([by, f"{one} / {zero}", *columns_for], rows, caption, f"Rates by {by}", sortable=True)


RATES = ("true positive rate, %", "false positive rate, %", "AUC")


def _rate_cells(row: GroupRates | None) -> list[Cell]:
    if row is None:
        return [Cell("–")] * 3
    cells = []
    for rate in (row.true_positive, row.false_positive):
        if rate is None:
            cells.append(Cell("–"))
        else:
            share, low, high = rate
            cells.append(Cell(f"{100 * share:.1f}", f"{100 * low:.1f} to {100 * high:.1f}", value=share))
    return [*cells, Cell("–") if row.auc is None else Cell(f"{row.auc:.3f}", value=row.auc)]
