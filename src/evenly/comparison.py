"""`evenly.compare`: methods x optimizers x seeds on one data set, each against a control of equal cost.

The control of a method trains for the same number of example-gradients without the method's idea: random upsampling of
as many examples for USEFUL, plain training for twice the epochs for SAM, ERM stopped at the cost for a cheaper method.
Differences are paired by seed, with 95% t-intervals.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import torch

from evenly.data import Data
from evenly.engine import Run
from evenly.engine.folder import holds_something, make_folder, read_json, write_json
from evenly.engine.progress import Progress
from evenly.errors import EvenlyError, unknown
from evenly.experiment import KINDS, Model, as_data, erm_cost, name_of, resolve, train
from evenly.methods import find
from evenly.optim.registry import OPTIMIZERS, PLAIN
from evenly.options import checked, kinds_of

METRICS = ("accuracy", "worst_group", "train_weighted", "worst_class")


@dataclass
class Comparison:
    """What came of it: a row per run, and per arm the means, the cost and the differences from its control."""

    data: str
    rows: list[dict[str, Any]]
    summary: list[dict[str, Any]]
    plan: dict[str, Any]
    runs: dict[tuple[str, int], Run] = field(default_factory=dict, repr=False)
    out: Path | None = None

    def as_json(self) -> dict[str, Any]:
        """What `results.json` holds."""
        return {"data": self.data, "plan": self.plan, "summary": self.summary, "rows": self.rows}


def compare(
    model: Model | None = None,
    data: Data | str | Path | Callable[[int], Data] | Any = None,
    methods: Sequence[str] = ("erm", "useful"),
    optimizers: Sequence[str] = ("sgd",),
    seeds: int | Iterable[int] = 3,
    *,
    controls: bool = True,
    options: dict[str, dict[str, Any]] | None = None,
    data_options: dict[str, Any] | None = None,
    device: str = "auto",
    jobs: int = 1,
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
        jobs: processes that share the seeds, one thread each; 1 keeps everything in this process.
        out: a folder; work that was interrupted there goes on, finished runs are not repeated.
        settings: as for `evenly.train`, for all arms alike.
    """
    seeds = [int(s) for s in seeds] if isinstance(seeds, Iterable) else list(range(int(seeds)))
    methods = list(dict.fromkeys([methods] if isinstance(methods, str) else methods))
    optimizers = list(dict.fromkeys([optimizers] if isinstance(optimizers, str) else optimizers))
    options, settings = _check(methods, optimizers, seeds, options or {}, settings, jobs)
    folder = None if out is None else _open(Path(out), model, data, data_options or {}, options, settings)
    job = _Seed(model, data, data_options or {}, methods, optimizers, controls, options, device, folder, settings)
    done: dict[int, list[tuple[dict[str, Any], Run]]] = {}
    label = f"comparing on {data if isinstance(data, str | Path) else getattr(data, 'name', 'data')}"
    with Progress(label) as bar:
        if jobs == 1 or len(seeds) == 1:
            for position, seed in enumerate(seeds):
                done[seed] = job(seed, partial(_part_of, bar, position, len(seeds)))
        else:
            _check_sendable(job)
            pool = ProcessPoolExecutor(min(jobs, len(seeds)), get_context("spawn"), _worker)
            try:
                waiting = {pool.submit(_in_bytes, job, seed): seed for seed in seeds}
                for finished in as_completed(waiting):
                    done[waiting[finished]] = pickle.loads(finished.result())
                    bar(len(done) / len(seeds), f"seed {waiting[finished]} done")
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
    rows = [row for seed in seeds for row, _ in done[seed]]
    first = rows[0]
    table = Comparison(
        first["data"], rows, summarise(rows), {**job.plan(seeds), "rule": first["rule"], "model": first["model"]},
        {(row["arm"], seed): run for seed in seeds for row, run in done[seed]}, folder,
    )  # fmt: skip
    if folder is not None:
        write_json(folder / "results.json", table.as_json())
        from evenly.report import comparison_page

        comparison_page(table, folder / "report.html", [job.dataset(seeds[0])])
    return table


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
    device: str
    folder: Path | None
    settings: dict[str, Any]

    def __call__(
        self, seed: int, progress: Callable[[float, str], None] = lambda share, note: None
    ) -> list[tuple[dict[str, Any], Run]]:
        data = self.dataset(seed)
        plan, _ = resolve(data, "erm", self.settings)
        arms = _arms(self.methods, self.optimizers)
        done: dict[str, tuple[dict[str, Any], Run]] = {}

        def run(arm: str, method: str, optimizer: str, options: dict[str, Any], budget: float | None = None) -> Run:
            if arm not in done:
                progress(len(done) / (2 * len(arms)), arm)
                out = None if self.folder is None else self.folder / "runs" / f"{_slug(arm)}-seed{seed}"
                result = train(
                    self.model, data, method, optimizer, seed=seed, device=self.device, budget=budget, out=out,
                    progress=lambda share, note: progress((len(done) + share) / (2 * len(arms)), arm),
                    unit=erm_cost(data, plan["epochs"]), **self.settings | options,
                )  # fmt: skip
                done[arm] = ({"arm": arm, **result.results, "control": None, "control_of": None}, result)
            return done[arm][1]

        for method, optimizer in arms:
            arm = f"{method}+{optimizer}"
            result = run(arm, method, optimizer, self.options.get(method, {}))
            control = _control(method, optimizer)
            if not self.controls or control is None:
                continue
            other, its_optimizer = control
            same_cost = f"{other}+{its_optimizer}"
            # what the user set for this method alone, its control gets too; a recipe's settings suit the method only
            own = self.options.get(method, {})
            shared = {name: value for name, value in own.items() if name in KINDS and name not in ("epochs", "model")}
            options = self.options.get(other, {}) | shared
            if other == "random_upsample":
                assert result.selection is not None
                options |= {"count": len(result.selection.indices), "factor": result.selection.factor}
            budget: float | None = result.cost
            passes = 2 if its_optimizer in PLAIN else 1
            its_epochs = resolve(data, other, self.settings | options)[0]["epochs"]
            if other == "erm" and not shared and math.isclose(result.cost, passes * erm_cost(data, its_epochs)):
                budget = None
            else:
                same_cost = f"{same_cost} at the cost of {arm}"
            run(same_cost, other, its_optimizer, options, budget)
            done[arm][0]["control"] = same_cost
            if budget is not None:
                done[same_cost][0]["control_of"] = arm
        return list(done.values())

    def dataset(self, seed: int) -> Data:
        return self.data(seed) if _is_law(self.data) else as_data(self.data, seed, self.data_options)

    def _options(self, seed: int) -> dict[str, dict[str, Any]]:
        """What each method has of its own, from the data's recipe and from the user."""
        recipe = self.dataset(seed).recipe.get("options", {})
        used = dict.fromkeys(method for method, _ in _arms(self.methods, self.optimizers))
        merged = {
            method: {k: v for k, v in recipe.get(method, {}).items() if k not in self.settings}
            | self.options.get(method, {})
            for method in used
        }
        return {method: options for method, options in merged.items() if options}

    def plan(self, seeds: list[int]) -> dict[str, Any]:
        return {
            "methods": self.methods, "optimizers": self.optimizers, "seeds": seeds, "options": self._options(seeds[0]),
            "data_options": self.data_options,
            "settings": {key: name_of(value) for key, value in self.settings.items()},
        }  # fmt: skip


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per arm: mean and standard deviation of every test metric, cost, and paired differences from the control."""
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
            "control": first["control"], "control_of": first["control_of"], "rule": first["rule"],
            "cost_multiple": _mean([run["cost_multiple"] for run in runs.values()]),
            "control_cost_multiple": _mean([run["cost_multiple"] for run in control.values()]) if control else None,
        }  # fmt: skip
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
        summary.append(entry)
    return summary


def paired(differences: Sequence[float], level: float = 0.95) -> dict[str, Any]:
    """Mean of paired differences with its t-interval; no interval from a single pair."""
    n, mean = len(differences), _mean(differences)
    if n < 2:
        return {"mean": mean, "low": None, "high": None, "pairs": n}
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
        own = find(method)
        kinds = kinds_of(own.run)
        own_kinds = KINDS | {name: kinds[name] for name in own.options}
        options = options | {method: checked(f"option of {method}", given, own_kinds)}
    if not arms or not seeds:
        raise EvenlyError("there is nothing to compare; give at least one method, one optimizer and one seed")
    if len(set(seeds)) != len(seeds):
        raise EvenlyError(f"a seed stands twice in {seeds}; a run repeated is no second observation")
    if jobs < 1:
        raise EvenlyError(f"jobs {jobs} cannot work; give at least 1")
    return options, settings


def _open(
    path: Path,
    model: Any,
    data: Any,
    data_options: dict[str, Any],
    options: dict[str, Any],
    settings: dict[str, Any],
) -> Path:
    """The comparison's folder: new, or one of the same data, model and settings; arms and seeds may be added to it."""
    config = {
        "compare": str(data) if isinstance(data, str | Path) else getattr(data, "name", "data"),
        "model": model if isinstance(model, str) or model is None else type(model).__name__,
        "data_options": data_options,
        "options": options,
        "settings": {key: name_of(value) for key, value in settings.items()},
    }
    there = read_json(path / "config.json")
    if there is None:
        if holds_something(path) or path.is_file():
            raise EvenlyError(f"{path} is not empty and holds no comparison; choose another out")
        make_folder(path)
        write_json(path / "config.json", config)
    elif there != json.loads(json.dumps(config)):
        raise EvenlyError(
            f"{path} holds another run, with other data, model, options or settings; choose another out or remove it"
        )
    return path


def _part_of(bar: Progress, position: int, parts: int, share: float, note: str) -> None:
    bar((position + share) / parts, note)


def _is_law(data: Any) -> bool:
    return callable(data) and not isinstance(data, Data)


def _check_sendable(job: _Seed) -> None:
    try:
        pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise EvenlyError(
            f"this model or data cannot be sent to another process ({error}); use jobs=1, or give both by name"
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
    return arm.replace(" at the cost of ", "--").replace("+", "-")


def _test(row: dict[str, Any], metric: str) -> Any:
    return (row.get("test") or row.get("validation") or row["train"]).get(metric)


def _groups(row: dict[str, Any]) -> list[Any]:
    groups: list[Any] = (row.get("test") or row["validation"])["groups"]
    return groups


def _mean(values: Iterable[Any]) -> float:
    values = [value for value in values if value is not None]
    return sum(values) / len(values) if values else math.nan


def _sd(values: Iterable[float]) -> float:
    values = list(values)
    mean = _mean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1)) if len(values) > 1 else 0.0
