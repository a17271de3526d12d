"""The same graph over every executor: results, order, failures, workers that die, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import frozen

from evenly.engine.side_by_side import pause
from evenly.errors import EvenlyError
from evenly.parallel.executors import Kept, devices_for, executor_for
from evenly.parallel.graph import Advanced, Began, Failed, Finished, Lost, walk
from evenly.parallel.here import Here, SideBySide
from evenly.parallel.processes import Processes
from evenly.settings import Execution

CPU = torch.device("cpu")


@frozen
class Sum:
    """The sum of some numbers, in as many steps; its control adds one to it."""

    id: str
    numbers: tuple[int, ...] = ()
    after: str | None = None

    @property
    def label(self) -> str:
        return f"sum {self.id}"

    def completed(self, result: Any) -> Sum:
        return Sum(f"{self.id} of {result}", (result, 1))


@frozen
class Adding:
    """Adds; a negative number raises, 13 kills the process while a file of that name is there."""

    folder: Path | None = None
    device: str = ""

    def on(self, device: str) -> Adding:
        return Adding(self.folder, device)

    def __call__(self, node: Sum, show: Any) -> int:
        total = 0
        for step, number in enumerate(node.numbers):
            show(step / len(node.numbers), "adding")
            if number < 0:
                raise ValueError(f"{number} is\nbelow 0")
            if number == 13 and self.folder is not None and (bad := self.folder / "bad").exists():
                bad.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.001)
            pause()
            total += number
        return total


@pytest.fixture(autouse=True)
def _found_by_processes(monkeypatch):
    """A process looks for this file as it is named here."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])


def over(name: str, work: Any, show: Any) -> Any:
    if name == "here":
        return Here(work, show)
    return SideBySide(work, CPU, 2) if name == "side by side" else Processes(work, ["cpu", "cpu"])


GRAPH = [Sum("a", (1, 2)), Sum("control", after="a"), Sum("b", (5, -1)), Sum("lost", after="b"), Sum("c", (7,) * 9)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["here", "side by side", "processes"])
def test_every_executor_gives_the_same(name):
    events = []

    def show(event, node):
        events.append((type(event), event.id))
        assert event.id == node.id

    with over(name, Adding(), show) as executor:
        walked = walk(GRAPH, executor, show)
    assert walked.results == {"a": 3, "control of 3": 4, "c": 63}
    assert walked.failures["b"].reason == "ValueError: -1 is below 0"
    assert "in __call__" in walked.failures["b"].traceback
    assert walked.failures["lost"].reason == "it waits for sum b, which failed"
    begun = [id for kind, id in events if kind is Began]
    assert sorted(begun) == sorted(["a", "control of 3", "b", "c"])
    assert events.index((Began, "c")) < events.index((Advanced, "c")) < events.index((Finished, "c"))


def test_what_is_known_need_not_run_and_what_a_node_became_is_reported():
    became = []

    def known(node):
        results = {"a": Finished("a", 10), "c": Failed("c", "an earlier call")}
        return results.get(node.id)

    with Here(Adding(), lambda event, node: None) as executor:
        walked = walk(GRAPH, executor, known=known, became=lambda old, new: became.append((old.id, new.id)))
    assert walked.results == {"a": 10, "control of 10": 11}
    assert walked.failures["c"].reason == "an earlier call"
    assert became == [("control", "control of 10")]


@pytest.mark.timeout(300)
def test_a_killed_worker_is_replaced_and_its_node_begun_again(tmp_path):
    (tmp_path / "bad").touch()
    events = []
    with Processes(Adding(tmp_path), ["cpu", "cpu"]) as executor:
        nodes = [Sum("a", (1, 13)), Sum("b", (2,) * 50), Sum("c", (3,))]
        walked = walk(nodes, executor, lambda event, node: events.append(event))
    assert walked.results == {"a": 14, "b": 100, "c": 3}
    lost = [event for event in events if isinstance(event, Lost)]
    assert [(event.id, event.reason) for event in lost] == [
        ("a", "its process was killed by SIGKILL, perhaps for lack of memory")
    ]


