"""The page of an audit: what one model has learned, or two side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenly.diagnose.audit_values import Findings, GroupAccuracy, ShownExample
from evenly.report import figures
from evenly.report.audit_answers import RATES, calibration, confusion, group_bars, rates, slices
from evenly.report.blocks import (
    Block,
    Cell,
    Fact,
    Facts,
    Gallery,
    Page,
    Panel,
    Panels,
    Picture,
    Prose,
    Row,
    Section,
    Table,
    Verdicts,
    present,
)
from evenly.report.facts import data_facts
from evenly.report.figures import Curve, Style, data_uri
from evenly.report.rendering import footer

STYLES = (Style(1), Style(2))
AT_WEIGHTS, AT_PHANTOM, EQUAL = (
    ("at the weights", STYLES[0]),
    ("at SAM's phantom weights", STYLES[1]),
    ("all equal", Style(0, 1)),
)
MOST_FORGOTTEN = 9
"""Times forgotten that have a bar of their own at most."""

HOW_TO_READ = (
    "Intervals of shares are Wilson's, at 95%. The lowest of many groups is low by chance as well. The page therefore "
    "says that the model fails on a group, and marks it, only if the group's exact binomial bound, widened for the "
    "number of groups, is below the average.",
    "The page says that a combination of label and attribute lacks something only if it is also below the rest of its "
    "own class, by Fisher's exact test at a level divided by the number of combinations. A class that is weak "
    "throughout is called weak, because the numbers show no cause.",
    "If the data has neither groups nor attributes, clusters replace them: two parts of each class in the model's own "
    "features. The model decides from these features, so any model, even on noise, is right less often on one part. "
    "Clusters say where to look, not what is wrong.",
    "A slice is the examples with one value of a column, or with two values of two columns. It is listed only if it "
    "has more errors than the rest by Fisher's exact test, at a level divided by the number of slices searched. A pair "
    "is listed only if it is also clearly worse than each of its two values without it.",
)
OF_NETWORKS = (
    "A linear probe reads an attribute off the model's features. It is fitted and measured on sets in which the "
    "attribute is independent of what the sets are balanced over. Other properties that go with the attribute may "
    "still give it away. An attribute that can be read is in the features; the model need not use it.",
    "The importance weight of an example is how much its loss moves its own logit: the factor of that logit's gradient "
    "in the gradient of the loss. The closer the Lorenz curve is to the diagonal, the more equal the weights.",
    "SAM takes its gradient at phantom weights: those after a step of length rho uphill, along the gradient of the "
    "batch. Here, too, each batch has phantom weights of its own.",
    "The largest eigenvalues of the Hessian say how sharply the training loss bends upwards around these weights. "
    "Where it bends downwards, the density has negative ones. A residual bounds the distance to an eigenvalue of the "
    "Hessian, which need not be the one of that rank.",
)
GRAD_CAM = (
    "Beside each image is Grad-CAM of the predicted class: red where the image speaks for that class, blue where it "
    "does not."
)
DENSITY = (
    "The density of all eigenvalues, estimated by Lanczos quadrature: the share of directions in the space of weights "
    "along which the training loss has this curvature. It integrates to 1. The scale is logarithmic, because nearly "
    "all directions are flat."
)


def audit_page(audits: Sequence[Findings], compared: Sequence[str]) -> Page:
    """The page of one audit, or of two of the same data; `compared` says how the two compare."""
    first = audits[0]
    title = " and ".join(dict.fromkeys(each.name for each in audits)) + f" on {first.data.name}"
    contents: list[tuple[str, str, list[Block | None]]] = [
        ("In short", "short", short(audits, compared)),
        ("What to do next", "next", [next_steps(audits)]),
        ("Groups", "groups", [groups(audits)]),
        ("Slices", "slices", slices(audits)),
        ("Confusion", "confusion", confusion(audits)),
        ("Calibration", "calibration", [calibration(audits, STYLES)]),
        ("Rates by group", "rates", [rates(audits, _columns(audits, *RATES))]),
        ("What its features tell", "probes", [probes(audits)]),
        ("What drives training", "importance", [importance(audits), forgetting(audits)]),
        ("Curvature", "curvature", [eigenvalues(audits), density(audits)]),
        ("Hardest and easiest", "examples", [*map(gallery, audits), *map(hardest_table, audits)]),
        ("What was audited", "settings", [*map(facts, audits)]),
        ("How to read this", "reading", [Prose(reading(audits))]),
    ]
    sections = [Section(name, anchor, content) for name, anchor, each in contents if (content := present(each))]
    seconds = sum(each.seconds for each in audits)
    return Page(title, first.data.about, sections, footer(seconds), contents=True)


def reading(audits: Sequence[Findings]) -> Sequence[str]:
    """What a reader needs to know; of predictions alone, without what is of networks."""
    return HOW_TO_READ if all(each.importance is None for each in audits) else (*HOW_TO_READ, *OF_NETWORKS)


def short(audits: Sequence[Findings], compared: Sequence[str]) -> list[Block | None]:
    """What the numbers say: of one model, or how two compare and then of each under its name."""
    if len(audits) == 1:
        return [Prose([*audits[0].verdict, *audits[0].shrunk])]
    blocks: list[Block | None] = [Prose(compared)]
    for each in audits:
        first, *rest = (*each.verdict, *each.shrunk)
        blocks.append(Verdicts(first, (), rest, each.name))
    return blocks


def next_steps(audits: Sequence[Findings]) -> Prose:
    """What to do about it; of two models once where it is the same."""
    if len(audits) == 1:
        return Prose(audits[0].next_steps)
    models: dict[str, list[str]] = {}
    for each in audits:
        for step in each.next_steps:
            models.setdefault(step, []).append(each.name)
    return Prose([step if len(names) > 1 else f"{names[0]}: {step}" for step, names in models.items()])


def _columns(audits: Sequence[Findings], *names: str) -> list[str]:
    """Columns for each model; with two models, under their names, in short where that tells them apart."""
    short = [each.name.partition(" (")[0] for each in audits]
    models = short if len(set(short)) == len(short) else [each.name for each in audits]
    return [f"{model}: {name}" if len(audits) > 1 else name for model in models for name in names]


def groups(audits: Sequence[Findings]) -> Table:
    """A row per group, the worst of the first model at the top: how many examples, how often right and, of one model,
    the loss."""
    by_name = [{group.name: group for group in each.groups} for each in audits]
    ordered = sorted(audits[0].groups, key=lambda group: group.accuracy)
    names = list(dict.fromkeys([*(group.name for group in ordered), *(name for each in by_name for name in each)]))
    grouping = audits[0].by
    rows = [Row("all", _group_cells([each.overall for each in audits]))]
    for place, name in enumerate(names):
        note = f"worst {grouping}" if place == 0 and len(names) > 1 and grouping == "group" else ""
        rows.append(Row(name, _group_cells([shares.get(name) for shares in by_name]), note=note))
    caption = f"Accuracy on the {audits[0].split} split, with 95% intervals. A column's name sorts by it."
    if grouping == "cluster":
        caption += (
            " Clusters are of the model's own features, from which it decides. They are expected to differ; they say "
            "where to look."
        )
    loss = ["loss"] if len(audits) == 1 and audits[0].overall.loss is not None else []
    columns = [grouping, "examples", *_columns(audits, "accuracy, %"), *loss]
    panel = group_bars(audits, names, STYLES)
    return Table(columns, rows, caption, f"Accuracy by {grouping}", sortable=True, panel=panel)


def _group_cells(groups: Sequence[GroupAccuracy | None]) -> list[Cell]:
    """How many examples, then how often each model is right, or one model's accuracy and loss; clusters of two models
    differ in size."""
    sizes = list(dict.fromkeys(group.n for group in groups if group is not None))
    cells = [Cell(" / ".join(f"{size:,}" for size in sizes), value=sizes[0])]
    for group in groups:
        if group is None:
            cells.append(Cell("–"))
            continue
        cells.append(_percent(group.accuracy, group.low, group.high, "lowered" if group.below else ""))
        if len(groups) == 1 and group.loss is not None:
            cells.append(Cell(f"{group.loss:.3f}", value=group.loss))
    return cells


def _percent(share: float, low: float, high: float, outcome: str = "") -> Cell:
    return Cell(f"{100 * share:.1f}", f"{100 * low:.1f} to {100 * high:.1f}", outcome, value=share)


def probes(audits: Sequence[Findings]) -> Table | None:
    """A row per attribute: how often it can be read off the features."""
    names = list(dict.fromkeys(name for each in audits for name in each.probes))
    if not names:
        return None
    rows = []
    for name in names:
        results = [each.probes.get(name) for each in audits]
        one = next(probe for probe in results if probe is not None)
        cells = [Cell(f"{100 * (1 - one.chance):.1f}", value=1 - one.chance)]
        cells += [
            Cell("–") if each is None else _percent(1 - each.error, 1 - each.high, 1 - each.low) for each in results
        ]
        rows.append(Row(name, cells, note=f"balanced over {', '.join(one.balanced_over) or 'its own values'}"))
    caption = (
        "How often a linear probe reads each attribute off the network's features, on held-out examples, with 95% "
        "intervals. Each combination of the attribute and of what it is balanced over is equally frequent. A set is "
        "balanced over the label and all other attributes. Where some combination of these has too few examples, it is "
        "balanced over the label or the groups alone."
    )
    columns = ["attribute", "guessing, %", *_columns(audits, "read correctly, %")]
    return Table(columns, rows, caption, "What can be read from the features", sortable=True)


def importance(audits: Sequence[Findings]) -> Panels | None:
    """Lorenz curves of the importance weights."""
    panels = []
    known = [each.importance for each in audits if each.importance is not None]
    if not known:
        return None
    for k, audit in enumerate(audits, 1):
        weights = audit.importance
        if weights is None:
            continue
        curves = {AT_WEIGHTS: (weights.gini, audit.curves.lorenz)}
        curves |= {AT_PHANTOM: (weights.gini_phantom, audit.curves.lorenz_phantom)} if weights.rho else {}
        ginis = {name: "none" if gini is None else f"{gini:.2f}" for (name, _), (gini, _) in curves.items()}
        lines = [
            Curve(f"{name}, Gini {ginis[name]}", style, [(np.linspace(0, 1, len(each)).tolist(), each)] if each else [])
            for (name, style), (_, each) in curves.items()
        ]
        lines.append(Curve(*EQUAL, [([0.0, 1.0], [0.0, 1.0])]))
        label, x_name = "Lorenz curves of importance weights", "share of examples, the lightest first"
        svg = figures.curves(lines, prefix=f"lorenz{k}", label=label, x_name=x_name, shares=True)
        panels.append(Panel(audit.name, svg, f"Gini {' and '.join(ginis.values())}"))
    used = known[0]
    caption = (
        f"Share of the weight that the lightest examples have, over {used.examples:,} training examples. The Gini "
        "coefficient is twice the area between a curve and the diagonal: 0 where all examples weigh the same, near 1 "
        "where few have all the weight."
    )
    sam = any(each.rho for each in known)
    if sam:
        caption += (
            " The phantom weights are those of the network after SAM's step uphill, where it takes its gradient: one "
            f"step for each batch of {used.batch_size:,} examples."
        )
    legend = [AT_WEIGHTS, AT_PHANTOM, EQUAL] if sam else [AT_WEIGHTS, EQUAL]
    return Panels("Importance of the training examples", panels, caption, legend)


def forgetting(audits: Sequence[Findings]) -> Panels | None:
    """How often training examples were forgotten."""
    panels = []
    for k, audit in enumerate(audits):
        if audit.forgetting is None:
            continue
        times = {int(name): count for name, count in audit.forgetting.items() if name.isdigit()}
        counts = {str(n): times.get(n, 0) for n in range(min(max(times, default=0), MOST_FORGOTTEN) + 1)}
        if max(times, default=0) > MOST_FORGOTTEN:
            counts[f"{MOST_FORGOTTEN + 1} or more"] = sum(times[n] for n in times if n > MOST_FORGOTTEN)
        counts["never right"] = audit.forgetting["never right"]
        total = max(1, sum(audit.forgetting.values()))
        bars = [figures.Bar(f"{name}: {count:,}", STYLES[k], count / total) for name, count in counts.items()]
        panels.append(Panel(audit.name, figures.bars(bars, prefix=f"forgetting{k}", label="Times forgotten")))
    caption = "Share of the training examples by how often the network was right on them and then wrong."
    return Panels("Times forgotten", panels, caption) if panels else None


def eigenvalues(audits: Sequence[Findings]) -> Table | None:
    """A row per eigenvalue."""
    spectra = [each.spectrum for each in audits]
    most = max(0 if each is None else len(each.eigenvalues) for each in spectra)
    rows = []
    for k in range(most):
        cells = []
        for each in spectra:
            if each is None or k >= len(each.eigenvalues):
                cells += [Cell("–"), Cell("–")]
                continue
            value, residual = each.eigenvalues[k], each.residuals[k]
            note = "" if each.converged[k] else "not converged"
            cells += [Cell(f"{value:.4g}", note, value=value), Cell(f"{residual:.1e}", value=residual)]
        rows.append(Row(f"{k + 1}", cells))
    used = " and ".join(dict.fromkeys(f"{each.examples:,}" for each in spectra if each is not None))
    caption = (
        f"The largest of the Hessian of the mean training loss, over {used} examples. "
        "An eigenvalue that occurs several times is listed once."
    )
    columns = ["eigenvalue", *_columns(audits, "value", "residual")]
    return Table(columns, rows, caption, "Largest eigenvalues") if rows else None


def density(audits: Sequence[Findings]) -> Panels | None:
    """The density of the Hessian's eigenvalues."""
    panels = []
    for k, each in enumerate(audits):
        if not each.curves.density:
            continue
        points = (each.curves.density_at, [max(value, 1e-6) for value in each.curves.density])
        line, label = Curve("density", STYLES[k], [points]), "Density of the Hessian's eigenvalues"
        svg = figures.curves([line], prefix=f"density{k}", label=label, x_name="eigenvalue", log_y=True)
        panels.append(Panel(each.name, svg))
    return Panels("All eigenvalues", panels, DENSITY) if panels else None


