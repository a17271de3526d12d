"""`evenly.train`: one method, one optimizer, one model, one seed on one data set.

data = evenly.Data(train=(x, y, groups), test=(x2, y2, groups2))
run = evenly.train(data, model="convnet", method="pde", out="runs/a")
run.model, run.results, run.history, run.predict(x3)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import isfunction
from pathlib import Path
from typing import Any

from attrs import evolve
from torch.optim import Optimizer

from evenly.data import Data
from evenly.data import load as load_data
from evenly.errors import EvenlyError
from evenly.experiment.execute import check_method, execute, largest_images, prepare
from evenly.experiment.logs import check_log
from evenly.experiment.packages import check_packages, packages_of_plan, with_installed_packages
from evenly.experiment.recipes import recipe_of
from evenly.experiment.request import (
    BUDGET,
    SEED,
    Request,
    check_inference,
    not_default,
    plan_for,
    recording,
    report_notes,
    source,
    split_arguments,
    warn_of_many_groups,
    warn_of_small_groups,
)
from evenly.files import as_path
from evenly.methods import METHODS, find
from evenly.models import encoded
from evenly.randomness import derive, isolated, on_threads
from evenly.runs.folder import Config
from evenly.runs.plan import Model, Plan
from evenly.runs.run import Run
from evenly.settings import Recording, Settings, StoredSchedule, settings_of


def train(
    data: Data | str | Path | Any,
    *misplaced: Any,
    model: Model | None = None,
    method: str = "erm",
    optimizer: str | Callable[[Any], Optimizer] = "sgd",
    seed: int = 0,
    budget: float | None = None,
    record: Mapping[str, Any] | Recording | None = None,
    data_options: Mapping[str, Any] | None = None,
    recipe: str | None = None,
    out: str | Path | Callable[[Config, Mapping[str, Any]], Path] | None = None,
    progress: Callable[[float, str], None] | None = None,
    callback: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> Run:
    """Train by a method and measure what came of it.

    Args:
        data: a `Data`, a name from `evenly datasets`, an `.npz` or `.csv` file, a folder of images, or (inputs,
            labels[, groups]), which the seed divides 60/20/20 as it does the rows of a file.
        model: a name, a function that builds a network, or a module to start from (it is copied, never changed).
        method: a name from `evenly methods`.
        optimizer: a name from `evenly optimizers` ("sam", "sam:adamw"), or a function from parameters to an optimizer.
        seed: decides the data (of a synthetic set), the initial weights and every draw.
        budget: example-gradients to stop at, instead of epochs; for erm and random_upsample, which serve as controls.
        record: what to measure as the network learns, and when (`evenly.settings.Recording`), e.g.
            ``{"forgetting": True, "probes": ["background"], "every": 5}``. It goes into the history; `Run.record` has
            all of it.
        data_options: options of a named data set, or of the reader of a file or folder.
        recipe: settings of a paper by name, as "pde-paper" for "waterbirds" (`evenly.data.benchmarks.RECIPES`). What is
            given beside it takes precedence. Values that the paper swept over are for `evenly.compare`.
        out: the run's folder, or a function from what its config.json will hold, and what was set to other values than
            the defaults, to a folder. A run that was interrupted there goes on; a finished one is read back.
        callback: called with each row of the metrics as it is written: after every epoch of every stage. A run that
            goes on calls it with new epochs only.
        settings: any of `evenly.settings.Settings` (epochs, batch_size, lr, select, ...), `model_options`, any of
            `evenly.settings.Execution` (device, workers, log, ...), and the options of the method. `groups` may name
            columns of a table, as "place" or "label,place" (`evenly.data.metadata`).
    """
    if misplaced:
        raise EvenlyError(new_order("train", data, misplaced))
    seed = SEED.checked(seed)
    if not (progress is None or callable(progress)):
        raise EvenlyError(f"progress must be a function of the share that is done and a note, got {progress!r}")
    paper = recipe_of(data, recipe)
    model, data_options = paper.model if model is None else model, paper.for_data(data_options)
    arguments, execution = split_arguments({**paper.settings, **paper.for_method(method), **settings})
    check_log(execution, out, callback, "a row of the metrics")
    place, values = source(data, data_options, arguments, largest_images(execution) if model is None else None)
    with isolated(derive(seed, "train")), on_threads(1):
        loaded = place.data(seed)
        report_notes(loaded)
        request = Request(method, optimizer, model, values, recording(record), find(method).prefers)
        plan = plan_for(request, loaded, place.spec(loaded), seed)
        check_inference([plan])
        warn_of_many_groups(loaded)
        if budget is not None:
            controls = sorted({each.control for each in METHODS.own.values()})
            if method not in controls:
                raise EvenlyError(f"budget does not apply to {method}; it is for {' and '.join(controls)}")
            plan = evolve(plan, budget=float(BUDGET.checked(budget)))
        check_method(plan, loaded)
        warn_of_small_groups(loaded, plan.settings)
    prepared = prepare(plan, loaded)
    folder = out(prepared.config, not_default(request, plan, place, loaded)) if isfunction(out) else out
    path = None if folder is None else as_path(folder, "out")
    return execute(prepared, path, execution, progress, callback=callback)


def new_order(verb: str, first: Any, others: tuple[Any, ...]) -> str:
    model = repr(first) if isinstance(first, str) else "model"
    data = repr(others[0]) if isinstance(others[0], str) else "data"
    return f"{verb} takes the data first and the rest by name; write evenly.{verb}({data}, model={model}, ...)"


def run_again(
    config: Config,
    *,
    data: str | Path | Data | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    **settings: Any,
) -> Run:
    """Run again what a run's `config.json` has, perhaps with other settings.

    Args:
        data: needed where the plan cannot name it, as for a `Data` of the user's own, or where the file has moved.
        settings: any of `Settings` and `Execution`.
    """
    plan = config.plan
    own_record = plan.record is not None and isinstance(plan.record.spectrum, str)
    own_schedule = isinstance(plan.settings.schedule, StoredSchedule) and "schedule" not in settings
    if plan.model.own or plan.optimizer.defaults is not None or own_record or own_schedule:
        raise EvenlyError(
            "the run has a model, optimizer, schedule or record of the user's own, which a file cannot bring back; "
            "call evenly.train as then"
        )
    arguments, execution = split_arguments(settings)
    check_log(execution, out)
    if foreign := [name for name in arguments if name not in settings_of(Settings)]:
        raise EvenlyError(f"{foreign[0]} is set by the run's config; leave it out, or leave --config out")
    plan = evolve(
        plan,
        settings=evolve(plan.settings, **arguments),
        seed=plan.seed if seed is None else SEED.checked(seed),
        reference_epochs=arguments.get("epochs", plan.reference_epochs),
    )
    plan = with_installed_packages(plan, given=() if data is None else ("data set",))
    check_inference([plan])
    with isolated(derive(plan.seed, "train")), on_threads(1):
        loaded = data_of_plan(plan, data)
        if data is not None:
            plan = evolve(plan, data=source(data, plan.data.options, {})[0].spec(loaded))
            plan = evolve(plan, packages=packages_of_plan(plan))
        elif seed is None and loaded.fingerprint() != config.fingerprints["data"]:
            where = plan.data.place or plan.data.name
            raise EvenlyError(f"{where} has changed since the run; give the data as DATA to train on it as it is now")
    prepared = prepare(plan, loaded, threads=config.threads)
    return execute(prepared, None if out is None else as_path(out, "out"), execution)


def data_of(run: Run, data: str | Path | Data | None = None) -> Data:
    """The data that a run was trained on, as its network reads it.

    Args:
        data: needed where the run's folder cannot name it.
    """
    loaded = data_of_plan(run.plan, data)
    if loaded.fingerprint() != run.config.fingerprints["data"]:
        where = run.folder or "the run"
        raise EvenlyError(f"the data given is not what {where} was trained on ({run.plan.data.name}); give that")
    return encoded(loaded, run.model)


def data_of_plan(plan: Plan, data: str | Path | Data | None = None) -> Data:
    """The data that a plan names; what is given goes before it."""
    spec = plan.data
    if isinstance(data, Data):
        return data
    if data is None and spec.kind == "own":
        raise EvenlyError(f"the run was trained on {spec.name!r}, which its folder cannot name; give the data as well")
    if data is None and spec.place is not None and not Path(spec.place).exists():
        raise EvenlyError(
            f"the run was trained on {spec.place}, which is not there; give where it is now as data (in the shell "
            "--data FILE, for train FILE alone)"
        )
    if data is None:
        check_packages(plan, "data set")
    seed = plan.seed if spec.seed is None else spec.seed
    return load_data(data or spec.place or spec.name, seed=seed, **spec.options)
