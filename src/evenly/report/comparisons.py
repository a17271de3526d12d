"""A comparison as the sections of a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evenly.comparison import Comparison
from evenly.data.contract import Data
from evenly.engine.trained import Selection
from evenly.experiment import Run, resolve
from evenly.files import read_json
from evenly.report import by_group, figures, words
from evenly.report.blocks import (
    Block,
    Cell,
    Gallery,
    Panel,
    Panels,
    Prose,
    Row,
    Section,
    Settings,
    Table,
    Verdicts,
    Whisker,
)
from evenly.report.examples import minority_shares, picked_and_others
from evenly.report.figures import Bar, Curve, Look
from evenly.report.settings import NAMES, as_text, setting_pairs, size_pairs
from evenly.sweep import point_name

MOST_GROUPS = 12
"""Groups drawn at most: the worst ones of the first arm."""
KEPT_AFTER = "kept after, full epochs"
MOST_POINTS = 6
"""Combinations of swept values whose curves and groups are drawn at most; every one has its table."""

HOW_TO_READ = (
    "Cost is counted in example-gradients, one forward and backward pass of one example, and given as a multiple of "
    "what plain training (ERM) costs with the settings common to all arms, for all the epochs set: 1 is that also "
    "where patience stopped ERM earlier. A forward pass alone counts a third. "
    "Evaluation, the looks at the validation set, is counted apart and told in short.",
    "A control trains for the same cost without the method's idea: random upsampling for USEFUL, longer plain training "
    "for SAM, plain training stopped early for a method that is cheaper. It tells a method's idea from more "
    "steps, at this cost: with a larger one the gap can close. Settings of a method's own are listed above; a control "
    "has the common ones.",
    "Differences are paired by seed; the brackets hold the 95% t-interval of their mean. An interval that contains 0 "
    "means that these seeds do not tell a gain from chance; one seed, or seeds that all differ by the same, have no "
    "interval. Seeds that split one set of images anew are not fully "
    "independent, so intervals may be too narrow.",
    "The selection rule says which epoch's weights were kept. It looks at the validation set only, never at the test "
    "set.",
    "Train-weighted accuracy weighs the groups as often as they occur in training: what a user with data like the "
    "training data would see.",
)


def short(table: Comparison, title: str = "") -> Verdicts:
    """The plain-words summary."""
    return Verdicts(words.opening(table), words.verdicts(table), words.closing(table), title)


def section(table: Comparison, data: Data | None, number: int) -> Section:
    """Everything about one data set: what was run, the table, the figures, the examples."""
    looks = arm_looks(table)
    prefix = f"d{number}"
    figures_of_values = (
        by_value(table, data, looks, prefix)
        if table.plan.get("sweep")
        else [
            results(table, looks),
            alignments(table, looks, f"{prefix}-alignment"),
            courses(table, looks, f"{prefix}-course"),
            groups(table, data, looks, f"{prefix}-group"),
            by_group.accuracies(table, data),
            by_group.over_epochs(
                _runs_of(table, looks), [] if data is None else data.measured_names, f"{prefix}-epochs"
            ),
            by_group.origins(table, data),
            by_group.reaching(table),
        ]
    )
    blocks: list[Block | None] = [
        Prose([data.about]) if data is not None and data.about else None,
        run_settings(table, data),
        *figures_of_values,
        hard_examples(table, data),
    ]
    return Section(table.data, f"data-{number}", [block for block in blocks if block is not None])


def _runs_of(table: Comparison, arms: Iterable[str]) -> dict[str, list[Run]]:
    """The runs of each arm there are, one per seed."""
    found = {arm: [run for (name, _), run in table.runs.items() if name == arm] for arm in arms}
    return {arm: runs for arm, runs in found.items() if runs}


def by_value(table: Comparison, data: Data | None, looks: Mapping[str, Look], prefix: str) -> list[Block | None]:
    """A sweep: the arms over the swept values, then at every combination of values what a comparison has."""
    metric = words.headline(table)
    scale = _scale([entry[metric].get("difference") for entry in table.summary if metric in entry])
    points = []
    for at, arms in words.by_value(table.summary):
        shown = {entry["arm"] for entry in arms}
        shown |= {entry["control"] for entry in arms if entry.get("control")}
        points.append(
            (point_name(at), replace(
                table, rows=[row for row in table.rows if row["arm"] in shown],
                summary=[entry for entry in table.summary if entry["arm"] in shown],
                runs={key: run for key, run in table.runs.items() if key[0] in shown},
            ))
        )  # fmt: skip
    blocks: list[Block | None] = [over_values(table, looks, f"{prefix}-sweep")]
    for number, (name, part) in enumerate(points):
        mine = {entry["arm"]: looks[entry["arm"]] for entry in part.summary if entry["arm"] in looks}
        caption = _caption(table) if number == 0 else f"As above, at {name}."
        blocks.append(replace(results(part, mine, scale), title=f"Results at {name}", caption=caption))
        if number < MOST_POINTS:
            drawn = [
                alignments(part, mine, f"{prefix}-{number}-alignment"),
                courses(part, mine, f"{prefix}-{number}-course"),
                groups(part, data, mine, f"{prefix}-{number}-group"),
            ]
            blocks += [replace(block, title=f"{block.title}, {name}") for block in drawn if block is not None]
    return blocks


def over_values(table: Comparison, looks: Mapping[str, Look], prefix: str) -> Panels | None:
    """The headline metric against each swept number, a line per arm; a panel for each combination of other values."""
    metric = words.headline(table)
    arms = [entry for entry in table.summary if entry["arm"] in looks and metric in entry]
    panels: list[Panel] = []
    drawn: dict[str, list[Curve]] = {}
    for name, values in table.plan["sweep"].items():
        if not all(map(_is_number, values)):
            continue
        others = [_without(name, entry["sweep"]) for entry in arms if name in entry["sweep"]]
        widest = [at for at in others if not any(at.items() < other.items() for other in others)]
        for rest in [at for k, at in enumerate(widest) if at not in widest[:k]]:
            lines: dict[str, list[tuple[float, Mapping[str, Any]]]] = {}
            for entry in arms:
                if _without(name, entry["sweep"]).items() <= rest.items():
                    reached = [entry["sweep"][name]] if name in entry["sweep"] else [min(values), max(values)]
                    line = lines.setdefault(f"{entry['method']}+{entry['optimizer']}", [])
                    line += [(float(x), entry) for x in reached]
            title = f"{words.METRIC_NAMES[metric]} against {_swept(name)}" + (f", {point_name(rest)}" if rest else "")
            drawn[title] = [_line(arm, points, metric, looks) for arm, points in lines.items()]
            svg = figures.curves(
                drawn[title], prefix=f"{prefix}{len(panels)}", label=title.capitalize(), x_name=_swept(name),
                shares=True, log_x=figures.spans([float(value) for value in values], 20),
            )  # fmt: skip
            panels.append(Panel(title, svg))
    if not panels:
        return None
    legend = {line.name: line.look for lines in drawn.values() for line in lines}
    level = any(entry["sweep"].keys() < table.plan["sweep"].keys() for entry in arms)
    caption = (
        f"Measured on the {words.measured_on(table)} set. {_lines_are(drawn)} "
        + ("A level line is an arm that the value does not vary. " if level else "")
        + "Controls are left out; the tables below have them."
    )
    return Panels("Over the swept values", panels, caption, list(legend.items()))


def _without(name: str, sweep: Mapping[str, Any]) -> dict[str, Any]:
    return {other: value for other, value in sweep.items() if other != name}


def _line(arm: str, points: Sequence[tuple[float, Mapping[str, Any]]], metric: str, looks: Mapping[str, Look]) -> Curve:
    """An arm's curve over a swept number: per seed the values of the metric, in the number's order."""
    points = sorted(points, key=lambda point: point[0])
    xs = [x for x, _ in points]
    seeds = zip(*(entry[metric]["values"] for _, entry in points), strict=False)
    return Curve(arm, looks[points[0][1]["arm"]], [(xs, list(ys)) for ys in seeds])


def _swept(name: str) -> str:
    """A swept name for people: "batch size", "useful's factor"."""
    method, _, setting = name.rpartition(".")
    return f"{method}'s {NAMES.get(setting, setting)}" if method else NAMES.get(setting, setting)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def arm_looks(table: Comparison) -> dict[str, Look]:
    """A look for every arm that is no control, by the arm's name."""
    arms = [entry for entry in table.summary if not entry.get("control_of")]
    by_pair = figures.looks([(entry["method"], entry["optimizer"]) for entry in arms])
    return {entry["arm"]: by_pair[entry["method"], entry["optimizer"]] for entry in arms}


