"""`evenly.compare`: methods x optimizers x seeds on one data set, each against a control of equal cost.

The control of a method trains for the same number of example-gradients without the method's idea: random upsampling of
as many examples for USEFUL, plain training for twice the epochs for SAM, ERM stopped at the cost for a cheaper method.
Differences are paired by seed, with 95% t-intervals. A sweep runs every arm, and its control, at each of several values
of a setting or of a method's option: the ablations of Nguyen et al. 2024, appendix D.6, are a call each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import isfunction
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from evenly.data import Data
from evenly.engine.progress import Progress, log
from evenly.errors import EvenlyError
from evenly.experiment.execute import Show, check_method, device_named, execute, largest_images, prepare
from evenly.experiment.request import (
    SETTINGS,
    Request,
    Source,
    check_inference,
    erm_settings,
    plan_for,
    recording,
    report_notes,
    seed_numbers,
    source,
    split_arguments,
    warn_of_small_groups,
    without_unused_groups,
)
from evenly.experiment.sweep import Pair, checked_sweep, points, settings_and_options, values_for_all, values_of, varies
from evenly.files import as_path, holds_something, make_folder, read_json, unused, write_json
from evenly.methods import find
from evenly.optim.registry import ADAPTIVE, PLAIN, builder, known_name, passes
from evenly.parallel.seeds import run_seeds
from evenly.randomness import on_threads
from evenly.report.run_words import start_words
from evenly.runs.arms import Arm
from evenly.runs.comparison import Comparison, ComparisonPlan, read_rows
from evenly.runs.folder import FORMAT, difference
from evenly.runs.plan import Model, Plan
from evenly.runs.run import Run
from evenly.runs.summary import Row, summarise
from evenly.settings import Execution, Option, Recording, Settings, checked, schedule_name, settings_of
from evenly.values import name_of, plain

SAMPLED = 100
"""Points of training at which a schedule of the user's own is compared with that of an earlier call."""
COUNTED_IN_EPOCHS = ("epochs", "evaluate_every", "patience")
"""Settings of one method that its control does not take over: an epoch of a small set is short, one of the control is
not, and evaluated after as many of them it would be selected from fewer evaluations."""


