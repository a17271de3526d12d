"""What claims are made of: computations, training runs, and results that were measured elsewhere.

A computation is a function of this package and its arguments. Its result is kept in `result.json`, in a folder named by
their digest. A training run is an ordinary run in its folder.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from attrs import evolve, field, frozen

from evenly import __version__
from evenly.data import Data
from evenly.engine.progress import log
from evenly.errors import EvenlyError, first_line
from evenly.experiment.graph import RunNode
from evenly.experiment.request import Request, Source, plan_for, recording
from evenly.experiment.work import RunWork
from evenly.files import make_folder, read_json, write_json
from evenly.parallel.graph import Event, Failed, Finished, Shared, Show
from evenly.parallel.on_ray import Needs
from evenly.randomness import isolated, on_threads
from evenly.runs.folder import FORMAT
from evenly.runs.run import Run
from evenly.settings import Execution
from evenly.values import plain

RESULT = "result.json"


@frozen
class Computation:
    """A function of this package, as "module:name", and its arguments."""

    function: str
    arguments: Mapping[str, Any]
    after: None = None

    @property
    def id(self) -> str:
        content = json.dumps([self.function, plain(self.arguments)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        settings = ", ".join(f"{name} {value}" for name, value in self.arguments.items())
        return f"{self.function.rpartition(':')[2].replace('_', ' ')} ({settings})"

    @property
    def folder_name(self) -> str:
        return f"{self.function.rpartition(':')[2]}-{self.id[:8]}"

    def completed(self, result: Any) -> Computation:
        return self

    def __call__(self) -> Any:
        module, _, name = self.function.partition(":")
        return getattr(import_module(module), name)(**self.arguments)


@frozen
class Result:
    """What a computation returned, as JSON has it; how long it took, and on which machine."""

    value: Any
    seconds: float = field(eq=False)
    machine: str = field(eq=False)


@frozen
class Stored:
    """A file in `docs/results`, measured elsewhere, with the commit and the machine. It is read, never run.

    Args:
        minutes: about how long making it takes on a GPU (`benchmarks/gpu.py`). A claim may be registered before its
            files are there, so that its rule is written before anything is measured.
    """

    file: str
    minutes: int = field(default=0, eq=False)


@frozen
class StoredResult:
    """The content of such a file."""

    content: Mapping[str, Any]

    @property
    def measured_on(self) -> str:
        commit = str(self.content.get("commit", "unknown"))[:12]
        return f"{self.content.get('machine', 'another machine')}, commit {commit}"


def computed(function: Callable[..., Any], **arguments: Any) -> Computation:
    """The node of a function's result, which must be plain: numbers, names, lists and mappings of these."""
    return Computation(f"{function.__module__}:{function.__qualname__}", arguments)


def trained(
    data: str,
    *,
    method: str = "erm",
    optimizer: str = "sgd",
    seed: int = 0,
    model: str | None = None,
    data_options: Mapping[str, Any] | None = None,
    record: Mapping[str, Any] | None = None,
    control_of: RunNode | None = None,
    **settings: Any,
) -> RunNode:
    """The node of a training run, asked for as in `evenly.train`.

    Args:
        control_of: a run whose cost this one is to have, and the number of examples that it repeats.
    """
    options = dict(data_options or {})
    request = Request(method, optimizer, model, settings, recording(record))
    source, loaded = Source(data, options), _data(data, json.dumps(options, sort_keys=True))
    plan = plan_for(request, loaded, source.spec(loaded), seed)
    if control_of is not None:
        plan = evolve(plan, after=control_of.id)
    return RunNode(plan, f"{method} with {optimizer} on {data}, seed {seed}")


@cache
def _data(name: str, options: str) -> Data:
    """The data of seed 0, whose settings a plan starts from."""
    return Source(name, json.loads(options)).data(0)


