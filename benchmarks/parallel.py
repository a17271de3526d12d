"""What many runs cost: the scheduler alone on finished runs, and processes or Ray against one process.

    python benchmarks/parallel.py finished                  # a graph of 5,000 finished runs
    python benchmarks/parallel.py jobs --seconds 20         # 16 runs of 20 s on one thread: --jobs 1, 2, and Ray

`jobs` reports the start-up apart: the same comparison with runs of one epoch. It is part of the times before it. The
seconds of the processor are those of this process and of all that it began, read every half second. Others that share
the machine do not lengthen them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from attrs import evolve

from evenly import compare
from evenly.experiment.arms import Asked, arms_and_controls
from evenly.experiment.comparing import _walked
from evenly.experiment.execute import device_named
from evenly.experiment.graph import RunNode, graph_of, nodes_of, rows_of
from evenly.experiment.request import source
from evenly.experiment.work import RunWork
from evenly.files import write_json
from evenly.parallel.graph import walk
from evenly.parallel.here import Here
from evenly.runs.run import Run
from evenly.settings import Execution

METHODS = ("erm", "useful", "pde")
WAYS = {"jobs 1": {"jobs": 1}, "jobs 2": {"jobs": 2}, "ray": {"engine": "ray", "jobs": 2}}
RUNS_PER_SEED = 5
"""Two of the methods have a control."""


class Planted:
    """Leaves a finished run without training: a copy of the first seed's."""

    def __init__(self, work: RunWork) -> None:
        self.work = work
        self.first: dict[str, Run] = {}

    def on(self, device: str) -> Planted:
        return self

    def __call__(self, node: RunNode, show: Any) -> Run:
        kind = node.label.rpartition(",")[0]
        folder = self.work.place(node)
        assert folder is not None
        if node.plan.seed == 0:
            self.first[kind] = self.work(node, show)
            return self.first[kind]
        first = self.first[kind]
        config, results = evolve(first.config, plan=node.plan), evolve(first.results, seed=node.plan.seed)
        folder.mkdir(parents=True)
        (folder / "report.html").touch()
        for name, content in (("config.json", config), ("results.json", results)):
            write_json(folder / name, {"format": config.format, **content.to_dict()})
        return Run(config, results, folder)


def finished(count: int, folder: Path) -> dict[str, Any]:
    place, settings = source("patches", {"n": 40}, {"epochs": 2})
    seeds = tuple(range(count // RUNS_PER_SEED))
    asked = Asked(place, None, METHODS, ("sgd",), seeds, settings, {}, {}, None, True).checked({}, {})
    arms = arms_and_controls(asked, place.data(0))
    work = RunWork(place, Execution(device="cpu"), folder)
    with Here(Planted(work), lambda event, node: None) as executor:
        walk(nodes_of(graph_of(arms, seeds)), executor)
    started = time.perf_counter()
    graph = graph_of(arms, seeds)
    made = time.perf_counter() - started
    walked = _walked(nodes_of(graph), work, device_named("cpu"), "finished", contextlib.ExitStack())
    rows = rows_of(graph, walked)
    seconds = time.perf_counter() - started
    return {"runs": len(rows), "seconds": round(seconds, 2), "of which to make the graph": round(made, 2)}


def jobs(runs: int, seconds: float, ways: list[str], folder: Path) -> dict[str, Any]:
    ask = {"methods": ["erm"], "controls": False, "device": "cpu", "threads": 1, "select": "last"}

    def timed(epochs: int, way: str, count: int) -> tuple[float, float, float]:
        """Seconds of the comparison, of the processor, and of its runs together."""
        started, out = time.perf_counter(), folder / f"{epochs}-{way}-{count}"
        with Processor() as processor:
            table = compare("shortcut-digits", seeds=count, epochs=epochs, out=out, **WAYS[way], **ask)
        return time.perf_counter() - started, processor.seconds, sum(row.result.seconds for row in table.rows)

    timed(1, "jobs 1", 1)
    probe = 30
    epochs = max(1, round(seconds * probe / timed(probe, "jobs 1", 1)[2]))
    found: dict[str, Any] = {"runs": runs, "epochs": epochs, "load before": os.getloadavg()[0]}
    for way in ways:
        whole, processor, training = timed(epochs, way, runs)
        found[way] = {
            "seconds": round(whole, 1),
            "seconds of the processor": round(processor, 1),
            "mean seconds of a run": round(training / runs, 1),
            "start-up": round(timed(1, way, 2)[0], 1),
            "times as fast": round(found[ways[0]]["seconds"] / whole, 2) if found.get(ways[0]) else 1.0,
        }
    return found


class Processor(threading.Thread):
    """Sums up the processor's seconds of this process and of those that it began, also where they are gone since."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over, self.last, self.first = threading.Event(), dict[str, float](), dict[str, float]()

    def read(self) -> dict[str, float]:
        """Seconds of each process below this one."""
        parents, times, tick = {}, {}, os.sysconf("SC_CLK_TCK")
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                words = path.read_text().rpartition(")")[2].split()
                parents[path.parent.name], times[path.parent.name] = words[1], (int(words[11]) + int(words[12])) / tick
        below, found = str(os.getpid()), {}
        for process in parents:
            above = process
            while above != below and above in parents:
                above = parents[above]
            if above == below:
                found[process] = times[process]
        return found

    def run(self) -> None:
        while not self.over.wait(0.5):
            self.last.update(self.read())

    def __enter__(self) -> Processor:
        self.first = self.read()
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.over.set()
        self.join()
        self.last.update(self.read())

    @property
    def seconds(self) -> float:
        return sum(seconds - self.first.get(process, 0.0) for process, seconds in self.last.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("finished", "jobs"))
    parser.add_argument("--runs", type=int, help="5000 finished ones, 16 for jobs")
    parser.add_argument("--seconds", type=float, default=20.0, help="of one run")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), help="the first is the measure")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if asked.what == "finished":
            found = finished(asked.runs or 5000, Path(folder))
        else:
            found = jobs(asked.runs or 16, asked.seconds, asked.ways, Path(folder))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