def gallery(audit: Findings) -> Gallery | None:
    """The hardest and the easiest images, each beside where the model looks, or texts."""
    shown = (*audit.hardest, *audit.easiest)
    if not any(each.text or each.png for each in shown):
        return None
    texts = any(each.text for each in shown)
    sets = [
        (name, [picture(audit, each) for each in examples])
        for name, examples in (("Hardest", audit.hardest), ("Easiest", audit.easiest))
        if examples
    ]
    caption = "Label, prediction and loss of each."
    if audit.overall.loss is None:
        sets, caption = [("Wrong", pictures) for _, pictures in sets], "Label and prediction of each."
    if any(each.heat for each in shown):
        caption += f" {GRAD_CAM}"
    what = "texts" if texts else "images"
    return Gallery(f"{audit.name}: hardest and easiest {audit.split} {what}", sets, caption)


def picture(audit: Findings, example: ShownExample) -> Picture:
    """One example of an audit: its label, what the model predicts, the loss."""
    label, predicted = (audit.data.class_names[k] for k in (example.label, example.predicted))
    classes = label if label == predicted else f"{label}, predicted {predicted}"
    loss = "" if example.loss is None else f", loss {example.loss:.2g}"
    caption = f"{classes}{loss}" + (f" · {example.place}" if example.place else "")
    description = f"{audit.split} example {example.index}, {classes}"
    if example.text or example.png is None:
        return Picture(caption, description, text=example.text)
    heat = "" if example.heat is None else data_uri(example.heat)
    return Picture(caption, description, data_uri(example.png), beside=heat)


