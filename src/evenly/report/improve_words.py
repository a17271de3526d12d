"""An improvement in plain sentences: what came of it, why the choice, its price, and what is uncertain about it.

"Points" are percentage points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from evenly.engine.accuracy import wilson
from evenly.report.formats import bounds, counted, listed, percent, points_and_uncertainty, sentence, times, uncertainty
from evenly.report.names import METRIC_NAMES, arm_label, group_name, with_abbreviation
from evenly.report.run_words import SAME_COST
from evenly.runs.differences import FEWEST, Difference, Outcome
from evenly.runs.improvement import BEST, Improvement, Tested, Tried
from evenly.runs.results import SHOWN
from evenly.runs.summary import Summary

MOST_NAMED = 3
"""Small groups that are named."""
WIDE = 0.1
"""An interval that reaches as far as this on either side is a reason for doubt."""
GROUPINGS = {
    "given": "given in the data",
    "slice": "made of a slice of the data on which plain training fails",
    "inferred": "inferred by an early network",
    "none": "none",
    "classes": "the classes",
}
"""Where groups are from."""
LOSSES: dict[Outcome, str] = {
    "lowered": "The loss is clear.",
    "lowered-for-these": "The loss is clear for these models only.",
}


def short(improvement: Improvement) -> list[str]:
    """What was asked, what came of it with the numbers on the test set, and what it cost elsewhere."""
    return [_asked(improvement), *_verdict(improvement), *price(improvement), *leaks(improvement)]


def leaks(improvement: Improvement) -> list[str]:
    """Why numbers may be too good: inputs that are in training as well, and columns that give the label away."""
    profile, found = improvement.profile, []
    for split, n in profile.duplicates.items():
        if n:
            share = f"{n:,} of {profile.summary.sizes.get(split, 0):,} {SHOWN[split]} inputs"
            found.append(f"{share} are in training as well: accuracy on {SHOWN[split]} is optimistic.")
    for each in profile.give_aways:
        found.append(
            f"The column {each.column!r} alone gives the label of {percent(each.accuracy)} of the validation examples "
            f"({percent(each.chance)} by guessing). Check that it is known before the label is."
        )
    return found


def metric_name(improvement: Improvement, metric: str | None = None) -> str:
    """What a metric, or the goal's, is called: "worst-group accuracy", of inferred groups "worst-inferred-group"."""
    name = METRIC_NAMES[metric or improvement.metric]
    return name.replace("group", "inferred-group") if improvement.profile.grouping == "inferred" else name


def methods_tried(improvement: Improvement) -> list[Tried]:
    """What was tried besides plain training."""
    return [each for each in improvement.tried if each.arm != improvement.choice.baseline]


def baseline_on_validation(improvement: Improvement) -> Summary | None:
    """Plain training on validation."""
    baseline = improvement.choice.baseline
    return next((each.on_validation for each in improvement.tried if each.arm == baseline), None)


def baseline_sentences(improvement: Improvement) -> list[str]:
    """Where plain training stands on validation."""
    summary = baseline_on_validation(improvement)
    if summary is None:
        return []
    worst = [name for name in ("worst_group", "worst_class") if name in summary.metrics]
    numbers = [f"{percent(summary.mean(name))} {metric_name(improvement, name)}" for name in ("accuracy", *worst)]
    return [f"On validation, plain training reaches {listed(numbers)}."]


def control_on_test(improvement: Improvement) -> Tested | None:
    """The chosen method's control of equal cost on the test set; None where it has none of its own."""
    control, baseline = improvement.choice.control, improvement.choice.baseline
    return next((each for each in improvement.tested if each.arm == control and each.arm != baseline), None)


def counted_runs(runs: float) -> str:
    """A cost in runs of plain training: "1 ERM run", "7.25 ERM runs"."""
    text = f"{runs:.2f}".rstrip("0").rstrip(".")
    return f"{text} ERM run" + ("" if text == "1" else "s")


