"""Runs of a comparison, summarised: per arm the means, the cost and the paired differences from its control."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from attrs import evolve, field, frozen

from evenly.engine.accuracy import intervals
from evenly.runs.arms import Arm
from evenly.runs.cost_to_reach import Level, levels_reached, reason_for_none
from evenly.runs.differences import Difference, holm, mean, paired, sd
from evenly.runs.example_intervals import Intervals, example_intervals
from evenly.runs.results import RunResult, Usage
from evenly.runs.run import Run
from evenly.values import Value

METRICS = ("accuracy", "worst_group", "train_weighted", "worst_class")


@frozen
class Metric(Value):
    """A metric of an arm over its seeds, and its difference from the control's."""

    mean: float
    sd: float
    values: tuple[float, ...]
    difference: Difference | None = None


@frozen
class Summary(Value):
    """One arm over its seeds.

    Args:
        control: the arm of equal cost that it is compared with, where one was run.
        groups: mean accuracy per group on the judged split; None for a group without examples.
        cost_to_reach_reason: why `cost_to_reach` is empty, where that is known.
        seed_numbers: the seeds, in the order that the values of a metric have.
    """

    arm: Arm
    seeds: int
    rule: str
    cost_multiple: float
    metrics: Mapping[str, Metric]
    control: Arm | None = None
    control_cost_multiple: float | None = None
    selected_after_epochs: float = 0.0
    evaluation_cost_multiple: float = 0.0
    groups: tuple[float | None, ...] = ()
    group_counts: tuple[int, ...] = ()
    group_intervals: tuple[tuple[float, float] | None, ...] = ()
    used: Usage | None = None
    cost_to_reach: tuple[Level, ...] = ()
    cost_to_reach_reason: str = ""
    seed_numbers: tuple[int, ...] = ()

    def mean(self, metric: str) -> float | None:
        return self.metrics[metric].mean if metric in self.metrics else None

    def by_seed(self, metric: str) -> dict[int, float]:
        """A metric of each seed; nothing where the folder is of a version that did not say which seeds they are."""
        return dict(zip(self.seed_numbers, self.metrics[metric].values, strict=False))

    def difference(self, metric: str) -> Difference | None:
        return self.metrics[metric].difference if metric in self.metrics else None


@frozen
class Row(Value):
    """One run of a comparison: its arm, the arm of equal cost that is its control, and where it lies in the folder."""

    arm: Arm
    seed: int
    result: RunResult
    control: Arm | None = None
    folder: str | None = field(default=None, eq=False)


def summarise(rows: Sequence[Row], runs: Mapping[tuple[Arm, int], Run] | None = None) -> tuple[Summary, ...]:
    """One summary per arm, in the order of the rows.

    Where the runs are given, also the uncertainty over test examples, and what it cost to reach the level of ERM's
    worst group and further.
    """
    by_arm: dict[Arm, dict[int, Row]] = {}
    for row in rows:
        by_arm.setdefault(row.arm, {})[row.seed] = row
    runs = runs or {}
    summaries = _corrected([_summary(arm, of_arm, by_arm, runs) for arm, of_arm in by_arm.items()])
    return tuple(_with_levels(each, summaries, by_arm[each.arm], runs) for each in summaries)


def _summary(
    arm: Arm, rows: Mapping[int, Row], by_arm: Mapping[Arm, Mapping[int, Row]], runs: Mapping[tuple[Arm, int], Run]
) -> Summary:
    results = {seed: row.result for seed, row in rows.items()}
    first, control = next(iter(rows.values())), _controls(rows, by_arm)
    groups, counts = _groups(list(results.values()))
    return Summary(
        arm=arm,
        seeds=len(rows),
        rule=first.result.rule,
        cost_multiple=mean(result.cost_multiple for result in results.values()),
        metrics=_metrics(results, control, _example_intervals(rows, control, runs)),
        control=next((row.control for row in rows.values() if row.control is not None), None),
        control_cost_multiple=mean(result.cost_multiple for result in control.values()) if control else None,
        selected_after_epochs=mean(result.selected_after_epochs for result in results.values()),
        evaluation_cost_multiple=mean(result.evaluation_cost_multiple for result in results.values()),
        groups=groups,
        group_counts=counts,
        group_intervals=intervals(groups, counts),
        used=_usage([result.used for result in results.values()]),
        seed_numbers=tuple(results),
    )


def _controls(rows: Mapping[int, Row], by_arm: Mapping[Arm, Mapping[int, Row]]) -> dict[int, RunResult]:
    """The control's result of each seed; seeds may differ in their control, where only some cost what ERM costs."""
    pairs = ((seed, by_arm.get(row.control, {}).get(seed)) for seed, row in rows.items() if row.control is not None)
    return {seed: row.result for seed, row in pairs if row is not None}


