"""`evenly.compare`: methods x optimizers x seeds on one data set, each against a control of equal cost.

The control of a method trains for the same number of example-gradients without the method's idea: random upsampling of
as many examples for USEFUL, plain training for twice the epochs for SAM, ERM stopped at the cost for a cheaper method.
Differences are paired by seed, with 95% t-intervals. A sweep runs every arm, and its control, at each of several values
of a setting or of a method's option: the ablations of Nguyen et al. 2024, appendix D.6, are a call each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import pickle
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from itertools import product, zip_longest
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import torch

from evenly.cost_to_reach import is_erm_of, levels_reached, why_untold
from evenly.data import Data
from evenly.data.augment import Augment
from evenly.engine.accuracy import intervals
from evenly.engine.progress import Progress
from evenly.engine.side_by_side import side_by_side
from evenly.errors import EvenlyError, unknown
from evenly.experiment import (
    KINDS,
    Model,
    Run,
    as_data,
    as_device,
    by_columns,
    check_inference,
    erm_cost,
    name_of,
    resolve,
    train,
    uses_inferred,
)
from evenly.files import holds_something, make_folder, read_json, write_json
from evenly.methods import find
from evenly.optim.registry import ADAPTIVE, OPTIMIZERS, PLAIN, builder
from evenly.options import checked
from evenly.settings import Settings
from evenly.sweep import arm_name, checked_sweep, setting_kinds, values_for_all, values_of, varies

METRICS = ("accuracy", "worst_group", "train_weighted", "worst_class")
COUNTED_IN_EPOCHS = ("epochs", "evaluate_every", "patience")
"""Settings of one method that its control does not take over: an epoch of a small set is short, one of the control is
not, and looked at after as many of them it would be selected from fewer looks."""
ALIKE = 1e-9
"""Differences between shares that are closer than this are the same but for rounding."""
LONGEST_NAME = 120
"""Characters of a run's folder; file systems end at 255, some tools before."""


@dataclass
class Comparison:
    """What came of it: a row per run, and per arm the means, the cost and the differences from its control.

    `others` are the rows of runs that earlier calls left in the same folder and this one did not ask for.
    """

    data: str
    rows: list[dict[str, Any]]
    summary: list[dict[str, Any]]
    plan: dict[str, Any]
    runs: dict[tuple[str, int], Run] = field(default_factory=dict, repr=False)
    out: Path | None = None
    others: list[dict[str, Any]] = field(default_factory=list, repr=False)

    def as_json(self) -> dict[str, Any]:
        """What `results.json` holds."""
        return {
            "data": self.data, "plan": self.plan, "summary": self.summary, "rows": self.rows, "others": self.others,
        }  # fmt: skip


