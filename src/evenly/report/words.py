"""Plain sentences computed from numbers: what helped, what did not, what it cost.

The rule, for the paired difference of an arm from its control: an interval wholly above 0 is a rise, wholly below a
fall, anything else no clear difference; a single seed cannot tell, nor can seeds that all differ by the same, unless
that is 0. "Points" are percentage points.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from evenly.comparison import paired
from evenly.engine.accuracy import intervals
from evenly.sweep import point_name

if TYPE_CHECKING:
    from evenly.comparison import Comparison

METRIC_NAMES = {
    "accuracy": "accuracy",
    "worst_group": "worst-group accuracy",
    "train_weighted": "train-weighted accuracy",
    "worst_class": "worst-class accuracy",
}
RULE_NAMES = {
    "last": "last epoch",
    "average": "epoch with the best validation accuracy",
    "worst-group": "epoch with the best validation worst-group accuracy",
    "worst-class": "epoch with the best validation worst-class accuracy",
    "worst-inferred-group": "epoch with the best validation accuracy in the worst inferred group",
}
SPOKEN = {"erm": "ERM", "random_upsample": "random upsampling"}
"""Methods whose name in a sentence is not the one that is typed."""
NONE_CHOSEN = {
    "jtt": "nothing was repeated: the first model made no errors",
    "misclassification": "nothing was repeated: the early network made no errors",
    "quantile": "nothing was repeated: no early loss is above the quantile",
    "useful": "nothing was repeated: in each class the early network's outputs are all alike",
    "upweight": "nothing was weighed up: in each class the early network's outputs are all alike",
    "eiil": "no example is in a second environment: the groups are the classes",
}
"""What it means that a method singled out no example, by method."""
SAME_COST = 0.05
"""Costs within this share of each other are called the same."""

Outcome = Literal["raised", "lowered", "unclear", "untold"]


@dataclass(frozen=True)
class Verdict:
    """What can be said of one arm against its control, and what has to be said with it."""

    arm: str
    outcome: Outcome
    sentence: str
    notes: tuple[str, ...] = ()


def sentences(table: Comparison) -> list[str]:
    """A comparison in a few sentences: where ERM stands, a verdict for every arm that has a control, the cost."""
    told = [opening(table)]
    told += [" ".join([verdict.sentence, *verdict.notes]) for verdict in verdicts(table)]
    return [*told, *closing(table)]


def opening(table: Comparison) -> str:
    """Where ERM stands on this data."""
    reference = full_erm(table.summary)
    where = measured_on(table)
    if reference is None:
        return f"On {table.data}, ERM was not among the arms, so there is no common reference."
    if reference.get("sweep"):
        return _opening_of_sweep(table, reference)
    reached = f"{percent(_mean(reference, 'accuracy'))} {where} accuracy"
    for metric, what in (("worst_group", "worst group"), ("worst_class", "worst class")):
        if metric in reference:
            reached += f" and {percent(_mean(reference, metric))} in its {what}"
            break
    return f"On {table.data}, {spoken(reference)} reaches {reached}{_over_seeds(reference)}."


def _opening_of_sweep(table: Comparison, reference: Mapping[str, Any]) -> str:
    """Where ERM stands at the values of a sweep: the lowest and the highest mean."""
    arms = [
        entry
        for entry in table.summary
        if entry["method"] == "erm" and entry["optimizer"] == reference["optimizer"] and not entry.get("control_of")
    ]
    low, high = (pick(arms, key=lambda entry: entry["accuracy"]["mean"]) for pick in (min, max))
    ends = f"{percent(_mean(low, 'accuracy'))} (at {point_name(low['sweep'])})"
    if len(arms) > 1:
        ends = f"between {ends} and {percent(_mean(high, 'accuracy'))} (at {point_name(high['sweep'])})"
    name = spoken({**reference, "sweep": {}})
    return f"On {table.data}, {name} reaches {ends} {measured_on(table)} accuracy{_over_seeds(reference)}."


def verdicts(table: Comparison) -> list[Verdict]:
    """One verdict per arm that has a control, in the table's order."""
    metric = headline(table)
    controlled = [entry for entry in table.summary if entry.get("control") and "difference" in entry.get(metric, {})]
    return [_verdict(entry, metric, table.summary) for entry in controlled]


