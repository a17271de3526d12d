"""Runs side by side: in turns, never two at once, each drawing what it would draw alone."""

from __future__ import annotations

import copy
import random
import signal
import threading
import time
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from evenly.data import Data
from evenly.engine import Objective, side_by_side
from evenly.engine.loop import TURN
from evenly.engine.side_by_side import aside, pause
from evenly.engine.side_by_side import side_by_side as together
from evenly.optim.registry import builder

CPU = torch.device("cpu")


def draw():
    """One number from each of the three global generators."""
    return random.random(), float(np.random.rand()), torch.rand(()).item()  # noqa: NPY002


def states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002


def reseeded(seed):
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


@pytest.mark.parametrize("most", [1, 2, 3, 10])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_results_come_in_order_however_long_the_runs_are(count, most):
    ended = []

    def run(number):
        for _ in range(3 * (count - number)):
            pause()
        ended.append(number)
        return number * 10

    got = together([lambda n=n: run(n) for n in range(count)], CPU, most=most)
    assert got == [10 * n for n in range(count)]
    assert sorted(ended) == list(range(count))
    if min(count, most) > 1:
        assert ended != list(range(count))  # the later ones are shorter and overtake


@pytest.mark.parametrize("most", [2, 3])
def test_at_most_so_many_are_under_way_and_one_at_a_time(most):
    under_way, largest, running = set(), [], []

    def run(number):
        under_way.add(number)
        for _ in range(4):
            assert not running
            running.append(number)
            largest.append(len(under_way))
            time.sleep(0.001)  # lets another thread in, if one may run
            assert running == [number]
            running.clear()
            pause()
        under_way.discard(number)

    together([lambda n=n: run(n) for n in range(7)], CPU, most=most)
    assert max(largest) == most
    assert not under_way


def test_every_run_draws_what_it_draws_alone():
    def run(seed, every):
        reseeded(seed)
        drawn = []
        for number in range(12):
            if number % every == 0:
                pause()
            drawn.append(draw())
        return drawn

    runs = [lambda s=s: run(s, 1 + s % 3) for s in range(6)]
    alone = [each() for each in runs]
    assert len({tuple(drawn) for drawn in alone}) == 6
    assert together(runs, CPU, most=3) == alone
    assert together(runs, CPU, most=2) == alone


@pytest.mark.parametrize("most", [2, 3])
def test_runs_begin_from_the_state_that_was_found(monkeypatch, most):
    """Also those that begin when another one has ended, and although a first run could be quicker than the start of
    the second."""

    class Slow(threading.Thread):
        def start(self):
            super().start()
            time.sleep(0.01)

    monkeypatch.setattr(side_by_side.threading, "Thread", Slow)

    def run(number):
        drawn = [draw()]
        reseeded(number)
        draw()
        if number % 2:
            pause()
        return [*drawn, draw()]

    reseeded(77)
    first = draw()
    reseeded(77)
    got = together([lambda n=n: run(n) for n in range(5)], CPU, most=most)
    assert [drawn[0] for drawn in got] == [first] * 5


def test_the_random_state_is_left_as_it_was_found():
    def run(number):
        reseeded(number)
        pause()
        return draw()

    reseeded(5)
    before = states()
    together([lambda n=n: run(n) for n in range(4)], CPU, most=3)
    assert states() == before

    def fails():
        reseeded(1)
        raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        together([fails, lambda: run(3)], CPU)
    assert states() == before


def test_the_first_error_ends_all_and_is_raised():
    steps, ended = [0] * 5, []

    def run(number):
        try:
            for step in range(1000):
                steps[number] = step
                if (number, step) in ((1, 4), (2, 4)):
                    raise ValueError(f"run {number}")
                pause()
        finally:
            ended.append(number)

    with pytest.raises(ValueError, match=r"^run 1$"):
        together([lambda n=n: run(n) for n in range(5)], CPU, most=3)
    assert sorted(ended) == [0, 1, 2]  # the others never began
    assert steps[:3] == [4, 4, 3]
    assert steps[3:] == [0, 0]


def test_an_error_on_the_way_out_does_not_hide_the_first():
    def untidy():
        try:
            pause()
        finally:
            raise KeyError("cleaning up")

    def fails():
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        together([untidy, fails, untidy], CPU)


