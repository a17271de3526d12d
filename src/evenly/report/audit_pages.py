"""The page of an audit: what one model has learned, or two side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from evenly.diagnose.audit import SHOWN, Audit, Share, check_pair
from evenly.diagnose.importance import gini_if_any, lorenz
from evenly.report import figures
from evenly.report.blocks import (
    Block,
    Cell,
    Gallery,
    Page,
    Panel,
    Panels,
    Prose,
    Row,
    Section,
    Settings,
    Table,
    Verdicts,
)
from evenly.report.examples import Example, snippet
from evenly.report.figures import Curve, Look, is_image, thumbnail
from evenly.report.pages import footer, write_page
from evenly.report.settings import size_pairs

LOOKS = (Look(1), Look(2))
POINTS = 200
"""Points of a drawn curve, whatever the number of examples."""

HOW_TO_READ = (
    "Intervals of shares are Wilson's, at 95%. A group is said to be failed, and marked, only where its exact binomial "
    "bound, widened for the number of groups, lies below the average: the lowest of many is low by chance as well. Of "
    "label by attribute, one is said to lack something only where it is also below the rest of its own class, by "
    "Fisher's exact test at a level divided by their number; a class that is weak throughout is called weak, as the "
    "numbers show no cause.",
    "Clusters, which stand in where the data has neither groups nor attributes, are two parts of each class in the "
    "model's own features. Its decisions are made from these features, so that one part is right less often is to be "
    "expected, of any model and on noise as well: it says where to look, not what is wrong.",
    "A probing error is that of a linear classifier on the model's features, fitted and measured on sets in which the "
    "attribute does not go with what the sets are balanced over; what goes with it otherwise may give it away. A low "
    "error says that it can be read off the features, not that the model uses it.",
    "An importance weight is how much an example's loss moves its own logit: the factor of that logit's gradient in "
    "the gradient of the loss. The closer the Lorenz curve is to the diagonal, the more alike the factors.",
    "The largest eigenvalues of the Hessian are how sharply the training loss bends upwards around these weights. "
    "Where it bends downwards, the density has negative ones. A residual bounds the distance to an eigenvalue of the "
    "Hessian, which need not be the one of that rank.",
)


def audit_page(audits: Sequence[Audit], path: Path) -> None:
    """Write the page of one audit, or of two of the same data."""
    first = audits[0]
    for other in audits[1:]:
        check_pair(first, other)
    title = " and ".join(dict.fromkeys(each.name for each in audits)) + f" on {first.data.name}"
    blocks: list[tuple[str, str, list[Block | None]]] = [
        ("In short", "short", short(audits)),
        ("Groups", "groups", [groups(audits)]),
        ("What its features tell", "probes", [probes(audits)]),
        ("What drives training", "importance", [importance(audits), forgetting(audits)]),
        ("Curvature", "curvature", [eigenvalues(audits), density(audits)]),
        ("Hardest and easiest", "examples", [*(gallery(each) for each in audits), *(table(each) for each in audits)]),
        ("What was looked at", "settings", [*(settings(each) for each in audits)]),
        ("How to read this", "reading", [Prose(HOW_TO_READ)]),
    ]
    sections = [
        Section(name, anchor, present)
        for name, anchor, each in blocks
        if (present := [block for block in each if block is not None])
    ]
    seconds = sum(each.seconds for each in audits)
    write_page(path, Page(title, first.data.about, sections, footer(seconds), contents=True))


def short(audits: Sequence[Audit]) -> list[Block | None]:
    """What the numbers say: of one model, or how two compare and then of each under its name."""
    if len(audits) == 1:
        return [Prose(audits[0].verdict())]
    said = [each.verdict() for each in audits]
    return [
        Prose(audits[0].compared(audits[1])),
        *(Verdicts(first, (), rest, each.name) for each, (first, *rest) in zip(audits, said, strict=True)),
    ]


def groups(audits: Sequence[Audit]) -> Table:
    """A row per group: how many, how often right, the loss."""
    names = list(dict.fromkeys(share.name for each in audits for share in each.groups))
    of = [{share.name: share for share in each.groups} for each in audits]
    columns = [audits[0].by, "examples"]
    for each in audits:
        called = f"{each.name}: " if len(audits) > 1 else ""
        columns += [f"{called}accuracy, %", f"{called}loss"]
    judged = audits[0].by != "cluster"  # that clusters differ is to be expected
    rows = [Row("all", _cells([each.overall for each in audits], audits, judged), muted=False)]
    rows += [Row(name, _cells([shares.get(name) for shares in of], audits, judged)) for name in names]
    caption = f"Share right on the {audits[0].split.name} split, with 95% intervals. A column's name sorts by it."
    if not judged:
        caption += (
            " Clusters are of the model's own features, from which it decides: that they differ is to be expected, and "
            "tells where to look."
        )
    return Table(columns, rows, caption, "Accuracy by " + audits[0].by, sortable=True)


def _cells(shares: Sequence[Share | None], of: Sequence[Audit], judged: bool) -> list[Cell]:
    """How many, then of each model how often right and its loss; clusters of two models differ in size."""
    sizes = list(dict.fromkeys(share.n for share in shares if share is not None))
    cells = [Cell(" / ".join(f"{size:,}" for size in sizes), value=sizes[0])]
    for share, found in zip(shares, of, strict=True):
        if share is None:
            cells += [Cell("–"), Cell("–")]
            continue
        low, high = share.interval
        outcome = "lowered" if judged and found.below(share, len(found.groups)) else ""
        cells += [
            Cell(f"{100 * share.accuracy:.1f}", f"{100 * low:.1f} to {100 * high:.1f}", outcome, value=share.accuracy),
            Cell(f"{share.loss:.3f}", value=share.loss),
        ]
    return cells


def probes(audits: Sequence[Audit]) -> Table | None:
    """A row per attribute: the error of reading it off the features."""
    names = list(dict.fromkeys(name for each in audits for name in each.probes))
    if not names:
        return None
    columns = ["attribute", "balanced over", "guessing, %"]
    columns += [f"{each.name}: error, %" if len(audits) > 1 else "error, %" for each in audits]
    rows = []
    for name in names:
        found = [each.probes.get(name) for each in audits]
        one = next(p for p in found if p is not None)
        cells = [Cell(", ".join(one.balanced_over)), Cell(f"{100 * one.chance:.1f}", value=one.chance)]
        for p in found:
            cells.append(
                Cell("–")
                if p is None
                else Cell(f"{100 * p.error:.1f}", f"{100 * p.low:.1f} to {100 * p.high:.1f}", value=p.error)
            )
        rows.append(Row(name, cells))
    caption = (
        "Error of a linear probe on held-out examples, with 95% intervals. Each configuration of the attribute and of "
        "what it is balanced over is equally frequent: the label and all other attributes, or, where some "
        "configuration of these has too few examples, the label or the groups alone."
    )
    return Table(columns, rows, caption, "Probing errors", sortable=True)


def importance(audits: Sequence[Audit]) -> Panels:
    """Lorenz curves of the importance weights."""
    panels = []
    for number, audit in enumerate(audits, 1):
        here, there = (f"{gini_if_any(each):.2f}".replace("nan", "none") for each in (audit.importance, audit.phantom))
        lines = [
            Curve(f"at the weights, Gini {here}", LOOKS[0], _lorenz(audit.importance)),
            *(
                [Curve(f"at SAM's phantom weights, Gini {there}", LOOKS[1], _lorenz(audit.phantom))]
                if audit.rho
                else ()
            ),
            Curve("all alike", Look(0, 1), [([0.0, 1.0], [0.0, 1.0])]),
        ]
        svg = figures.curves(
            lines, prefix=f"lorenz{number}", label="Lorenz curves of importance weights",
            x_name="share of examples, the lightest first", shares=True,
        )  # fmt: skip
        panels.append(Panel(audit.name, svg, f"Gini {here} and {there}" if audit.rho else f"Gini {here}"))
    sam = any(each.rho for each in audits)
    legend = [("at the weights", LOOKS[0]), ("at SAM's phantom weights", LOOKS[1]), ("all alike", Look(0, 1))]
    legend = legend if sam else [legend[0], legend[2]]
    caption = (
        f"Share of the weight that the lightest examples have, over {_looked(audits[0])} training examples. The Gini "
        "coefficient is twice the area between a curve and the diagonal: 0 where all examples weigh the same, near 1 "
        "where few have all the weight."
    )
    if sam:
        caption += " The phantom weights are those of the network after SAM's step uphill, where it takes its gradient."
    return Panels("Importance of the training examples", panels, caption, legend)


def _looked(each: Audit) -> str:
    return f"{each.looked_at['training examples']:,}"


def _lorenz(weights: Tensor) -> list[tuple[list[float], list[float]]]:
    if not weights.any():
        return []
    examples, weight = (side.numpy() for side in lorenz(weights))
    at = np.linspace(0, 1, POINTS + 1)
    return [(at.tolist(), np.interp(at, examples, weight).tolist())]


def forgetting(audits: Sequence[Audit]) -> Panels | None:
    """How often training examples were forgotten."""
    panels = []
    for number, each in enumerate(audits, 1):
        if each.forgetting is None:
            continue
        scores = each.forgetting
        finite = scores[torch.isfinite(scores)]
        most = int(finite.max()) if len(finite) else 0
        named = [(str(k), int((scores == k).sum())) for k in range(min(most, 9) + 1)]
        if most > 9:
            named.append(("10 or more", int((finite >= 10).sum())))
        named.append(("never right", int(torch.isinf(scores).sum())))
        looked = max(1, int((~torch.isnan(scores)).sum()))
        rows = [figures.Bar(f"{name}: {count:,}", LOOKS[number - 1], count / looked) for name, count in named]
        svg = figures.bars(rows, prefix=f"forgetting{number}", label="Times forgotten")
        panels.append(Panel(each.name, svg))
    if not panels:
        return None
    return Panels(
        "Times forgotten", panels, "Share of the training examples by how often they were right and then not."
    )


def eigenvalues(audits: Sequence[Audit]) -> Table | None:
    """A row per eigenvalue."""
    found = [each for each in audits if each.spectrum is not None]
    if not found:
        return None
    columns = ["eigenvalue"]
    for each in found:
        called = f"{each.name}: " if len(audits) > 1 else ""
        columns += [f"{called}value", f"{called}residual"]
    rows = []
    for k in range(max(len(each.spectrum.eigenvalues) for each in found if each.spectrum)):
        cells = []
        for each in found:
            assert each.spectrum is not None
            if k >= len(each.spectrum.eigenvalues):
                cells += [Cell("–"), Cell("–")]
                continue
            value, residual = float(each.spectrum.eigenvalues[k]), float(each.spectrum.residuals[k])
            unsure = "" if bool(each.spectrum.converged[k]) else "not converged"
            cells += [Cell(f"{value:.4g}", unsure, value=value), Cell(f"{residual:.1e}", value=residual)]
        rows.append(Row(f"{k + 1}", cells))
    caption = (
        f"The largest of the Hessian of the mean training loss, over {_looked(audits[0])} examples. An eigenvalue that "
        "occurs several times is listed once."
    )
    return Table(columns, rows, caption, "Largest eigenvalues")


DENSITY = (
    "The density of all eigenvalues, estimated by Lanczos quadrature: the share of directions in the space of weights "
    "along which the training loss bends so much. It integrates to 1 and is drawn on a logarithmic scale: nearly all "
    "directions are flat."
)


def density(audits: Sequence[Audit]) -> Panels | None:
    """The density of the Hessian's eigenvalues."""
    panels = []
    for number, each in enumerate(audits, 1):
        if each.spectrum is None or each.spectrum.density is None:
            continue
        x, y = each.spectrum.density.grid.tolist(), each.spectrum.density.values.clamp(min=1e-6).tolist()
        svg = figures.curves(
            [Curve("density", LOOKS[number - 1], [(x, y)])], prefix=f"density{number}", log_y=True,
            label="Density of the Hessian's eigenvalues", x_name="eigenvalue",
        )  # fmt: skip
        panels.append(Panel(each.name, svg))
    if not panels:
        return None
    return Panels("All eigenvalues", panels, DENSITY)


