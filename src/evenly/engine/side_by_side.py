"""Several runs side by side on one GPU: each in a thread and on a stream of its own, one thread at a time.

A run of a small network leaves parts of a GPU idle. Kernels of several streams fill them, and starting kernels takes so
little of the host that one thread at a time is enough: a run goes on until it calls `pause`, then the next one goes on.
So nothing in Python runs at once. The random states of Python, numpy and torch are exchanged with the turns: every run
draws what it would draw alone. A run that draws on the GPU (dropout) waits for its own work before it gives way, since
recorded steps read the state from memory that all runs share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from evenly.engine.captured import own_stream
from evenly.randomness import random_state, set_random_state

Result = TypeVar("Result")
_here = threading.local()


class _StoppedError(BaseException):
    """Ends a run because another one failed or the user stopped them all; not to be caught on the way."""


def pause() -> None:
    """Let the other runs go on for a turn; nothing where there is no other."""
    turns: Turns | None = getattr(_here, "turns", None)
    if turns is not None:
        turns.pause()


@contextmanager
def aside() -> Iterator[None]:
    """Let the other runs go on during a block that touches neither the GPU nor random states, e.g. a write."""
    turns: Turns | None = getattr(_here, "turns", None)
    if turns is None:
        yield
        return
    with turns.left():
        yield


def side_by_side(runs: Sequence[Callable[[], Result]], device: torch.device, most: int = 3) -> list[Result]:
    """What the runs return, in their order; at most so many are under way at once. The first error ends all."""
    if len(runs) == 1 or most == 1:
        return [run() for run in runs]
    results: dict[int, Result] = {}
    over: SimpleQueue[Exception | None] = SimpleQueue()

    def keep(number: int) -> None:
        try:
            results[number] = runs[number]()
            over.put(None)
        except Exception as error:
            turns.stopping = True
            over.put(error)

    with Turns(device) as turns:
        with turns.turn:  # none goes on before the first ones have all joined
            for number in range(min(most, len(runs))):
                turns.begin(partial(keep, number))
        for number in range(most, most + len(runs)):
            if (error := over.get()) is not None:
                raise error
            if number < len(runs):
                turns.begin(partial(keep, number))
    return [results[number] for number in range(len(runs))]


class Turns:
    """Runs that take turns. A run may begin while others are under way. At the end, all stop at their next pause.

    The thread that begins them must leave random states and the GPU alone while any is under way.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stopping = False
        self.turn = threading.Condition()
        self.ring: list[int] = []  # runs under way, the one whose turn it is first
        self.away = 0  # runs under way that have left the ring for a while
        self.numbers = count()
        self.initial_state = random_state()

    def begin(self, run: Callable[[], None]) -> None:
        """Let a run join the others; what it returns or raises is its own to keep."""
        with self.turn:
            number = next(self.numbers)
            self.ring.append(number)
        threading.Thread(target=self._one, args=(number, run), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.turn:
            self.stopping = True
            self.turn.wait_for(lambda: not self.ring and not self.away)
        set_random_state(self.initial_state)

    def pause(self) -> None:
        self._wait_if_drawing()
        state = random_state()
        with self.turn:
            self.ring.append(self.ring.pop(0))
            self._come_back(state)

    @contextmanager
    def left(self) -> Iterator[None]:
        """Leave the ring for a while, and come back at its end."""
        self._wait_if_drawing()
        state = random_state()
        with self.turn:
            self.ring.pop(0)
            self.away += 1
            self.turn.notify_all()
        try:
            yield
        finally:
            with self.turn:
                self.ring.append(_here.number)
                self.away -= 1
                self._come_back(state)

    def _wait_if_drawing(self) -> None:
        """Every epoch begins with a new seed, at which the GPU's generator stands at 0 until something is drawn."""
        if self.device.type == "cuda":
            index = torch.cuda.current_device() if self.device.index is None else self.device.index
            if torch.cuda.default_generators[index].get_offset():
                torch.cuda.current_stream(self.device).synchronize()

    def _come_back(self, state: Any) -> None:
        self.turn.notify_all()
        self._wait_for(_here.number)
        set_random_state(state)
        if self.stopping:
            raise _StoppedError

    def _wait_for(self, number: int) -> None:
        self.turn.wait_for(lambda: self.ring[:1] == [number])

    def _one(self, number: int, run: Callable[[], None]) -> None:
        _here.turns, _here.number = self, number
        with self.turn:
            self._wait_for(number)
        try:
            if not self.stopping:
                set_random_state(self.initial_state)
                with own_stream(self.device):
                    run()
        except _StoppedError:
            pass
        finally:
            with self.turn:
                self.ring.pop(0)
                self.turn.notify_all()