@pytest.mark.timeout(300)
def test_workers_stay_for_the_next_walk_of_the_same_work(tmp_path):
    (tmp_path / "bad").touch()
    with Kept() as kept:

        def processes_of(work: Adding, *nodes: Sum) -> set[int | None]:
            with executor_for(Execution(jobs=2), work, CPU, kept=kept) as executor:
                assert len(walk(nodes, executor).results) == len(nodes)
                return {worker.process.pid for worker in executor.idle}

        first = processes_of(Adding(), Sum("a", (1,) * 50), Sum("b", (2,) * 50))
        assert processes_of(Adding(), Sum("c", (3,))) == first
        other = processes_of(Adding(tmp_path), Sum("a", (1,)))
        assert not other & first
        assert processes_of(Adding(tmp_path), Sum("a", (13,))) != other  # killed, and replaced
        workers = list(kept.processes.idle)
        with pytest.raises(KeyError), kept.processes:
            raise KeyError
        assert not any(worker.process.is_alive() for worker in workers)
        last = processes_of(Adding(tmp_path), Sum("a", (1,)))
        workers = list(kept.processes.idle)
        assert {worker.process.pid for worker in workers} == last
    assert not any(worker.process.is_alive() for worker in workers)


@pytest.mark.timeout(300)
def test_a_pipe_may_be_of_another_class_as_on_windows(monkeypatch):
    monkeypatch.setattr("evenly.parallel.processes.Connection", int)
    with Processes(Adding(), ["cpu"]) as executor:
        assert walk([Sum("a", (1, 2))], executor).results == {"a": 3}


@pytest.mark.timeout(300)
def test_a_script_that_calls_without_asking_for_its_name_is_refused_in_a_line(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, evenly\n"
        "print('called', file=sys.stderr)\n"
        "evenly.compare('shortcut-digits', methods=['erm'], seeds=2, jobs=2, epochs=1, out=sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, script, tmp_path / "out"], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith(
        "a worker process could not start; in a script, put the call under if __name__ == '__main__':"
    )
    assert done.stderr.count("called") <= 3  # once, and in each of two workers
    assert not (tmp_path / "out").exists()


@pytest.mark.timeout(300)
def test_workers_end_when_the_walk_is_stopped():
    def stop(event, node):
        if isinstance(event, Advanced):
            raise KeyboardInterrupt

    executor = Processes(Adding(), ["cpu"])
    with pytest.raises(KeyboardInterrupt), executor:
        walk([Sum("a", (1,) * 100_000)], executor, stop)
    assert not any(worker.process.is_alive() for worker in executor.busy.values())


def test_the_executor_follows_from_what_was_asked(monkeypatch):
    def kind(device="cpu", **execution):
        return executor_for(Execution(**execution), Adding(), torch.device(device))

    assert isinstance(kind(), Here)
    assert isinstance(kind(jobs=2), Processes)
    assert isinstance(kind(together=3), Here)
    monkeypatch.setattr("evenly.engine.side_by_side.random_state", lambda: ())
    side_by_side = kind("cuda", together=2)
    assert (type(side_by_side), side_by_side.slots) == (SideBySide, 2)
    assert isinstance(kind("cuda", together=1), Here)
    with pytest.raises(EvenlyError, match=r"address 'host:1' is of a Ray cluster; give engine='ray' as well"):
        Execution(address="host:1")


def test_every_process_has_a_gpu_of_its_own_until_there_are_more(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    gpu, second = torch.device("cuda"), torch.device("cuda:1")
    assert devices_for(Execution(jobs=3), CPU) == ["cpu"] * 3
    assert devices_for(Execution(jobs=3, together=2), gpu) == ["cuda:0", "cuda:1", "cuda:0"]
    assert devices_for(Execution(jobs=2, together=2), second) == ["cuda:1"] * 2
    message = "jobs 5 are more than 2 GPUs can take with together 2 on each; use jobs 4, or raise together"
    with pytest.raises(EvenlyError, match=message):
        devices_for(Execution(jobs=5, together=2), gpu)
    executor = Processes(Adding(), ["cuda:0", "cuda:1"])
    assert list(executor.packed) == ["cuda:0", "cuda:1"]


def test_what_cannot_be_sent_to_a_process_is_refused():
    with pytest.raises(EvenlyError, match=r"cannot be sent to another process .* use jobs 1"):
        Processes(Adding(lambda: None), ["cpu", "cpu"])