def compare(
    model: Model | None = None,
    data: Data | str | Path | Callable[[int], Data] | Any = None,
    methods: Sequence[str] = ("erm", "useful"),
    optimizers: Sequence[str] = ("sgd",),
    seeds: int | Iterable[int] = 3,
    *,
    controls: bool = True,
    options: dict[str, dict[str, Any]] | None = None,
    sweep: Mapping[str, Iterable[Any]] | None = None,
    data_options: dict[str, Any] | None = None,
    device: str = "auto",
    workers: int = 0,
    capture: bool = True,
    jobs: int = 1,
    together: int = 3,
    out: str | Path | None = None,
    **settings: Any,
) -> Comparison:
    """Compare methods fairly.

    Args:
        model: as for `evenly.train`.
        data: as for `evenly.train`; a name or a function of the seed is drawn anew for every seed.
        methods, optimizers: names; every pair is an arm. "erm+sam" among the methods is one arm of its own.
        seeds: how many, or which.
        controls: run a control of equal cost for every arm.
        options: options and settings of single methods by name, e.g. ``{"pde": {"warmup_epochs": 20, "lr": 0.01}}``.
        sweep: values to run every arm at, e.g. ``{"batch_size": [128, 256, 512]}``; of several names every combination.
            ``{"useful.factor": [2, 3]}`` is an option or a setting of one method and varies the arms of that method
            only, as "rho" does those of the optimizers that have it; other arms run once. An arm is then called
            "useful+sgd, factor 3"; its control has the same values, and the cost of ERM for the epochs set there is
            the 1.00x of both.
        workers, capture: as for `evenly.train`.
        jobs: processes that share the seeds, one thread each; 1 keeps everything in this process.
        together: seeds that are under way at once on one GPU, each on a stream of its own, in this process.
        out: a folder; work that was interrupted there goes on, finished runs are not repeated. Methods, seeds and
            swept values may be added there call by call: they name runs, each with a configuration of its own, and so
            are no part of what the folder as a whole is held to. `results.json` and the page tell of what this call
            asked for; rows that earlier calls left there are kept under "others" in `results.json`. A comparison
            refused before its first epoch leaves no folder.
        settings: as for `evenly.train`, for all arms alike.
    """
    seeds = [int(s) for s in seeds] if isinstance(seeds, Iterable) else list(range(int(seeds)))
    methods = list(dict.fromkeys([methods] if isinstance(methods, str) else methods))
    optimizers = list(dict.fromkeys([optimizers] if isinstance(optimizers, str) else optimizers))
    settings, data_options = by_columns(settings, data, data_options)
    options, settings = _check(methods, optimizers, seeds, options or {}, settings, jobs, together)
    values = checked_sweep(
        sweep or {},
        _arms(methods, optimizers),
        options,
        settings | ({} if model is None else {"model": name_of(model)}),
    )
    folder = None if out is None else Path(out)
    running = {"device": device} | ({"workers": workers} if workers else {}) | ({} if capture else {"capture": False})
    job = _Seed(
        model, data, data_options or {}, methods, optimizers, controls, options, values, running, folder, settings
    )
    earlier = [] if folder is None else job.check_folder(folder)
    job.check_on(job.dataset(seeds[0]))
    with contextlib.nullcontext() if folder is None else _made(folder, job.config()):
        done = _run(job, seeds, jobs, together)
    rows = [row for seed in seeds for row, _ in done[seed]]
    first, shown = rows[0], job.dataset(seeds[0])
    asked = {(row["arm"], row["seed"]) for row in rows}
    models = ", ".join(dict.fromkeys(row["model"] for row in rows))
    runs = {(row["arm"], seed): run for seed in seeds for row, run in done[seed]}
    table = Comparison(
        first["data"], rows, summarise(rows, runs), {**job.plan(seeds, shown), "rule": first["rule"], "model": models},
        runs, folder,
        [row for row in earlier if (row["arm"], row["seed"]) not in asked],
    )  # fmt: skip
    if folder is not None:
        write_json(folder / "results.json", table.as_json())
        from evenly.report import comparison_page

        comparison_page(table, folder / "report.html", [shown])
    return table


def _run(job: _Seed, seeds: list[int], jobs: int, together: int) -> dict[int, list[tuple[dict[str, Any], Run]]]:
    """Every seed's rows and runs, in this process or in several."""
    done: dict[int, list[tuple[dict[str, Any], Run]]] = {}
    with Progress(f"comparing on {job.data_name}") as bar:
        if jobs == 1 or len(seeds) == 1:
            device = as_device(job.running["device"])
            shares = dict.fromkeys(seeds, 0.0)

            def show(seed: int, share: float, note: str) -> None:
                shares[seed] = share
                bar(sum(shares.values()) / len(seeds), note)

            runs = [partial(job, seed, partial(show, seed)) for seed in seeds]
            results = side_by_side(runs, device, together if device.type == "cuda" else 1)
            done = dict(zip(seeds, results, strict=True))
        else:
            _check_sendable(job)
            pool = ProcessPoolExecutor(min(jobs, len(seeds)), get_context("spawn"), _worker)
            try:
                waiting = {pool.submit(_in_bytes, job, seed): seed for seed in seeds}
                for finished in as_completed(waiting):
                    done[waiting[finished]] = pickle.loads(finished.result())
                    bar(len(done) / len(seeds), f"seed {waiting[finished]} done")
            except BrokenProcessPool:
                again = (
                    "run it again with an out, where it can go on" if job.folder is None else "the same call goes on"
                )
                raise EvenlyError(
                    f"one of {min(jobs, len(seeds))} worker processes was killed, perhaps for lack of memory; {again}, "
                    "and fewer jobs need less"
                ) from None
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
    return done