def run_settings(table: Comparison, data: Data | None) -> Settings:
    """What was run: arms, seeds, every setting of training that is known, the data's options and size."""
    plan = table.plan
    swept: Mapping[str, Sequence[Any]] = plan.get("sweep") or {}
    settings = {name: value for name, value in _resolved(table, data).items() if name not in swept}
    pairs = [
        ("methods", words.listed(plan.get("methods", ()))),
        ("optimizers", words.listed(plan.get("optimizers", ()))),
        ("seeds", words.listed(plan.get("seeds", ()))),
        *((f"{_swept(name)}, swept", as_text([as_text(v, name) for v in values])) for name, values in swept.items()),
        ("model", str(plan.get("model", ""))),
        *setting_pairs(settings, str(plan.get("rule", ""))),
        ("epochs where they differ", _other_epochs(table, settings.get("epochs"))),
        *((f"{method}'s own", as_text(options)) for method, options in (plan.get("options") or {}).items()),
        ("data options", as_text(plan.get("data_options") or {})),
        *size_pairs(data),
    ]
    return Settings([(name, value) for name, value in pairs if value])


def results(table: Comparison, looks: Mapping[str, Look], scale: tuple[float, float] | None = None) -> Table:
    """The table: every arm, and under it its control; differences are drawn on a scale of their own or a given one."""
    metric = words.headline(table)
    shown = [m for m in ("accuracy", "worst_group", "train_weighted") if any(m in entry for entry in table.summary)]
    if "worst_group" not in shown and any("worst_class" in entry for entry in table.summary):
        shown.append("worst_class")
    by_arm = {entry["arm"]: entry for entry in table.summary}
    scale = scale or _scale([entry[metric].get("difference") for entry in table.summary if metric in entry])
    rows = []
    for entry in table.summary:
        if entry.get("control_of") in by_arm:
            continue
        rows.append(_row(entry, shown, metric, scale, looks.get(entry["arm"]), _tells_when(table)))
        control = by_arm.get(entry.get("control") or "")
        if control is not None:
            note = "control, same cost" if control.get("control_of") else "control, as above"
            rows.append(_control_row(control, shown, note, scale is not None, _tells_when(table)))
    heads = {"accuracy": "accuracy, %", "worst_group": "worst group, %", "train_weighted": "train-weighted, %",
             "worst_class": "worst class, %"}  # fmt: skip
    columns = ["arm", *(heads[m] for m in shown), *([KEPT_AFTER] if _tells_when(table) else []), "cost, × ERM"]
    if scale is not None:
        columns += [f"{words.METRIC_NAMES[metric]} against control, points", ""]
    zero = None if scale is None else _place(0.0, scale)
    return Table(columns, rows, _caption(table), zero=zero)


