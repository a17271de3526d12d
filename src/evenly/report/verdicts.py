"""An arm against its control of equal cost, in plain sentences. `Difference.outcome` has the rule."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen

from evenly.report.formats import percent, points_and_uncertainty, sentence, times, uncertainty
from evenly.report.names import METHODS, METRIC_NAMES, arm_label
from evenly.report.run_words import SAME_COST, ran_shorter
from evenly.runs.arms import Arm
from evenly.runs.differences import Difference, Outcome, paired
from evenly.runs.summary import Summary


@frozen
class Verdict:
    """What can be said of an arm against its control, and what has to be said with it."""

    arm: Arm
    outcome: Outcome
    sentence: str
    notes: tuple[str, ...] = ()


def verdict(
    summary: Summary, control: Arm, difference: Difference, metric: str, others: Sequence[Summary], split: str = "test"
) -> Verdict:
    """The verdict on one arm.

    Args:
        difference: in the metric that verdicts are about.
        others: every summary of the comparison.
        split: the name of the one that is judged.
    """
    name, what = arm_label(summary.arm), METRIC_NAMES[metric]
    against, outcome = _control_label(summary, control), difference.outcome
    examples = f"{split} examples"
    numbers = points_and_uncertainty(difference, examples)
    if not math.isfinite(difference.mean):
        return Verdict(summary.arm, outcome, f"{name} and its control have no seed in common: there is no difference.")
    if difference.is_zero:
        text = f"{name} made no difference to {what}: every seed equals {against}."
    elif outcome == "unclear":
        text = f"{name} made no clear difference to {what} against {against}: {numbers}."
    elif outcome == "unknown":
        text = f"{name} differs in {what} from {against}: {numbers}."
    else:
        rise, _, only = outcome.partition("-")
        text = f"{name} {rise} {what} by {difference.points.lstrip('+−')} points against {against}"
        text += f"{', clear for these models only' if only else ''}: {uncertainty(difference, examples)}."
    moved = _moved(summary, others) if metric == "worst_group" else []
    open_question = [*_corrected(difference), *_seeds(summary, difference)]
    notes = (*open_question, *moved, *_tradeoff(summary, metric), *_in_full(summary, metric, others))
    return Verdict(summary.arm, outcome, text, notes)


def _corrected(difference: Difference) -> list[str]:
    """That a difference is not clear because it is one of several."""
    if not difference.is_corrected_away:
        return []
    adjusted = f"p = {difference.p:.3f}, {difference.adjusted_p:.3f} after Holm's correction"
    return [f"Over seeds it is not clear among {difference.family} methods: {adjusted}."]


def _seeds(summary: Summary, difference: Difference) -> list[str]:
    """That seeds have no control, and what might settle an open question."""
    missing = f"the difference is of {difference.pairs} of {summary.seeds} seeds: the others have no control"
    return [sentence(each) for each in (missing * (difference.pairs < summary.seeds), difference.to_settle) if each]


def _moved(summary: Summary, others: Sequence[Summary]) -> list[str]:
    """That another group is the worst, by means over seeds, than for the control."""
    shares = [
        [math.inf if share is None else share for share in each.groups]
        for each in others
        if each.arm in (summary.arm, summary.control) and each.groups
    ]
    return ["With it, another group is the worst."] if len({each.index(min(each)) for each in shares}) > 1 else []


def full_erm(summaries: Sequence[Summary], beside: Arm | None = None) -> Summary | None:
    """The ERM arm that costs what ERM costs; None where there is none.

    Args:
        beside: an arm whose optimizer and, in a sweep, values it has to have.
    """
    erm = [each for each in summaries if each.arm.method == "erm" and each.arm.control_of is None]
    if beside is not None:
        erm = [each for each in erm if each.arm.optimizer == beside.optimizer and each.arm.within(beside)]
    return min(erm, key=lambda each: abs(each.cost_multiple - 1.0), default=None)


def _control_label(summary: Summary, control: Arm) -> str:
    """The control, with the cost that both have."""
    name = METHODS.get(control.method, control.method)
    if control.method == "erm" or control.optimizer != summary.arm.optimizer:
        name += f" with {control.optimizer}"
    cost, control_cost = summary.cost_multiple, summary.control_cost_multiple
    if control_cost is not None and abs(control_cost - cost) > SAME_COST * cost:
        return f"{name} ({times(cost)} plain training; the control {times(control_cost)})"
    how = "at"
    if control.method == "erm" and abs(cost - 1) > SAME_COST:
        how = "stopped at" if cost < 1 else "trained on to"
    return f"{name} {how} the same cost ({times(cost)} plain training)"


def _tradeoff(summary: Summary, metric: str) -> list[str]:
    """What happened to the worst group, where that is not the headline, and whether the average paid for it."""
    worst, average = summary.difference("worst_group"), summary.difference("train_weighted")
    if worst is None or worst.outcome not in ("raised", "lowered"):
        return []
    if worst.outcome == "raised" and average is not None and average.outcome == "lowered":
        rise = "" if metric == "worst_group" else f" by {worst.points.lstrip('+')} points {worst.over_seeds}"
        price = f"train-weighted accuracy {average.points} points {average.over_seeds}"
        return [f"It raised the worst group{rise} at the price of the average: {price}."]
    if metric == "worst_group":
        return []
    return [f"Its worst group was {worst.outcome}: {worst.points} points {worst.over_seeds}."]


def _in_full(summary: Summary, metric: str, others: Sequence[Summary]) -> list[str]:
    """For an arm whose control is ERM cut short: the difference from ERM trained in full, which costs more."""
    reference = full_erm(others, summary.arm)
    cut_short = summary.control is not None and summary.control.method == "erm"
    if not cut_short or summary.cost_multiple >= 1 - SAME_COST or reference is None or metric not in reference.metrics:
        return []
    theirs = reference.by_seed(metric)
    differences = [value - theirs[seed] for seed, value in summary.by_seed(metric).items() if seed in theirs]
    if not differences:
        return []
    difference = paired(differences)
    reached = f"{times(reference.cost_multiple)}, {percent(reference.mean(metric))}"
    length = "as far as it ran" if ran_shorter("erm", reference.cost_multiple) else "in full"
    return [f"Against {arm_label(reference.arm)} {length} ({reached}): {points_and_uncertainty(difference)}."]
