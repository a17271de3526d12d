"""Which executor a graph is walked over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module

import torch

from evenly.engine.world import current
from evenly.errors import EvenlyError
from evenly.parallel.graph import Event, Executor, Node, Work
from evenly.parallel.here import Here, SideBySide
from evenly.parallel.processes import Processes, cores
from evenly.settings import Execution

PER_CORE = 8
"""Processes for a core of this machine, at most: more only wait for each other, and take memory."""


class Kept(ExitStack):
    """What an executor leaves for the next one: a connection to Ray, or worker processes that have loaded torch."""

    processes: Processes | None = None

    def processes_for(self, work: Work, devices: Sequence[str]) -> Processes:
        """Workers that are there already, where they do the same; else new ones in their place."""
        if self.processes is not None and self.processes.does(work, devices):
            return self.processes
        if self.processes is not None:
            self.processes.close()
        self.processes = Processes(work, devices, keep=True)
        self.callback(self.processes.close)
        return self.processes


def executor_for(
    execution: Execution,
    work: Work,
    device: torch.device,
    show: Callable[[Event, Node], None] = lambda event, node: None,
    kept: Kept | None = None,
) -> Executor:
    """The executor that was asked for.

    Args:
        device: where one run computes.
        show: called with how far a node has come where it runs in this thread; elsewhere that is an event.
        kept: where workers, or a connection to Ray, are kept for the next executor.
    """
    processes = current(device).size
    if processes > 1 and (execution.engine == "ray" or execution.jobs > 1):
        other = "engine 'ray'" if execution.engine == "ray" else f"jobs {execution.jobs}"
        raise EvenlyError(
            f"{other} shares runs among processes, and the {processes} that torchrun started train each run "
            "together; leave one of the two out"
        )
    if execution.engine == "ray":
        executor: Executor = import_module("evenly.parallel.on_ray").RayExecutor(work, execution, kept)
        return executor
    if execution.jobs > 1:
        devices = devices_for(execution, device)
        return Processes(work, devices) if kept is None else kept.processes_for(work, devices)
    if device.type == "cuda" and execution.together > 1 and processes == 1:
        return SideBySide(work, device, execution.together)
    return Here(work, show)


def devices_for(execution: Execution, device: torch.device) -> list[str]:
    """A device for each process by name: GPUs in turn, unless one of them was named."""
    if device.type != "cuda":
        if execution.jobs > PER_CORE * cores():
            raise EvenlyError(
                f"jobs {execution.jobs} are more than {PER_CORE} for each of {cores()} core{'s' * (cores() != 1)}; "
                f"use jobs {cores()}"
            )
        return [str(device)] * execution.jobs
    gpus = torch.cuda.device_count() if device.index is None else 1
    if execution.jobs > gpus * execution.together:
        raise EvenlyError(
            f"jobs {execution.jobs} are more than {gpus} GPU{'s' * (gpus != 1)} can take with together "
            f"{execution.together} on each; use jobs {gpus * execution.together}, or raise together"
        )
    return [f"cuda:{k % gpus if device.index is None else device.index}" for k in range(execution.jobs)]