def _asked(improvement: Improvement) -> str:
    erm, tried = with_abbreviation("plain training"), methods_tried(improvement)
    goal = f"The goal on {improvement.profile.summary.name} was higher {metric_name(improvement)} than with {erm}"
    if not tried:
        return f"{goal}."
    methods = f"{counted(len(tried), 'method')} {'was' if len(tried) == 1 else 'were'} tried"
    return f"{goal}. {methods}, at the cost of {counted_runs(improvement.spent_multiple)} in all."


def _verdict(improvement: Improvement) -> list[str]:
    name, what, verdict = arm_label(improvement.choice.arm), metric_name(improvement), improvement.verdict
    if verdict in ("raised", "raised-for-these"):
        only = ", clear for these models only" if verdict == "raised-for-these" else ""
        raised = f"{name} raised {what} on the test set{only}: {_before_after(improvement)}."
        itself = f"The model that is handed back has {reached(improvement)}."
        return [raised if only else f"{raised} The gain is clear.", *([itself] if len(improvement.seeds) > 1 else [])]
    if verdict == "not-confirmed":
        return [
            f"{name} is clearly better than plain training on validation, but the test set does not confirm it.",
            f"On the test set, {what}: {_before_after(improvement)}.",
            f"The model that is handed back is that of {name}: validation chose it, and the test set never chooses.",
        ]
    handed_back = f"The model that is handed back is plain training's: {reached(improvement)}."
    if verdict == "too-few":
        return [f"There is no clear gain, and too few examples to tell. {size_reason(improvement)}", handed_back]
    if verdict == "no-clear-gain":
        return [f"There is no clear gain: no method is clearly better than plain training on validation. {handed_back}"]
    reasons = {each.reason.rstrip(".") for each in improvement.not_tried}
    why = f": {reasons.pop()}" if len(reasons) == 1 else ""
    return [f"Nothing was tried besides plain training{why}. {handed_back}"]


def _before_after(improvement: Improvement) -> str:
    """The goal's metric on the test set before and after, and the difference with both intervals."""
    before, after = (each.summary.mean(improvement.metric) for each in (improvement.baseline, improvement.chosen))
    difference = improvement.chosen.summary.difference(improvement.metric)
    against = "" if difference is None else f", {points_and_uncertainty(difference)}"
    over = f" on average over {len(improvement.seeds)} seeds" if len(improvement.seeds) > 1 else ""
    return f"from {percent(before)} to {percent(after)}{over}{against}"


def reached(improvement: Improvement) -> str:
    """What the model that is handed back reaches on the test set: that very model, not the mean over seeds."""
    parts = [f"{percent(_of_best(improvement, 'accuracy'))} accuracy {bounds(accuracy_interval(improvement))}".rstrip()]
    if improvement.metric != "accuracy":
        parts.append(f"{percent(_of_best(improvement, improvement.metric))} {metric_name(improvement)}")
    return f"{' and '.join(parts)} on the test set"


def _of_best(improvement: Improvement, metric: str) -> float | None:
    best = improvement.best
    return improvement.chosen.summary.mean(metric) if best is None else best.metric(metric)


def accuracy_interval(improvement: Improvement) -> tuple[float, float] | None:
    """Wilson's interval of the accuracy of the model that is handed back, for the size of the test set."""
    n, accuracy = improvement.profile.summary.sizes.get("test", 0), _of_best(improvement, "accuracy")
    return wilson(round(accuracy * n), n) if n and accuracy is not None and math.isfinite(accuracy) else None


def size_reason(improvement: Improvement) -> str:
    """How far the size of validation alone lets an accuracy go astray, for the part that the goal is about."""
    profile = improvement.profile
    counts = {"worst-group": profile.group_counts, "worst-class": profile.class_counts}.get(improvement.goal, {})
    parts = [n for n in counts.get("validation", ()) if n]
    where = f" in the smallest {improvement.goal.removeprefix('worst-')}" if parts else ""
    n = min(parts) if parts else profile.summary.sizes.get("validation", 0)
    if not n:
        return "There is no validation set."
    examples = f"{n:,} validation example{'s' * (n != 1)}{where}"
    return f"With {examples}, the 95% interval of an accuracy is about ±{100 * _half_width(n):.0f} points."