def test_others_go_on_while_a_run_is_aside():
    """Until the block ends; it then waits for its turn, and draws on as if it had not left. It still counts as one."""
    order, written = [], threading.Event()

    def writes():
        reseeded(4)
        drawn = [draw()]
        with aside():
            assert written.wait(10)  # set by the other run, which can only be if that goes on
            order.append("written")
        order.append("back")
        return [*drawn, draw()]

    def goes_on():
        reseeded(5)
        for _ in range(3):
            draw()
            pause()
        order.append("others")
        written.set()
        time.sleep(0.05)
        order.append("end of turn")

    def begins():
        order.append("third")

    reseeded(4)
    alone = [draw(), draw()]
    assert together([writes, goes_on, begins], CPU, most=2)[0] == alone
    assert order.index("others") < order.index("written") < order.index("end of turn") < order.index("back")
    assert order.index("end of turn") < order.index("third")


def test_an_error_aside_is_raised_and_ends_all():
    steps = []

    def fails():
        with aside():
            time.sleep(0.01)
            raise OSError("disk full")

    def goes_on():
        for step in range(10_000):
            steps.append(step)
            time.sleep(0.001)
            pause()

    with pytest.raises(OSError, match="disk full"):
        together([fails, goes_on], CPU)
    assert len(steps) < 9_000


def test_a_run_that_is_aside_when_another_fails_ends_as_it_comes_back():
    told, failed = [], threading.Event()

    def writes():
        with aside():
            assert failed.wait(10)
            time.sleep(0.02)
            told.append("written")
        told.append("went on")

    def fails():
        failed.set()
        raise ValueError("other")

    with pytest.raises(ValueError, match="other"):
        together([writes, fails], CPU)
    assert told == ["written"]


def test_what_ends_a_run_is_not_caught_as_an_error_of_its_own():
    caught = []

    def careless():
        for _ in range(100):
            try:
                pause()
            except Exception as error:
                caught.append(error)

    def fails():
        pause()
        raise ValueError("so it is")

    with pytest.raises(ValueError, match="so it is"):
        together([careless, fails], CPU)
    assert not caught


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signal.pthread_kill")
def test_the_user_stops_them_all():
    """Ctrl-C reaches the main thread, which waits; every run ends at a pause, in order, and none begins."""
    steps, ended = [0] * 4, []

    def run(number):
        try:
            for step in range(2000):
                steps[number] = step
                if (number, step) == (1, 3):
                    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                time.sleep(0.001)
                pause()
        finally:
            ended.append(number)

    found = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            together([lambda n=n: run(n) for n in range(4)], CPU, most=2)
    finally:
        signal.signal(signal.SIGINT, found)
    assert sorted(ended) == [0, 1]
    assert 3 <= max(steps) < 1900
    assert steps[2:] == [0, 0]


def test_pause_and_aside_alone_do_nothing():
    reseeded(3)
    before = states()
    pause()
    with aside():
        pass
    assert states() == before

    def run():
        pause()
        return threading.current_thread() is threading.main_thread()

    assert together([run], CPU) == [True]
    assert together([run, run], CPU, most=1) == [True, True]
    assert together([run, run], CPU, most=2) == [False, False]


def test_fits_side_by_side_are_the_fits_alone_to_the_bit(fit):
    """With dropout, augmentation and more steps in an epoch than a turn has."""
    seed = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (3 * TURN * 2, 1, 6, 6), generator=seed, dtype=torch.uint8)
    data = Data(train=(x, torch.arange(len(x)) % 3), validation=(x[:20], torch.arange(20) % 3))
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3))
    turns = []

    def run(seed):
        optimizer = builder("sam" if seed == 1 else "sgd")
        engine = fit(epochs=2, optimizer=optimizer, batch_size=2, seed=seed, augment="basic")

        def objective(losses, batch, state):
            if batch.first:
                turns.append(seed)
            return losses.mean()

        done = engine(copy.deepcopy(net), data, objective=Objective(objective))
        return done.history, torch.cat([value.flatten().double() for value in done.model.state_dict().values()])

    runs = [lambda s=s: run(s) for s in range(4)]
    alone = [each() for each in runs]
    turns.clear()
    before = states()
    beside = together(runs, CPU, most=3)
    assert states() == before
    for (history, weights), (expected, expected_weights) in zip(beside, alone, strict=True):
        assert history == expected
        assert torch.equal(weights, expected_weights)
    assert not torch.equal(alone[0][1], alone[2][1])
    changes = sum(a != b for a, b in pairwise(turns))
    assert turns[: 3 * TURN] == [0] * TURN + [1] * TURN + [2] * TURN
    assert changes > 12