def closing(table: Comparison) -> list[str]:
    """What it cost, and what is missing for a verdict."""
    arms = [entry for entry in table.summary if not entry.get("control_of")]
    told = []
    bare = [entry for entry in arms if not entry.get("control") and entry["method"] != "erm"]
    if bare:
        names = ", ".join(spoken(entry) for entry in bare)
        told.append(f"No control of equal cost was run for {names}: differences from ERM may come from cost alone.")
    costs = {spoken(entry): entry["cost_multiple"] for entry in arms}
    if len(costs) == 1:
        told.append(f"{next(iter(costs))} cost {times(next(iter(costs.values())))} what ERM costs.")
    elif costs:
        least, most = min(costs, key=costs.__getitem__), max(costs, key=costs.__getitem__)
        if times(costs[least]) == times(costs[most]):
            told.append(f"Every arm cost {times(costs[least])} what ERM costs.")
        else:
            told.append(
                f"Costs run from {times(costs[least])} what ERM costs ({least}) to {times(costs[most])} ({most})."
            )
    shorter = [spoken(entry) for entry in arms if _stopped(entry)]
    if shorter:
        told.append(f"1x is ERM for all the epochs set; {listed(shorter)} ran for fewer.")
    return [*told, *evaluation(arms), *reached(table), *inferences(table), *remarks(table)]


def _stopped(entry: Mapping[str, Any]) -> bool:
    """Whether this is ERM that cost less than ERM, which patience, a budget or epochs of its own may bring about."""
    return bool(entry["method"] == "erm" and entry["cost_multiple"] < 1 - SAME_COST)


def in_all(results: Mapping[str, Any]) -> str:
    """What to add to "ERM" where a run's cost is a multiple of ERM's and it is ERM itself, for fewer epochs."""
    return " for all the epochs set" if _stopped(results) else ""


def none_chosen(row: Mapping[str, Any]) -> str:
    """What it means that a run singled out no example; nothing where it did, or where its method does not."""
    return NONE_CHOSEN.get(row["method"], "") if row.get("chosen") == 0 else ""


def refitted(row: Mapping[str, Any]) -> str:
    """What was done to the weights after the epoch that they are of; nothing where nothing was."""
    if row["method"] != "dfr":
        return ""
    fitted = "after the epochs the last layer was fitted anew to group-balanced draws of"
    if row.get("chosen"):
        return f"{fitted} training examples"
    return f"{fitted} validation examples, so that accuracy on validation is no test of it"


def remarks(table: Comparison) -> list[str]:
    """What has to be known of an arm's runs: that nothing was singled out, that the weights are not an epoch's own."""
    by_arm: dict[str, list[Mapping[str, Any]]] = {}
    for row in table.rows:
        if "method" in row and not row.get("control_of"):
            by_arm.setdefault(spoken(row), []).append(row)
    told = []
    for arm, rows in by_arm.items():
        for remark in (none_chosen, refitted):
            found = [text for row in rows if (text := remark(row))]
            for text in dict.fromkeys(found):
                where = f" (in {found.count(text)} of {len(rows)} seeds)" if found.count(text) < len(rows) else ""
                told.append(f"{arm}: {text}{where}.")
    return told


def evaluation(arms: Sequence[Mapping[str, Any]]) -> list[str]:
    """What it cost to look at validation, which no cost of an arm includes, in a sentence; none where nothing did."""
    costs = {spoken(entry): entry.get("evaluation_cost_multiple", 0.0) for entry in arms}
    if not any(costs.values()):
        return []
    least, most = min(costs, key=costs.__getitem__), max(costs, key=costs.__getitem__)
    told = f"Evaluation, counted apart, cost {times(costs[least])} what ERM costs"
    if times(costs[least]) != times(costs[most]):
        return [f"{told} ({least}) to {times(costs[most])} ({most})."]
    return [f"{told} in every arm." if len(costs) > 1 else f"{told}."]


def headline(table: Comparison) -> str:
    """The metric that verdicts are about: worst-group accuracy where the selection rule aims at it, else accuracy."""
    aims_at_worst = table.plan.get("rule") in ("worst-group", "worst-inferred-group")
    return "worst_group" if aims_at_worst and any("worst_group" in entry for entry in table.summary) else "accuracy"


def measured_on(table: Comparison) -> str:
    """The split that the numbers of the summary are from: test where there is one."""
    return measured_split(table.rows[0]) if table.rows else "test"


