"""`evenly.compare`: methods x optimizers x seeds on one data set, each against a control of equal cost.

The control of a method trains for the same number of example-gradients without the method's idea: random upsampling of
as many examples for USEFUL, plain training for twice the epochs for SAM, ERM stopped at the cost for a cheaper method.
Differences are paired by seed, with 95% t-intervals. A sweep runs every arm, and its control, at each of several values
of a setting or of a method's option: the ablations of Nguyen et al. 2024, appendix D.6, are a call each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import isfunction
from pathlib import Path
from typing import Any

from attrs import evolve

from evenly.data import Data
from evenly.engine.progress import log
from evenly.engine.world import current
from evenly.errors import EvenlyError
from evenly.experiment.arms import Asked, arms_and_controls
from evenly.experiment.execute import device_for, largest_images
from evenly.experiment.graph import failures_of, graph_of, nodes_of, rows_of
from evenly.experiment.logs import check_log
from evenly.experiment.recipes import recipe_of
from evenly.experiment.request import (
    recording,
    report_notes,
    seed_numbers,
    source,
    split_arguments,
    warn_of_small_groups,
)
from evenly.experiment.search import check_search, with_values
from evenly.experiment.search import search as find_values
from evenly.experiment.walking import made_folder, walked_runs
from evenly.experiment.work import Callback, RunWork
from evenly.files import as_path, holds_something, read_json, unused
from evenly.optim.registry import known_name
from evenly.parallel.executors import Kept
from evenly.parallel.graph import Failed
from evenly.randomness import on_threads
from evenly.runs.comparison import Comparison, read_content
from evenly.runs.folder import difference
from evenly.runs.merging import with_earlier_calls
from evenly.runs.plan import Model, Plan
from evenly.settings import Option, Recording, Searching, settings_of


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
    search: Mapping[str, Any] | None = None,
    record: Mapping[str, Any] | Recording | None = None,
    data_options: Mapping[str, Any] | None = None,
    recipe: str | None = None,
    out: str | Path | Callable[[Mapping[str, Any]], Path] | None = None,
    callback: Callback | None = None,
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
        search: spaces in which to search values of each arm and each control on validation, before they are compared,
            e.g. ``{"lr": "log:1e-4:1e-1", "useful.factor": "2,3,4"}``; names as in a sweep. `trials` is what each may
            spend, in runs of ERM; `searcher` is "random" or "optuna".
        record: as for `evenly.train`, for every run.
        recipe: as for `evenly.train`; what the paper swept over is swept, unless `sweep` is given.
        out: a folder, or a function from what its config.json will hold to a folder. Work that was interrupted there
            goes on; finished runs are not repeated. Methods, seeds and swept values may be added there call by call.
            The table, `results.json` and the page have the runs of all calls whose weights were chosen by the same rule
            and that swept the same names; the others are kept under "others". A comparison refused before its first
            epoch leaves no folder.
        callback: called with each row of the metrics as it is written, and the `Plan` of its run, in the process that
            trains the run: with `jobs` or Ray it has to be a function of a module.
        settings: as for `evenly.train`, for all arms alike; `jobs` processes share the runs, and
            `together` runs go side by side on one GPU. A run that fails is named in `Comparison.failures`, the others
            go on; the next call runs it again only with `retry`.
    """
    if misplaced:
        from evenly.experiment.training import new_order

        raise EvenlyError(new_order("compare", data, misplaced))
    paper = recipe_of(data, recipe)
    model, data_options = paper.model if model is None else model, paper.for_data(data_options)
    arguments, execution = split_arguments({**paper.settings, **settings})
    check_log(execution, out, callback, "a row of the metrics and the run's plan")
    searching = {name: arguments.pop(name) for name in settings_of(Searching) if name in arguments}
    for name, kind, value in (
        ("methods", str | Sequence[str], methods),
        ("optimizers", str | Sequence[str], optimizers),
        ("options", Mapping[str, Any] | None, options),
        ("sweep", Mapping[str, Any] | None, sweep),
        ("search", Mapping[str, Any] | None, search),
        ("controls", bool, controls),
    ):
        Option(name, kind).checked(value)
    if searching and not search:
        raise EvenlyError(f"{next(iter(searching))} is of a search; give search as well, e.g. lr=log:1e-4:1e-1")
    options = paper.for_methods([methods] if isinstance(methods, str) else methods, options)
    sweep = sweep or {name: values for name, values in paper.sweep.items() if name not in settings}
    largest = None if model is not None or "model" in (sweep or {}) else largest_images(execution)
    place, values = source(data, data_options, arguments, largest)
    if execution.engine == "local":  # on Ray this process reads them for all
        place = evolve(place, processes=execution.jobs)
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
        searching=Searching(**searching),
    ).checked(sweep or {}, search or {})
    first = place.data(asked.seeds[0])
    report_notes(first)
    config = {} if out is None else asked.in_common(first)
    device = device_for(execution)
    world = current(device)
    if world.size > 1 and search:
        raise EvenlyError("a search goes on in one process; start it without torchrun, and jobs shares its runs")
    folder = None
    if out is not None:
        folder = world.shared(lambda: as_path(out(config) if isfunction(out) else out, "out"))
        world.on_first(partial(_check_folder, folder, config))
    arms = arms_and_controls(asked, first)
    if asked.spaces:
        check_search(asked, first, arms[0].plan.data)
    warn_of_small_groups(first, arms[0].plan.settings)
    _announce(asked, arms[0].plan, first, device.type)
    work, found = RunWork(place, execution, folder, callback), None
    with (
        made_folder(folder, config) if folder is not None and world.first else contextlib.nullcontext(),
        Kept() as kept,
    ):
        walked_on = partial(walked_runs, device=device, kept=kept)
        if asked.spaces:
            walked_for = partial(walked_on, label=f"searching on {first.name}")
            found = find_values(asked, first, arms[0].plan.data, work, walked_for)
            arms = arms_and_controls(with_values(asked, found), first)
        graph = graph_of(arms, asked.seeds)
        walked = walked_on(nodes_of(graph), work, label=f"comparing on {first.name}")
        pairs, failures = rows_of(graph, walked), failures_of(graph, walked)
        if not pairs:
            raise _all_failed(next(iter(walked.failures.values())))
        rows, runs = tuple(row for row, _ in pairs.values()), {key: run for key, (_, run) in pairs.items()}
        ran = asked.comparison_plan(arms, rows, first)
        table = Comparison(rows[0].result.data.name, ran, rows, runs=runs, out=folder, failures=failures, search=found)
        return world.on_first(partial(_written, table)) or table