def alignments(table: Comparison, looks: Mapping[str, Look], prefix: str) -> Panels | None:
    """Growth of the planted features, where the histories have it."""
    features = dict.fromkeys(
        key
        for run in table.runs.values()
        for row in final_rows(run)[-1:]
        for key in row
        if key.startswith("alignment_")
    )
    drawn = {feature: _curves(table, looks, (feature,)) for feature in features}
    drawn = {feature: lines for feature, lines in drawn.items() if lines}
    if not drawn:
        return None
    panels = []
    for number, (feature, lines) in enumerate(drawn.items(), 1):
        name = feature.removeprefix("alignment_").replace("_", " ")
        values = [y for line in lines for _, ys in line.seeds for y in ys]
        low, high = min(*values, 0.0), max(*values, 0.0)
        svg = figures.curves(
            lines, prefix=f"{prefix}{number}", label=f"Alignment with the {name} feature by epoch",
            y_range=(low - 0.04 * (high - low), high + 0.06 * (high - low) or 1.0),
        )  # fmt: skip
        panels.append(Panel(f"{name} feature", svg))
    caption = (
        "Alignment is the largest inner product of a filter with the planted direction: how much of that feature the "
        f"network has. Each panel has its own scale, from 0. {_lines_are(drawn)}"
    )
    return Panels("What the networks learned", panels, caption, _legend(drawn, looks))


