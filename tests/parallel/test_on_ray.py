"""Nodes as tasks of Ray: declared resources, one copy of the work, workers that die, folders that come back."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve, frozen

from evenly.errors import EvenlyError, InUseError
from evenly.parallel import on_ray, ray_cluster, ray_worker
from evenly.parallel.graph import Advanced, Began, Failed, Finished, walk
from evenly.parallel.on_ray import Needs, RayExecutor
from evenly.parallel.ray_worker import versions
from evenly.parallel.scratch import Token
from evenly.settings import Execution

ray = pytest.importorskip("ray")
RAY = Execution(engine="ray", device="cpu")


def test_an_address_without_a_cluster_is_refused(monkeypatch):
    """Ray itself would try for 80 s, and then end this process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(EvenlyError, match=f"no Ray cluster answers at '127.0.0.1:{port}' .*refused.*ray start --head"):
        walk([Number("a")], RayExecutor(print, evolve(RAY, address=f"127.0.0.1:{port}")))
    with pytest.raises(EvenlyError, match="address must be host:port or auto, got 'ray://head:10001'"):
        walk([Number("a")], RayExecutor(print, evolve(RAY, address="ray://head:10001")))
    monkeypatch.setattr(ray_cluster, "CONNECT", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(EvenlyError, match=f"no Ray cluster answers at '{address}' within 3 s; check"):
            walk([Number("a")], RayExecutor(print, evolve(RAY, address=address)))
    assert not ray.is_initialized()


def test_ray_missing_is_refused(monkeypatch):
    monkeypatch.setattr(on_ray, "find_spec", lambda name: None)
    with pytest.raises(EvenlyError, match=r"not installed; run pip install 'evenly\[ray\]'"):
        RayExecutor(print, RAY)


@pytest.fixture(scope="module")
def cluster():
    """Two CPUs and four GPUs that are not there."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init("local", num_cpus=2, num_gpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@frozen
class Number:
    id: str
    after: str | None = None

    @property
    def label(self) -> str:
        return f"node {self.id}"

    def completed(self, result: Any) -> Number:
        return Number(f"{self.id}{result}")


@frozen
class Writes:
    """Work that writes a file per node into a folder, and reads data that only the driver has."""

    folder: Path
    names: Path
    given: str = "none"

    def __call__(self, node: Any, show: Any) -> tuple[str, Path]:
        place = self.place(node)
        (place / "inner").mkdir(parents=True, exist_ok=True)
        began = place / "began"
        began.write_text(f"{began.read_text() if began.exists() else ''}{os.getpid()}\n")
        if node.id == "dies" and len(began.read_text().splitlines()) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if node.id == "fails":
            raise EvenlyError("it diverged")
        (place / "inner" / "text").write_text(self.given)
        show(0.5, "half")
        return self.given, place

    def place(self, node: Any) -> Path:
        return self.folder / "runs" / node.id

    def needs(self, node: Any) -> Needs:
        return Needs(1, memory=10**6)

    def data_key(self, node: Any) -> str:
        return "names"

    def data_of(self, node: Any) -> str:
        return self.names.read_text()

    def elsewhere(self, folder: Path | None, data: str) -> Writes:
        return evolve(self, folder=folder or self.folder, given=data)

    def moved(self, result: tuple[str, Path], folder: Path) -> tuple[str, Path]:
        return result[0], folder


@pytest.fixture
def writes(cluster, tmp_path):
    (tmp_path / "names").write_text("Ada")
    (tmp_path / "out").mkdir()
    return Writes(tmp_path / "out", tmp_path / "names")


def test_nodes_run_as_tasks_that_begin_advance_and_end(cluster):
    def doubled(node, show):
        show(0.25, "first")
        time.sleep(1)
        return node.id * 2

    happened: list[Any] = []
    with RayExecutor(doubled, RAY) as executor:
        assert executor.slots == 2
        ray.get(executor.board.post.remote(0, Began("the board is there")))
        walked = walk([Number("a"), Number("b", after="a")], executor, lambda event, node: happened.append(event))
    assert walked.results == {"a": "aa", "baa": "baabaa"}
    own = [event for event in happened if event.id == "a"]
    assert set(own) == {Began("a"), Advanced("a", 0.25, "first"), Finished("a", "aa")}
    assert own[-1] == Finished("a", "aa")  # an actor that waits may take the two before it in either order
    assert ray.is_initialized()  # it was there before


def test_declared_resources(cluster):
    """A third of a GPU each: twelve fit four GPUs, and two CPUs take two of them."""
    gpu = Needs(1, 1 / 3)
    assert gpu.fit({"CPU": 64, "GPU": 4}) == 12
    assert gpu.fit({"CPU": 2, "GPU": 4}) == 2
    assert gpu.fit({"CPU": 64}) == 0
    assert Needs(2, memory=3e9).fit({"CPU": 64, "memory": 10e9}) == 3

    def granted(node, show):
        return ray.get_runtime_context().get_assigned_resources(), ray.get_runtime_context().get_accelerator_ids()[
            "GPU"
        ]

    for execution in (evolve(RAY, device="auto", together=2), evolve(RAY, device="cuda", together=2), RAY):
        with RayExecutor(granted, execution) as executor:
            resources, gpus = walk([Number("a")], executor).results["a"]
        share = 0.0 if execution is RAY else 0.5
        assert (resources["CPU"], resources.get("GPU", 0.0), len(gpus)) == (1.0, share, bool(share))


def test_more_than_any_machine_has_is_refused(cluster, writes):
    greedy = type("Greedy", (Writes,), {"needs": lambda self, node: Needs(64)})(*(writes.folder, writes.names))
    message = "needs 64 CPUs and 0 GPUs, and a machine of Ray has 2 and 4"
    with pytest.raises(EvenlyError, match=message), RayExecutor(greedy, RAY) as executor:
        walk([Number("a")], executor)
    with pytest.raises(EvenlyError, match="'cuda:1' names one GPU"):
        RayExecutor(greedy, evolve(RAY, device="cuda:1"))


def test_work_and_data_are_stored_once(writes, monkeypatch):
    put, stored = ray.put, []
    monkeypatch.setattr(ray, "put", lambda value: stored.append(value) or put(value))
    with RayExecutor(writes, RAY) as executor:
        walked = walk([Number(str(k)) for k in range(20)], executor)
    assert {given for given, _ in walked.results.values()} == {"Ada"}
    assert stored == [writes, "Ada"]
    assert [path.name for path in writes.folder.iterdir()] == ["runs"]  # the token is gone


@pytest.mark.parametrize("shared", [True, False])
def test_a_worker_that_dies_and_a_node_that_fails(writes, monkeypatch, tmp_path, shared):
    """Without a shared folder, what was begun on a machine goes on there."""
    if not shared:
        monkeypatch.setattr(on_ray, "token_in", lambda folder: nullcontext(Token(folder, "not there", tmp_path.name)))
    nodes = [Number("dies"), Number("fails"), Number("goes")]
    with RayExecutor(writes, RAY) as executor:
        walked = walk(nodes, executor)
    assert walked.failures == {"fails": Failed("fails", "it diverged", walked.failures["fails"].traceback)}
    assert "Writes" in walked.failures["fails"].traceback or "it diverged" in walked.failures["fails"].traceback
    for name, began in (("dies", 2), ("goes", 1)):
        place = writes.folder / "runs" / name
        assert walked.results[name] == ("Ada", place)
        assert len((place / "began").read_text().splitlines()) == began
        assert (place / "inner" / "text").read_text() == "Ada"
    assert not [path for path in writes.folder.rglob(".*")]


class Refused:
    """Data that cannot be read on another machine."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise EvenlyError("rows.npy is not the file")


def test_data_that_cannot_be_read_there_fail_their_run_in_a_line(writes, monkeypatch):
    monkeypatch.setattr(Writes, "data_of", lambda self, node: Refused())
    with RayExecutor(writes, RAY) as executor:
        walked = walk([Number("a")], executor)
    assert walked.failures["a"].reason == "rows.npy is not the file"


@pytest.mark.parametrize("other", [{"evenly": "0.0.1"}, {"torch": "1.0"}])
def test_workers_of_another_version_are_refused(cluster, monkeypatch, other):
    here = versions()
    monkeypatch.setattr(on_ray, "versions", lambda: here | other)
    ours = ", ".join(f"{name} {version}" for name, version in (here | other).items())
    theirs = ", ".join(f"{name} {version}" for name, version in here.items())
    message = f"has {theirs}, this machine has {ours}; install the same"
    with pytest.raises(EvenlyError, match=message), RayExecutor(print, RAY) as executor:
        walk([Number("a")], executor)


def test_a_killed_board_is_replaced(cluster):
    """Progress may get lost with it; results do not."""

    def waits(node, show):
        time.sleep(1.5)
        show(0.5, "half")
        time.sleep(2)  # a new board takes a while to start
        return "done"

    happened: list[Any] = []
    with RayExecutor(waits, RAY) as executor:
        assert executor.slots == 2
        ray.kill(executor.board)
        walked = walk([Number("a"), Number("b", after="a")], executor, lambda event, node: happened.append(event))
    assert walked.results == {"a": "done", "bdone": "done"}
    assert Advanced("bdone", 0.5, "half") in happened


def test_only_a_finished_run_leaves_its_scratch_folder(monkeypatch, tmp_path):
    class Held:
        def place(self, node):
            return tmp_path / "runs" / node.id

        def __call__(self, node, show):
            (self.place(node) / "metrics.jsonl").touch()
            if node.id == "held":
                raise InUseError("in use by another process")

    monkeypatch.setattr(ray_worker, "_work", lambda *stored, folder: Held())
    monkeypatch.setattr(ray_worker, "PATIENCE", 0.0)
    board = SimpleNamespace(post=SimpleNamespace(remote=lambda *arguments: None))
    for id in ("held", "done"):
        (tmp_path / "runs" / id).mkdir(parents=True)
        message = pickle.dumps((0, Number(id), Token(tmp_path, "none", "c")))
        ray_worker.run_node(message, [], board)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["held"]
