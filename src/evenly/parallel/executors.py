"""Which executor a graph is walked over."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module

import torch

from evenly.errors import EvenlyError
from evenly.parallel.graph import Event, Executor, Node, Work
from evenly.parallel.here import Here, SideBySide
from evenly.parallel.processes import Processes, cores
from evenly.settings import Execution

PER_CORE = 8
"""Processes for a core of this machine, at most: more only wait for each other, and take memory."""


def executor_for(
    execution: Execution,
    work: Work,
    device: torch.device,
    show: Callable[[Event, Node], None] = lambda event, node: None,
    connection: ExitStack | None = None,
) -> Executor:
    """The executor that was asked for.

    Args:
        device: where one run computes.
        show: called with how far a node has come where it runs in this thread; elsewhere that is an event.
        connection: keeps a connection to Ray for the next executor.
    """
    if execution.engine == "ray":
        executor: Executor = import_module("evenly.parallel.on_ray").RayExecutor(work, execution, connection)
        return executor
    if execution.jobs > 1:
        return Processes(work, devices_for(execution, device))
    if device.type == "cuda" and execution.together > 1:
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