def _example_intervals(
    rows: Mapping[int, Row], control: Iterable[int], runs: Mapping[tuple[Arm, int], Run]
) -> Intervals:
    """The interval over test examples of each metric's difference: of the same seeds as the difference, and where every
    run of these says which examples it got right."""
    pairs = []
    for seed in control:
        row = rows[seed]
        ours, theirs = (
            None if arm is None or (run := runs.get((arm, seed))) is None else run.correct
            for arm in (row.arm, row.control)
        )
        if ours is None or theirs is None:
            return {}
        pairs.append((ours, theirs))
    train = next(iter(rows.values())).result.splits.get("train")
    return example_intervals(pairs, () if train is None else train.group_counts)


def _metrics(
    results: Mapping[int, RunResult], control: Mapping[int, RunResult], over_examples: Intervals
) -> dict[str, Metric]:
    metrics = {}
    for name in METRICS:
        values = {seed: result.measured.metric(name) for seed, result in results.items()}
        known = {seed: value for seed, value in values.items() if value is not None}
        if len(known) < len(values):
            continue
        others = {seed: result.measured.metric(name) for seed, result in control.items()}
        differences = [known[seed] - other for seed, other in others.items() if other is not None]
        difference = paired(differences) if differences else None
        if difference is not None and (bounds := over_examples.get(name)) is not None:
            difference = evolve(difference, examples_low=bounds[0], examples_high=bounds[1])
        metrics[name] = Metric(mean(known.values()), sd(known.values()), tuple(known.values()), difference)
    return metrics


def headline(rule: str, summaries: Iterable[Summary]) -> str:
    """The metric that verdicts are about: worst-group accuracy where the selection rule goes by groups."""
    has_groups = any("worst_group" in each.metrics for each in summaries)
    return "worst_group" if "group" in rule and has_groups else "accuracy"


def _corrected(summaries: Sequence[Summary]) -> list[Summary]:
    """With Holm's correction for as many methods as are judged by the headline metric."""
    name = headline(summaries[0].rule, summaries) if summaries else ""
    family = {each.arm: difference for each in summaries if (difference := each.difference(name)) is not None}
    values = [1.0 if each.p is None else each.p for each in family.values()]
    adjusted = dict(zip(family, holm(values), strict=True))

    def corrected(summary: Summary) -> Summary:
        if (difference := family.get(summary.arm)) is None:
            return summary
        p = None if difference.p is None else adjusted[summary.arm]
        metric = evolve(summary.metrics[name], difference=evolve(difference, adjusted_p=p, family=len(family)))
        return evolve(summary, metrics={**summary.metrics, name: metric})

    return [corrected(each) for each in summaries]


def _groups(results: Sequence[RunResult]) -> tuple[tuple[float | None, ...], tuple[int, ...]]:
    """Mean accuracy and number of examples per group. Seeds often measure the same examples, so an interval is that of
    one seed's number of them."""
    if not results[0].measured.groups:
        return (), ()
    columns = zip_longest(*(result.measured.groups for result in results))
    groups = [mean(column) if any(value is not None for value in column) else None for column in columns]
    counts = zip_longest(*(result.measured.group_counts for result in results))
    return tuple(groups), tuple(round(mean([n for n in column if n] or [0])) for column in counts)


def _usage(used: Sequence[Usage | None]) -> Usage | None:
    known = [each for each in used if each is not None and each.groups]
    if len(known) < len(used):
        return None
    return Usage(
        round(mean(each.examples for each in known)),
        round(mean(each.shown for each in known)),
        tuple(mean(column) for column in zip_longest(*(each.groups for each in known))),
        tuple(mean(column) for column in zip_longest(*(each.groups_shown for each in known))),
    )


def _with_levels(
    summary: Summary, others: Sequence[Summary], rows: Mapping[int, Row], runs: Mapping[tuple[Arm, int], Run]
) -> Summary:
    erm = next((other.arm for other in others if is_erm_beside(summary.arm, other.arm)), None)
    if erm is None:
        return summary
    seeds = [seed for seed in rows if not runs or (erm, seed) in runs]  # ERM may have fewer
    if not seeds:
        return summary
    pairs = [(runs.get((summary.arm, seed)), runs.get((erm, seed))) for seed in seeds]
    levels = levels_reached(pairs)
    return evolve(summary, cost_to_reach=levels, cost_to_reach_reason="" if levels else reason_for_none(pairs))


def is_erm_beside(arm: Arm, other: Arm) -> bool:
    """Whether an arm is plain ERM with the optimizer and no other swept values than a given arm has."""
    plain = other.method == "erm" and other.control_of is None and arm.control_of is None
    return plain and other.optimizer == arm.optimizer and other.within(arm)
