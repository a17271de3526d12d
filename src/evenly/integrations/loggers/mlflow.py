"""MLflow: a run of its own for each run of evenly, in the store that MLflow uses anyway.

The store is the one of ``MLFLOW_TRACKING_URI`` or, without it, MLflow's default. The experiment is the one of
``MLFLOW_EXPERIMENT_NAME``, else "evenly". A run is found again by its tag `evenly.run`. The steps that the store has of
a metric are read back and not written again, so that a second call adds nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import mlflow
from attrs import define, field
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from evenly.errors import EvenlyError, first_line
from evenly.integrations.loggers.folders import LoggedRun
from evenly.integrations.loggers.points import part

METRICS, PARAMS = 1000, 100
"""Metrics and parameters that MLflow takes in one request."""
TEXT = 500
"""Characters of a parameter: every version of MLflow takes as many."""
IDENTITY = "evenly.run"
Item = TypeVar("Item")


@define
class _Kept:
    """What the store has of a run: the steps of each metric, the parameters, and whether it is finished."""

    run_id: str
    finished: bool
    params: set[str]
    steps: dict[str, set[int]] = field(factory=dict)


class MlflowLogger:
    """Writes runs into a store.

    Args:
        client: an `mlflow.MlflowClient`.
        experiment: its id.
    """

    failures = (MlflowException, OSError)

    def __init__(self, client: Any, experiment: str) -> None:
        self.client, self.experiment = client, experiment
        self._kept: dict[str, _Kept] = {}

    def add(self, run: LoggedRun) -> int:
        """Write what the store lacks of a run; how many points that is."""
        kept = self._kept_of(run)
        params = {name: value for name, value in _params(run.settings) if name not in kept.params}
        for some in _in_parts([Param(name, value) for name, value in params.items()], PARAMS):
            self.client.log_batch(kept.run_id, params=some)
        kept.params |= params.keys()
        new = [point for point in run.points if point.step not in self._steps(kept, point.tag)]
        now = int(1000 * (run.written or time.time()))
        for some in _in_parts(new, METRICS):
            metrics = [Metric(point.tag, point.value, now, point.step) for point in some]
            self.client.log_batch(kept.run_id, metrics=metrics)
            for point in some:
                kept.steps[point.tag].add(point.step)
        if run.results is not None and not kept.finished:
            self.client.set_terminated(kept.run_id, "FINISHED")
            kept.finished = True
        return len(new)

    def where(self, run: LoggedRun) -> str:
        """The store, and the run in it."""
        return f"{mlflow.get_tracking_uri()}, run {self._kept_of(run).run_id}"

    def close(self) -> None:
        """Every call leaves the store whole."""

    def _kept_of(self, run: LoggedRun) -> _Kept:
        if run.id not in self._kept:
            runs = self.client.search_runs([self.experiment], f"tags.`{IDENTITY}` = '{run.id}'", max_results=1)
            there = runs[0] if runs else self.client.create_run(self.experiment, tags=_tags(run), run_name=run.name)
            kept = _Kept(there.info.run_id, there.info.status == "FINISHED", set(there.data.params))
            kept.steps = {tag: self._stored_steps(kept.run_id, tag) for tag in there.data.metrics}
            self._kept[run.id] = kept
        return self._kept[run.id]

    def _stored_steps(self, run_id: str, tag: str) -> set[int]:
        return {metric.step for metric in self.client.get_metric_history(run_id, tag)}

    def _steps(self, kept: _Kept, tag: str) -> set[int]:
        return kept.steps.setdefault(tag, set())


def connect() -> MlflowLogger:
    """Open the store; refused in one line where it cannot be."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "evenly"
    try:
        client = mlflow.MlflowClient()
        return MlflowLogger(client, _experiment(client, name))
    except (MlflowException, OSError) as error:
        reason = first_line(error).partition(". ")[0]
        raise EvenlyError(
            f"MLflow's store {mlflow.get_tracking_uri()} cannot be used ({reason}); set MLFLOW_TRACKING_URI, e.g. to "
            "sqlite:///mlflow.db or to the address of a server"
        ) from None


def _experiment(client: Any, name: str) -> str:
    """The id of an experiment, which another process may make at the same time."""
    if (there := client.get_experiment_by_name(name)) is None:
        try:
            return str(client.create_experiment(name))
        except MlflowException:
            if (there := client.get_experiment_by_name(name)) is None:
                raise
    return str(there.experiment_id)


def _tags(run: LoggedRun) -> dict[str, str]:
    tags = {IDENTITY: run.id, "evenly.folder": str(run.folder.resolve())}
    return tags | ({"evenly.group": run.group} if run.group else {})


def _params(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{part(inner)}", str(each)[:TEXT]) for inner, each in value.items())
        else:
            yield part(name), str(value)[:TEXT]


def _in_parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
