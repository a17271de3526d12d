"""A comparison in plain sentences: where ERM stands, a verdict per method, what everything cost.

"Points" are percentage points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import evolve

from evenly.report.formats import counted, listed, percent, times
from evenly.report.names import METRIC_NAMES, arm_label, has_metric, with_abbreviation
from evenly.report.run_words import SAME_COST, evaluation_cost, inferred_groups, last_epoch, ran_shorter
from evenly.report.verdicts import Verdict, full_erm, verdict
from evenly.runs.arms import Arm, point_name
from evenly.runs.comparison import Comparison, Failure
from evenly.runs.cost_to_reach import Level
from evenly.runs.differences import mean
from evenly.runs.results import SHOWN, InferredGroups
from evenly.runs.summary import Row, Summary

MOST_SEEDS = 20
"""Seeds that more are suggested up to."""
MOST_NAMED = 5
"""Failed runs that are named."""


def sentences(comparison: Comparison) -> list[str]:
    """A comparison in a few sentences."""
    judged = [" ".join([each.sentence, *each.notes]) for each in verdicts(comparison)]
    return [opening(comparison), *judged, *closing(comparison)]


def opening(comparison: Comparison) -> str:
    """Where ERM stands on this data."""
    reference = full_erm(comparison.summary)
    if reference is None:
        return f"On {comparison.data}, plain training (ERM) was not run, so there is no common reference."
    split = SHOWN[comparison.plan.judged]
    averaged = f" (mean of {reference.seeds} seeds)" if reference.seeds > 1 else " (one seed)"
    if reference.arm.swept:
        ends = _range_of_sweep(comparison, reference.arm)
        erm = arm_label(Arm("erm", reference.arm.optimizer))
        return f"On {comparison.data}, {with_abbreviation(erm)} reaches {ends} {split} accuracy{averaged}."
    reached = f"{percent(reference.mean('accuracy'))} {split} accuracy"
    for metric, what in (("worst_group", "worst group"), ("worst_class", "worst class")):
        if metric in reference.metrics:
            reached += f" and {percent(reference.mean(metric))} in its {what}"
            break
    return f"On {comparison.data}, {with_abbreviation(arm_label(reference.arm))} reaches {reached}{averaged}."


def _range_of_sweep(comparison: Comparison, reference: Arm) -> str:
    """The lowest and the highest mean of ERM over the values of a sweep."""
    erm = [each for each in comparison.arms if (each.arm.method, each.arm.optimizer) == ("erm", reference.optimizer)]
    erm.sort(key=lambda each: each.mean("accuracy") or 0.0)
    ends = [f"{percent(each.mean('accuracy'))} (at {point_name(each.arm.swept)})" for each in (erm[0], erm[-1])]
    return f"between {ends[0]} and {ends[1]}" if len(erm) > 1 else ends[0]


def verdicts(comparison: Comparison) -> list[Verdict]:
    """One verdict per arm that has a control, in the table's order."""
    metric = comparison.headline
    return [
        verdict(each, each.control, difference, metric, comparison.summary, SHOWN[comparison.plan.judged])
        for each in comparison.summary
        if each.control is not None and (difference := each.difference(metric)) is not None
    ]


def closing(comparison: Comparison) -> list[str]:
    """What it cost, and what is missing for a verdict."""
    arms = comparison.arms
    notes = failed_runs(comparison.failures)
    if bare := [arm_label(each.arm) for each in arms if each.control is None and each.arm.method != "erm"]:
        notes.append(f"No control of equal cost was run for {listed(bare)}: cost alone may explain the difference.")
    if arms:
        notes.append(_cost({arm_label(each.arm): each.cost_multiple for each in arms}))
    if costlier := [name for each in arms if (name := _costlier(each))]:
        notes.append(f"A control stops after the step that reaches its method's cost: {listed(costlier)}.")
    differences = [each.difference(comparison.headline) for each in arms]
    if (family := max((each.family for each in differences if each and each.adjusted_p is not None), default=1)) > 1:
        notes.append(f"With {family} methods judged, clear over seeds means p < 0.05 after Holm's correction.")
    if shorter := [arm_label(each.arm) for each in arms if ran_shorter(each.arm.method, each.cost_multiple)]:
        notes.append(f"1x is plain training for all the epochs set; {listed(shorter)} ran for fewer.")
    notes += _evaluation({arm_label(each.arm): each.evaluation_cost_multiple for each in arms})
    notes += last_epochs(comparison)
    return [*notes, *cost_to_reach(comparison), *inferences(comparison.rows), *remarks(comparison.rows)]


