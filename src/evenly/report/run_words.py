"""One run in plain sentences: what it reached, which weights are used, what it cost, what else has to be known."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from evenly.data import DATASETS, Data, dataset_options
from evenly.report.formats import bounds, counted, listed, percent, sentence, times
from evenly.report.names import RULES, group_name, run_label
from evenly.runs.differences import mean
from evenly.runs.plan import DataSpec, Plan
from evenly.runs.results import SHOWN, DataSummary, InferredGroups, Measured, RunResult
from evenly.runs.run import Run
from evenly.values import duration

TRY = "erm,useful,pde,group_dro"
WORTH_TRYING = 0.05
"""A worst group so far below the average is worth trying other methods for."""
SAME_COST = 0.05
"""Costs within this share of each other are called the same."""


def run_sentences(result: RunResult) -> list[str]:
    """A run in a few sentences."""
    measured = result.measured
    reached = f"{percent(measured.accuracy)} {SHOWN[result.judged]} accuracy"
    if measured.worst_group is not None:
        reached += f" and {percent(measured.worst_group)} in its worst group"
        which = worst_group(measured, result.data.group_names)
        reached += f" ({which})" if which else ""
    in_full = erm_in_full(result.method, result.cost_multiple)
    sentences = [
        f"{run_label(result)} reaches {reached} on {result.data.name}.",
        f"{sentence(weights_used(result))} They cost as much as {result.selected_after_epochs:.1f} epochs of the full "
        "training set.",
        f"Training cost {times(result.cost_multiple)} what plain training costs{in_full} and took "
        f"{duration(result.seconds)}{together(result.processes)}.",
    ]
    if result.evaluation_cost:
        sentences.append(evaluation_cost(times(result.evaluation_cost_multiple)))
    sentences += map(sentence, result.remarks)
    if result.inferred_groups is not None:
        sentences.append(sentence(inferred_groups(result.inferred_groups)))
    return sentences


def together(processes: int) -> str:
    """Where several processes trained one network: how many."""
    return f" in {processes} processes" if processes > 1 else ""


def start_words(plan: Plan, data: Data, what: str, device: str, threads: int, processes: int = 1) -> list[str]:
    """What is about to be trained on what, in a few lines.

    Args:
        what: the model and what trains it.
        threads: of each process.
        processes: that train it together.
    """
    summary, shape, settings = DataSummary.of(data), data.train.example_shape, plan.settings
    sizes = listed(f"{size:,} {SHOWN[name]}" for name, size in summary.sizes.items())
    each = f"{' x '.join(map(str, shape))}{' numbers' * (len(shape) == 1)} each" if shape else "texts"
    groups = f", {counted(summary.groups, 'group')}" if summary.groups else ""
    length = counted(settings.epochs, "epoch") if plan.budget is None else f"{plan.budget:,.0f} example-gradients"
    batches = "whole batches" if settings.batch_size is None else f"batches of {settings.batch_size:,}"
    place = "on a GPU" if device == "cuda" else f"on the CPU, {counted(threads, 'thread')}"
    if processes > 1:
        place = f"{'on GPUs' if device == 'cuda' else place}{' each' * (device == 'cpu')},{together(processes)}"
    return [
        f"{data.name}: {sizes} examples",
        f"  {each}, {data.classes} classes{groups}",
        f"  {what}",
        f"  {length}, {batches}, {place}",
    ]


def last_epoch(runs: Sequence[Run]) -> str:
    """What the last epoch would give on validation, and what the weights used have there: means over runs of a method.

    Nothing where every run uses the weights of its last epoch.
    """
    used, last = [], []
    for run in runs:
        rows = {row["epoch"]: row["validation"] for row in run.history if "validation" in row}
        if run.results.rule == "last" or run.results.selected_epoch not in rows:
            return ""
        used.append(rows[run.results.selected_epoch])
        last.append(rows[max(rows)])
    if used == last:
        return ""
    if _reached(used) == _reached(last):
        return f"the last epoch would give the same on validation, {_reached(last)}"
    return f"the last epoch would give {_reached(last)} on validation, where these weights have {_reached(used)}"


def _reached(measured: Sequence[Mapping[str, Any]]) -> str:
    words = {"worst_group": "in the worst group", "worst_inferred_group": "in the worst inferred group"}
    worst = next((metric for metric in words if metric in measured[0]), "worst_class")
    shares = (percent(mean(each[metric] for each in measured)) for metric in ("accuracy", worst))
    return f"{next(shares)} accuracy and {next(shares)} {words.get(worst, 'in the worst class')}"


def weights_used(result: RunResult) -> str:
    """Which epoch's weights are used, and why: "weights used: epoch 5 of 15, the last epoch"."""
    return f"weights used: epoch {result.selected_epoch} of {result.epochs}, the {RULES.get(result.rule, result.rule)}"