def courses(table: Comparison, looks: Mapping[str, Look], prefix: str) -> Panels | None:
    """Training loss over epochs; validation accuracy and worst group over cost."""
    panels, drawn = [], {}
    losses = _curves(table, looks, ("train_loss",))
    if losses:
        drawn["train_loss"] = losses
        values = [y for line in losses for y in line.mean()[1]]
        svg = figures.curves(
            losses, prefix=f"{prefix}1", label="Training loss by epoch", log_y=figures.spans(values, 30)
        )
        panels.append(Panel("training loss", svg))
    titles = {"accuracy": "validation accuracy", "worst_group": "validation, worst group"}
    for number, (metric, title) in enumerate(titles.items(), 2):
        lines = _curves(table, looks, ("validation", metric), over_cost=True)
        if not lines:
            continue
        drawn[metric] = lines
        firsts, lasts = zip(*((x[0], x[-1]) for x in (line.mean()[0] for line in lines)), strict=True)
        svg = figures.curves(
            lines, prefix=f"{prefix}{number}", label=f"{title.capitalize()} by cost", x_name="cost, multiple of ERM's",
            shares=True, log_x=figures.spans(firsts, 8) or figures.spans(lasts, 3),
        )  # fmt: skip
        panels.append(Panel(title, svg))
    if not panels:
        return None
    caption = f"{_lines_are(drawn)} Controls are left out." + (
        " Over cost, a method that spends on an early stage starts further right." if len(drawn) > 1 else ""
    )
    return Panels("How training went", panels, caption, _legend(drawn, looks))


def groups(table: Comparison, data: Data | None, looks: Mapping[str, Look], prefix: str) -> Panels | None:
    """Accuracy of every group by arm, a panel per group."""
    arms = [entry for entry in table.summary if "groups" in entry and entry["arm"] in looks]
    if not arms:
        return None
    by_arm = {entry["arm"]: entry for entry in table.summary}
    first = arms[0]["groups"]
    chosen = sorted(sorted(range(len(first)), key=lambda g: _or_infinity(first[g]))[:MOST_GROUPS])
    counts = (table.rows[0].get("train") or {}).get("group_counts") if table.rows else None
    panels = []
    for g in chosen:
        rows = [
            Bar(
                words.table_name(entry), looks[entry["arm"]], _or_nan(entry["groups"][g]),
                _seed_values(table, entry["arm"], g),
                by_arm[entry["control"]]["groups"][g] if entry.get("control") in by_arm else None,
            )
            for entry in arms
        ]  # fmt: skip
        name = data.measured_names[g] if data is not None and data.measured_names else f"group {g}"
        note = f"{counts[g]:,} of {sum(counts):,} training examples" if counts and g < len(counts) else ""
        svg = figures.bars(rows, prefix=f"{prefix}{g}", label=f"Accuracy in group {name}")
        panels.append(Panel(name, svg, note))
    several = len(table.plan.get("seeds", ())) > 1
    caption = f"{words.measured_on(table).capitalize()} accuracy of each group."
    caption += " Bars are means, circles are seeds." if several else ""
    caption += (
        " A vertical stroke marks the control of equal cost." if any(entry.get("control") for entry in arms) else ""
    )
    if len(chosen) < len(first):
        caption += f" Of {len(first)} groups, the {len(chosen)} where {arms[0]['arm']} does worst."
    return Panels("Accuracy by group", panels, caption)


def hard_examples(table: Comparison, data: Data | None) -> Gallery | None:
    """What USEFUL picked as hard beside what it left as easy, of the seed that the data is of."""
    seed = _seed_of(table, data)
    if data is None or seed is None:
        return None
    for entry in table.summary:
        run = table.runs.get((entry["arm"], seed))
        selection = None if run is None else run.selection
        if entry["method"] != "useful" or selection is None:
            continue
        if len(selection.indices) and int(selection.indices.max()) >= len(data.train):
            continue  # the data given is not what was trained on
        who = f"{entry['arm']}, seed {seed},"
        return gallery(data, selection, "What USEFUL picked as hard", who, ("hard", "easy"))
    return None