def measured_split(row: Mapping[str, Any]) -> str:
    """The split that a run's result is read from: test, else validation, else training."""
    return next((name for name in ("test", "validation") if row.get(name)), "training")


def full_erm(summary: Sequence[Mapping[str, Any]], beside: Mapping[str, Any] | None = None) -> Mapping[str, Any] | None:
    """The ERM arm that costs what ERM costs; None where there is none.

    Args:
        beside: an arm whose optimizer and, in a sweep, values it has to have.
    """
    arms = [entry for entry in summary if entry["method"] == "erm" and not entry.get("control_of")]
    if beside is not None:
        arms = [entry for entry in arms if entry["optimizer"] == beside["optimizer"] and _within(entry, beside)]
    return min(arms, key=lambda entry: abs(entry["cost_multiple"] - 1.0), default=None)


def by_value(summary: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    """(swept values, arms at these values) for every combination there is, in the table's order.

    An arm that a name does not vary stands under each of its values; without a sweep all arms stand under none.
    """
    arms = [entry for entry in summary if not entry.get("control_of")]
    points: list[Mapping[str, Any]] = []
    for entry in arms:
        at = entry.get("sweep") or {}
        narrower = any(other is not entry and _within(entry, other) and not _within(other, entry) for other in arms)
        if at not in points and not narrower:
            points.append(at)
    return [(at, [entry for entry in arms if _within(entry, {"sweep": at})]) for at in points]


def inferred(found: Mapping[str, Any], over: str = "") -> str:
    """How groups were inferred and how well they match the true ones; `over` says what the numbers are means of."""
    sizes = "; ".join(f"{name} {count:,.0f}" for name, count in zip(found["names"], found["counts"], strict=True))
    early = f"{found['epoch']:,.3g} epoch" + ("" if found["epoch"] == 1 else "s")
    made = f"groups inferred by {found['by']} after {early}, at the cost of {found['cost']:,.0f}"
    made += f" example-gradients ({sizes} training examples){over}"
    if "match" not in found:
        return f"{made}."
    smallest, information = found["match"]["minority"], found["match"]["adjusted_mutual_information"]
    return (
        f"{made}. Against the true ones: adjusted mutual information {information:.2f}; one inferred group holds "
        f"{smallest['recall']:.0%} of the smallest true group, which makes up {smallest['precision']:.0%} of it."
    )


def inferences(table: Comparison) -> list[str]:
    """A sentence for each way that groups were inferred in: its arms, and the means of what was found."""
    ways: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in table.rows:
        if (found := row.get("inferred_groups")) and not row.get("control_of"):
            ways.setdefault((found["by"], *found["names"]), []).append(row)
    told = []
    for rows in ways.values():
        arms = dict.fromkeys(map(spoken, rows))
        # arms of one seed often share what was inferred: it counts once
        different: list[dict[str, Any]] = []
        for row in rows:
            if row["inferred_groups"] not in different:
                different.append(row["inferred_groups"])
        seeds = len({row["seed"] for row in rows})
        over = f", means over {seeds} seeds" if seeds > 1 else ", means over arms" if len(different) > 1 else ""
        told.append(f"{listed(arms)}: {inferred(_mean_of(different), over)}")
    return told


def _mean_of(findings: Sequence[Any]) -> Any:
    """Results of the same keys as one, with the means of their numbers; anything else is the first's."""
    first = findings[0]
    if isinstance(first, Mapping):
        return {key: _mean_of([finding[key] for finding in findings]) for key in first}
    if isinstance(first, list | tuple):
        return [_mean_of(column) for column in zip(*findings, strict=True)]
    numbers = isinstance(first, int | float) and None not in findings
    return sum(findings) / len(findings) if numbers else first


def uncaptured(rows: Sequence[Mapping[str, Any]]) -> str:
    """Why steps on a GPU were not captured, in a line; nothing where they were or where there was no GPU."""
    plain = [
        str(row["step"]).removeprefix("plain:").strip()
        for row in rows
        if str(row.get("step", "")).startswith("plain:") and str(row.get("device", "")).startswith("cuda")
    ]
    if not plain:
        return ""
    of = f" in {len(plain)} of {len(rows)} runs" if len(rows) > 1 else ""
    return f"steps were not captured{of}: {'; '.join(dict.fromkeys(plain))}"


def outcome(difference: Mapping[str, Any]) -> Outcome:
    """The rule on an interval."""
    low, high = difference.get("low"), difference.get("high")
    if low is None or high is None or not math.isfinite(difference["mean"]):
        return "unclear" if _nowhere(difference) else "untold"
    return "raised" if low > 0 else "lowered" if high < 0 else "unclear"


def _nowhere(difference: Mapping[str, Any]) -> bool:
    """Whether several seeds came out with the same as their control, each of them."""
    return difference.get("low") is None and difference["mean"] == 0 and difference["pairs"] > 1


def spoken(entry: Mapping[str, Any]) -> str:
    """An arm in a sentence: "useful with sgd", in a sweep "useful with sgd at batch_size 256"."""
    at = entry.get("sweep")
    return f"{SPOKEN.get(entry['method'], entry['method'])} with {entry['optimizer']}" + (
        f" at {point_name(at)}" if at else ""
    )


def short_arm(arm: str) -> str:
    """An arm's name without the cost it was cut to: "erm+sgd at the cost of pde+sgd" is an "erm+sgd"."""
    return arm.partition(" at the cost of ")[0]


def table_name(entry: Mapping[str, Any]) -> str:
    """An arm in a table that says elsewhere what its cost and its swept values are."""
    return f"{entry['method']}+{entry['optimizer']}" if entry.get("sweep") else short_arm(entry["arm"])


def percent(share: float | None) -> str:
    """0.938 as "93.8%"."""
    return "–" if share is None or not math.isfinite(share) else f"{number(share)}%"


def number(share: float | None) -> str:
    """0.938 as "93.8"."""
    return "–" if share is None or not math.isfinite(share) else f"{100 * share:.1f}"


def times(multiple: float | None) -> str:
    """A cost as a multiple of ERM's: "1.12x"."""
    if multiple is None or not math.isfinite(multiple):
        return "–"
    return f"{multiple:.2f}x" if multiple >= 0.01 else f"{multiple:.2g}x"


def signed(share: float, digits: int = 1) -> str:
    """A difference in points with its sign: "+2.3", "−0.4", "0.0"."""
    text = f"{100 * share:+.{digits}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", "−")