def failed_runs(failures: Sequence[Failure]) -> list[str]:
    """Which runs failed and why, the first few of many, and what runs them again."""
    notes = [f"{each.label} failed: {each.reason.rstrip('.')}." for each in failures[:MOST_NAMED]]
    if len(failures) > MOST_NAMED:
        notes.append(f"{counted(len(failures) - MOST_NAMED, 'more run')} failed, named in results.json.")
    if failures:
        notes.append("The table has the other runs. The same command with `--retry` runs the failed ones again.")
    return notes


def next_steps(comparison: Comparison, folder: Path | None = None) -> list[str]:
    """What to do with a finished comparison, a sentence or a command each.

    Args:
        folder: where the page is.
    """
    metric, what = comparison.headline, METRIC_NAMES[comparison.headline]
    outcomes = {each.arm: d.outcome for each in comparison.arms if (d := each.difference(metric)) is not None}
    raised = [each for each in comparison.arms if outcomes.get(each.arm, "").startswith("raised")]
    steps = []
    reference = full_erm(comparison.summary)
    best = max(raised, key=lambda each: each.mean(metric) or 0.0, default=None)
    if best is not None and (reference is None or (best.mean(metric) or 0.0) > (reference.mean(metric) or 0.0)):
        runs = (comparison.runs.get((best.arm, seed)) for seed in comparison.plan.seeds)
        run = next(filter(None, runs), None)
        steps.append(f"On {comparison.data}, use {arm_label(best.arm)}: {percent(best.mean(metric))} {what}.")
        if run is not None and run.folder is not None and folder is not None:
            place = run.folder.relative_to(folder).as_posix()
            steps[-1] += f" For new data, from the folder of this page: `evenly predict {place} NEW_DATA`"
    elif outcomes:
        steps.append(f"On {comparison.data}, no method is clearly better in {what}: keep plain training, or try more.")
    if {"raised-for-these", "unknown"} & set(outcomes.values()):
        more = [d.seeds_needed or 0 for each in comparison.arms if (d := each.difference(metric)) is not None]
        seeds = max([5, *(n for n in more if n <= MOST_SEEDS)])
        steps.append(f"Run more seeds before relying on it: the same command with `--seeds {seeds}`.")
    if not has_metric(comparison.summary, "worst_group"):
        steps.append(
            "Which groups the models fail on is not known: name the columns of groups (`--groups COLUMN`), or have "
            "them inferred (`--groups infer --select worst-group`)."
        )
    elif metric != "worst_group" and "validation" in comparison.rows[0].result.splits:
        steps.append(
            f"On {comparison.data}, the epoch was not chosen by the worst group: `--select worst-group` does that, and "
            "verdicts are then about it."
        )
    return steps


def _cost(costs: Mapping[str, float]) -> str:
    least, most = min(costs, key=costs.__getitem__), max(costs, key=costs.__getitem__)
    if len(costs) == 1:
        return f"{least} cost {times(costs[least])} what plain training costs."
    if times(costs[least]) == times(costs[most]):
        return f"Every method cost {times(costs[least])} what plain training costs."
    most_text = f"{times(costs[most])} ({most})"
    return f"Costs range from {times(costs[least])} what plain training costs ({least}) to {most_text}."


def _costlier(summary: Summary) -> str:
    """How much more a control cost than its method, where that is not about the same."""
    excess = (summary.control_cost_multiple or 0.0) / summary.cost_multiple - 1 if summary.cost_multiple else 0.0
    return f"that of {arm_label(summary.arm)} cost {excess:.0%} more" if excess > SAME_COST else ""


def _evaluation(costs: Mapping[str, float]) -> list[str]:
    """What evaluation on validation cost, which no method's cost includes; nothing where there was none."""
    if not any(costs.values()):
        return []
    low, high = times(min(costs.values())), times(max(costs.values()))
    return [evaluation_cost(low if low == high else f"between {low} and {high}")]


def last_epochs(comparison: Comparison) -> list[str]:
    """For each method whose weights are of another epoch than the last, what that would give."""
    notes = []
    for each in comparison.arms:
        runs = [run for seed in comparison.plan.seeds if (run := comparison.runs.get((each.arm, seed))) is not None]
        if last := last_epoch(runs):
            notes.append(f"{arm_label(each.arm)}: {last}.")
    return notes


