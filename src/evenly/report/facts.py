"""What was run, as names and values that people can read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from attrs import evolve

from evenly.methods import METHODS
from evenly.report.blocks import Fact, Facts
from evenly.report.formats import listed
from evenly.report.names import RULES, setting_name
from evenly.runs.comparison import Comparison
from evenly.runs.results import SHOWN, DataSummary, RunResult
from evenly.runs.run import Run
from evenly.settings import Settings, settings_of

MOST_VALUES = 6
"""Values in an option of the data that a page shows."""


def run_facts(run: Run) -> Facts:
    """What was asked for in a run, and its data."""
    plan = run.plan
    budget = "" if plan.budget is None else f"{plan.budget:,.0f} example-gradients"
    return _facts(
        Fact("method", plan.method.name),
        Fact("method options", as_text(plan.method.options)),
        Fact("optimizer", plan.optimizer.name),
        Fact("seed", str(plan.seed)),
        Fact("model", run.results.model),
        Fact("model options", as_text(plan.model.options)),
        *setting_facts(evolve(plan.settings, threads=run.config.threads), run.results.rule, [plan.method.name]),
        Fact("stopped at a cost of", budget),
        *package_facts([run.results]),
        *data_facts(run.results.data),
    )


def comparison_facts(comparison: Comparison) -> Facts:
    """What was asked for in a comparison, and its data."""
    plan = comparison.plan
    spaces = () if comparison.search is None else comparison.search.spaces
    varied = {*plan.sweep, *(space.name for space in spaces)}
    return _facts(
        Fact("methods", listed(plan.methods)),
        Fact("optimizers", listed(plan.optimizers)),
        Fact("seeds", listed(plan.seeds)),
        *(Fact(f"{setting_name(name)}, swept", as_text(values, name)) for name, values in plan.sweep.items()),
        *(Fact(f"{setting_name(space.name)}, searched", str(space)) for space in spaces),
        Fact("model", plan.model),
        Fact("model options", as_text(plan.model_options)),
        *setting_facts(plan.in_common, plan.rule, plan.methods, leave_out=varied, differs=plan.differs),
        Fact("epochs where they differ", _other_epochs(comparison)),
        *(Fact(f"{method}'s own", as_text(options)) for method, options in plan.options.items()),
        *package_facts([row.result for row in comparison.rows]),
        *data_facts(evolve(comparison.rows[0].result.data, options=plan.data_options)),
    )


def setting_facts(
    settings: Settings,
    rule: str,
    methods: Collection[str],
    leave_out: Collection[str] = (),
    differs: Collection[str] = (),
) -> list[Fact]:
    """Every setting of training, the selection rule last.

    Args:
        leave_out: settings that are swept.
        differs: settings that have another value in some method.
    """
    values, facts = settings.to_dict(), []
    hidden = {"select", *leave_out} | (set() if settings.groups == "infer" else {"infer"})
    for name, option in settings_of(Settings).items():
        value = values[name]
        if name in hidden or (value is None and option.none in ("none", "auto")):
            continue
        text = option.none if value is None else as_text(value)
        facts.append(Fact(setting_name(name), text + (", not in every method" if name in differs else ""), option.help))
    help_text = settings_of(Settings)["select"].help
    known = {name: METHODS.usable(name.partition("+")[0]) for name in methods}
    fans = [name for name, method in known.items() if method is not None and method.prefers == settings.select]
    text = "; ".join([f"{rule}: {RULES.get(rule, rule)}", *(f"{name} prefers this rule" for name in fans)])
    return [*facts, Fact("selection rule", text, help_text)]


def package_facts(results: Sequence[RunResult]) -> list[Fact]:
    """The packages that methods, data sets, optimizers and models come from where they are not evenly's own."""
    named = {
        f"{name} is of {result.packages[kind]}": None
        for result in results
        for kind, name in (
            ("method", result.method), ("data set", result.data.name),
            ("optimizer", result.optimizer), ("model", result.model),
        )
        if kind in result.packages
    }  # fmt: skip
    return [Fact("other packages", "; ".join(named))] if named else []


def data_facts(data: DataSummary) -> list[Fact]:
    """How the data was made, how many examples each split has, how many classes and groups."""
    shown = {name: value for name, value in data.options.items() if value is not None and not _is_long(value)}
    facts = [Fact("data options", as_text(shown))] if shown else []
    facts += [Fact(f"{SHOWN[name]} examples", f"{size:,}") for name, size in data.sizes.items()]
    facts.append(Fact("classes", f"{len(data.class_names):,}"))
    if data.groups:
        facts.append(Fact("groups", f"{data.groups:,}"))
    if len(data.group_names) not in (0, data.groups):
        facts.append(Fact("groups that accuracy is measured by", f"{len(data.group_names):,}"))
    return facts


def as_text(value: Any, name: str = "") -> str:
    """A value on a page: mappings as "name = value", None as what it means."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {as_text(inner, key)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(as_text(inner, name) for inner in value)
    if value is None:
        option = settings_of(Settings).get(name)
        return "none" if option is None else option.none
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _is_long(value: Any) -> bool:
    """Whether a value is a list that nobody reads, such as the names of all columns and their means."""
    return isinstance(value, list | tuple) and len(value) > MOST_VALUES


def _facts(*facts: Fact) -> Facts:
    return Facts([fact for fact in facts if fact.value])


def _other_epochs(comparison: Comparison) -> str:
    """The arms that ran for another number of epochs than was set, in any seed."""
    epochs: dict[str, set[int]] = {}
    for row in comparison.rows:
        if row.arm.control_of is None:
            epochs.setdefault(row.arm.name, set()).add(row.result.epochs)
    others = {name: counts for name, counts in epochs.items() if counts != {comparison.plan.in_common.epochs}}
    return listed(f"{name} {'/'.join(map(str, sorted(counts)))}" for name, counts in others.items())