def gallery(data: Data, selection: Selection, title: str, who: str, kinds: tuple[str, str]) -> Gallery:
    """Examples picked beside the others, with how many are from minority groups."""
    total, picked = len(data.train), len(selection.indices)
    how_many = f"{picked:,} of {total:,}" if picked else f"none of {total:,}"
    caption = f"{who} picked {how_many} training examples: {selection.why}."
    for share in minority_shares(data, selection):
        if share.picked and share.total_minority:
            by = "" if share.by == "group" else f" (by {share.by})"
            within, overall = share.picked_minority / share.picked, share.total_minority / share.total
            caption += (
                f" Of these, {share.picked_minority:,} ({words.percent(within)}) are from minority groups{by}, "
                f"which hold {words.percent(overall)} of the training set."
            )
    pictures = picked_and_others(data, selection) if picked else None
    sets = []
    if pictures is not None:
        for kind, count, chosen in zip(kinds, (picked, total - picked), pictures, strict=True):
            if chosen:
                sets.append((f"{kind}: {len(chosen)} of {count:,}, drawn at random", chosen))
        if any(example.minority for _, chosen in sets for example in chosen):
            caption += " Outlined: from a group with less than half as many examples as the average group."
    return Gallery(title, sets, caption)


def final_rows(run: Run) -> list[dict[str, Any]]:
    """The history of a run's last stage; what a method did to prepare is left out."""
    stage = run.history[-1].get("stage") if run.history else None
    return [row for row in run.history if row.get("stage") == stage]


def course(run: Run, path: Sequence[str], unit: float | None = None) -> tuple[list[float], list[float]]:
    """A metric of the history at the epochs that have it, over epochs or, where a unit of cost is given, over cost."""
    xs, ys = [], []
    for row in final_rows(run):
        value: Any = row
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, int | float) and math.isfinite(value):
            xs.append(float(row["epoch"] if unit is None else row["cost"] / unit))
            ys.append(float(value))
    return xs, ys


def _curves(table: Comparison, looks: Mapping[str, Look], path: Sequence[str], over_cost: bool = False) -> list[Curve]:
    units = {
        (row["arm"], row["seed"]): row["cost"] / row["cost_multiple"] for row in table.rows if row.get("cost_multiple")
    }
    lines = []
    for arm, look in looks.items():
        seeds = [
            course(run, path, units.get((arm, seed)) if over_cost else None)
            for (name, seed), run in table.runs.items()
            if name == arm and (not over_cost or (arm, seed) in units)
        ]
        seeds = [(x, y) for x, y in seeds if x]
        if seeds:
            lines.append(Curve(arm, look, seeds))
    return lines


def _legend(drawn: Mapping[str, Sequence[Curve]], looks: Mapping[str, Look]) -> list[tuple[str, Look]]:
    names = {line.name for lines in drawn.values() for line in lines}
    return [(arm, look) for arm, look in looks.items() if arm in names]


def _lines_are(drawn: Mapping[str, Sequence[Curve]]) -> str:
    if all(len(line.seeds) == 1 for lines in drawn.values() for line in lines):
        return "One seed."
    if all(figures.shows_seeds(lines) for lines in drawn.values()):
        return "Thick lines are means over the seeds, thin lines single seeds."
    return "Lines are means over the seeds."


def _caption(table: Comparison) -> str:
    where, seeds = words.measured_on(table), len(table.plan.get("seeds", ()))
    rule = str(table.plan.get("rule", ""))
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    caption = f"Measured on the {where} set, {over}; weights of the {words.RULE_NAMES.get(rule, rule)} (rule: {rule})."
    if where == "validation" and rule != "last":
        caption += " There is no test set, and the same validation set chose the epoch: the numbers flatter."
    if where == "training":
        caption += " There is neither a test nor a validation set: the numbers say nothing about new data."
    for row in {entry["arm"]: entry for entry in table.rows if words.refitted(entry)}.values():
        caption += f" {words.table_name(row)}: {words.refitted(row)}."
    if _tells_when(table):
        caption += " Kept after: the cost up to those weights, in epochs of the full training set."
    if any(entry.get("control") for entry in table.summary):
        caption += (
            f" The difference is in {words.METRIC_NAMES[words.headline(table)]} from the control of equal cost below "
            "each arm, paired by seed" + (", with its 95% interval." if seeds > 1 else "; one seed has no interval.")
        )
    return caption


def _tells_when(table: Comparison) -> bool:
    """Whether the epoch whose weights were kept was chosen, and is known in every arm."""
    return table.plan.get("rule") != "last" and all("selected_after_epochs" in entry for entry in table.summary)