@on_threads(1)
def compare(
    data: Data | str | Path | Callable[[int], Data] | Any,
    *misplaced: Any,
    model: Model | None = None,
    methods: Sequence[str] = ("erm", "useful"),
    optimizers: Sequence[str] = ("sgd",),
    seeds: int | Iterable[int] = 3,
    controls: bool = True,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    sweep: Mapping[str, Iterable[Any]] | None = None,
    record: Mapping[str, Any] | Recording | None = None,
    data_options: Mapping[str, Any] | None = None,
    out: str | Path | Callable[[Mapping[str, Any]], Path] | None = None,
    **settings: Any,
) -> Comparison:
    """Compare methods fairly.

    Args:
        data: as for `evenly.train`; a name, a file or a function of the seed gives each seed its own data.
        model: as for `evenly.train`.
        methods, optimizers: names; every pair is an arm. "erm+sam" among the methods is one arm of its own.
        seeds: how many, or which.
        controls: run a control of equal cost for every arm.
        options: options and settings of single methods by name, e.g. ``{"pde": {"warmup_epochs": 20, "lr": 0.01}}``.
        sweep: values to run every arm at, e.g. ``{"batch_size": [128, 256, 512]}``; of several names every combination.
            ``{"useful.factor": [2, 3]}`` is an option or a setting of one method and varies the arms of that method
            only, as "rho" does those of the optimizers that have it; other arms run once. A control has the values of
            its arm, and the cost of ERM for the epochs set there is the 1.00x of both.
        record: as for `evenly.train`, for every run.
        out: a folder, or a function from what its config.json will hold to a folder. Work that was interrupted there
            goes on; finished runs are not repeated. Methods, seeds and swept values may be added there call by call.
            `results.json` and the page have what this call asked for; rows of earlier calls are kept under "others". A
            comparison refused before its first epoch leaves no folder.
        settings: as for `evenly.train`, for all arms alike; `jobs` processes share the seeds, and
            `together` seeds go side by side on one GPU.
    """
    if misplaced:
        from evenly.experiment.training import new_order

        raise EvenlyError(new_order("compare", data, misplaced))
    arguments, execution = split_arguments(settings)
    for name, kind, value in (
        ("methods", str | Sequence[str], methods),
        ("optimizers", str | Sequence[str], optimizers),
        ("options", Mapping[str, Any] | None, options),
        ("sweep", Mapping[str, Any] | None, sweep),
        ("controls", bool, controls),
    ):
        Option(name, kind).checked(value)
    largest = None if model is not None or "model" in (sweep or {}) else largest_images(execution)
    place, values = source(data, data_options, arguments, largest)
    asked = Asked(
        place,
        model,
        tuple(dict.fromkeys([methods] if isinstance(methods, str) else methods)),
        tuple(dict.fromkeys(map(known_name, [optimizers] if isinstance(optimizers, str) else optimizers))),
        seed_numbers(seeds),
        values,
        dict(options or {}),
        {},
        recording(record),
        controls,
    ).checked(sweep or {})
    first = place.data(asked.seeds[0])
    report_notes(first)
    config = {} if out is None else asked.in_common(first)
    folder = None if out is None else as_path(out(config) if isfunction(out) else out, "out")
    earlier = () if folder is None else _earlier(folder, config)
    arms = arms_and_controls(asked, first)
    _check(arms, first)
    warn_of_small_groups(first, arms[0].plan.settings)
    job = SeedJob(place, tuple(each.without_unused_groups() for each in arms), execution, folder)
    device = device_named(execution.device)
    made = contextlib.nullcontext() if folder is None else _made(folder, config)
    plan = arms[0].plan
    names = ", ".join(f"{method} with {optimizer}" for method, optimizer in asked.pairs)
    log.info(
        "\n".join(start_words(plan, first, f"{plan.model.name}: {names}", device.type, plan.settings.threads or 1))
    )
    log.info("  each %swith seed %s", "and its control " * controls, ", ".join(map(str, asked.seeds)))
    with made, Progress(f"comparing on {first.name}", pause=10.0) as bar:
        done = run_seeds(job, asked.seeds, execution, device, bar, folder is not None)
    pairs = [pair for seed in asked.seeds for pair in done[seed]]
    rows = tuple(row for row, _ in pairs)
    runs = {(row.arm, row.seed): run for row, run in pairs}
    present = {(row.arm, row.seed) for row in rows}
    others = tuple(row for row in earlier if (row.arm, row.seed) not in present)
    ran = asked.comparison_plan(arms, rows, first)
    table = Comparison(rows[0].result.data.name, ran, rows, summarise(rows, runs), others, runs, folder)
    if folder is not None:
        from evenly.report import write_report

        table.save(folder / "results.json")
        write_report(folder, runs=False)
    return table


@frozen
class ArmPlan:
    """An arm with the plan of its first seed, and the plan of its control, which waits for the arm.

    `reference` are the settings that ERM has beside it; `passes` are those of a plain control over each example, where
    such a control may serve uncut.
    """

    arm: Arm
    plan: Plan
    reference: Settings
    control_arm: Arm | None = None
    control: Plan | None = None
    passes: int | None = None

    def of_seed(self, seed: int, data: Data) -> tuple[Plan, Plan | None]:
        """The plans of a seed: the arm's, and the control's, which waits for it."""
        plan = evolve(self.plan, seed=seed)
        if self.control is None:
            return plan, None
        epochs = self.control.settings.epochs
        full_cost = None if self.passes is None else float(self.passes * epochs * len(data.train))
        return plan, evolve(self.control, seed=seed, after=plan.digest, full_cost=full_cost)

    def without_unused_groups(self) -> ArmPlan:
        """Without inferred groups where nothing would go by them, so that equal runs have equal plans."""
        control = None if self.control is None else without_unused_groups(self.control)
        return evolve(self, plan=without_unused_groups(self.plan), control=control)