@cache
def machine() -> str:
    """This machine in words."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return f"{device}, torch {torch.__version__}"


def stored_folder() -> Path | None:
    """`docs/results` of the repository that this package is run from; an installed package has none."""
    folder = Path(__file__).parents[3] / "docs" / "results"
    return folder if folder.is_dir() else None


def is_stored(node: Stored) -> bool:
    """Whether a stored file is here."""
    folder = stored_folder()
    return folder is not None and (folder / node.file).exists()


def why_not_stored(nodes: Iterable[Stored]) -> str:
    """Why a claim cannot be judged that reads these files; empty where all of them are here."""
    absent = [node for node in dict.fromkeys(nodes) if not is_stored(node)]
    if not absent:
        return ""
    if stored_folder() is None:
        return f"docs/results/{absent[0].file} is not here; run evenly from a clone of its repository"
    names = ", ".join(node.file.removesuffix(".json") for node in absent)
    minutes = sum(node.minutes for node in absent)
    return f"not run yet: benchmarks/gpu.py needs about {minutes} minutes of a GPU for {names}"


def read_stored(node: Stored) -> StoredResult:
    """The content of a stored file, which must be whole, no trial, and of the unit that it is named after."""
    again = "; restore the file, or run its unit of benchmarks/gpu.py again"
    try:
        content = json.loads(((stored_folder() or Path()) / node.file).read_bytes())
    except (OSError, ValueError) as error:
        raise EvenlyError(f"docs/results/{node.file} cannot be read ({first_line(error)}){again}") from error
    if not isinstance(content, dict):
        raise EvenlyError(f"docs/results/{node.file} holds no results{again}")
    if content.get("trial"):
        raise EvenlyError(f"docs/results/{node.file} is of a trial on random images{again}")
    unit = str(content.get("unit", ""))
    if unit and Path(node.file).stem.partition("-")[2] != unit:  # after the data set: cifar10-sam-200
        raise EvenlyError(f"docs/results/{node.file} holds the results of {unit}{again}")
    return StoredResult(content)


@frozen
class ClaimWork:
    """Runs the nodes of claims in a folder: `computations/` and `runs/`."""

    execution: Execution
    folder: Path
    _works: dict[str, RunWork] = field(factory=dict, init=False, eq=False, repr=False)

    def on(self, device: str) -> ClaimWork:
        return evolve(self, execution=evolve(self.execution, device=device))

    def __call__(self, node: RunNode | Computation, show: Show) -> Any:
        if isinstance(node, RunNode):
            return self._work(node)(node, show)
        place = self.place(node)
        if (result := self._read(place, node)) is not None:
            return result
        started = time.perf_counter()
        show(0.0, "")
        with isolated(0), on_threads(1):
            value = plain(node())
        result = Result(value, round(time.perf_counter() - started, 3), machine())
        make_folder(place)
        asked = {"function": node.function, "arguments": plain(node.arguments), "version": __version__}
        kept = {"result": result.value, "seconds": result.seconds, "machine": result.machine}
        write_json(place / RESULT, {"format": FORMAT, **asked, **kept})
        return result

    def place(self, node: RunNode | Computation) -> Path:
        """The folder of a node."""
        return self.folder / ("runs" if isinstance(node, RunNode) else "computations") / node.folder_name

    def known(self, node: RunNode | Computation) -> Finished[Any] | Failed | None:
        """What came of a node in an earlier call."""
        if isinstance(node, RunNode):
            return self._work(node).known(node)
        result = self._read(self.place(node), node)
        return None if result is None else Finished(node.id, result)

    def keep_failure(self, event: Event | Shared, node: RunNode | Computation) -> None:
        if isinstance(node, RunNode):
            self._work(node).keep_failure(event, node)

    def needs(self, node: RunNode | Computation) -> Needs:
        return self._work(node).needs(node) if isinstance(node, RunNode) else Needs()

    def data_key(self, node: RunNode | Computation) -> Any:
        """Data sets that come with the package are made by the worker; others are read here."""
        if not isinstance(node, RunNode) or (key := self._work(node).data_key(node)) is None:
            return None
        return self._name(node), key

    def data_of(self, node: RunNode) -> tuple[str, Data]:
        return self._name(node), self._work(node).data_of(node)

    def elsewhere(self, folder: Path | None, data: tuple[str, Data] | None) -> ClaimWork:
        """The same on another machine."""
        there = evolve(self, folder=folder or self.folder)
        if data is not None:
            there._works[data[0]] = RunWork(Source(data[1], {}), self.execution, there.folder)
        return there

    def moved(self, result: Result | Run, folder: Path) -> Result | Run:
        return Run(result.config, result.results, folder) if isinstance(result, Run) else result

    def _work(self, node: RunNode) -> RunWork:
        """What runs the plans of one data set."""
        name, spec = self._name(node), node.plan.data
        if name not in self._works:
            self._works[name] = RunWork(Source(spec.name, dict(spec.options)), self.execution, self.folder)
        return self._works[name]

    def _name(self, node: RunNode) -> str:
        return f"{node.plan.data.name} {json.dumps(plain(node.plan.data.options), sort_keys=True)}"

    def _read(self, place: Path, node: Computation) -> Result | None:
        """The result that is kept there, if this version of evenly computed it and the file is whole."""
        try:
            content = read_json(place / RESULT)
            if content is None or content["version"] != __version__:
                return None
            if (content["function"], content["arguments"]) == (node.function, plain(node.arguments)):
                return Result(content["result"], content["seconds"], content["machine"])
            why = "it is of something else"
        except (EvenlyError, KeyError, TypeError) as error:
            why = first_line(error).partition(";")[0]
        log.info("  %s is not used (%s); it is computed again", place / RESULT, why)
        return None


def nodes_in(tree: Any) -> Iterator[RunNode | Computation | Stored]:
    """The nodes in lists and mappings of any depth."""
    if isinstance(tree, RunNode | Computation | Stored):
        yield tree
        return
    for each in tree.values() if isinstance(tree, Mapping) else tree:
        yield from nodes_in(each)


def filled(tree: Any, result: Callable[[RunNode | Computation | Stored], Any]) -> Any:
    """The same lists and mappings with a result in the place of each node."""
    if isinstance(tree, RunNode | Computation | Stored):
        return result(tree)
    if isinstance(tree, Mapping):
        return {name: filled(each, result) for name, each in tree.items()}
    return [filled(each, result) for each in tree]
