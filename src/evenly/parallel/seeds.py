"""The seeds of a comparison: one after another here, side by side on one GPU, or shared by several processes."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, parent_process
from typing import TypeVar

import torch

from evenly.engine.side_by_side import side_by_side
from evenly.errors import EvenlyError
from evenly.settings import Execution

Result = TypeVar("Result")
Show = Callable[[float, str], None]
Job = Callable[[int, Show], Result]
"""From a seed, and a function to show progress with, to what came of it."""


def run_seeds(
    job: Job[Result], seeds: Sequence[int], execution: Execution, device: torch.device, show: Show, resumes: bool
) -> dict[int, Result]:
    """What the job returns for each seed.

    Args:
        resumes: whether the job goes on where it was stopped; said where a process was killed.
    """
    if execution.jobs > 1 and len(seeds) > 1:
        return _in_processes(job, seeds, min(execution.jobs, len(seeds)), show, resumes)
    shares = dict.fromkeys(seeds, 0.0)

    def show_seed(seed: int, share: float, note: str) -> None:
        shares[seed] = share
        total = sum(shares.values()) / len(seeds)
        show(total, f"{total:.0%} done, {note}")

    runs = [partial(job, seed, partial(show_seed, seed)) for seed in seeds]
    results = side_by_side(runs, device, execution.together if device.type == "cuda" else 1)
    return dict(zip(seeds, results, strict=True))


def _in_processes(
    job: Job[Result], seeds: Sequence[int], processes: int, show: Show, resumes: bool
) -> dict[int, Result]:
    try:
        pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise EvenlyError(
            f"this model or data cannot be sent to another process ({error}); use jobs 1, or give both by name"
        ) from None
    done: dict[int, Result] = {}
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _start_worker)
    try:
        waiting = {pool.submit(_in_bytes, job, seed): seed for seed in seeds}
        for finished in as_completed(waiting):
            done[waiting[finished]] = pickle.loads(finished.result())
            show(len(done) / len(seeds), f"seed {waiting[finished]} done")
    except BrokenProcessPool:
        again = "the same call goes on" if resumes else "run it again with an out, where it can go on"
        raise EvenlyError(
            f"one of {processes} worker processes was killed, perhaps for lack of memory; {again}, and fewer jobs need "
            "less"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return done


def _in_bytes(job: Job[Result], seed: int) -> bytes:
    """A seed's results by value: as they are, every tensor would hold a file open in the parent."""
    return pickle.dumps(job(seed, lambda share, note: None))


def _start_worker() -> None:
    # at Ctrl-C the parent reports, unless it was started to ignore it; what a worker has written is whole at any moment
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot stop its workers, which would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
