"""Pages of `evenly stability`: a phase diagram, or the card of a minimum."""

from __future__ import annotations

import math
from pathlib import Path

from evenly.diagnose.stability_card import StabilityCard
from evenly.report import figures
from evenly.report.blocks import Page, Panel, Panels, Prose, Section, Settings
from evenly.report.figures import Curve, Look
from evenly.report.pages import footer, write_page
from evenly.report.phase_figure import AXIS_NAMES, OPTIMIZER_NAMES, phase_figure
from evenly.theory.stability import PhaseDiagram

HOW_TO_READ = (
    "A minimum is stable if an optimizer that starts beside it is drawn back, and unstable if the noise of its "
    "batches, or the step itself, throws it out ever further. Near a minimum the dynamics are linear, and the samples' "
    "Hessians decide.",
    "A batch is taken to hold each sample with probability B/n, as in the theorems. Batches of exactly B make less "
    "noise where samples are alike, so that real training may stay where this says that it cannot.",
    "The theorems are about the mean square over runs. Single runs are decided by the Lyapunov exponent, which is "
    "smaller: in between, most runs stay while ever fewer carry the mean square away.",
)


def diagram_sentences(diagram: PhaseDiagram) -> list[str]:
    """What the diagram shows, in words."""
    decided = int((diagram.theorems != "undecided").sum())
    settings = diagram.settings
    return [
        f"{int(diagram.majority.sum())} of {diagram.majority.size} cells diverged under "
        f"{OPTIMIZER_NAMES[settings['optimizer']]}: more than half of {settings['repeats']} runs grew "
        f"{settings['threshold']:g}-fold in {settings['steps']:,} steps.",
        f"The theorems decide {decided} of the cells, {diagram.theorem_wrong or 'none'} of them against the "
        f"simulation; the sign of the Lyapunov exponent is right on {diagram.sharp_right:.0%}.",
    ]


def diagram_page(diagram: PhaseDiagram, path: Path) -> None:
    """Write the page of a phase diagram."""
    shown = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in diagram.settings.items()}
    figure = Panels(
        "Which settings diverge",
        [Panel("", phase_figure(diagram, prefix="phase"))],
        "Cells are shaded by the share of runs that diverged; lines are where the theory draws its borders.",
    )
    title = f"Stability over {AXIS_NAMES[diagram.x]} and {AXIS_NAMES[diagram.y]}"
    sections = [
        Section("In short", "short", [Prose(diagram_sentences(diagram))]),
        Section("The diagram", "diagram", [figure, Settings(list(shown.items()))]),
        Section("How to read this", "reading", [Prose(HOW_TO_READ)]),
    ]
    write_page(path, Page(title, "", sections, footer(None)))


def card_page(card: StabilityCard, path: Path, name: str, notes: list[str]) -> None:
    """Write the page of a stability card."""
    sections = [
        Section("In short", "short", [Prose([*card.sentences(), *notes])]),
        Section(
            "The minimum",
            "minimum",
            [Settings(card.limits(), "Where stability ends"), borders(card), Settings(card.numbers(), "Its numbers")],
        ),
        Section("How to read this", "reading", [Prose(HOW_TO_READ)]),
    ]
    write_page(path, Page(f"Stability of {name}", "", sections, footer(None)))


def borders(card: StabilityCard) -> Panels:
    """The largest stable learning rate against the batch size, for SGD and for SAM, and where this training is."""
    n = card.minimum.n
    sizes = sorted({round(n ** (k / 11)) for k in range(12)} | {card.batch_size})
    lines = []
    for name, colour, ascent in (("SGD", 1, 0.0), (f"SAM, rho {card.rho or 0:g}", 2, card.ascent)):
        if colour == 2 and card.rho is None:
            continue
        found = card.stable_lrs(sizes, ascent)
        ends = [("exact", 0, [each.stable for each in found])]
        if not found[0].exact:
            ends = [
                ("stable below", 0, [each.stable for each in found]),
                ("unstable from", 1, [each.unstable for each in found]),
            ]
        for which, dash, values in ends:
            points = [(B, lr) for B, lr in zip(sizes, values, strict=True) if lr and math.isfinite(lr)]
            if points:
                x, y = zip(*points, strict=True)
                label = name if which == "exact" else f"{name}: {which}"
                lines.append(Curve(label, Look(colour, dash), [(x, y)]))
    here = Curve("this training", Look(0), [([card.batch_size], [card.lr])])
    drawing = figures.curves(
        [*lines, here], prefix="borders", label="Largest stable learning rate against the batch size",
        x_name="batch size", log_x=True, log_y=True,
    )  # fmt: skip
    caption = (
        "Stable below the line, in the mean square, exactly."
        if card.lrs.exact
        else "Stable below the solid line, unstable above the dashed one; in between no theorem speaks."
    )
    caption += " The dot is this training."
    legend = [(line.name, line.look) for line in lines]
    return Panels("Learning rate against batch size", [Panel("learning rate", drawing)], caption, legend)