def hardest_table(audit: Findings) -> Table | None:
    """The hardest examples as numbers, with their files, lines or texts; where no loss is known, the wrong ones."""
    rows = []
    has_loss = audit.overall.loss is not None
    for each in audit.hardest:
        classes = [Cell(audit.data.class_names[k]) for k in (each.label, each.predicted)]
        note = " · ".join(filter(None, (each.place, each.text)))
        loss = [] if each.loss is None else [Cell(f"{each.loss:.3f}", value=each.loss)]
        rows.append(Row(f"{each.index}", [*classes, *loss], note=note))
    if not rows:
        return None
    which = f"The {len(rows)} {audit.split} examples with the largest loss"
    which = which if has_loss else f"The first {len(rows)} {audit.split} examples that it gets wrong"
    caption = f"{which}, by their place in the split."
    if audit.table:
        caption += f" {audit.table}, beside this page, lists all {audit.overall.n:,}"
        caption += " with their probabilities." if has_loss else ", the wrong ones first."
    columns, what = ["example", "label", "prediction"], "hardest" if has_loss else "wrong"
    return Table([*columns, *(["loss"] if has_loss else [])], rows, caption, f"{audit.name}: {what}", sortable=True)


def facts(audit: Findings) -> Facts:
    """Sizes, and what could not be measured."""
    missing = [Fact(f"no {what}", reason) for what, reason in audit.missing.items()]
    weights = audit.importance
    used = [Fact("split judged on", audit.split)]
    if weights is not None:
        used += [
            Fact("SAM's rho", f"{weights.rho:g}"),
            Fact("SAM's batch size", f"{weights.batch_size:,}"),
            Fact("training examples for importance", f"{weights.examples:,}"),
        ]
    if audit.spectrum is not None:
        used.append(Fact("training examples for curvature", f"{audit.spectrum.examples:,}"))
    return Facts([*used, *data_facts(audit.data), *missing], audit.name)