def next_steps(run: Run) -> list[str]:
    """What to do with a finished run, a command each."""
    measured, steps = run.results.measured, []
    if measured.worst_group is None:
        steps.append(
            "Which groups it fails on is not known: name the columns of groups (`--groups COLUMN`), or have them "
            "inferred (`--groups infer --select worst-group`)."
        )
    elif measured.accuracy - measured.worst_group > WORTH_TRYING:
        gap = f"{100 * (measured.accuracy - measured.worst_group):.1f}"
        steps.append(
            f"Its worst group is {gap} points below its average. See which method helps: "
            f"`evenly compare {_data_arguments(run.plan.data)} --methods {TRY} --select worst-group --seeds 3`."
        )
    if run.folder is not None:
        steps.append("See what it relies on, from the folder of this page: `evenly audit .`")
        steps.append("Use it on new data: `evenly predict . NEW_DATA`")
    return steps


def _data_arguments(data: DataSpec) -> str:
    """The data on the command line, with its options."""
    if data.kind == "own":
        return "DATA"
    known = data.kind == "named" and DATASETS.usable(data.name) is not None  # it may be of a package that is not here
    defaults = dataset_options(data.name) if known else {}
    given = {name: value for name, value in data.options.items() if value not in (None, defaults.get(name))}
    words = [data.place or data.name]
    for name, value in given.items():
        words += ["--groups", str(value)] if name == "groups" else ["-d", f"{name}={value}"]
    return shlex.join(words)


def evaluation_cost(cost: str) -> str:
    """What evaluation on validation cost, as a sentence."""
    return f"Evaluation on validation cost {cost} more, which is not included above."


def ran_shorter(method: str, cost_multiple: float) -> bool:
    """Whether this is ERM that cost less than ERM: patience, a budget or epochs of its own may have stopped it."""
    return method == "erm" and cost_multiple < 1 - SAME_COST


def erm_in_full(method: str, cost_multiple: float) -> str:
    """What to add to "what plain training costs" where the run is ERM itself, for fewer epochs."""
    return " for all the epochs set" if ran_shorter(method, cost_multiple) else ""


def worst_group(measured: Measured, names: Sequence[str]) -> str:
    """Which group of a split is the worst, and on how many examples: "left edge: 198 examples [68.3, 80.3]".

    Where several are equally low, it is the one with the most examples.
    """
    lowest = [g for g, accuracy in enumerate(measured.groups) if accuracy == measured.worst_group]
    if not lowest or not measured.group_counts:
        return ""
    g = max(lowest, key=measured.group_counts.__getitem__)
    limits = measured.group_intervals[g] if measured.group_intervals else None
    text = f"{group_name(names, g)}: {counted(measured.group_counts[g], 'example')} {bounds(limits)}".rstrip()
    return text + (f"; {len(lowest) - 1} more equally low" if len(lowest) > 1 else "")


def inferred_groups(inferred: InferredGroups, averaged: str = "") -> str:
    """How groups were inferred and how well they match the true ones; `averaged` says what the numbers are means of."""
    sizes = "; ".join(f"{name} {count:,.0f}" for name, count in zip(inferred.names, inferred.counts, strict=True))
    epochs = f"{inferred.epoch:,.3g} epoch" + ("" if inferred.epoch == 1 else "s")
    text = (
        f"groups were inferred by {inferred.by} after {epochs}, at the cost of {inferred.cost:,.0f} example-gradients "
        f"({sizes} training examples){averaged}"
    )
    if inferred.match is None:
        return f"{text}."
    information, minority = inferred.match.adjusted_mutual_information, inferred.match.minority
    return (
        f"{text}. Their adjusted mutual information with the true groups is {information:.2f}. One inferred group "
        f"holds {minority.recall:.0%} of the smallest true group, which makes up {minority.precision:.0%} of it."
    )


def uncaptured(results: Sequence[RunResult]) -> str:
    """Why steps on a GPU were not captured, in a line; nothing where they were or where there was no GPU."""
    on_gpu = [result for result in results if result.device.startswith("cuda")]
    reasons = [result.step.removeprefix("plain:").strip() for result in on_gpu if result.step.startswith("plain:")]
    if not reasons:
        return ""
    share = f" in {len(reasons)} of {len(results)} runs" if len(results) > 1 else ""
    return f"steps were not captured{share}: {'; '.join(dict.fromkeys(reasons))}"