def interval(difference: Mapping[str, Any]) -> str:
    """A 95% interval in points: "[−1.9, 1.1]"; nothing where there is none."""
    low, high = difference.get("low"), difference.get("high")
    if low is None or high is None:
        return ""
    digits = _digits(difference)
    return f"[{signed(low, digits).lstrip('+')}, {signed(high, digits).lstrip('+')}]"


def bounds(found: Sequence[float] | None) -> str:
    """The interval of a share, in percent: "[80.1, 92.4]"; nothing where there is none."""
    return "" if found is None else f"[{number(found[0])}, {number(found[1])}]"


def used(who: str, counts: Sequence[float], sizes: Sequence[int], names: Sequence[str]) -> str:
    """Of which group the smallest share of training examples was used, in a sentence; nothing if all were."""
    shares = [n / size if size else 1.0 for n, size in zip(counts, sizes, strict=True)]
    least = min(range(len(shares)), key=shares.__getitem__)
    if shares[least] >= 1:
        return ""
    return f"{who} used {counts[least]:,.0f} of {sizes[least]:,} training examples of {names[least]!r}."


def reached(table: Comparison) -> list[str]:
    """What it cost each arm to bring the worst group furthest above ERM's, as far as any arm came in the median, and
    of which arms that cannot be told."""
    beside = [entry for entry in table.summary if entry["method"] != "erm" and not entry.get("control_of")]
    if any(entry.get("sweep") for entry in beside):
        return []
    untold = [f"Cost to reach a worst group: {left_out(beside)}."] if left_out(beside) else []
    arms = [entry for entry in beside if "cost_to_reach" in entry]
    levels = list(zip(*(entry["cost_to_reach"] for entry in arms), strict=True))
    there = [of_arms for of_arms in levels if any(level["median_cost"] is not None for level in of_arms)]
    there = there or [of_arms for of_arms in levels if any(level["seeds_reached"] for level in of_arms)]
    if not there:
        return untold
    told = []
    for entry, level in zip(arms, there[-1], strict=True):
        cost = "never" if level["median_cost"] is None else times(level["median_cost_multiple"])
        told.append(f"{spoken(entry)} {cost}" + (f" ({came(level)})" if level["seeds"] > 1 else ""))
    above = there[-1][0]["above_erm"]
    more = f" plus {100 * above:.0f} points" if above else ""
    cost = "Median cost" if any(entry["seeds"] > 1 for entry in arms) else "Cost"
    sentence = f"{cost} up to ERM's best worst group on validation{more}, 1x being all of ERM's: {', '.join(told)}"
    return [f"{sentence}; {left_out(beside)}." if untold else f"{sentence}."]


