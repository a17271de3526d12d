"""The page of an audit: what one model has learned, or two side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from evenly.diagnose.findings import SHOWN, Audit, Share, check_pair
from evenly.diagnose.importance import gini_if_any, lorenz
from evenly.report import figures
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
from evenly.report.rendering import footer, write_page
from evenly.runs.examples import is_image, snippet, thumbnail
from evenly.runs.results import DataSummary

STYLES = (Style(1), Style(2))
AT_WEIGHTS, AT_PHANTOM, EQUAL = (
    ("at the weights", STYLES[0]),
    ("at SAM's phantom weights", STYLES[1]),
    ("all equal", Style(0, 1)),
)
POINTS = 200
"""Points of a drawn curve, whatever the number of examples."""
MOST_FORGOTTEN = 9
"""Times forgotten that have a bar of their own at most."""

HOW_TO_READ = (
    "Intervals of shares are Wilson's, at 95%. The page says that the model fails on a group, and marks it, only if "
    "the group's exact binomial bound, widened for the number of groups, is below the average: the lowest of many "
    "groups is low by chance as well. A combination of label and attribute is said to lack something only if it is "
    "also below the rest of its own class, by Fisher's exact test at a level divided by the number of combinations. A "
    "class that is weak throughout is called weak, because the numbers show no cause.",
    "If the data has neither groups nor attributes, clusters replace them: two parts of each class in the model's own "
    "features. The model decides from these features, so any model, even on noise, is right less often on one part. "
    "Clusters say where to look, not what is wrong.",
    "A probing error is that of a linear classifier on the model's features. It is fitted and measured on sets in "
    "which the attribute is independent of what the sets are balanced over; other properties that go with it may give "
    "it away. A low error says that the attribute can be read off the features, not that the model uses it.",
    "An importance weight is how much an example's loss moves its own logit: the factor of that logit's gradient in "
    "the gradient of the loss. The closer the Lorenz curve is to the diagonal, the more equal the factors.",
    "The largest eigenvalues of the Hessian say how sharply the training loss bends upwards around these weights. "
    "Where it bends downwards, the density has negative ones. A residual bounds the distance to an eigenvalue of the "
    "Hessian, which need not be the one of that rank.",
)
DENSITY = (
    "The density of all eigenvalues, estimated by Lanczos quadrature: the share of directions in the space of weights "
    "along which the training loss has this curvature. It integrates to 1. The scale is logarithmic, because nearly "
    "all directions are flat."
)


def audit_page(audits: Sequence[Audit], path: Path) -> None:
    """Write the page of one audit, or of two of the same data."""
    first = audits[0]
    for other in audits[1:]:
        check_pair(first, other)
    title = " and ".join(dict.fromkeys(each.name for each in audits)) + f" on {first.data.name}"
    contents: list[tuple[str, str, list[Block | None]]] = [
        ("In short", "short", short(audits)),
        ("Groups", "groups", [groups(audits)]),
        ("What its features tell", "probes", [probes(audits)]),
        ("What drives training", "importance", [importance(audits), forgetting(audits)]),
        ("Curvature", "curvature", [eigenvalues(audits), density(audits)]),
        ("Hardest and easiest", "examples", [*map(gallery, audits), *map(hardest_table, audits)]),
        ("What was audited", "settings", [*map(facts, audits)]),
        ("How to read this", "reading", [Prose(HOW_TO_READ)]),
    ]
    sections = [Section(name, anchor, content) for name, anchor, each in contents if (content := present(each))]
    seconds = sum(each.seconds for each in audits)
    write_page(path, Page(title, first.data.about, sections, footer(seconds), contents=True))


def short(audits: Sequence[Audit]) -> list[Block | None]:
    """What the numbers say: of one model, or how two compare and then of each under its name."""
    if len(audits) == 1:
        return [Prose(audits[0].verdict())]
    blocks: list[Block | None] = [Prose(audits[0].compared(audits[1]))]
    for each in audits:
        first, *rest = each.verdict()
        blocks.append(Verdicts(first, (), rest, each.name))
    return blocks


def _columns(audits: Sequence[Audit], *names: str) -> list[str]:
    """Columns for each model; with two models, under their names."""
    return [f"{each.name}: {name}" if len(audits) > 1 else name for each in audits for name in names]


def groups(audits: Sequence[Audit]) -> Table:
    """A row per group: how many examples, how often right, the loss."""
    by_name = [{share.name: share for share in each.groups} for each in audits]
    names = list(dict.fromkeys(name for shares in by_name for name in shares))
    grouping = audits[0].by
    rows = [Row("all", _group_cells([each.overall for each in audits], audits))]
    rows += [Row(name, _group_cells([shares.get(name) for shares in by_name], audits)) for name in names]
    caption = f"Accuracy on the {audits[0].split.name} split, with 95% intervals. A column's name sorts by it."
    if grouping == "cluster":
        caption += (
            " Clusters are of the model's own features, from which it decides. They are expected to differ; they say "
            "where to look."
        )
    columns = [grouping, "examples", *_columns(audits, "accuracy, %", "loss")]
    return Table(columns, rows, caption, f"Accuracy by {grouping}", sortable=True)


def _group_cells(shares: Sequence[Share | None], audits: Sequence[Audit]) -> list[Cell]:
    """How many examples, then for each model how often it is right and its loss; clusters of two models differ in
    size. Clusters are not marked: they are expected to differ."""
    sizes = list(dict.fromkeys(share.n for share in shares if share is not None))
    cells = [Cell(" / ".join(f"{size:,}" for size in sizes), value=sizes[0])]
    for share, audit in zip(shares, audits, strict=True):
        if share is None:
            cells += [Cell("–"), Cell("–")]
            continue
        failed = audit.by != "cluster" and audit.is_below(share, len(audit.groups))
        cells.append(_percent(share.accuracy, *share.interval, "lowered" if failed else ""))
        cells.append(Cell(f"{share.loss:.3f}", value=share.loss))
    return cells


def _percent(share: float, low: float, high: float, outcome: str = "") -> Cell:
    return Cell(f"{100 * share:.1f}", f"{100 * low:.1f} to {100 * high:.1f}", outcome, value=share)


def probes(audits: Sequence[Audit]) -> Table | None:
    """A row per attribute: the error of reading it off the features."""
    names = list(dict.fromkeys(name for each in audits for name in each.probes))
    if not names:
        return None
    rows = []
    for name in names:
        results = [each.probes.get(name) for each in audits]
        one = next(probe for probe in results if probe is not None)
        cells = [Cell(", ".join(one.balanced_over)), Cell(f"{100 * one.chance:.1f}", value=one.chance)]
        cells += [Cell("–") if each is None else _percent(each.error, each.low, each.high) for each in results]
        rows.append(Row(name, cells))
    caption = (
        "Error of a linear probe on held-out examples, with 95% intervals. Each configuration of the attribute and of "
        "what it is balanced over is equally frequent. A set is balanced over the label and all other attributes or, "
        "where some configuration of these has too few examples, over the label or the groups alone."
    )
    columns = ["attribute", "balanced over", "guessing, %", *_columns(audits, "error, %")]
    return Table(columns, rows, caption, "Probing errors", sortable=True)


def importance(audits: Sequence[Audit]) -> Panels:
    """Lorenz curves of the importance weights."""
    panels = []
    for k, audit in enumerate(audits, 1):
        weights = {AT_WEIGHTS: audit.importance} | ({AT_PHANTOM: audit.phantom} if audit.rho else {})
        ginis = {name: f"{gini_if_any(each):.2f}".replace("nan", "none") for (name, _), each in weights.items()}
        lines = [Curve(f"{name}, Gini {ginis[name]}", style, _lorenz(each)) for (name, style), each in weights.items()]
        lines.append(Curve(*EQUAL, [([0.0, 1.0], [0.0, 1.0])]))
        label, x_name = "Lorenz curves of importance weights", "share of examples, the lightest first"
        svg = figures.curves(lines, prefix=f"lorenz{k}", label=label, x_name=x_name, shares=True)
        panels.append(Panel(audit.name, svg, f"Gini {' and '.join(ginis.values())}"))
    sam = any(each.rho for each in audits)
    caption = (
        f"Share of the weight that the lightest examples have, over {_sampled(audits[0])} training examples. The Gini "
        "coefficient is twice the area between a curve and the diagonal: 0 where all examples weigh the same, near 1 "
        "where few have all the weight."
    )
    if sam:
        caption += " The phantom weights are those of the network after SAM's step uphill, where it takes its gradient."
    legend = [AT_WEIGHTS, AT_PHANTOM, EQUAL] if sam else [AT_WEIGHTS, EQUAL]
    return Panels("Importance of the training examples", panels, caption, legend)


def _sampled(audit: Audit) -> str:
    return f"{audit.sampled:,}"


def _lorenz(weights: Tensor) -> list[tuple[list[float], list[float]]]:
    if not weights.any():
        return []
    examples, weight = (side.numpy() for side in lorenz(weights))
    xs = np.linspace(0, 1, POINTS + 1)
    return [(xs.tolist(), np.interp(xs, examples, weight).tolist())]


def forgetting(audits: Sequence[Audit]) -> Panels | None:
    """How often training examples were forgotten."""
    panels = []
    for k, audit in enumerate(audits):
        if (scores := audit.forgetting) is None:
            continue
        finite = scores[torch.isfinite(scores)]
        most = int(finite.max()) if len(finite) else 0
        counts = {str(n): int((scores == n).sum()) for n in range(min(most, MOST_FORGOTTEN) + 1)}
        if most > MOST_FORGOTTEN:
            counts[f"{MOST_FORGOTTEN + 1} or more"] = int((finite > MOST_FORGOTTEN).sum())
        counts["never right"] = int(torch.isinf(scores).sum())
        total = max(1, int((~torch.isnan(scores)).sum()))
        bars = [figures.Bar(f"{name}: {count:,}", STYLES[k], count / total) for name, count in counts.items()]
        panels.append(Panel(audit.name, figures.bars(bars, prefix=f"forgetting{k}", label="Times forgotten")))
    caption = "Share of the training examples by how often the network was right on them and then wrong."
    return Panels("Times forgotten", panels, caption) if panels else None


def eigenvalues(audits: Sequence[Audit]) -> Table | None:
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
            value, residual = float(each.eigenvalues[k]), float(each.residuals[k])
            note = "" if bool(each.converged[k]) else "not converged"
            cells += [Cell(f"{value:.4g}", note, value=value), Cell(f"{residual:.1e}", value=residual)]
        rows.append(Row(f"{k + 1}", cells))
    caption = (
        f"The largest of the Hessian of the mean training loss, over {_sampled(audits[0])} examples. "
        "An eigenvalue that occurs several times is listed once."
    )
    columns = ["eigenvalue", *_columns(audits, "value", "residual")]
    return Table(columns, rows, caption, "Largest eigenvalues") if rows else None


def density(audits: Sequence[Audit]) -> Panels | None:
    """The density of the Hessian's eigenvalues."""
    panels = []
    for k, each in enumerate(audits):
        if each.spectrum is None or each.spectrum.density is None:
            continue
        grid, values = each.spectrum.density.curve()
        points = (grid.tolist(), values.clamp(min=1e-6).tolist())
        line, label = Curve("density", STYLES[k], [points]), "Density of the Hessian's eigenvalues"
        svg = figures.curves([line], prefix=f"density{k}", label=label, x_name="eigenvalue", log_y=True)
        panels.append(Panel(each.name, svg))
    return Panels("All eigenvalues", panels, DENSITY) if panels else None


