"""Machines of a Ray cluster that leave, and machines of other versions that join."""

from __future__ import annotations

import re
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from evenly.errors import EvenlyError, EvenlyWarning
from evenly.parallel.graph import Began, Lost, walk
from evenly.parallel.on_ray import RayExecutor
from evenly.settings import Execution

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")
RAY = Execution(engine="ray", device="cpu")


@frozen
class Number:
    id: str
    after: str | None = None

    @property
    def label(self) -> str:
        return f"node {self.id}"

    def completed(self, result: Any) -> Number:
        return self


@pytest.fixture
def cluster(monkeypatch) -> Iterator[Any]:
    """A head without CPUs."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = cluster_utils.Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    with suppress(Exception):
        cluster.shutdown()


def other_torch(folder: Path) -> dict[str, str]:
    """What lets a machine have another torch than this one."""
    (folder / "torch-1.0.dist-info").mkdir()
    (folder / "torch-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")
    return {"PYTHONPATH": str(folder)}


def where(node: Any, show: Any) -> str:
    time.sleep(1)
    return str(ray.get_runtime_context().get_node_id())


@pytest.mark.timeout(120)
def test_a_machine_of_another_version_that_joins_gets_no_runs_and_is_named_once(cluster, tmp_path):
    other = cluster.add_node(num_cpus=2, env_vars=other_torch(tmp_path))
    message = r"the worker on .* torch 1\.0, this machine has .*; install the same on both"
    with pytest.raises(EvenlyError, match=f"{message}$"), RayExecutor(where, RAY) as executor:
        walk([Number("a")], executor)
    good = cluster.add_node(num_cpus=1)
    with warnings.catch_warnings(record=True) as warned, RayExecutor(where, RAY) as executor:
        warnings.simplefilter("always")
        walked = walk([Number(str(k)) for k in range(6)], executor)
        assert executor.slots == 1
    (warning,) = (str(each.message) for each in warned if each.category is EvenlyWarning)
    assert re.fullmatch(f"{message}; until then it gets no runs", warning)
    assert set(walked.results.values()) == {good.node_id} != {other.node_id}
    assert len(walked.results) == 6


@pytest.mark.timeout(120)
def test_a_machine_that_leaves_is_no_crash_of_its_run(cluster):
    machines = [cluster.add_node(num_cpus=1)]
    events: list[Any] = []

    def slowly(node: Any, show: Any) -> str:
        time.sleep(8)
        return "done"

    def leave(event: Any, node: Any) -> None:
        events.append(event)
        if isinstance(event, Began) and len(machines) == 1:
            machines.append(cluster.add_node(num_cpus=1))
            cluster.remove_node(machines[0], allow_graceful=False)

    with RayExecutor(slowly, RAY) as executor:
        walked = walk([Number("a")], executor, leave)
    assert walked.results == {"a": "done"}
    assert [event for event in events if isinstance(event, Lost)] == [Lost("a", "its machine left the cluster", True)]
