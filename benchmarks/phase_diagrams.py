"""How long phase diagrams take: the closed form beside steps taken one by one.

    OMP_NUM_THREADS=1 python benchmarks/phase_diagrams.py --rounds 5 --json phase_diagrams.json

Diagrams of C.3's set (n 100, 10 repeats, 1000 steps, eta .5, the 10 x 10 grid unless said). `steps, all cells at once`
is `evenly.theory.stability.simulate`; `loop` takes the same steps cell by cell and repeat by repeat with the diagonal
H_t, as one writes it first, over a tenth of the steps, and is multiplied. Times are medians over rounds, on one thread;
the last four lines are of one round.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from evenly.theory.stability import Axes, Runs, phase_diagram, quadratic, simulate
from evenly.theory.stability.phases import BATCH_SIZES, SIGMAS

STEPS, REPEATS, LR = 1000, 10, 0.5


def loop(steps: int) -> None:
    """Cell by cell, run by run, step by step."""
    draw = np.random.default_rng(0)
    for sigma in SIGMAS:
        diagonals = quadratic(100, sigma).values
        for B in BATCH_SIZES:
            for _ in range(REPEATS):
                w = draw.standard_normal(diagonals.shape[1])
                for _ in range(steps):
                    x = draw.random(100) < B / 100
                    w = w - LR * (x @ diagonals) / B * w
                    w = np.clip(w, -1e100, 1e100)


def at_once() -> None:
    cells = [(B, sigma) for sigma in SIGMAS for B in BATCH_SIZES]
    sets = [quadratic(100, sigma) for _, sigma in cells]
    simulate(sets, lr=LR, batch_size=[B for B, _ in cells], runs=Runs(steps=STEPS, repeats=REPEATS))


def seconds(call: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    large = Axes(x_values=range(1, 101), y_values=range(1, 101))
    noisy = {"optimizer": "random_perturbation"}
    rows = {
        "closed form, SGD": seconds(lambda: phase_diagram(lr=LR), arguments.rounds),
        "closed form, SAM": seconds(lambda: phase_diagram(lr=LR, ascent=0.1), arguments.rounds),
        "closed form, random perturbation": seconds(lambda: phase_diagram(lr=LR, **noisy), arguments.rounds),
        "closed form, SGD, 100 x 100 cells": seconds(lambda: phase_diagram(large, lr=LR), 1),
        "closed form, random perturbation, 100 x 100 cells": seconds(lambda: phase_diagram(large, lr=LR, **noisy), 1),
        "steps, all cells at once": seconds(at_once, 1),
        "loop": 10 * seconds(lambda: loop(STEPS // 10), 1),
    }
    print(f"phase diagrams, {platform.machine()}, one thread, numpy {np.__version__}, medians of {arguments.rounds}")
    for name, value in rows.items():
        print(f"{name:52}{value:9.3f} s   {value / rows['closed form, SGD']:9.1f} x the closed form")
    if arguments.json:
        settings = {"hardware": platform.machine(), "numpy": np.__version__, "rounds": arguments.rounds}
        arguments.json.write_text(json.dumps({"settings": settings, "seconds": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