def gallery(audit: Audit) -> Gallery | None:
    """The hardest and the easiest images, each beside where the model looks, or texts."""
    texts = audit.split.texts is not None
    if not texts and not is_image(audit.split.example_shape):
        return None
    sets = []
    for kind, indices, start in (("Hardest", audit.hardest, 0), ("Easiest", audit.easiest, SHOWN)):
        pictures = []
        for k, i in enumerate(indices.tolist()):
            pictures.append(_picture(audit, i))
            if audit.heat is not None and not texts:
                heated = _heated(_image(audit, i), audit.heat[min(start, len(indices)) + k])
                pictures.append(replace(pictures[-1], caption="where it looks", source=data_uri(thumbnail(heated))))
        sets.append((kind, pictures))
    caption = "Label, prediction and loss of each."
    if audit.heat is not None and not texts:
        caption += (
            " Beside it is Grad-CAM of the predicted class: red where the image speaks for that class, blue where it "
            "does not."
        )
    return Gallery(
        f"{audit.name}: hardest and easiest {audit.split.name} {'texts' if texts else 'images'}", sets, caption
    )


def _picture(audit: Audit, i: int) -> Picture:
    label, predicted = _class(audit, int(audit.labels[i])), _class(audit, int(audit.predicted[i]))
    classes = label if label == predicted else f"{label}, predicted {predicted}"
    caption, description = f"{classes}, loss {float(audit.losses[i]):.2g}", f"{audit.split.name} example {i}, {classes}"
    if audit.split.texts is not None:
        return Picture(caption, description, text=snippet(audit.split.texts[i]))
    return Picture(caption, description, data_uri(thumbnail(_image(audit, i))))