@frozen
class Asked:
    """What a comparison was asked for."""

    source: Source
    model: Model | None
    methods: tuple[str, ...]
    optimizers: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: Mapping[str, Any]
    options: Mapping[str, Mapping[str, Any]]
    sweep: Mapping[str, tuple[Any, ...]]
    record: Recording | None
    controls: bool

    @property
    def pairs(self) -> list[Pair]:
        """The method and the optimizer of every arm, none twice, ordered by optimizer."""
        pairs = [
            (name.split("+")[0], known_name(optimizer))
            for name in self.methods
            for optimizer in (name.split("+")[1:] if "+" in name else self.optimizers)
        ]
        order = list(dict.fromkeys(optimizer for _, optimizer in pairs))
        return sorted(dict.fromkeys(pairs), key=lambda pair: order.index(pair[1]))

    @property
    def prefers(self) -> str | None:
        """The selection rule that a method prefers; all have it then, so that they are compared by one."""
        return next((rule for method, _ in self.pairs if (rule := find(method).prefers) is not None), None)

    def checked(self, sweep: Mapping[str, Iterable[Any]]) -> Asked:
        """Refuse what cannot work; with plain numbers."""
        for method in [*(method for method, _ in self.pairs), *self.options]:
            find(method)
        controls = {control[0] for pair in self.pairs if self.controls and (control := _control(*pair))}
        for method in self.options:
            if method not in {*dict(self.pairs), *controls}:
                raise EvenlyError(f"{method} has options and is not compared; add it to methods, or leave them out")
        if not self.pairs or not self.seeds:
            raise EvenlyError("there is nothing to compare; give at least one method, one optimizer and one seed")
        if len(set(self.seeds)) != len(self.seeds):
            raise EvenlyError(f"a seed stands twice in {list(self.seeds)}; a run repeated is no second observation")
        if own := [method for method, given in self.options.items() if "select" in given]:
            raise EvenlyError(f"{own[0]}.select is of one method, one table has one selection rule; give select=...")
        settings = checked("setting", self.settings, SETTINGS)
        options = {
            method: checked(f"option of {method}", given, settings_and_options(method))
            for method, given in self.options.items()
        }
        fixed = settings | ({} if self.model is None else {"model": name_of(self.model)})
        swept = checked_sweep(sweep, self.pairs, options, fixed)
        return evolve(self, settings=settings, options=options, sweep=swept)

    def request(self, pair: Pair, values: Mapping[str, Any]) -> Request:
        """A request for an arm; a swept model takes the place of the comparison's."""
        model = values.get("model", self.model)
        rest = {name: value for name, value in values.items() if name != "model"}
        return Request(*pair, model, rest, self.record, self.prefers)

    def in_common(self, first: Data) -> dict[str, Any]:
        """What every call in one folder has in common.

        Args:
            first: the data of the first seed.
        """
        settings = dict(self.settings)
        if "schedule" in settings:
            settings["schedule"] = schedule_name(settings["schedule"], SAMPLED)
        return {
            "format": FORMAT,
            "compare": first.name,
            "fingerprints": {"data": self.source.fingerprint(first, self.seeds[0])},
            "model": plain(self.model),
            "data_options": plain(self.source.options),
            "options": plain(self.options),
            "settings": plain(settings),
        }

    def comparison_plan(self, arms: Sequence[ArmPlan], rows: Sequence[Row], data: Data) -> ComparisonPlan:
        """What was run, for pages: the settings that ERM has, and which of them differ between arms."""
        first, *others = [each.reference for each in arms]
        differs = {
            name
            for name in settings_of(Settings)
            if any(getattr(other, name) != getattr(first, name) for other in others)
        }
        if "rho" not in self.settings and ADAPTIVE.keys() & set(self.optimizers):
            differs.add("rho")  # ASAM has a radius of its own where none was given
        return ComparisonPlan(
            methods=self.methods,
            optimizers=self.optimizers,
            seeds=self.seeds,
            model=", ".join(dict.fromkeys(row.result.model for row in rows)),
            rule=rows[0].result.rule,
            judged=rows[0].result.judged,
            in_common=first,
            differs=tuple(sorted(differs)),
            model_options=arms[0].plan.model.options,
            options=self._own_options(data),
            sweep={name: tuple(plain(values)) for name, values in self.sweep.items()},
            data_options=plain(self.source.options),
        )

    def _own_options(self, data: Data) -> dict[str, dict[str, Any]]:
        """What each method has of its own, from the data's recipe and from the user; what is swept is left out."""
        recipe = data.recipe.get("options", {})
        merged = {
            method: {
                name: value
                for name, value in recipe.get(method, {}).items()
                if name not in self.settings and not {name, f"{method}.{name}"} & set(self.sweep)
            }
            | dict(self.options.get(method, {}))
            for method in dict.fromkeys(method for method, _ in self.pairs)
        }
        return {method: plain(options) for method, options in merged.items() if options}


def _earlier(path: Path, config: Mapping[str, Any]) -> tuple[Row, ...]:
    """The rows that are in the folder; refused if it is neither new nor of the same data, model and settings."""
    if path.is_file():
        raise EvenlyError(f"{path} is a file; give a folder as out")
    there = read_json(path / "config.json")
    if there is None and holds_something(path):
        raise EvenlyError(f"{path} is not empty and holds no comparison; choose another out")
    if there is not None and there != config:
        why = difference(there, config) if isinstance(there, dict) and "compare" in there else "it is no comparison"
        raise EvenlyError(f"{path} holds another run ({why}); give out={str(unused(path))!r}")
    return read_rows(path)


