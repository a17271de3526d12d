"""What a worker does with a node of a comparison: run its plan in its folder, on the data of its seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from evenly.data import DATASETS, Data
from evenly.data.benchmarks import READERS
from evenly.engine.checkpoints import Row
from evenly.engine.world import World, current
from evenly.errors import EvenlyError, reason_of
from evenly.experiment.execute import Show, device_for, device_named, execute, prepare
from evenly.experiment.graph import RunNode
from evenly.experiment.request import Source
from evenly.integrations.loggers import log_finished
from evenly.optim.registry import is_local
from evenly.parallel.graph import Event, Failed, Finished, Shared, failed
from evenly.parallel.on_ray import Needs
from evenly.randomness import on_threads
from evenly.runs.folder import read_config, read_failure, read_results, write_failure
from evenly.runs.plan import Plan
from evenly.runs.run import Run
from evenly.settings import Execution

Callback = Callable[[Row, Plan], None]
SEEDS_KEPT = 2
"""Seeds whose data a worker keeps: runs of one seed follow each other, and the first of the next overlap the last."""

PROCESS = 600 * 2**20
"""Bytes of a process that has loaded torch and evenly."""


def _with_plan(callback: Callback, plan: Plan, row: Row) -> None:
    callback(row, plan)


class _Recent(dict[Any, Any]):
    """What a worker has loaded or computed and may need again; it stays with its process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


