"""Several calls in one folder add up: rows of earlier calls join the table where they answer the same question.

The folder's config.json already holds every call to the same data, model and settings. The same question is also one
selection rule, which a method may prefer where none is set, and the same swept names. Rows of another question stay in
`others`, and join again when a call asks that question.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from attrs import evolve, fields

from evenly.errors import EvenlyError, EvenlyWarning
from evenly.runs.arms import Arm, varies
from evenly.runs.comparison import Comparison, ComparisonPlan, read_comparison
from evenly.runs.run import Run, load
from evenly.runs.summary import Row, summarise

Each = TypeVar("Each")


def with_earlier_calls(table: Comparison) -> Comparison:
    """A comparison with what earlier calls left in its folder, summarised; what this call ran goes before it."""
    earlier = None if table.out is None else read_comparison(table.out)
    if earlier is None or table.out is None:
        return evolve(table, summary=summarise(table.rows, table.runs))
    stored = [*earlier.rows, *earlier.others]
    same = _of_same_packages(_same_question(stored, table.plan), table.rows)
    runs = _runs([row for row in same if (row.arm, row.seed) not in table.runs], table.out) | table.runs
    joined: dict[tuple[Arm, int], Row] = {}
    for row in (*(row for row in same if (row.arm, row.seed) in runs), *table.rows):
        before = joined.get((row.arm, row.seed), row)
        joined[row.arm, row.seed] = evolve(row, control=row.control or before.control)
    plan = _joined_plan(earlier.plan, table.plan, list(joined.values()))
    order = {seed: k for k, seed in enumerate(plan.seeds)}
    rows = tuple(sorted(joined.values(), key=lambda row: order[row.seed]))
    rest = (row for row in stored if row.result.rule != plan.rule or (row.arm, row.seed) not in joined)
    return evolve(table, plan=plan, rows=rows, summary=summarise(rows, runs), others=tuple(rest), runs=runs)


def _same_question(rows: Sequence[Row], plan: ComparisonPlan) -> list[Row]:
    """The rows of a selection rule and of swept names, with their controls."""
    of_rule = [row for row in rows if row.result.rule == plan.rule and row.result.judged == plan.judged]

    def asked(arm: Arm) -> bool:
        return set(arm.swept) == {name for name in plan.sweep if varies(name, arm.method, arm.optimizer)}

    same = [row for row in of_rule if row.arm.control_of is None and asked(row.arm)]
    controls = {(row.control, row.seed) for row in same}
    present = {(row.arm, row.seed) for row in same}
    return [row for row in of_rule if (row.arm, row.seed) in controls | present]


def _of_same_packages(stored: Iterable[Row], rows: Sequence[Row]) -> list[Row]:
    """Those whose data, method and optimizer are of the packages and versions that this call's rows have."""
    packages = {row.arm.pair: row.result.packages for row in rows}
    data = {row.result.packages.get("data set") for row in rows}
    return [
        row
        for row in stored
        if row.result.packages.get("data set") in data
        and row.result.packages == packages.get(row.arm.pair, row.result.packages)
    ]


def _runs(rows: Iterable[Row], folder: Path) -> dict[tuple[Arm, int], Run]:
    """The runs of rows, where they are still there."""
    runs = {}
    for row in rows:
        if row.folder is None or not (folder / row.folder).is_dir():
            continue
        try:
            runs[row.arm, row.seed] = load(folder / row.folder)
        except EvenlyError as error:
            warnings.warn(f"{error}; the table is without it", EvenlyWarning, stacklevel=2)
    return runs


def _joined_plan(earlier: ComparisonPlan, plan: ComparisonPlan, rows: Sequence[Row]) -> ComparisonPlan:
    """What all calls with this question asked for, in the order of first asking."""
    plans = [plan]
    if earlier.rule == plan.rule and earlier.sweep.keys() == plan.sweep.keys():
        plans.insert(0, earlier)
    controls = {row.control for row in rows}
    arms = [row.arm for row in rows if row.arm.control_of is None and row.arm not in controls]
    methods = _union(*(each.methods for each in plans))
    known = {name.partition("+")[0] for name in methods}
    differs = {
        each.name
        for each in fields(type(plan.in_common))
        if getattr(plans[0].in_common, each.name) != getattr(plan.in_common, each.name)
    }
    return evolve(
        plan,
        methods=_union(methods, (arm.method for arm in arms if arm.method not in known)),
        optimizers=_union(*(each.optimizers for each in plans), (a.optimizer for a in arms if a.pair not in methods)),
        seeds=_union(*(each.seeds for each in plans), (row.seed for row in rows)),
        model=", ".join(_union(row.result.model for row in rows)),
        differs=tuple(sorted(differs.union(*(each.differs for each in plans)))),
        options={method: options for each in plans for method, options in each.options.items()},
        sweep={name: _values(name, plans, arms) for name in plan.sweep},
    )


def _values(name: str, plans: Iterable[ComparisonPlan], arms: Iterable[Arm]) -> tuple[Any, ...]:
    """The swept values of a name, each once; they need not be hashable."""
    of_plans = (value for plan in plans for value in plan.sweep[name])
    values: list[Any] = []
    for value in chain(of_plans, (arm.swept[name] for arm in arms if name in arm.swept)):
        values += [] if value in values else [value]
    return tuple(values)


def _union(*parts: Iterable[Each]) -> tuple[Each, ...]:
    """All values once, in the order of their first appearance."""
    return tuple(dict.fromkeys(chain(*parts)))
