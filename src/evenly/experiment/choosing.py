"""What `evenly improve` chooses, on validation alone, and what the test set then says of it. Nothing here trains.

A method is chosen where it is clearly better than ERM on validation by the goal's metric: the interval over validation
examples excludes 0, and so does the one over seeds, with Holm's correction for the methods that ran on all seeds. Of
several such methods, the one with the highest mean is. With fewer than three seeds there is no interval over seeds, and
the first suffices. Where groups are inferred, nobody asked for them, so a method that clearly lowers validation
accuracy is not chosen for raising them.

What is called a gain in the end is what the test set shows as well, for the one method that was chosen. It has the same
networks: it guards against luck with examples, the correction against luck with seeds. The best of many on the first
seed are a little lucky there; `tests/experiment/test_choosing.py` simulates how often equal methods come to a clear
gain all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from evenly.runs.arms import Arm
from evenly.runs.differences import FEWEST, Difference, holm
from evenly.runs.improvement import Grouping, Verdict
from evenly.runs.run import Run
from evenly.runs.summary import Row, Summary, summarise

Runs = Mapping[int, Run]
"""The runs of an arm, by seed."""
SMALL = 30
"""Examples, of those that the goal is measured by, below which hardly any difference can be clear."""
NAMES = {"accuracy": "accuracy", "worst_group": "worst-group accuracy", "worst_class": "worst-class accuracy"}
LOWERED = ("lowered", "lowered-for-these")


@frozen
class Smallest:
    """How many validation examples the goal is measured by at least: those of the smallest group or class, or all."""

    examples: int
    what: str


def compared(arm: Arm, runs: Runs, other: Arm, others: Runs) -> Summary:
    """An arm over its seeds, with its differences from another on the seeds that both have."""
    rows = [Row(arm, seed, run.results, control=other if seed in others else None) for seed, run in runs.items()]
    beside = [Row(other, seed, others[seed].results) for seed in runs if seed in others and other != arm]
    of_runs = {(arm, seed): run for seed, run in runs.items()} | {(other, seed): run for seed, run in others.items()}
    summaries = summarise(rows if other == arm else [*rows, *beside], of_runs)
    summary = next(each for each in summaries if each.arm == arm)
    if other == arm:  # its difference from itself says nothing
        metrics = {name: evolve(metric, difference=None) for name, metric in summary.metrics.items()}
        return evolve(summary, control=None, control_cost_multiple=None, metrics=metrics)
    return summary


def ranked(arms: Sequence[Arm], runs: Mapping[Arm, Runs], baseline: Arm, metric: str, seed: int) -> list[Arm]:
    """Those better than ERM on one seed's validation, the best first; ties go to accuracy, then to the list's order."""

    def value(arm: Arm) -> tuple[float, float]:
        measured = runs[arm][seed].results.splits["validation"]
        return measured.metric(metric) or 0.0, measured.accuracy

    better = [arm for arm in arms if seed in runs.get(arm, {}) and value(arm)[0] > value(baseline)[0]]
    return sorted(better, key=value, reverse=True)


def corrected(summaries: Sequence[Summary], metric: str) -> list[Summary]:
    """Methods on all seeds, with Holm's correction of their differences from ERM for as many as there are."""
    differences = [each.difference(metric) for each in summaries]
    adjusted = holm([1.0 if each is None or each.p is None else each.p for each in differences])
    return [
        summary if difference is None or difference.p is None else _with(summary, metric, difference, p, len(summaries))
        for summary, difference, p in zip(summaries, differences, adjusted, strict=True)
    ]


def _with(summary: Summary, metric: str, difference: Difference, p: float, family: int) -> Summary:
    corrected = evolve(difference, adjusted_p=p, family=family)
    return evolve(summary, metrics={**summary.metrics, metric: evolve(summary.metrics[metric], difference=corrected)})


