"""The page of one comparison, or of several."""

from __future__ import annotations

from collections.abc import Sequence

from evenly.report.blocks import Block, Gallery, Page, Prose, Section, Verdicts, present
from evenly.report.comparison_words import closing, next_steps, opening, verdicts
from evenly.report.facts import comparison_facts
from evenly.report.formats import counted
from evenly.report.groups import accuracy_bars, accuracy_table, cost_to_reach_table, origins, over_epochs
from evenly.report.rendering import footer
from evenly.report.results_table import results_table
from evenly.report.run_pages import gallery
from evenly.report.search_blocks import search_blocks
from evenly.report.sweeps import arm_styles, runs_by_arm, sweep_blocks
from evenly.report.training_figures import alignments, training
from evenly.runs.comparison import Comparison
from evenly.runs.results import Usage

HOW_TO_READ = (
    "Cost is counted in example-gradients: one forward and backward pass of one example. A forward pass alone counts a "
    "third. Costs are given as multiples of what plain training (ERM) costs with the settings common to all methods, "
    "for all the epochs set, even if patience stopped it earlier. Evaluation on validation is not included.",
    "A control trains for the same cost without the method's idea: random upsampling for USEFUL, longer plain training "
    "for SAM, plain training stopped early for a method that is cheaper. It separates the method's idea from more "
    "steps, at this cost; at a higher cost the gap may close. Settings of a method's own are listed above; a control "
    "has the common ones.",
    "A difference has two 95% intervals. The one over test examples is for these very models: would other examples of "
    "the same kind show the difference too? The one over seeds is for new runs: would they show it too? It needs three "
    "seeds or more. A difference is clear where both exclude 0. It is clear for these models only where just the first "
    "does.",
    "Over test examples, the difference of each example is averaged over seeds. The interval is that of Agresti and "
    "Min. For a worst group, it is of the difference shown: the accuracy in the method's worst group less that in the "
    "control's. Where that is the same group, its examples are paired. Where seeds split one set of examples anew, an "
    "example that several of them test on counts as one. Over seeds, it is the t-interval of the differences, paired "
    "by seed. Such seeds are not fully independent, so this one may be too narrow.",
    "The lowest accuracy of many small groups is biased down, most of all for a model whose groups are equally good. "
    "Against such a control, the difference of a method with one bad group is shown too high. The interval over test "
    "examples accounts for this: it is wider where several groups may be the worst, and the difference shown need not "
    "be in its middle. Larger test groups make it narrower. So does a comparison in one group chosen on validation, "
    "such as the control's worst group there.",
    "The more methods a table has, the more likely one of them looks better by chance. So where there are several, a "
    "difference is clear only if its p-value over seeds is below 0.05 after Holm's correction. The intervals are those "
    "of each method alone. How many more seeds might settle a question is a guess from the seeds there are. The "
    "level of 0.05 holds for a number of seeds fixed beforehand: who adds seeds until a difference is clear finds one "
    "by chance more often.",
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
    folders = [None if each.out is None else each.out.parent if several else each.out for each in comparisons]
    steps = [step for each, folder in zip(comparisons, folders, strict=True) for step in next_steps(each, folder)]
    sections = [
        Section("In short", "short", verdict_blocks),
        Section("What to do next", "next", [Prose(steps)]),
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
            origins(_usages(comparison, first.seed), first, f"seed {first.seed}"),
            cost_to_reach_table(comparison),
        ]
    about = Prose([first.data.about]) if first.data.about else None
    searched = search_blocks(comparison, styles, f"{prefix}-search")
    blocks = [about, comparison_facts(comparison), *blocks, *searched, first_gallery(comparison)]
    return Section(comparison.data, f"data-{k}", present(blocks))


def _usages(comparison: Comparison, seed: int) -> dict[str, Usage]:
    """What each method used in one seed: seeds differ in how many examples their groups have."""
    rows = [row for row in comparison.rows if row.seed == seed and row.arm.control_of is None]
    return {row.arm.pair: row.result.used for row in rows if row.result.used is not None}


def first_gallery(comparison: Comparison) -> Gallery | None:
    """The examples that the first method with a selection selected, of its first seed."""
    runs = {arm: (seed, run) for (arm, seed), run in reversed(comparison.runs.items()) if arm.control_of is None}
    firsts = ((each.arm, *runs[each.arm]) for each in comparison.arms if each.arm in runs)
    galleries = (gallery(run, f"{arm.name}, seed {seed},") for arm, seed, run in firsts)
    return next((each for each in galleries if each is not None), None)


def _lead(comparisons: Sequence[Comparison]) -> str:
    runs = counted(sum(len(each.rows) for each in comparisons), "training run")
    names = " and ".join(dict.fromkeys(each.data for each in comparisons))
    controlled = any(summary.control for each in comparisons for summary in each.summary)
    return f"{runs} on {names}, " + ("each method beside a control of equal cost." if controlled else "no controls.")
