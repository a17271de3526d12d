"""What an epoch of evenly's engine costs on the CPU, in epochs of plain loops that train the same network.

    python benchmarks/engine.py --rounds 40 --json engine.json

An MLP 50-100-2 learns from 100,000 rows in batches of 128 by SGD with momentum, on one thread. `summing` is a plain
loop that draws the same permutation, gathers each batch by index and sums loss and accuracy; `bare` sums nothing. Every
round times an epoch of each, in random order, in seconds of the processor, which other processes do not lengthen. A
ratio is that of the best times. All three must end in the same weights.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evenly.data import Data
from evenly.data.samplers import Everything
from evenly.engine import Fit
from evenly.optim.registry import builder
from evenly.settings import Settings

ROWS, BATCH, LR, MOMENTUM = 100_000, 128, 0.05, 0.9


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(50, 100), nn.ReLU(), nn.Linear(100, 2))


def plain(x: Tensor, y: Tensor, *, summing: bool) -> nn.Module:
    """One epoch of a loop as one writes it by hand."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    total_loss, right = 0.0, 0
    for index in Everything(len(x)).indices().split(BATCH):
        inputs, labels = x[index], y[index]
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = cross_entropy(outputs, labels)
        loss.backward()
        optimizer.step()
        if summing:
            total_loss += loss.item() * len(labels)
            right += int((outputs.argmax(1) == labels).sum())
    return model


def measured(rounds: int) -> dict[str, float]:
    """The best seconds of an epoch, by loop."""
    torch.manual_seed(1)
    x, y = torch.randn(ROWS, 50), torch.randint(2, (ROWS,))
    data = Data(train=(x, y))
    fit = Fit(Settings(epochs=1, batch_size=BATCH), builder("sgd", lr=LR, momentum=MOMENTUM))
    loops: dict[str, Callable[[], nn.Module]] = {
        "evenly": lambda: fit(network(), data).model,
        "summing": lambda: plain(x, y, summing=True),
        "bare": lambda: plain(x, y, summing=False),
    }
    best = dict.fromkeys(loops, float("inf"))
    weights: dict[str, Tensor] = {}
    for _ in range(rounds):
        for name in random.sample(sorted(loops), len(loops)):
            started = time.process_time()
            model = loops[name]()
            best[name] = min(best[name], time.process_time() - started)
            weights[name] = nn.utils.parameters_to_vector(model.parameters()).detach()
    for name in ("summing", "bare"):
        torch.testing.assert_close(weights["evenly"], weights[name])
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    best = measured(arguments.rounds)
    results = {
        "seconds": best,
        "ratio_to_summing": best["evenly"] / best["summing"],
        "ratio_to_bare": best["evenly"] / best["bare"],
        "rounds": arguments.rounds,
        "machine": f"{platform.processor() or platform.machine()}, torch {torch.__version__}, one thread",
    }
    print(json.dumps(results, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