def left_out(arms: Sequence[Mapping[str, Any]]) -> str:
    """The arms whose cost to reach a worst group cannot be told, with the reason; nothing where there are none."""
    reasons: dict[str, list[str]] = {}
    for entry in arms:
        if why := entry.get("cost_to_reach_untold"):
            reasons.setdefault(why, []).append(spoken(entry))
    return "; ".join(f"not told of {listed(names)}, as {why}" for why, names in reasons.items())


def came(level: Mapping[str, Any]) -> str:
    """How many seeds came to a level: "3 of 5 seeds"."""
    return f"{level['seeds_reached']} of {level['seeds']} seeds"


def points(difference: Mapping[str, Any]) -> str:
    """The difference alone, signed, with as many digits as its interval needs: "−0.4"."""
    return signed(difference["mean"], _digits(difference)) if math.isfinite(difference["mean"]) else "–"


def duration(seconds: float) -> str:
    """Seconds as people say them: "48 s", "2 min 5 s", "1 h 3 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def run_sentences(results: Mapping[str, Any]) -> list[str]:
    """What one run reached, which of its weights were kept, and what it cost."""
    split = measured_split(results)
    measured = results.get(split) or results.get("train") or {}
    reached = f"{percent(measured.get('accuracy'))} {split} accuracy"
    if "worst_group" in measured:
        which = worst_group(measured, results.get("group_names", ()))
        reached += f" and {percent(measured['worst_group'])} in its worst group" + (f" ({which})" if which else "")
    kept = f"The weights are those of epoch {results['selected_epoch']} of {results['epochs']}"
    if "selected_after_epochs" in results:
        kept += f", after the cost of {results['selected_after_epochs']:.1f} epochs of the full training set"
    return [
        f"{spoken(results)} reaches {reached} on {results['data']}.",
        f"{kept}: the {RULE_NAMES.get(results['rule'], results['rule'])}{then(results)}.",
        f"Training cost {times(results['cost_multiple'])} what ERM costs{in_all(results)} and took "
        f"{duration(results['seconds'])}.",
        *evaluation([results]),
        *([f"{_capital(none_chosen(results))}."] if none_chosen(results) else []),
        *([_capital(inferred(results["inferred_groups"]))] if "inferred_groups" in results else []),
    ]


def then(results: Mapping[str, Any]) -> str:
    """`refitted` as the end of a sentence on the weights."""
    return f"; {refitted(results)}" if refitted(results) else ""


def worst_group(measured: Mapping[str, Any], names: Sequence[str]) -> str:
    """Which group of a split is the worst, and on how many examples: "left edge: 198 examples [68.3, 80.3]".

    Of several that are as low it is the one with the most examples.
    """
    counts = measured.get("group_counts") or []
    lowest = [g for g, accuracy in enumerate(measured.get("groups") or []) if accuracy == measured["worst_group"]]
    if not lowest or not counts:
        return ""
    g = max(lowest, key=counts.__getitem__)
    found = measured.get("group_intervals") or intervals(measured["groups"], counts)
    told = f"{names[g] if g < len(names) else f'group {g}'}: {counted(counts[g], 'example')} {bounds(found[g])}"
    return told + (f"; {len(lowest) - 1} more as low" if len(lowest) > 1 else "")


def counted(n: int, noun: str) -> str:
    """So many of something: "1 epoch", "1,200 epochs"."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def listed(names: Iterable[Any]) -> str:
    """Names with commas between them."""
    return ", ".join(str(name) for name in names)