def _half_width(n: int) -> float:
    """Half Wilson's 95% interval of a share of n examples, where it is widest: around 50%."""
    low, high = wilson(n // 2, n)
    return (high - low) / 2


def price(improvement: Improvement) -> list[str]:
    """That the average fell, or that another metric is clearly lower, on the test set."""
    if not improvement.is_better:
        return []
    before, after, sentences = improvement.baseline.summary, improvement.chosen.summary, []
    for metric in ("accuracy", "worst_group", "worst_class"):
        difference = after.difference(metric)
        if metric == improvement.metric or difference is None or difference.mean >= 0:
            continue
        loss = LOSSES.get(difference.outcome, "")
        if not loss and metric != "accuracy":
            continue
        name = "average accuracy" if metric == "accuracy" else metric_name(improvement, metric)
        by = f"by {difference.points.lstrip('−')} points on the test set"
        ends = f"from {percent(before.mean(metric))} to {percent(after.mean(metric))}"
        text = f"The price: {name} fell {by}, {ends}; {uncertainty(difference)}."
        sentences.append(f"{text} {loss or 'This loss is not clear.'}")
    return sentences


def choice_sentences(improvement: Improvement) -> list[str]:
    """Why this was chosen, whether the gain is the method's own, the price, and which model is handed back."""
    sentences = [sentence(improvement.choice.reason), *_against_control(improvement), *price(improvement)]
    if len(improvement.seeds) > 1:
        sentences.append(
            f"The numbers are means over {len(improvement.seeds)} seeds. The model in `{BEST}` is one of these runs: "
            "the one that validation prefers."
        )
    return sentences


def _against_control(improvement: Improvement) -> list[str]:
    """Whether the gain comes from the method or from more training: the chosen method beside its control."""
    if not improvement.is_better:
        return []
    choice, chosen = improvement.choice, improvement.chosen
    name, cost = arm_label(choice.arm), times(chosen.summary.cost_multiple)
    if choice.control is not None and choice.control == choice.baseline:
        return [f"{name} costs what plain training costs, so plain training is its control of equal cost."]
    difference, examples = chosen.against_control, "test examples"
    if difference is None:
        tried = next((each for each in improvement.tried if each.arm == choice.arm), None)
        difference, examples = None if tried is None else tried.against_control, "validation examples"
    if choice.control is None or difference is None:
        if chosen.summary.cost_multiple <= 1 + SAME_COST:
            return []
        return [
            f"{name} costs {cost} what plain training costs, and there was no room for a control of equal cost. "
            "Whether more training alone would do the same is not known."
        ]
    against = f"{arm_label(choice.control)} at the same cost ({cost} plain training)"
    numbers = points_and_uncertainty(difference, examples)
    return [f"Against {against}, {name} differs in {metric_name(improvement)} by {numbers}. {_source(difference)}"]


def _source(difference: Difference) -> str:
    """What a difference from the control of equal cost says about where a gain is from."""
    if difference.outcome == "raised":
        return "So the gain comes from the method, not from the cost alone."
    if difference.outcome == "raised-for-these":
        return "For these models, the gain comes from the method, not from the cost alone."
    if difference.outcome.startswith("lowered"):
        return "So the same cost without the method's idea does better."
    return "So it is not clear whether the gain comes from the method or from training at that cost."


def uncertain(improvement: Improvement) -> list[str]:
    """What the numbers leave open."""
    return [
        *_doubts_of_choice(improvement),
        *_doubts_of_sizes(improvement),
        *_doubts_of_groups(improvement),
        *_doubts_of_data(improvement),
    ]


def _doubts_of_choice(improvement: Improvement) -> list[str]:
    notes, tried = [], methods_tried(improvement)
    on_validation = improvement.choice.difference
    on_test = improvement.chosen.summary.difference(improvement.metric)
    if improvement.is_better and on_validation is not None and on_test is not None:
        among = f" among {len(tried)} methods" if len(tried) > 1 else ""
        notes.append(
            f"Validation chose{among}, so its numbers are optimistic. The gain was {on_validation.points} points on "
            f"validation and is {on_test.points} points on the test set, which had no part in the choice."
        )
    if improvement.verdict == "not-confirmed":
        notes.append("The test set does not confirm the gain. New data may show none.")
    if improvement.verdict == "raised-for-these":
        notes.append("The gain is clear for these models only. The seeds do not show that new runs would have it too.")
    if improvement.is_better and on_test is not None and on_test.to_settle:
        notes.append(sentence(on_test.to_settle))
    if len(improvement.seeds) < FEWEST:
        notes.append(
            f"{counted(len(improvement.seeds), 'seed')} cannot show how much runs vary. That takes {FEWEST} or more."
        )
    screened = [arm_label(each.arm) for each in tried if not each.final]
    if screened and len(improvement.seeds) > 1:
        notes.append(f"These methods ran on one seed only, and might do better on others: {listed(screened)}.")
    return notes


def _doubts_of_sizes(improvement: Improvement) -> list[str]:
    """The smallest groups of the test set, where their intervals are wide; without groups, the whole set."""
    summary, names = improvement.chosen.summary, improvement.profile.group_names
    if not summary.groups:
        n = improvement.profile.summary.sizes.get("test", 0)
        wide = bool(n) and _half_width(n) >= WIDE
        interval = f"the 95% interval of an accuracy is about ±{100 * _half_width(n):.0f} points" if wide else ""
        return [f"With {counted(n, 'test example')}, {interval}."] if wide else []
    small = []
    for g, limits in enumerate(summary.group_intervals):
        if limits is not None and (half := (limits[1] - limits[0]) / 2) >= WIDE:
            small.append((summary.group_counts[g], group_name(names, g), half))
    small.sort()
    notes = [
        f"With {counted(n, 'test example')} in {name!r}, the 95% interval of its accuracy is about ±{100 * half:.0f} "
        "points."
        for n, name, half in small[:MOST_NAMED]
    ]
    if more := small[MOST_NAMED:]:
        verb = "has an interval" if len(more) == 1 else "have intervals"
        notes.append(f"{counted(len(more), 'more group')} {verb} of ±{100 * WIDE:.0f} points or wider.")
    return notes


def _doubts_of_groups(improvement: Improvement) -> list[str]:
    profile = improvement.profile
    if profile.grouping == "inferred":
        return [
            "The groups are inferred by an early network: they are a guess. Accuracy in the worst inferred group need "
            "not be accuracy in the group that matters to you. To measure that, name its columns (`--groups COLUMN`)."
        ]
    if profile.grouping == "slice":
        return [
            f"The groups are made of the slice {profile.slice!r}, which was picked because plain training fails there "
            "on validation. Part of that is chance, so part of a gain there on validation is, too."
        ]
    if profile.grouping == "none":
        return ["No groups are known, so nothing here says which groups the model fails on."]
    return []


def _doubts_of_data(improvement: Improvement) -> list[str]:
    profile, notes = improvement.profile, []
    if drawn := [SHOWN[name] for name in profile.drawn]:
        notes.append(
            f"The {' and '.join(drawn)} {'sets were' if len(drawn) > 1 else 'set was'} drawn from the training set. "
            "New data may differ more from training than these do."
        )
    return notes


def predict_command(best: Path | str = BEST) -> str:
    """The command that predicts new data with the model that is handed back."""
    import shlex

    return f"evenly predict {shlex.quote(str(best))} NEW_DATA"


def reasons_not_tried(improvement: Improvement) -> Sequence[tuple[str, str]]:
    """What was left out, and why."""
    return [(each.arm.name, sentence(each.reason)) for each in improvement.not_tried]
