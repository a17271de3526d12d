"""The page of one comparison, or of several."""

from __future__ import annotations

from collections.abc import Sequence

from evenly.report.blocks import Block, Gallery, Page, Prose, Section, Verdicts, present
from evenly.report.comparison_words import closing, opening, verdicts
from evenly.report.facts import comparison_facts
from evenly.report.formats import counted
from evenly.report.groups import accuracy_bars, accuracy_table, cost_to_reach_table, origins, over_epochs
from evenly.report.rendering import footer
from evenly.report.results_table import results_table
from evenly.report.run_pages import gallery
from evenly.report.sweeps import arm_styles, runs_by_arm, sweep_blocks
from evenly.report.training_figures import alignments, training
from evenly.runs.comparison import Comparison

HOW_TO_READ = (
    "Cost is counted in example-gradients: one forward and backward pass of one example. A forward pass alone counts a "
    "third. Costs are given as multiples of what plain training (ERM) costs with the settings common to all methods, "
    "for all the epochs set, even if patience stopped ERM earlier. Evaluation on validation is counted separately.",
    "A control trains for the same cost without the method's idea: random upsampling for USEFUL, longer plain training "
    "for SAM, plain training stopped early for a method that is cheaper. It separates the method's idea from more "
    "steps, at this cost; at a higher cost the gap may close. Settings of a method's own are listed above; a control "
    "has the common ones.",
    "Differences are paired by seed; the brackets hold the 95% t-interval of their mean. If an interval contains 0, "
    "these seeds do not distinguish a gain from chance. One seed has no interval, and neither have seeds that all "
    "differ by the same. Seeds that split one set of images anew are not fully independent, so intervals may be too "
    "narrow.",
    "The selection rule says which epoch's weights are used. It uses the validation set only, never the test set.",
    "Train-weighted accuracy weights the groups by how often they occur in training: what a user with data like the "
    "training data would see.",
)


def comparison_page(
    comparisons: Sequence[Comparison], title: str = "evenly compare", seconds: float | None = None
) -> Page:
    """What the page of these comparisons holds; `seconds` is how long it all took."""
    several = len(comparisons) > 1
    verdict_blocks = [
        Verdicts(opening(each), verdicts(each), closing(each), each.data if several else "") for each in comparisons
    ]
    sections = [
        Section("In short", "short", verdict_blocks),
        *(section(each, k) for k, each in enumerate(comparisons, 1)),
        Section("How to read this", "reading", [Prose(HOW_TO_READ)]),
    ]
    return Page(title, _lead(comparisons), sections, footer(seconds), contents=several)


def section(comparison: Comparison, k: int) -> Section:
    """Everything about one data set: what was run, the table, the figures, the examples."""
    first, prefix = comparison.rows[0].result, f"d{k}"
    styles, runs = arm_styles(comparison), runs_by_arm(comparison)
    blocks: list[Block | None]
    if comparison.plan.sweep:
        blocks = sweep_blocks(comparison, styles, prefix)
    else:
        blocks = [
            results_table(comparison, styles),
            alignments(runs, styles, f"{prefix}-alignment"),
            training(runs, styles, f"{prefix}-training"),
            accuracy_bars(comparison, styles, f"{prefix}-group"),
            accuracy_table(comparison),
            over_epochs(runs, f"{prefix}-epochs"),
            origins({each.arm.pair: each.used for each in comparison.arms if each.used is not None}, first),
            cost_to_reach_table(comparison),
        ]
    about = Prose([first.data.about]) if first.data.about else None
    blocks = [about, comparison_facts(comparison), *blocks, first_gallery(comparison)]
    return Section(comparison.data, f"data-{k}", present(blocks))


def first_gallery(comparison: Comparison) -> Gallery | None:
    """The examples that the first method with a selection selected, of the first seed."""
    seed = comparison.plan.seeds[0]
    runs = ((each.arm, comparison.runs.get((each.arm, seed))) for each in comparison.arms)
    galleries = (gallery(run, f"{arm.name}, seed {seed},") for arm, run in runs if run is not None)
    return next((each for each in galleries if each is not None), None)


def _lead(comparisons: Sequence[Comparison]) -> str:
    runs = counted(sum(len(each.rows) for each in comparisons), "training run")
    names = " and ".join(dict.fromkeys(each.data for each in comparisons))
    controlled = any(summary.control for each in comparisons for summary in each.summary)
    return f"{runs} on {names}, " + ("each method beside a control of equal cost." if controlled else "no controls.")
