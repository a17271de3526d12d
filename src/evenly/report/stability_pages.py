"""Pages of `evenly stability`: a phase diagram, or the card of a minimum."""

from __future__ import annotations

from evenly.diagnose.stability import CardPage
from evenly.report import figures
from evenly.report.blocks import Block, Fact, Facts, Page, Panel, Panels, Prose, Section
from evenly.report.facts import as_text
from evenly.report.figures import Curve, Style
from evenly.report.phase_figure import AXIS_NAMES, OPTIMIZER_NAMES, phase_figure
from evenly.report.rendering import footer
from evenly.theory.stability import PhaseDiagram

HOW_TO_READ = (
    "A minimum is stable if an optimizer that starts near it returns to it. It is unstable if the noise of the "
    "batches, or the step itself, carries the optimizer further and further away. Near a minimum the dynamics are "
    "linear, and the samples' Hessians decide.",
    "Each sample is in a batch with probability B/n, as in the theorems. Batches of exactly B samples have less noise "
    "where samples are alike, so real training may stay at a minimum that is called unstable here.",
    "The theorems are about the mean square over runs. Single runs are decided by the Lyapunov exponent, which is "
    "smaller. Between the two, most runs stay while fewer and fewer of them carry the mean square away.",
)


def diagram_sentences(diagram: PhaseDiagram) -> list[str]:
    """What the diagram shows, in sentences."""
    decided = int((diagram.theorems != "undecided").sum())
    settings = diagram.settings
    return [
        f"{int(diagram.majority.sum())} of {diagram.majority.size} cells diverged under "
        f"{OPTIMIZER_NAMES[settings['optimizer']]}: more than half of {settings['repeats']} runs grew "
        f"{settings['threshold']:g}-fold in {settings['steps']:,} steps.",
        f"The theorems decide {decided} of the cells and contradict the simulation on "
        f"{diagram.theorem_wrong or 'none'}. The sign of the Lyapunov exponent is right on {diagram.sharp_right:.0%}.",
    ]


def diagram_page(diagram: PhaseDiagram) -> Page:
    """The page of a phase diagram."""
    facts = Facts([Fact(name.replace("_", " "), as_text(value)) for name, value in diagram.settings.items()])
    figure = Panels(
        "Which settings diverge",
        [Panel("", phase_figure(diagram, prefix="phase"))],
        "Cells are shaded by the share of runs that diverged. Lines are the borders that the theory draws.",
    )
    title = f"Stability over {AXIS_NAMES[diagram.x]} and {AXIS_NAMES[diagram.y]}"
    sections = [
        Section("In short", "short", [Prose(diagram_sentences(diagram))]),
        Section("The diagram", "diagram", [figure, facts]),
        Section("How to read this", "reading", [Prose(HOW_TO_READ)]),
    ]
    return Page(title, "", sections, footer(None))


def card_page(card: CardPage) -> Page:
    """The page of a stability card."""
    limits, numbers = ([Fact(*pair) for pair in pairs] for pairs in (card.limits, card.numbers))
    minimum: list[Block] = [Facts(limits, "Where stability ends"), borders(card), Facts(numbers, "Its numbers")]
    sections = [
        Section("In short", "short", [Prose(card.sentences)]),
        Section("The minimum", "minimum", minimum),
        Section("How to read this", "reading", [Prose(HOW_TO_READ)]),
    ]
    return Page(f"Stability of {card.name}", "", sections, footer(None))


def borders(card: CardPage) -> Panels:
    """The largest stable learning rate against the batch size, for SGD and for SAM, and where this training is."""
    names = {"exact": "", "stable": ": stable below", "unstable": ": unstable from"}
    lines = [
        Curve(
            f"{each.optimizer}{names[each.side]}",
            Style(1 if each.optimizer == "SGD" else 2, int(each.side == "unstable")),
            [([size for size, _ in each.points], [lr for _, lr in each.points])],
        )
        for each in card.borders
    ]
    here = Curve("this training", Style(0), [([card.batch_size], [card.lr])])
    label = "Largest stable learning rate against the batch size"
    svg = figures.curves([*lines, here], prefix="borders", label=label, x_name="batch size", log_x=True, log_y=True)
    caption = "Stable below the line, in the mean square; the line is exact."
    if any(each.side != "exact" for each in card.borders):
        caption = "Stable below the solid line, unstable above the dashed one; in between no theorem decides."
    legend = [(line.name, line.style) for line in lines]
    return Panels(
        "Learning rate against batch size",
        [Panel("learning rate", svg)],
        f"{caption} The dot is this training.",
        legend,
    )