def _written(table: Comparison) -> Comparison:
    """The table with what earlier calls left in its folder, and the pages of both."""
    table = with_earlier_calls(table)
    if table.out is not None:
        from evenly.report import write_report

        table.save(table.out / "results.json")
        write_report(table.out, runs=False)
    return table


def _all_failed(first: Failed) -> EvenlyError:
    """The error where no run has come to its end; one that was read from a folder can be tried again."""
    if not first.traceback:
        return EvenlyError(f"{first.reason}; retry=True runs it again")
    error = EvenlyError(first.reason)
    error.add_note(first.traceback)
    return error


def _announce(asked: Asked, plan: Plan, data: Data, device: str) -> None:
    """Put what is about to run into the log, which the shell prints."""
    from evenly.report.run_words import start_words

    names = ", ".join(f"{method} with {optimizer}" for method, optimizer in asked.pairs)
    log.info("\n".join(start_words(plan, data, f"{plan.model.name}: {names}", device, plan.settings.threads or 1)))
    log.info("  each %swith seed %s", "and its control " * asked.controls, ", ".join(map(str, asked.seeds)))


def _check_folder(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a folder that is neither new nor of the same data, model and settings."""
    if path.is_file():
        raise EvenlyError(f"{path} is a file; give a folder as out")
    there = read_json(path / "config.json")
    if there is None and holds_something(path):
        raise EvenlyError(f"{path} is not empty and holds no comparison; choose another out")
    if there is not None and there != config:
        why = difference(there, config) if isinstance(there, dict) and "compare" in there else "it is no comparison"
        raise EvenlyError(f"{path} holds another run ({why}); give out={str(unused(path))!r}")
    read_content(path)  # refused here where it is damaged: what is in it joins the table in the end