def _row(
    entry: Mapping[str, Any],
    shown: Sequence[str],
    metric: str,
    scale: tuple[float, float] | None,
    look: Look | None,
    when: bool,
) -> Row:
    cells = _values(entry, shown, when)
    if scale is not None:
        difference = entry.get(metric, {}).get("difference")
        if difference is None:
            cells += [Cell(), Cell()]
        else:
            found = words.outcome(difference)
            whisker = None
            if math.isfinite(difference["mean"]):
                mean, *ends = (
                    None if value is None else _place(value, scale)
                    for value in (difference["mean"], difference.get("low"), difference.get("high"))
                )
                whisker = Whisker(mean or 0.0, *ends)
            cells.append(Cell(words.points(difference), words.interval(difference), found))
            cells.append(Cell(outcome=found, whisker=whisker))
    return Row(words.table_name(entry), cells, muted=bool(entry.get("control_of")), look=look)


def _control_row(control: Mapping[str, Any], shown: Sequence[str], note: str, drawn: bool, when: bool) -> Row:
    cells = _values(control, shown, when)
    cells += [Cell(), Cell()] if drawn else []
    return Row(words.table_name(control), cells, muted=True, note=note)


def _values(entry: Mapping[str, Any], shown: Sequence[str], when: bool) -> list[Cell]:
    cells = []
    for metric in shown:
        value = entry.get(metric)
        if value is None:
            cells.append(Cell("–"))
        else:
            spread = f"± {words.number(value['sd'])}" if entry["seeds"] > 1 else ""
            cells.append(Cell(words.number(value["mean"]), spread))
    if when:
        cells.append(Cell(f"{entry['selected_after_epochs']:.1f}"))
    return [*cells, Cell(words.times(entry["cost_multiple"]).rstrip("x"))]


def _scale(differences: Sequence[Mapping[str, Any] | None]) -> tuple[float, float] | None:
    """The range of all differences and intervals, with 0 in it and some room; None where there are none."""
    values = [
        value
        for difference in differences
        if difference is not None
        for value in (difference["mean"], difference.get("low"), difference.get("high"))
        if value is not None and math.isfinite(value)
    ]
    if not values:
        return None
    low, high = min(*values, 0.0), max(*values, 0.0)
    room = 0.06 * (high - low) or 0.01
    return low - room, high + room


def _place(value: float, scale: tuple[float, float]) -> float:
    """Where a value is on a scale, in percent of its length."""
    return round(100 * (value - scale[0]) / (scale[1] - scale[0]), 1)


def _seed_values(table: Comparison, arm: str, group: int) -> list[float]:
    rows = [row.get("test") or row.get("validation") or {} for row in table.rows if row["arm"] == arm]
    values = [row["groups"][group] for row in rows if "groups" in row]
    return [value for value in values if value is not None]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _or_infinity(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else math.inf


def _resolved(table: Comparison, data: Data | None) -> Mapping[str, Any]:
    """Every setting of training: as compare had it, else from the data's recipe, a run's folder, or as it was given."""
    if "in_common" in table.plan:
        settings: Mapping[str, Any] = table.plan["in_common"]
        return settings
    given: dict[str, Any] = table.plan.get("settings") or {}
    if data is not None:
        return resolve(data, "erm", given)[0]
    folder = next((run.out for run in table.runs.values() if run.out is not None), None)
    config = None if folder is None else read_json(folder / "config.json")
    return given if config is None else {**config["settings"], "model_options": config["model"]["options"]}


def _other_epochs(table: Comparison, epochs: int | None) -> str:
    """The arms that ran for another number of epochs than was set, in any seed."""
    ran: dict[str, set[int]] = {}
    for row in table.rows:
        if not row.get("control_of"):
            ran.setdefault(row["arm"], set()).add(row["epochs"])
    others = {arm: counts for arm, counts in ran.items() if epochs is not None and counts != {epochs}}
    return words.listed(f"{arm} {'/'.join(map(str, sorted(counts)))}" for arm, counts in others.items())


def _seed_of(table: Comparison, data: Data | None) -> int | None:
    """The seed that the data given was drawn with, where it says so and was run; else the first."""
    seeds = list(table.plan.get("seeds", ())) or [seed for _, seed in table.runs]
    drawn = None if data is None else data.options.get("seed")
    return drawn if drawn in seeds else next(iter(seeds), None)
