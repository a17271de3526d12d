"""The page of an improvement: what was asked, where plain training fails, what was tried, what was chosen, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import evolve

from evenly.diagnose.audit_folder import FILE as AUDIT_FILE
from evenly.diagnose.audit_folder import read_audits
from evenly.diagnose.audit_values import Findings
from evenly.report.audit_answers import slices
from evenly.report.audit_pages import GRAD_CAM, hardest_table, picture
from evenly.report.audit_pages import groups as audited_groups
from evenly.report.blocks import (
    Block,
    Cell,
    Code,
    Fact,
    Facts,
    Gallery,
    Page,
    Picture,
    Prose,
    Row,
    Section,
    Table,
    present,
)
from evenly.report.figures import Style, data_uri
from evenly.report.formats import listed, multiple, percent
from evenly.report.groups import MOST_ROWS, WIDEST_BAR_NAME, accuracy_blocks
from evenly.report.improve_tried import INTERVALS, method_cells, tried
from evenly.report.improve_words import (
    GROUPINGS,
    baseline_on_validation,
    baseline_sentences,
    choice_sentences,
    control_on_test,
    counted_runs,
    metric_name,
    predict_command,
    short,
    uncertain,
)
from evenly.report.names import RULES, group_name
from evenly.report.rendering import footer
from evenly.report.results_table import difference_cells, scale_over
from evenly.runs.improvement import AUDIT, BEST, CHANGED, Changed, Improvement
from evenly.runs.results import SHOWN
from evenly.values import cut, duration

MOST_HARDEST = 9
"""Hardest examples that are shown; the page of the audit has more."""
MOST_SENTENCES = 2
"""Sentences of the audit: the accuracy, and the groups that it fails on."""
GOALS = {"worst-group": "worst group", "average": "average accuracy", "worst-class": "worst class"}
FAILING, OTHERS, BEFORE, AFTER = Style(2), Style(1), Style(0), Style(1)
CHOSEN_ON_VALIDATION = (
    "Validation chose the epoch, the method and the model that improve hands back. The test set was used once, after "
    "the choice."
)
ACCURACY_INTERVALS = "Intervals of accuracies are Wilson's. Points are percentage points."
HOW_TO_READ = (
    CHOSEN_ON_VALIDATION,
    "Cost is counted in example-gradients: one forward and backward pass of one example. A forward pass alone counts a "
    "third. Costs are given as multiples of one run of plain training (ERM).",
    "A control trains for the same cost without the method's idea. It separates the idea from more training.",
    "A difference has two 95% intervals. The one over examples is for these very models: would other examples of the "
    "same kind show it too? The one over seeds is for new runs: would they show it too? It needs three seeds or more. "
    "A difference is clear where both exclude 0, and clear for these models only where just the first does.",
    ACCURACY_INTERVALS,
)


def improve_page(improvement: Improvement, folder: Path | None) -> Page:
    """What the page holds; `folder` has the audit and the images beside improve.json."""
    sections = [
        Section("In short", "short", [Prose(short(improvement))]),
        *improve_sections(improvement, folder),
        Section("How to read this", "reading", [Prose(HOW_TO_READ)]),
    ]
    summary = improvement.profile.summary
    return Page(f"evenly improve on {summary.name}", summary.about, sections, footer(improvement.seconds), True)


def improve_sections(improvement: Improvement, folder: Path | None, place: str = "") -> list[Section]:
    """From what was asked to how the model is used.

    Args:
        folder: has the audit and the images beside improve.json.
        place: that folder as seen from the page's, with a slash at its end; empty where the page is in it.
    """
    audit = None if folder is None else _audit(folder, place)
    if folder is not None:
        gained, lost = (_with_images(each, folder) for each in (improvement.gained, improvement.lost))
        improvement = evolve(improvement, gained=gained, lost=lost)
    contents: list[tuple[str, str, list[Block | None]]] = [
        ("What was asked", "asked", [asked(improvement), *sizes(improvement)]),
        ("Where plain training fails", "fails", failures(improvement, audit, place)),
        ("What was tried", "tried", tried(improvement)),
        ("What was chosen and why", "chosen", chosen(improvement)),
        ("Examples that changed", "changed", changed(improvement)),
        ("What is uncertain", "uncertain", [Prose(uncertain(improvement))]),
        ("How to use the model", "use", [*usage(improvement, place)]),
    ]
    return [Section(name, anchor, blocks) for name, anchor, each in contents if (blocks := _filled(each))]


def _filled(blocks: Sequence[Block | None]) -> list[Block]:
    return [block for block in present(blocks) if not (isinstance(block, Prose) and not block.paragraphs)]


def _audit(folder: Path, place: str) -> Findings | None:
    """The audit of plain training, where there is one."""
    if not (folder / AUDIT / AUDIT_FILE).exists():
        return None
    audits, _ = read_audits(folder / AUDIT)
    found = audits[0] if audits else None
    return evolve(found, table=f"{place}{AUDIT}/{found.table}") if found is not None and found.table else found


def _with_images(examples: Sequence[Changed], folder: Path) -> tuple[Changed, ...]:
    def read(name: str) -> bytes | None:
        try:
            return (folder / CHANGED / name).read_bytes()
        except OSError:
            return None  # of texts and numbers there is none

    return tuple(
        evolve(
            each,
            png=each.png if each.png is not None else read(f"{each.index}.png"),
            heat=each.heat if each.heat is not None else read(f"{each.index}-heat.png"),
        )
        for each in examples
    )


def asked(improvement: Improvement) -> Facts:
    """The goal, the data and what is odd about it, the budget and what was spent of it."""
    profile, seeds = improvement.profile, improvement.seeds
    summary, names = profile.summary, improvement.profile.group_names
    grouping = GROUPINGS[profile.grouping] + (f": {profile.slice}" if profile.slice else "")
    groups = f"{len(names) or summary.groups:,}, {grouping}" if profile.grouping != "none" else grouping
    budget = counted_runs(improvement.budget) + (f" for each of {len(seeds)} seeds" if len(seeds) > 1 else "")
    spent = f"{counted_runs(improvement.spent_multiple)} in all ({improvement.spent:,.0f} example-gradients)"
    if improvement.groups_cost:
        spent += f", of which {multiple(improvement.groups_cost / improvement.unit)} to infer groups"
    duplicates = [f"{n:,} {SHOWN[split]} inputs" for split, n in profile.duplicates.items() if n]
    columns = [f"{each.column} ({percent(each.accuracy)})" for each in profile.give_aways]
    facts = [
        Fact("goal", f"raise {GOALS[improvement.goal]}", "what validation chooses by"),
        Fact("data", summary.name),
        *(Fact(f"{SHOWN[name]} examples", f"{size:,}") for name, size in summary.sizes.items()),
        Fact("splits drawn from training", listed(SHOWN[name] for name in profile.drawn)),
        Fact("classes", f"{len(summary.class_names):,}"),
        Fact("class imbalance in training", _imbalance(profile.class_counts, summary.class_names)),
        Fact("groups", groups),
        Fact("group imbalance in training", _imbalance(profile.group_counts, names)),
        Fact("in training as well", listed(duplicates) or "no validation or test input", "duplicates across splits"),
        Fact("columns that give the label away", listed(columns) or "none found"),
        Fact("model", improvement.model),
        Fact("seeds", listed(seeds)),
        Fact("selection rule", f"{improvement.rule}: {RULES.get(improvement.rule, improvement.rule)}"),
        Fact("budget", budget, "training cost that may be spent, in runs of plain training (ERM)"),
        Fact("spent", spent),
        Fact("time", duration(improvement.seconds)),
    ]
    return Facts([fact for fact in facts if fact.value], "")


def _imbalance(counts: Mapping[str, Sequence[int]], names: Sequence[str]) -> str:
    """The largest and the smallest part of training."""
    train = {group_name(names, k): n for k, n in enumerate(counts.get("train", ())) if n}
    if len(train) < 2:
        return ""
    least, most = min(train, key=train.__getitem__), max(train, key=train.__getitem__)
    ratio = train[most] / train[least]
    if ratio < 1.05:
        return "none: all about the same size"
    return f"{ratio:.1f} to 1 ({most}: {train[most]:,}; {least}: {train[least]:,})"


def sizes(improvement: Improvement) -> list[Block | None]:
    """How many examples each group, or else each class, has in each split."""
    profile = improvement.profile
    if profile.group_counts:
        return [_size_table("group", profile.group_names, profile.group_counts)]
    return [_size_table("class", profile.summary.class_names, profile.class_counts)]


def _size_table(what: str, names: Sequence[str], counts: Mapping[str, Sequence[int]]) -> Table | None:
    splits = [name for name in SHOWN if counts.get(name)]
    if not splits:
        return None
    length = max(len(counts[name]) for name in splits)
    sized = {k: [counts[name][k] if k < len(counts[name]) else 0 for name in splits] for k in range(length)}
    order = sorted(sized, key=lambda k: sized[k])[:MOST_ROWS]
    rows = [Row(group_name(names, k), [Cell(f"{n:,}", value=n) for n in sized[k]]) for k in order]
    caption = f"Examples of each {what} in each split, the smallest first."
    caption += f" Of {length:,}, the {len(order)} smallest." if len(order) < length else ""
    return Table([what, *(SHOWN[name] for name in splits)], rows, caption, f"Sizes by {what}")


def failures(improvement: Improvement, audit: Findings | None, place: str = "") -> list[Block | None]:
    """Plain training on validation: groups, failing slices, the hardest examples."""
    summary, names = baseline_on_validation(improvement), improvement.profile.group_names
    by_group = [] if summary is None else accuracy_blocks([("plain training", BEFORE, summary)], names, "validation")
    if audit is None:
        return [Prose(baseline_sentences(improvement)), *by_group]
    blocks: list[Block | None] = [Prose([*audit.verdict[:MOST_SENTENCES], f"The whole audit is in `{place}{AUDIT}/`."])]
    if audit.by == "group" or not by_group:
        blocks.append(audited_groups([audit]))
    else:
        blocks += by_group
    return [*blocks, *slices([audit]), hardest(audit) if audit.hardest else None]


def hardest(audit: Findings) -> Gallery | Table | None:
    """The examples that plain training does worst on: images with Grad-CAM, texts, or numbers."""
    if not any(each.text or each.png for each in audit.hardest):
        return hardest_table(audit)
    caption = f"The {audit.split} examples with the largest loss: label, prediction and loss of each."
    caption += f" {GRAD_CAM}" if any(each.heat for each in audit.hardest) else ""
    return Gallery("Hardest examples", [("", [picture(audit, each) for each in audit.hardest[:MOST_HARDEST]])], caption)


def chosen(improvement: Improvement) -> list[Block | None]:
    """Why, then before and after on the test set: averages and worst cases, groups."""
    arms = [("plain training", BEFORE, improvement.baseline.summary)]
    control = control_on_test(improvement)
    if improvement.is_better:
        arms.append((cut(improvement.choice.arm.name, WIDEST_BAR_NAME), AFTER, improvement.chosen.summary))
    groups = accuracy_blocks(
        arms, improvement.profile.group_names, "test", None if control is None else control.summary
    )
    return [Prose(choice_sentences(improvement)), before_and_after(improvement), *groups]


def before_and_after(improvement: Improvement) -> Table:
    """A row per metric: plain training, the chosen method, the difference with both intervals."""
    before, after = improvement.baseline.summary, improvement.chosen.summary
    metrics = [name for name in ("accuracy", "worst_group", "worst_class") if name in before.metrics]
    better, control = improvement.is_better, control_on_test(improvement)
    scale = scale_over(after.difference(name) for name in metrics) if better else None
    rows = []
    for name in metrics:
        arms = [before, after] if better else [before]
        cells = [method_cells(each, name)[1] for each in arms]
        cells += [] if control is None else [method_cells(control.summary, name)[1]]
        cells += difference_cells(after.difference(name), scale)
        note = "the goal" if name == improvement.metric else ""
        rows.append(Row(metric_name(improvement, name), cells, note=note))
    columns = ["metric", "plain training, %", *(["chosen, %"] if better else [])]
    columns += [] if control is None else ["control of equal cost, %"]
    columns += ["chosen against plain training, points", "95% intervals", ""] if scale is not None else []
    seeds = f"mean ± standard deviation over {before.seeds} seeds" if before.seeds > 1 else "one seed"
    caption = f"Measured on the test set, {seeds}."
    caption += f" {INTERVALS.format(examples='test examples')}" if scale is not None else ""
    title = "Before and after, on the test set" if better else "On the test set"
    return Table(columns, rows, caption, title, None if scale is None else scale.place(0.0))


def changed(improvement: Improvement) -> list[Block | None]:
    """Validation examples that the first model and the one that is handed back disagree about."""
    kinds = (
        ("Wrong before, right now", improvement.gained, improvement.gained_count),
        ("Right before, wrong now", improvement.lost, improvement.lost_count),
    )
    if not any(count or examples for _, examples, count in kinds):
        return []
    gained, lost = (max(count, len(examples)) for _, examples, count in kinds)
    opening = (
        f"Of {improvement.profile.summary.sizes.get('validation', 0):,} validation examples, {gained:,} "
        f"{_were(gained)} wrong before and right now. {lost:,} {_were(lost)} right before and wrong now. Before is "
        "plain training with the first seed, now is the model that is handed back. Validation chose that model, "
        "so new data may show fewer examples gained."
    )
    blocks: list[Block | None] = [Prose([opening])]
    for name, examples, count in kinds:
        caption = f"{len(examples)} of {max(count, len(examples)):,}: the label, and both predictions."
        if not any(each.png or each.text for each in examples):
            blocks.append(_changed_table(name, examples, caption) if examples else None)
            continue
        caption += f" {GRAD_CAM}" if any(each.heat for each in examples) else ""
        blocks.append(Gallery(name, [("", [_changed_picture(each) for each in examples])], caption))
    return blocks


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _changed_table(name: str, examples: Sequence[Changed], caption: str) -> Table:
    rows = [
        Row(f"{each.index}", [*map(Cell, (each.label, each.before, each.after, each.group))], note=each.place)
        for each in examples
    ]
    return Table(["example", "label", "before", "now", "group"], rows, caption, name)


def _changed_picture(example: Changed) -> Picture:
    classes = f"{example.label}: {example.before} before, {example.after} now"
    caption = " · ".join(filter(None, (classes, example.group, example.place)))
    description = f"validation example {example.index}, {classes}"
    if example.text or example.png is None:
        return Picture(caption, description, text=example.text or f"example {example.index}")
    heat = "" if example.heat is None else data_uri(example.heat)
    return Picture(caption, description, data_uri(example.png), beside=heat)


def usage(improvement: Improvement, place: str = "") -> list[Block]:
    """The lines that load the model, and the command that predicts with it."""
    blocks: list[Block] = [Code("For new data, from the folder of this page:", [predict_command(f"{place}{BEST}")])]
    if improvement.loads:
        blocks.append(Code("In Python:", improvement.loads))
    return blocks