def arms_and_controls(asked: Asked, data: Data) -> list[ArmPlan]:
    """The plan of every arm, and of its control, on the data of the first seed."""
    spec, seed, arms = asked.source.spec(data), asked.seeds[0], []
    for pair, swept in points(asked.sweep, asked.pairs):
        common = {**asked.settings, **values_for_all(swept)}
        own = {**asked.options.get(pair[0], {}), **values_of(swept, pair[0])}
        reference = erm_settings(asked.request(pair, common), data)
        plan = plan_for(asked.request(pair, common | own), data, spec, seed, reference.epochs)
        arm = Arm(*pair, plain(swept))
        control_pair = _control(*pair)
        if not asked.controls or control_pair is None:
            arms.append(ArmPlan(arm, plan, reference))
            continue
        # what the user set for this method alone, its control gets too; a recipe's settings suit the method only
        shared = {name: value for name, value in own.items() if name in SETTINGS and name not in COUNTED_IN_EPOCHS}
        its_swept = {name: value for name, value in values_for_all(swept).items() if varies(name, *control_pair)}
        values = {**asked.settings, **its_swept, **asked.options.get(control_pair[0], {}), **shared}
        erm = erm_settings(asked.request(control_pair, {**asked.settings, **its_swept}), data)
        control = plan_for(asked.request(control_pair, values), data, spec, seed, erm.epochs)
        uncut = passes(control_pair[1]) if control_pair[0] == "erm" and not shared else None
        arms.append(ArmPlan(arm, plan, reference, Arm(*control_pair, plain(its_swept)), control, uncut))
    return arms


def _control(method: str, optimizer: str) -> Pair | None:
    """The method and the optimizer of the control: plain ERM for SAM with ERM; other methods keep their optimizer."""
    if method != "erm":
        return find(method).control, optimizer
    return ("erm", PLAIN[optimizer]) if optimizer in PLAIN else None


def _check(arms: Sequence[ArmPlan], data: Data) -> None:
    """Refuse, before any arm has run, what an arm's settings and the data together cannot be."""
    plans = [each.plan for each in arms]
    for plan in plans:
        rates = {name: getattr(plan.settings, name) for name in ("lr", "momentum", "weight_decay", "rho")}
        builder(plan.optimizer.name, **rates)
        check_method(plan, data)
    check_inference(plans)


@frozen
class SeedJob:
    """All arms and their controls for one seed; a plan that two arms share runs once."""

    source: Source
    arms: tuple[ArmPlan, ...]
    execution: Execution
    folder: Path | None

    @on_threads(1)
    def __call__(self, seed: int, progress: Show) -> list[tuple[Row, Run]]:
        data = self.source.data(seed)
        runs: dict[str, Run] = {}
        rows: dict[Arm, tuple[Row, Run]] = {}

        def run(arm: Arm, plan: Plan) -> Run:
            done = len(rows) / (2 * len(self.arms))
            if plan.digest not in runs:
                out = None if self.folder is None else self.folder / "runs" / plan.folder_name
                prepared = prepare(plan, data, threads=1)
                runs[plan.digest] = execute(
                    prepared, out, self.execution,
                    lambda share, note: progress(done + share / (2 * len(self.arms)), arm.name),
                )  # fmt: skip
            rows.setdefault(arm, (Row(arm, seed, runs[plan.digest].results), runs[plan.digest]))
            return runs[plan.digest]

        for each in self.arms:
            own, waiting = each.of_seed(seed, data)
            result = run(each.arm, own).results
            if waiting is None or each.control_arm is None:
                continue
            plan, control = waiting.completed(result), each.control_arm
            if plan.budget is not None:
                control = Arm(control.method, control.optimizer, each.arm.swept, control_of=each.arm)
            run(control, plan)
            rows[each.arm] = (evolve(rows[each.arm][0], control=control), rows[each.arm][1])
        return list(rows.values())


@contextlib.contextmanager
def _made(folder: Path, config: Mapping[str, Any]) -> Iterator[None]:
    """The comparison's folder; one that is new and in which no run has left anything is removed on failure."""
    if (folder / "config.json").exists():
        yield
        return
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    make_folder(folder)
    write_json(folder / "config.json", config)
    try:
        yield
    except BaseException:
        if [entry.name for entry in folder.iterdir()] == ["config.json"]:
            (folder / "config.json").unlink()
            with contextlib.suppress(OSError):  # somebody else may have come to use a folder above
                for path in new:
                    path.rmdir()
        raise