def gallery(each: Audit) -> Gallery | None:
    """The hardest and the easiest images, each beside where the model looks, or texts."""
    if each.split.texts is not None:
        kinds = (("Hardest", each.hardest), ("Easiest", each.easiest))
        texts = [(kind, [_example(each, i, "", "") for i in indices.tolist()]) for kind, indices in kinds]
        title = f"{each.name}: hardest and easiest {each.split.name} texts"
        return Gallery(title, texts, "Label, prediction and loss of each.")
    if not is_image(each.split.example_shape):
        return None
    sets = []
    for kind, indices, start in (("Hardest", each.hardest, 0), ("Easiest", each.easiest, SHOWN)):
        examples = []
        for k, i in enumerate(indices.tolist()):
            image = _image(each, i)
            examples.append(_example(each, i, thumbnail(image), ""))
            if each.heat is not None:
                heated = _heated(image, each.heat[min(start, len(indices)) + k])
                examples.append(_example(each, i, thumbnail(heated), "where it looks"))
        sets.append((kind, examples))
    caption = "Label, prediction and loss of each"
    caption += (
        "; beside it Grad-CAM of the predicted class: red where the image speaks for that class, blue where it does "
        "not."
        if each.heat is not None
        else "."
    )
    return Gallery(f"{each.name}: hardest and easiest {each.split.name} images", sets, caption)