def is_clear(difference: Difference | None, seeds: int) -> bool:
    """Whether a gain is clear enough to choose by it."""
    if difference is None:
        return False
    return difference.outcome == "raised" or (seeds < FEWEST and difference.outcome == "raised-for-these")


def harms_accuracy(summary: Summary, grouping: Grouping) -> bool:
    """Whether groups that nobody asked for are raised at the expense of clearly lower accuracy."""
    difference = summary.difference("accuracy")
    return grouping == "inferred" and difference is not None and difference.outcome in LOWERED


def best_of(summaries: Sequence[Summary], metric: str, grouping: Grouping, seeds: int) -> Summary | None:
    """The one to choose: of those clearly better than ERM, the highest mean; None where there is none.

    Args:
        summaries: on validation, over all seeds, with differences from ERM.
    """
    clear = [
        each
        for each in summaries
        if each.seeds == seeds and is_clear(each.difference(metric), seeds) and not harms_accuracy(each, grouping)
    ]
    return max(clear, key=lambda each: each.mean(metric) or 0.0) if clear else None


def seed_to_hand_back(runs: Runs, metric: str, few: Smallest) -> int:
    """The seed whose run is best on validation, by accuracy where the metric has too few examples; ties go to the lower
    loss, then to the first."""

    def value(seed: int) -> tuple[float, float, float]:
        measured = runs[seed].results.splits["validation"]
        first = measured.accuracy if few.examples < SMALL else measured.metric(metric) or 0.0
        return first, measured.accuracy, -(measured.loss or 0.0)

    return max(sorted(runs), key=value)


def verdict_without(tried: int, examples: int) -> Verdict:
    """What came of it where ERM is handed back.

    Args:
        tried: how many methods ran.
        examples: validation examples that the goal is measured by: of the smallest group or class, or all.
    """
    return "nothing-tried" if not tried else "too-few" if examples < SMALL else "no-clear-gain"


def verdict_on_test(difference: Difference | None) -> Verdict:
    """What came of it where a method was chosen, by its difference from ERM on the test set."""
    confirmed: dict[str | None, Verdict] = {"raised": "raised", "raised-for-these": "raised-for-these"}
    return confirmed.get(None if difference is None else difference.outcome, "not-confirmed")


def smallest(summary: Summary, metric: str, names: Sequence[str], class_counts: Sequence[int]) -> Smallest:
    """What the goal's metric of ERM is measured on."""
    if metric == "worst_group" and summary.group_counts:
        present = [(n, g) for g, n in enumerate(summary.group_counts) if n]
        n, group = min(present)
        return Smallest(n, f"in the group {names[group]}" if group < len(names) else "in the smallest group")
    if metric == "worst_class":
        return Smallest(min(n for n in class_counts if n), "in the smallest class")
    return Smallest(sum(class_counts), "")


def reason_of(best: Summary | None, metric: str, few: Smallest, tried: int, seeds: int) -> str:
    """The choice in a sentence.

    Args:
        best: on validation, with its difference from ERM; None where ERM is handed back.
    """
    if best is None:
        if not tried:
            return "Nothing was tried, so plain training (ERM) is handed back."
        if few.examples < SMALL:
            return (
                f"Nothing is clearly better than plain training (ERM), which is handed back. With {few.examples} "
                f"validation examples{f' {few.what}' * bool(few.what)}, there are too few examples to tell."
            )
        return "Nothing is clearly better than plain training (ERM) on validation, so ERM is handed back."
    gain = best.difference(metric)
    assert gain is not None
    seeds_too = f", over seeds {gain.over_seeds}" if seeds >= FEWEST else ""
    only = "" if seeds >= FEWEST else " That is clear for these models only: there are fewer than three seeds."
    return (
        f"{best.arm.method} with {best.arm.optimizer} is chosen. On validation, its {NAMES[metric]} is "
        f"{gain.points.lstrip('+')} points higher than with plain training (ERM): 95% interval over examples "
        f"{gain.over_examples}{seeds_too}.{only}"
    )