@dataclass
class _Seed:
    """All arms and their controls for one seed."""

    model: Any
    data: Any
    data_options: dict[str, Any]
    methods: list[str]
    optimizers: list[str]
    controls: bool
    options: dict[str, dict[str, Any]]
    sweep: dict[str, list[Any]]
    running: dict[str, Any]
    folder: Path | None
    settings: dict[str, Any]

    def __call__(
        self, seed: int, progress: Callable[[float, str], None] = lambda share, note: None
    ) -> list[tuple[dict[str, Any], Run]]:
        data = self.dataset(seed)
        places = self.places()
        done: dict[str, tuple[dict[str, Any], Run]] = {}
        trained: list[tuple[tuple[Any, ...], Run]] = []

        def run(
            arm: str, method: str, optimizer: str, at: dict[str, Any], shared: dict[str, Any], options: dict[str, Any],
            budget: float | None = None,
        ) -> Run:  # fmt: skip
            if arm not in done:
                progress(len(done) / (2 * len(places)), arm)
                common = self.settings | shared
                given = common | options
                if not uses_inferred(method, self.resolved(data, method, given)):
                    given = {name: value for name, value in given.items() if (name, value) != ("groups", "infer")}
                    given.pop("infer", None)
                asked = (method, optimizer, budget, dict(given))
                # arms at several values of a sweep may have one and the same control
                result = next((result for earlier, result in trained if earlier == asked), None)
                if result is None:
                    out = None if self.folder is None else self.folder / "runs" / f"{_slug(arm)}-seed{seed}"
                    result = train(
                        given.pop("model", self.model), data, method, optimizer, seed=seed, budget=budget, out=out,
                        progress=lambda share, note: progress((len(done) + share) / (2 * len(places)), arm),
                        unit=erm_cost(data, self.resolved(data, "erm", common)["epochs"]), **self.running, **given,
                    )  # fmt: skip
                    trained.append((asked, result))
                named = {name: name_of(value) for name, value in at.items()}
                row = {"arm": arm, **result.results, "sweep": named, "control": None, "control_of": None}
                done[arm] = (row, result)
            return done[arm][1]

        for method, optimizer, at in places:
            arm = arm_name(method, optimizer, at)
            own = self.options.get(method, {}) | values_of(at, method)
            result = run(arm, method, optimizer, at, values_for_all(at), own)
            control = _control(method, optimizer)
            if not self.controls or control is None:
                continue
            other, its_optimizer = control
            its_at = {name: value for name, value in values_for_all(at).items() if varies(name, other, its_optimizer)}
            # what the user set for this method alone, its control gets too; a recipe's settings suit the method only
            shared = {name: value for name, value in own.items() if name in KINDS and name not in COUNTED_IN_EPOCHS}
            options = self.options.get(other, {}) | shared
            if other == "random_upsample":
                assert result.selection is not None
                options |= {"count": len(result.selection.indices), "factor": result.selection.factor}
            budget: float | None = result.cost
            passes = 2 if its_optimizer in PLAIN else 1
            its_epochs = self.resolved(data, other, self.settings | its_at | options)["epochs"]
            if other == "erm" and not shared and math.isclose(result.cost, passes * erm_cost(data, its_epochs)):
                budget = None
                same_cost = arm_name(other, its_optimizer, its_at)
                run(same_cost, other, its_optimizer, its_at, its_at, options)
            else:
                same_cost = f"{other}+{its_optimizer} at the cost of {arm}"
                run(same_cost, other, its_optimizer, at, its_at, options, budget)
            done[arm][0]["control"] = same_cost
            if budget is not None:
                done[same_cost][0]["control_of"] = arm
        return list(done.values())

    def places(self) -> list[tuple[str, str, dict[str, Any]]]:
        """(method, optimizer, swept values) of every arm, value by value, none twice."""
        arms = _arms(self.methods, self.optimizers)
        found: dict[str, tuple[str, str, dict[str, Any]]] = {}
        for values in product(*self.sweep.values()):
            for method, optimizer in arms:
                pairs = zip(self.sweep, values, strict=True)
                at = {name: value for name, value in pairs if varies(name, method, optimizer)}
                found.setdefault(arm_name(method, optimizer, at), (method, optimizer, at))
        return list(found.values())

    @property
    def data_name(self) -> str:
        return str(self.data) if isinstance(self.data, str | Path) else getattr(self.data, "name", "data")

    def dataset(self, seed: int) -> Data:
        return self.data(seed) if _is_law(self.data) else as_data(self.data, seed, self.data_options)

    def resolved(self, data: Data, method: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Every setting of training, as `evenly.train` will have it."""
        settings = dict(given)
        model = settings.pop("model", self.model)
        return resolve(data, method, settings, model)[0]

    def check_on(self, data: Data) -> None:
        """Refuse, before any arm has run, what an arm's settings and the data's recipe together cannot be."""
        plans = []
        for method, optimizer, at in self.places():
            given = self.settings | values_for_all(at) | self.options.get(method, {}) | values_of(at, method)
            plan = self.resolved(data, method, given)
            plans.append((method, plan))
            builder(optimizer, **{name: plan[name] for name in ("lr", "momentum", "weight_decay", "rho")})
            Augment(plan["augment"])
            Settings(**{key: value for key, value in plan.items() if key not in ("model", "model_options")})
        check_inference(plans)

    def config(self) -> dict[str, Any]:
        """What every call in one folder has in common."""
        config = {
            "compare": self.data_name,
            "model": self.model if isinstance(self.model, str) or self.model is None else type(self.model).__name__,
            "data_options": self.data_options,
            "options": self.options,
            "settings": {key: name_of(value) for key, value in self.settings.items()},
        }
        found: dict[str, Any] = json.loads(json.dumps(config))
        return found

    def check_folder(self, path: Path) -> list[dict[str, Any]]:
        """The rows that are in the folder; refused if it is neither new nor of the same data, model and settings."""
        there = read_json(path / "config.json")
        if there is None and (holds_something(path) or path.is_file()):
            raise EvenlyError(f"{path} is not empty and holds no comparison; choose another out")
        if there is not None and there != self.config():
            raise EvenlyError(
                f"{path} holds another run, with other data, model, options or settings; "
                "choose another out or remove it"
            )
        results = read_json(path / "results.json")
        if results is None:
            return []
        if not isinstance(results, dict) or not isinstance(results.get("rows"), list):
            raise EvenlyError(f"{path / 'results.json'} is damaged; remove it, and the runs are read again")
        return [*results["rows"], *results.get("others", [])]

    def _options(self, data: Data) -> dict[str, dict[str, Any]]:
        """What each method has of its own, from the data's recipe and from the user; what is swept is left out."""
        recipe = data.recipe.get("options", {})
        used = dict.fromkeys(method for method, _ in _arms(self.methods, self.optimizers))
        merged = {
            method: {
                name: value
                for name, value in recipe.get(method, {}).items()
                if name not in self.settings and not {name, f"{method}.{name}"} & set(self.sweep)
            }
            | self.options.get(method, {})
            for method in used
        }
        return {method: options for method, options in merged.items() if options}

    def plan(self, seeds: list[int], data: Data) -> dict[str, Any]:
        """What was run; `in_common` holds every setting of training that ERM has at all values of the sweep."""
        plans = [self.resolved(data, "erm", self.settings | values_for_all(at)) for _, _, at in self.places()]
        # ASAM has a radius of its own where none was given
        own = {"model"} | ({"rho"} if "rho" not in self.settings and ADAPTIVE.keys() & set(self.optimizers) else set())
        in_common = {
            name: name_of(value)
            for name, value in plans[0].items()
            if name not in own and all(plan[name] == value for plan in plans)
        }
        return {
            "methods": self.methods, "optimizers": self.optimizers, "seeds": seeds, "options": self._options(data),
            "sweep": {name: [name_of(value) for value in values] for name, values in self.sweep.items()},
            "data_options": self.data_options,
            "settings": {key: name_of(value) for key, value in self.settings.items()},
            "in_common": in_common,
        }  # fmt: skip


def summarise(rows: list[dict[str, Any]], trained: Mapping[tuple[str, int], Run] | None = None) -> list[dict[str, Any]]:
    """Per arm: mean and standard deviation of every test metric, cost, and paired differences from the control.

    Where the runs are given, by arm and seed, also what it cost to come as far as ERM's worst group and further.
    """
    by_arm: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        by_arm.setdefault(row["arm"], {})[row["seed"]] = row
    summary = []
    for arm, runs in by_arm.items():
        first = next(iter(runs.values()))
        # where a method costs what ERM costs in some seeds only, seeds differ in their control
        control = {seed: c for seed, run in runs.items() if (c := by_arm.get(run["control"], {}).get(seed))}
        entry: dict[str, Any] = {
            "arm": arm, "method": first["method"], "optimizer": first["optimizer"], "seeds": len(runs),
            "sweep": first.get("sweep", {}), "control": first["control"], "control_of": first["control_of"],
            "rule": first["rule"],
            "cost_multiple": _mean([run["cost_multiple"] for run in runs.values()]),
            "control_cost_multiple": _mean([run["cost_multiple"] for run in control.values()]) if control else None,
        }  # fmt: skip
        for told in ("selected_after_epochs", "evaluation_cost_multiple"):
            if all(told in run for run in runs.values()):
                entry[told] = _mean([run[told] for run in runs.values()])
        for metric in METRICS:
            values = {seed: _test(run, metric) for seed, run in runs.items()}
            if any(value is None for value in values.values()):
                continue
            entry[metric] = {
                "mean": _mean(values.values()),
                "sd": _sd(values.values()),
                "values": list(values.values()),
            }
            if control:
                entry[metric]["difference"] = paired(
                    [values[seed] - _test(control[seed], metric) for seed in values if seed in control]
                )
        if "groups" in (first.get("test") or first.get("validation") or {}):
            columns = zip_longest(*(_groups(run) for run in runs.values()))
            entry["groups"] = [_mean(column) if any(v is not None for v in column) else None for column in columns]
            counts = zip_longest(*(_groups(run, "group_counts") for run in runs.values()))
            entry["group_counts"] = [round(_mean([n for n in column if n] or [0])) for column in counts]
            # seeds often measure the same examples: an interval is that of one seed's number of them
            entry["group_intervals"] = intervals(entry["groups"], entry["group_counts"])
        if all("groups" in run.get("used", {}) for run in runs.values()):
            entry["used"] = {
                key: [_mean(column) for column in zip_longest(*(run["used"][key] for run in runs.values()))]
                for key in ("groups", "groups_shown")
            }
        summary.append(entry)
    for entry in summary:
        entry.update(_reaching(entry, summary, by_arm[entry["arm"]], trained or {}))
    return summary


def _reaching(
    entry: dict[str, Any],
    summary: list[dict[str, Any]],
    rows: dict[int, dict[str, Any]],
    trained: Mapping[tuple[str, int], Run],
) -> dict[str, Any]:
    """What it cost an arm to come as far as ERM's worst group and further, or why that is not told; else nothing."""
    erm = next((other["arm"] for other in summary if is_erm_of(entry, other)), None)
    if erm is None:
        return {}
    if found := levels_reached(entry["arm"], erm, rows, trained):
        return {"cost_to_reach": found}
    why = why_untold(entry["arm"], erm, rows, trained)
    return {"cost_to_reach_untold": why} if why else {}


def paired(differences: Sequence[float], level: float = 0.95) -> dict[str, Any]:
    """Mean of paired differences with its t-interval; no interval from a single pair, nor from pairs that are all
    alike: on a few seeds that is chance, and their spread of 0 would make it certainty."""
    n, mean = len(differences), _mean(differences)
    if n < 2 or _sd(differences) < ALIKE:
        return {"mean": 0.0 if abs(mean) < ALIKE else mean, "low": None, "high": None, "pairs": n}
    from scipy.stats import t

    half = float(t.ppf(0.5 + level / 2, n - 1)) * _sd(differences) / math.sqrt(n)
    return {"mean": mean, "low": mean - half, "high": mean + half, "pairs": n}


def _arms(methods: list[str], optimizers: list[str]) -> list[tuple[str, str]]:
    """(method, optimizer) of every arm, none twice."""
    pairs = [
        (name.split("+")[0], optimizer)
        for name in methods
        for optimizer in (name.split("+")[1:] if "+" in name else optimizers)
    ]
    return sorted(dict.fromkeys(pairs), key=lambda arm: list(dict.fromkeys(o for _, o in pairs)).index(arm[1]))


def _control(method: str, optimizer: str) -> tuple[str, str] | None:
    """(method, optimizer) of the control: plain ERM for SAM with ERM; other methods keep their optimizer."""
    if method != "erm":
        return find(method).control, optimizer
    return ("erm", PLAIN[optimizer]) if optimizer in PLAIN else None


def _check(
    methods: list[str],
    optimizers: list[str],
    seeds: list[int],
    options: dict[str, Any],
    settings: dict[str, Any],
    jobs: int,
    together: int,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Refuse what cannot work; the options and settings, with plain numbers."""
    arms = _arms(methods, optimizers)
    for method in [*(method for method, _ in arms), *options]:
        find(method)
    for optimizer in [optimizer for _, optimizer in arms]:
        if optimizer not in OPTIMIZERS:
            raise unknown("optimizer", optimizer, OPTIMIZERS)
    settings = checked("setting", settings, KINDS)
    for method, given in options.items():
        options = options | {method: checked(f"option of {method}", given, setting_kinds(method))}
    if not arms or not seeds:
        raise EvenlyError("there is nothing to compare; give at least one method, one optimizer and one seed")
    if len(set(seeds)) != len(seeds):
        raise EvenlyError(f"a seed stands twice in {seeds}; a run repeated is no second observation")
    for name, value in (("jobs", jobs), ("together", together)):
        if value < 1:
            raise EvenlyError(f"{name} {value} cannot work; give at least 1")
    return options, settings


@contextlib.contextmanager
def _made(folder: Path, config: dict[str, Any]) -> Iterator[None]:
    """The comparison's folder; one that is new and in which no run has left anything is taken away on the way out."""
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


def _is_law(data: Any) -> bool:
    return callable(data) and not isinstance(data, Data)


def _check_sendable(job: _Seed) -> None:
    try:
        pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise EvenlyError(
            f"this model or data cannot be sent to another process ({error}); use jobs 1, or give both by name"
        ) from None


def _in_bytes(job: _Seed, seed: int) -> bytes:
    """A seed's results by value: as they are, every tensor would hold a file open in the parent."""
    return pickle.dumps(job(seed))


def _worker() -> None:
    torch.set_num_threads(1)
    # at Ctrl-C the parent says what there is to say; what a worker has written is whole at any moment
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot stop its workers, which would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _slug(arm: str) -> str:
    """An arm's name as a folder's, and no other arm's: with a digest where a swept value had to be rewritten."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", arm.replace(" at the cost of ", "--"))
    if len(name) <= LONGEST_NAME and re.fullmatch(r"[^,]*(, [A-Za-z0-9_]+ [A-Za-z0-9._-]+)*", arm):
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(arm.encode()).hexdigest()[:8]}"


def _test(row: dict[str, Any], metric: str) -> Any:
    return (row.get("test") or row.get("validation") or row["train"]).get(metric)


def _groups(row: dict[str, Any], key: str = "groups") -> list[Any]:
    measured = row.get("test") or row["validation"]
    groups: list[Any] = measured.get(key) or [None] * len(measured["groups"])
    return groups


def _mean(values: Iterable[Any]) -> float:
    values = [value for value in values if value is not None]
    return sum(values) / len(values) if values else math.nan


def _sd(values: Iterable[float]) -> float:
    values = list(values)
    mean = _mean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1)) if len(values) > 1 else 0.0