def _class(audit: Audit, k: int) -> str:
    return str(audit.data.class_names[k]) if audit.data.class_names else f"class {k}"


def _image(audit: Audit, i: int) -> Tensor:
    inputs = audit.split.inputs
    image = inputs[i].cpu() if isinstance(inputs, Tensor) else torch.as_tensor(inputs[i][0])
    return image.float() / 255 if image.dtype == torch.uint8 else image


def _heated(image: Tensor, heat: Tensor) -> Tensor:
    """The image in gray under its heat map: red where the model looks."""
    low, high = float(image.min()), float(image.max())
    gray = ((image.mean(0) - low) / (high - low if high > low else 1.0)).clamp(0, 1)
    red, blue = 0.45 * gray + 0.55 * heat, 0.45 * gray + 0.25 * (1 - heat)
    return torch.stack([red, 0.45 * gray, blue]).clamp(0, 1)


def hardest_table(audit: Audit) -> Table:
    """The hardest examples as numbers; images that are read one by one with their files."""
    files, rows = getattr(audit.split.inputs, "files", None), []
    for i in audit.hardest.tolist():
        classes = [Cell(_class(audit, int(each[i]))) for each in (audit.labels, audit.predicted)]
        loss = float(audit.losses[i])
        rows.append(
            Row(f"{i}", [*classes, Cell(f"{loss:.3f}", value=loss)], note="" if files is None else str(files[i]))
        )
    caption = f"The {len(rows)} {audit.split.name} examples with the largest loss, by their place in the split."
    return Table(["example", "label", "prediction", "loss"], rows, caption, f"{audit.name}: hardest", sortable=True)


def facts(audit: Audit) -> Facts:
    """Sizes, and what could not be measured."""
    missing = [Fact(f"no {what}", reason) for what, reason in audit.missing.items()]
    first = [Fact("split judged on", audit.split.name), Fact("SAM's rho", f"{audit.rho:g}")]
    sampled = Fact("training examples used", f"{audit.sampled:,}")
    return Facts([*first, *data_facts(DataSummary.of(audit.data)), sampled, *missing], audit.name)