def cost_to_reach(comparison: Comparison) -> list[str]:
    """What it cost each method to bring the worst group furthest above ERM's, as far as any came in the median."""
    arms = [each for each in comparison.arms if each.arm.method != "erm"]
    if any(each.arm.swept for each in arms):
        return []
    missing = [f"The cost to reach a worst group is {text}." for text in unknown_costs(arms)]
    known = [each for each in arms if each.cost_to_reach]
    levels = list(zip(*(each.cost_to_reach for each in known), strict=True))
    reached = [level for level in levels if any(each.median_cost is not None for each in level)]
    reached = reached or [level for level in levels if any(each.seeds_reached for each in level)]
    if not reached:
        return missing
    costs = listed(_level_cost(each.arm, level) for each, level in zip(known, reached[-1], strict=True))
    above = reached[-1][0].above_erm
    target = "plain training's best worst group on validation" + (f" plus {100 * above:.0f} points" if above else "")
    median = "Median cost" if any(each.seeds > 1 for each in known) else "Cost"
    return [f"{median} to reach {target}, as a multiple of all that plain training costs: {costs}.", *missing]


def _level_cost(arm: Arm, level: Level) -> str:
    cost = "never" if level.median_cost is None else times(level.median_cost_multiple)
    return f"{arm_label(arm)} {cost}" + (f" ({seeds_reached(level)})" if level.seeds > 1 else "")


def seeds_reached(level: Level) -> str:
    """How many seeds reached a level: "3 of 5 seeds"."""
    return f"{level.seeds_reached} of {level.seeds} seeds"


def unknown_costs(arms: Sequence[Summary]) -> list[str]:
    """The arms whose cost to reach a worst group is not known, by reason."""
    reasons: dict[str, list[str]] = {}
    for each in arms:
        if each.cost_to_reach_reason:
            reasons.setdefault(each.cost_to_reach_reason, []).append(arm_label(each.arm))
    return [f"not known for {listed(names)}, because {reason}" for reason, names in reasons.items()]


def inferences(rows: Sequence[Row]) -> list[str]:
    """A sentence for each way that groups were inferred in: its methods, and the means over what was inferred."""
    ways: dict[tuple[str, ...], list[tuple[Row, InferredGroups]]] = {}
    for row in rows:
        if (inferred := row.result.inferred_groups) and row.arm.control_of is None:
            ways.setdefault((inferred.by, *inferred.names), []).append((row, inferred))
    notes = []
    for pairs in ways.values():
        different: list[InferredGroups] = []  # arms of one seed often share what was inferred: it counts once
        for _, inferred in pairs:
            if inferred not in different:
                different.append(inferred)
        seeds = len({row.seed for row, _ in pairs})
        averaged = f", means over {seeds} seeds" if seeds > 1 else ", means over methods" if len(different) > 1 else ""
        names = listed(dict.fromkeys(arm_label(row.arm) for row, _ in pairs))
        notes.append(f"{names}: {inferred_groups(_mean(different), averaged)}")
    return notes


def _mean(inferred: Sequence[InferredGroups]) -> InferredGroups:
    """Groups inferred in one way, with the means of their numbers."""
    match = inferred[0].match
    matches = [each.match for each in inferred if each.match is not None]
    if match is not None:
        minority = evolve(
            match.minority,
            recall=mean(each.minority.recall for each in matches),
            precision=mean(each.minority.precision for each in matches),
        )
        information = mean(each.adjusted_mutual_information for each in matches)
        match = evolve(match, adjusted_mutual_information=information, minority=minority)
    counts = tuple(mean(column) for column in zip(*(each.counts for each in inferred), strict=True))
    epoch, cost = mean(each.epoch for each in inferred), mean(each.cost for each in inferred)
    return evolve(inferred[0], epoch=epoch, cost=cost, counts=counts, match=match)


def remarks(rows: Sequence[Row]) -> list[str]:
    """What the methods remark of their runs, with the number of seeds where it is not all of them."""
    by_arm: dict[str, list[Row]] = {}
    for row in rows:
        if row.arm.control_of is None:
            by_arm.setdefault(arm_label(row.arm), []).append(row)
    notes = []
    for name, of_arm in by_arm.items():
        every = [remark for row in of_arm for remark in row.result.remarks]
        for remark in dict.fromkeys(every):
            count = every.count(remark)
            seeds = f" (in {count} of {len(of_arm)} seeds)" if count < len(of_arm) else ""
            notes.append(f"{name}: {remark.rstrip('.')}{seeds}.")
    return notes