def _verdict(entry: Mapping[str, Any], metric: str, summary: Sequence[Mapping[str, Any]]) -> Verdict:
    difference = entry[metric]["difference"]
    arm, what, against = spoken(entry), METRIC_NAMES[metric], _against(entry)
    found = outcome(difference)
    if found == "untold" and not math.isfinite(difference["mean"]):
        return Verdict(entry["arm"], found, f"{arm} shares no seed with its control, so nothing can be said.")
    numbers = f"{points(difference)} points {interval(difference)}".rstrip()
    if found == "raised":
        sentence = f"{arm} raised {what} by {numbers.lstrip('+')} over {against}."
    elif found == "lowered":
        sentence = f"{arm} lowered {what}: {numbers} against {against}."
    elif found == "untold":
        why = "one seed cannot tell: run several"
        if difference["pairs"] > 1:
            why = f"{difference['pairs']} seeds that all show the same cannot tell how far others would: run more"
        sentence = f"{arm} shows {numbers} of {what} against {against}, but {why}."
    elif _nowhere(difference):
        sentence = f"{arm} made no difference to {what}: every seed has the same as {against}."
    else:
        sentence = f"{arm} made no clear difference to {what}: {numbers} against {against}."
    return Verdict(entry["arm"], found, sentence, (*_price(entry, metric), *_in_full(entry, metric, summary)))


def _against(entry: Mapping[str, Any]) -> str:
    """The control in words, with the cost that both have."""
    method, _, optimizer = short_arm(entry["control"]).partition(", ")[0].rpartition("+")
    name = SPOKEN.get(method, method)
    if method == "erm" or optimizer != entry["optimizer"]:
        name += f" with {optimizer}"
    cost, its_cost = entry["cost_multiple"], entry.get("control_cost_multiple")
    if its_cost is not None and abs(its_cost - cost) > SAME_COST * cost:
        return f"{name} ({times(cost)} ERM; the control {times(its_cost)})"
    how = "at"
    if method == "erm" and abs(cost - 1) > SAME_COST:
        how = "stopped at" if cost < 1 else "trained on to"
    return f"{name} {how} the same cost ({times(cost)} ERM)"


def _price(entry: Mapping[str, Any], metric: str) -> list[str]:
    """What happened to the worst group, where that is not the headline, and to the average where it was the price."""
    worst = entry.get("worst_group", {}).get("difference")
    average = entry.get("train_weighted", {}).get("difference")
    if worst is None or outcome(worst) in ("unclear", "untold"):
        return []
    if outcome(worst) == "raised" and average is not None and outcome(average) == "lowered":
        rise = "" if metric == "worst_group" else f" by {points(worst).lstrip('+')} points {interval(worst)}"
        return [
            f"It raised the worst group{rise} at the price of the average: "
            f"train-weighted accuracy {points(average)} points {interval(average)}."
        ]
    if metric == "worst_group":
        return []
    return [f"Its worst group was {outcome(worst)}: {points(worst)} points {interval(worst)}."]


def _in_full(entry: Mapping[str, Any], metric: str, summary: Sequence[Mapping[str, Any]]) -> list[str]:
    """For an arm whose control is ERM cut short: the difference from ERM trained in full, which costs more."""
    reference = full_erm(summary, entry)
    cut_short = short_arm(entry["control"]).startswith("erm+") and entry["cost_multiple"] < 1 - SAME_COST
    if not cut_short or reference is None or metric not in reference:
        return []
    ours, theirs = entry[metric].get("values", []), reference[metric].get("values", [])
    if not ours or len(ours) != len(theirs):
        return []
    difference = paired([a - b for a, b in zip(ours, theirs, strict=True)])
    reached = f"{times(reference['cost_multiple'])}, {percent(_mean(reference, metric))}"
    numbers = f"{points(difference)} points {interval(difference)}".rstrip()
    length = "as far as it ran" if _stopped(reference) else "in full"
    return [f"Against {spoken(reference)} {length} ({reached}): {numbers}."]


def _within(entry: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether an arm's swept values are among another's."""
    return (entry.get("sweep") or {}).items() <= (other.get("sweep") or {}).items()


def _digits(difference: Mapping[str, Any]) -> int:
    """One digit, or two where one would print a number as 0.0 that is not."""
    shown = [difference.get(key) for key in ("mean", "low", "high")]
    return 2 if any(value is not None and 1e-5 < abs(value) < 5e-4 for value in shown) else 1


def _mean(entry: Mapping[str, Any], metric: str) -> float | None:
    value: float | None = entry[metric]["mean"] if metric in entry else None
    return value


def _over_seeds(entry: Mapping[str, Any]) -> str:
    return f" (mean of {entry['seeds']} seeds)" if entry["seeds"] > 1 else " (one seed)"