@frozen
class RunWork:
    """Runs the plans of nodes.

    Args:
        folder: the comparison's; None keeps runs in memory.
        callback: called with each row of the metrics as it is written, and the plan of its run.
    """

    source: Source
    execution: Execution
    folder: Path | None
    callback: Callback | None = None
    _data: _Recent = field(factory=_Recent, init=False, eq=False, repr=False)
    _memory: _Recent = field(factory=_Recent, init=False, eq=False, repr=False)
    _fingerprints: _Recent = field(factory=_Recent, init=False, eq=False, repr=False)

    def on(self, device: str) -> RunWork:
        return evolve(self, execution=evolve(self.execution, device=device))

    @on_threads(1)
    def __call__(self, node: RunNode, show: Show) -> Run:
        world = current(device_named(self.execution.device))
        try:
            return self._run(node, show, world)
        except Exception as error:
            if world.size == 1 or world.all_reach(f"failure of {node.id}"):
                raise
            raise SystemExit(f"evenly: process {world.rank} alone has failed ({reason_of(error)})") from error

    def _run(self, node: RunNode, show: Show, world: World) -> Run:
        data, folder = self.data(node.plan.seed), self.place(node)
        if folder is not None and world.size == 1 and (run := self._finished(node, data)) is not None:
            log_finished(self.execution.log, folder)
            return run
        prepared = prepare(node.plan, data, threads=1)
        prepared = evolve(prepared, config=evolve(prepared.config, control_of=node.control_of))
        callback = None if self.callback is None else partial(_with_plan, self.callback, node.plan)
        run = execute(prepared, folder, self.execution, show, keep_failure=True, callback=callback)
        return run if folder is None else Run(run.config, run.results, folder)  # the rest can be read there

    def place(self, node: RunNode) -> Path | None:
        """The folder of a run."""
        return None if self.folder is None else self.folder / "runs" / node.folder_name

    def known(self, node: RunNode) -> Finished[Run] | Failed | None:
        """What came of a run in an earlier call, where its folder and its plan say all; nothing is loaded or built."""
        world = current(device_for(self.execution))
        found = world.shared(lambda: self._known(node))
        if isinstance(found, Finished):
            _check_processes(node, found.result, world)
        return found

    def _known(self, node: RunNode) -> Finished[Run] | Failed | None:
        folder, plan = self.place(node), node.plan
        assert folder is not None
        try:
            named = not (self.source.is_function or plan.model.own or "weights" in plan.model.options)
            if named and (run := self._finished(node)) is not None:
                log_finished(self.execution.log, folder)
                return Finished(node.id, run)
        except EvenlyError as error:
            return failed(node.id, error)
        reason = None if self.execution.retry else read_failure(folder)
        return None if reason is None else Failed(node.id, reason)

    def keep_failure(self, event: Event | Shared, node: RunNode) -> None:
        """Keep with a run that its workers died; other failures a worker keeps itself."""
        if not isinstance(event, Failed) or event.traceback or node.after or (folder := self.place(node)) is None:
            return
        if read_failure(folder) is None:
            write_failure(folder, event.reason, "")

    def log(self, event: Event | Shared, node: RunNode) -> None:
        """Log a run that was trained on Ray, once it is over: its worker may not see where logs are kept."""
        if isinstance(event, Finished) and self.execution.engine == "ray" and (folder := self.place(node)) is not None:
            log_finished(self.execution.log, folder)

    def data(self, seed: int) -> Data:
        """The data of a seed; of the last ones it is kept."""
        if seed not in self._data:
            while len(self._data) >= SEEDS_KEPT:
                del self._data[next(iter(self._data))]
            self._data[seed] = self.source.data(seed)
        data: Data = self._data[seed]
        return data

    def needs(self, node: RunNode) -> Needs:
        """A CPU per thread. Memory is estimated: a process with torch, the data twice, the weights ten times over.

        The data is there as it is stored and as what is made of it. Gradients, momentum, SAM, the selected epoch and
        checkpoints keep copies of the weights. What a batch takes inside the network is not counted.
        """
        model = node.plan.model
        key = (model.name, str(model.options), id(model.given))
        if key not in self._memory:
            prepared = prepare(node.plan, data := self.data(node.plan.seed), threads=1)
            stored = sum(getattr(split.inputs, "nbytes", 0) for split in data.splits.values())
            self._memory[key] = PROCESS + 2 * stored + 10 * 4 * prepared.weights
        return Needs(node.plan.settings.threads or 1, memory=self._memory[key])

    def data_key(self, node: RunNode) -> int | None:
        """A file, or what a function of the user's own returns, is read on the driver, for each seed."""
        name = str(self.source.given) if isinstance(self.source.given, str | Path) else None
        made = name in DATASETS.own and name not in READERS if name is not None else not self.source.is_function
        return None if made else node.plan.seed

    def data_of(self, node: RunNode) -> Data:
        return self.data(node.plan.seed)

    def elsewhere(self, folder: Path | None, data: Data | None) -> RunWork:
        """The same on another machine: with a folder there, and data that was read here."""
        source = self.source if data is None else Source(data, {})
        return evolve(self, source=source, folder=folder or self.folder)

    def moved(self, run: Run, folder: Path) -> Run:
        return Run(run.config, run.results, folder)

    def _fingerprints_of(self, plan: Plan, data: Data) -> dict[str, str]:
        """Of the data and of the network's initial weights, which are the same for all runs of a seed."""
        model = plan.model
        key = (plan.seed, model.name, str(model.options), id(model.given), plan.settings.normalise)
        if key not in self._fingerprints:
            self._fingerprints[key] = dict(prepare(plan, data, threads=1).config.fingerprints)
        fingerprints: dict[str, str] = self._fingerprints[key]
        return fingerprints

    def _finished(self, node: RunNode, data: Data | None = None) -> Run | None:
        """The run, where it is finished to the last file and is the one that was asked for.

        Args:
            data: of its seed, where the plan alone does not say which data and which initial weights are meant.
        """
        folder = self.place(node)
        assert folder is not None
        if not (folder / "report.html").exists() or (folder / "checkpoint").exists():
            return None
        config = read_config(folder, {node.id: node.plan})
        if config.plan is not node.plan:
            return None
        if data is not None and dict(config.fingerprints) != self._fingerprints_of(node.plan, data):
            return None
        return Run(config, read_results(folder), folder)


def _check_processes(node: RunNode, run: Run, world: World) -> None:
    """Refuse a run whose optimizer perturbs by each process's part of a batch, where other processes are here now."""
    name, before = node.plan.optimizer.name, run.results.processes
    if is_local(name) and before != world.size:
        raise EvenlyError(
            f"{name} was trained by {before} process{'es' * (before != 1)} in {run.folder}, and by {world.size} it "
            "would be another method; start as many as then, or choose another out"
        )