def _example(each: Audit, i: int, source: str, what: str) -> Example:
    label, predicted = _class(each, int(each.labels[i])), _class(each, int(each.predicted[i]))
    told = label if label == predicted else f"{label}, taken for {predicted}"
    caption = what or f"{told}, loss {float(each.losses[i]):.2g}"
    text = "" if each.split.texts is None else snippet(each.split.texts[i])
    return Example(source, caption, f"{each.split.name} example {i}, {told}{', ' + what if what else ''}", False, text)


def _class(each: Audit, k: int) -> str:
    return str(each.data.class_names[k]) if each.data.class_names else f"class {k}"


def _image(each: Audit, i: int) -> Tensor:
    inputs = each.split.inputs
    image = inputs[i].cpu() if isinstance(inputs, Tensor) else torch.as_tensor(inputs[i][0])
    return image.float() / 255 if image.dtype == torch.uint8 else image


def _heated(image: Tensor, heat: Tensor) -> Tensor:
    """The image in gray under its heat map: red where the model looks."""
    low, high = float(image.min()), float(image.max())
    gray = ((image.mean(0) - low) / (high - low if high > low else 1.0)).clamp(0, 1)
    red, blue = 0.45 * gray + 0.55 * heat, 0.45 * gray + 0.25 * (1 - heat)
    return torch.stack([red, 0.45 * gray, blue]).clamp(0, 1)


def table(each: Audit) -> Table:
    """The hardest examples as numbers."""
    rows = [
        Row(
            f"{i}",
            [
                Cell(_class(each, int(each.labels[i]))),
                Cell(_class(each, int(each.predicted[i]))),
                Cell(f"{float(each.losses[i]):.3f}", value=float(each.losses[i])),
            ],
        )
        for i in each.hardest.tolist()
    ]
    if (files := getattr(each.split.inputs, "files", None)) is not None:
        rows = [replace(row, note=str(files[int(row.name)])) for row in rows]
    caption = f"The {len(rows)} {each.split.name} examples with the largest loss, by their place in the split."
    return Table(["example", "label", "prediction", "loss"], rows, caption, f"{each.name}: hardest", sortable=True)


def settings(each: Audit) -> Settings:
    """Sizes, and what could not be looked at."""
    pairs = [("split judged on", each.split.name), ("SAM's rho", f"{each.rho:g}"), *size_pairs(each.data)]
    pairs += [(f"{what} looked at", f"{count:,}") for what, count in each.looked_at.items()]
    pairs += [(f"no {what}", why) for what, why in each.missing.items()]
    return Settings(pairs, each.name)
