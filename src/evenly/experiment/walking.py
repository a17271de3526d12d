"""Runs of a graph in a folder: begun here, gone on with where they stopped, and kept from other processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from evenly.engine.world import current
from evenly.experiment.graph import GRAPH, GraphFile, RunNode
from evenly.experiment.work import RunWork
from evenly.files import make_folder, write_json
from evenly.parallel.executors import Kept, executor_for
from evenly.parallel.graph import Event, Shared, Walked, walk
from evenly.parallel.progress import GraphProgress
from evenly.runs.holder import held
from evenly.runs.run import Run


def walked_runs(nodes: Sequence[RunNode], work: RunWork, device: torch.device, label: str, kept: Kept) -> Walked[Run]:
    """Run what has not run yet; workers, or a connection to Ray, are kept for the next walk.

    Processes that `torchrun` started walk alike, each run trained by all of them; the first one writes.
    """
    world = current(device)
    progress = GraphProgress(len(nodes), label, resumes=work.folder is not None, show=world.first)
    with executor_for(work.execution, work, device, progress, kept) as executor:
        progress.slots = executor.slots
        if work.folder is None:
            with progress:
                return walk(nodes, executor, progress)
        file = GraphFile(work.folder, nodes)
        world.on_first(file.write)

        def report(event: Event | Shared, node: RunNode) -> None:
            if world.first:
                work.keep_failure(event, node)
                work.log(event, node)
            progress(event, node)

        try:
            with progress:
                return walk(nodes, executor, report, work.known, file.became)
        finally:
            if world.first:
                file.write()


@contextlib.contextmanager
def made_folder(folder: Path, config: Mapping[str, Any]) -> Iterator[None]:
    """A folder of runs, held against other processes.

    One that is new and in which no run has left anything is removed on failure.
    """
    if (folder / "config.json").exists():
        with held(folder):
            yield
        return
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    make_folder(folder)
    write_json(folder / "config.json", config)
    try:
        with held(folder):
            yield
    except BaseException:
        if {entry.name for entry in folder.iterdir()} <= {"config.json", GRAPH}:
            for name in ("config.json", GRAPH):
                (folder / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # somebody else may have come to use a folder above
                for path in new:
                    path.rmdir()
        raise
