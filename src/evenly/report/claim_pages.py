"""Pages of `evenly reproduce`: one per paper, a section per claim with its verdict, its numbers and its figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from evenly.errors import EvenlyError
from evenly.report import figures
from evenly.report.blocks import (
    Block,
    Cell,
    Check,
    Checks,
    Fact,
    Facts,
    Page,
    Panel,
    Panels,
    Prose,
    Row,
    Section,
    Table,
)
from evenly.report.figures import Curve, Style
from evenly.report.formats import counted, listed
from evenly.report.rendering import footer, write_page
from evenly.runs.verdict import PAPERS, Chart, HeatMap, Measurement, Verdict, read_verdicts

COLOUR_OF = {"holds": "raised", "holds in part": "raised-for-these", "does not hold": "lowered"}
MOST_TICKS = 12
"""Values along an axis of a heat map at most."""
HOW_TO_READ = (
    "Every claim has a rule. A claim holds where all conditions of its rule are met. It holds in part where its main "
    "point is met and a side point is not. Otherwise it does not hold, which may mean that a few seeds do not show it.",
    "Most rules were written before their claim was run. Where one was changed after a first run, or similar numbers "
    "were known before, the claim says so. A corrected statement was found from a counterexample to the printed one.",
    "Fidelity says how close the setting is to the paper's: the same, reduced, or another data set in its place. "
    "What the paper leaves open is listed as our choice. Intervals are 95% t-intervals over seeds.",
)


def write_claim_pages(folder: Path) -> Path:
    """Write a page for each paper that the folder has verdicts on; where the last one is."""
    by_paper: dict[str, list[Verdict]] = {}
    for verdict in read_verdicts(folder).values():
        by_paper.setdefault(verdict.statement.paper, []).append(verdict)
    if not by_paper:
        raise EvenlyError(f"{folder} holds no verdicts; run `evenly reproduce` there")
    for paper, verdicts in by_paper.items():
        path = write_page(folder / f"{paper}.html", claim_page(verdicts, PAPERS.get(paper, paper)))
    return path


def claim_page(verdicts: Sequence[Verdict], title: str) -> Page:
    """The page of a paper."""
    sections = [
        Section("In short", "short", [Prose([in_short(verdicts)]), _table(verdicts)]),
        *(Section(_name(each), _anchor(each), _blocks(each)) for each in verdicts if each.judgement is not None),
        *(Section("Not testable here", "not-testable", [table]) for table in _untested(verdicts)),
        Section("How to read this", "reading", [Prose(HOW_TO_READ)]),
    ]
    return Page(title, "", sections, footer(None))


def in_short(verdicts: Sequence[Verdict]) -> str:
    """How many claims hold: "12 claims hold, 3 hold in part, 2 do not hold, 4 are not testable here."."""
    counts: Counter[str] = Counter(verdict.outcome for verdict in verdicts)
    plural = {
        "holds": ("holds", "hold"), "holds in part": ("holds in part", "hold in part"),
        "does not hold": ("does not hold", "do not hold"),
        "not testable here": ("is not testable here", "are not testable here"),
        "not run": ("was not run", "were not run"),
    }  # fmt: skip
    parts = [f"{counts[name]} {words[counts[name] != 1]}" for name, words in plural.items() if counts[name]]
    return f"Of {counted(len(verdicts), 'claim')}, {listed(parts)}."


def measured(each: Measurement) -> str:
    """A measured value: "91.1 ± 2.1 %"."""
    if each.mean is None or each.sd is None:
        return "–"
    spread = f" ± {_spread(each.sd, _number(each.mean))}" if each.seeds > 1 else ""
    return f"{_number(each.mean)}{spread}{f' {each.unit}' if each.unit else ''}"


def _table(verdicts: Sequence[Verdict]) -> Table:
    rows = [
        Row(
            f"{each.id}",
            [
                Cell(each.outcome, outcome=COLOUR_OF.get(each.outcome, "")),
                Cell(each.statement.fidelity.partition(":")[0]),
                Cell(each.scale if each.judgement is not None else ""),
            ],
            note=each.statement.where,
        )
        for each in verdicts
    ]
    return Table(
        ["claim", "verdict", "fidelity", "scale"],
        rows,
        "Claims that were judged here, and those that cannot be.",
        "Claims",
    )


def _blocks(verdict: Verdict) -> list[Block]:
    statement, judgement = verdict.statement, verdict.judgement
    assert judgement is not None
    checks = [Check(each.text, each.met, "" if each.main else "side point") for each in judgement.checks]
    facts = [
        Fact("command", f"evenly reproduce {verdict.id}"),
        Fact("fidelity", statement.fidelity),
        Fact("scale", verdict.scale),
        *([Fact("seeds asked for", str(verdict.seeds))] if verdict.seeds is not None else []),
        Fact("measured on", verdict.measured_on),
        *(Fact("our choice", each) for each in statement.choices),
        *([Fact("the rule after a first run", statement.revised)] if statement.revised else []),
    ]
    blocks: list[Block | None] = [
        Prose([statement.states]),
        Checks(f"{verdict.outcome.capitalize()}. The rule: {_lower(statement.rule)}", checks, "Verdict"),
        _numbers(verdict),
        _figure(verdict),
        Facts(facts, "Setting"),
    ]
    return [block for block in blocks if block is not None]


def _numbers(verdict: Verdict) -> Table | None:
    assert verdict.judgement is not None
    rows = [
        Row(
            each.name, [Cell(measured(each)), Cell(_interval(each)), Cell(str(each.seeds)), Cell(each.published or "–")]
        )
        for each in verdict.judgement.measurements
    ]
    known = [each.name for each in verdict.judgement.measurements]
    rows += [
        Row(name, [Cell("–"), Cell(""), Cell(""), Cell(text)])
        for name, text in verdict.statement.published.items()
        if not any(_is_of(each, name) for each in known)
    ]
    if not rows:
        return None
    return Table(
        ["quantity", "ours", "95% interval", "seeds", "paper"], rows, "Mean ± standard deviation over seeds.", "Numbers"
    )


def _is_of(measurement: str, published: str) -> bool:
    """Whether a measurement is that of a published value, by their names: "test error, SGD" is of "SGD"."""
    starts = measurement.startswith((f"{published},", f"{published}:"))
    return measurement == published or starts or measurement.endswith(f", {published}")


def _figure(verdict: Verdict) -> Panels | None:
    assert verdict.judgement is not None
    charts, maps, prefix = verdict.judgement.charts, verdict.judgement.maps, _anchor(verdict)
    names = list(dict.fromkeys(line.name for chart in charts for line in chart.lines))
    styles = {name: Style(k % figures.COLOURS, k // figures.COLOURS) for k, name in enumerate(names)}
    panels = [Panel(chart.y_name, _drawn(chart, styles, f"{prefix}-{k}")) for k, chart in enumerate(charts)]
    panels += [Panel(each.title, heat_map(each, f"{prefix}-map{k}")) for k, each in enumerate(maps)]
    if not panels:
        return None
    return Panels("Figure", panels, f"As in {verdict.statement.where}.", list(styles.items()))


def _drawn(chart: Chart, styles: Mapping[str, Style], prefix: str) -> str:
    lines = [Curve(each.name, styles[each.name], [(each.x, each.y)], each.dots) for each in chart.lines]
    return figures.curves(
        lines, prefix=prefix, label=f"{chart.y_name} against {chart.x_name}", x_name=chart.x_name, log_x=chart.log_x,
        log_y=chart.log_y, marks=chart.marks,
    )  # fmt: skip


def heat_map(content: HeatMap, prefix: str) -> str:
    """Shares over two axes as SVG: the darker the larger."""
    with figures.page_style(prefix):
        figure = Figure(figsize=(5.6, 4.2))
        axes = figure.add_axes((0.15, 0.15, 0.83, 0.83))
        for row, cells in enumerate(content.cells):
            for column, share in enumerate(cells):
                if math.isfinite(share) and share > 0:
                    box = Rectangle((column, row), 1, 1, color=figures.sentinel(1), alpha=min(share, 1.0), linewidth=0)
                    axes.add_patch(box)
        axes.set_xlim(0, len(content.x_values))
        axes.set_ylim(0, len(content.y_values))
        axes.set_xticks(*_ticks(content.x_values))
        axes.set_yticks(*_ticks(content.y_values))
        axes.set_xlabel(content.x_name)
        axes.set_ylabel(content.y_name)
        return figures.as_svg(figure, prefix, f"{content.title}, over {content.x_name} and {content.y_name}")


def _lower(sentence: str) -> str:
    """A sentence as it goes on after a colon; "SGD" and other names keep their capitals."""
    return sentence if sentence[1:2].isupper() else f"{sentence[:1].lower()}{sentence[1:]}"


def _ticks(values: Sequence[float]) -> tuple[list[float], list[str]]:
    """Where the values stand beside the cells, and as text; some of them where they are many."""
    shown = range(0, len(values), -(-len(values) // MOST_TICKS))
    return [k + 0.5 for k in shown], [f"{values[k]:.3g}" for k in shown]


def _untested(verdicts: Sequence[Verdict]) -> list[Table]:
    rows = [
        Row(each.id, [], note=f"{each.statement.where}. {each.statement.states} Reason: {each.reason}.")
        for each in verdicts
        if each.judgement is None
    ]
    return [Table(["claim"], rows, "Claims without a verdict.", "")] if rows else []


def _name(verdict: Verdict) -> str:
    return f"{verdict.statement.where}: {verdict.outcome}"


def _anchor(verdict: Verdict) -> str:
    return verdict.id.replace("/", "-").replace(".", "-")


def _interval(each: Measurement) -> str:
    if each.low is None or each.high is None:
        return ""
    return f"[{_number(each.low)}, {_number(each.high)}]"


def _number(value: float) -> str:
    """Three figures, or one decimal where it is large."""
    if not math.isfinite(value):
        return "–"
    if abs(value) >= 10:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"
    return f"{value:.3g}"


def _spread(sd: float, mean: str) -> str:
    """A standard deviation with as many decimals as the mean beside it has, or one figure where these are all 0."""
    decimals = len(mean.partition(".")[2])
    if "e" in mean or not math.isfinite(sd) or (sd > 0 and round(sd, decimals) == 0):
        return f"{sd:.1g}" if 0 < sd < 1 else _number(sd)
    return f"{sd:,.{decimals}f}"
