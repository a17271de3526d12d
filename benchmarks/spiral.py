"""What a training of the spiral toy costs: many runs as one computation beside one after the other under autograd.

    python benchmarks/spiral.py --rounds 5 --json spiral.json

The paper's setting (n 300, batch 5, 4-100-100-1 with LayerNorm, LSAM of rho 1.5, float32), by default 32 runs on one
thread. Every round trains all runs at once for 15 epochs, with errors measured after each and, again, at the ends only;
and one run for `--alone` epochs as a user would write it, a module under `evenly.LSAM`, in random order. The
ratio is the median time of 32 such runs of 15 epochs, taken as proportional to runs and epochs, over the median time of
the batch that is measured at the ends only, its interval a 95% bootstrap interval over rounds. Times are of the
processor, which other work on the machine does not lengthen. The largest difference of the weights of one run after an
epoch, in float64, says that both did the same work.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import evenly
from evenly.data.spiral import SpiralDistribution, draw
from evenly.randomness import generator
from evenly.theory import spiral

RHO, LR, BATCH, EPOCHS = 1.5, 0.01, 5, 15


def by_module(seed: int, x: Tensor, y: Tensor, epochs: int) -> spiral.Disentangled:
    """One run: the module after so many epochs of `evenly.LSAM` around torch's SGD, on x (n, 4) and y (n,)."""
    network = spiral.initial([seed], dtype=x.dtype).module(0)
    sgd = torch.optim.SGD(network.parameters(), lr=LR)
    optimizer = evenly.LSAM(sgd, params=[network.get_parameter("v")], rho=RHO)
    order = generator(seed, "order of the spiral")
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=order).split(BATCH):

            def closure(x: Tensor = x[batch], y: Tensor = y[batch]) -> Tensor:
                optimizer.zero_grad()
                loss = F.softplus(-y * network(x)).mean()
                loss.backward()
                return loss

            optimizer.step(closure)
    return network


def interleaved(variants: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Processor seconds of every variant in every round, in random order; the first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    order = random.Random(0)
    for round_ in range(rounds + 1):
        for name in order.sample(list(variants), len(variants)):
            started = time.process_time()
            variants[name]()
            if round_:
                times[name].append(time.process_time() - started)
    return times


def ratio(slow: list[float], fast: list[float], draws: int = 1000) -> tuple[float, float, float]:
    """Ratio of medians and its 95% bootstrap interval over rounds."""
    a, b = torch.tensor(slow), torch.tensor(fast)
    chosen = torch.randint(len(a), (draws, len(a)), generator=torch.Generator().manual_seed(0))
    ratios = a[chosen].median(1).values / b[chosen].median(1).values
    low, high = ratios.quantile(torch.tensor([0.025, 0.975])).tolist()
    return statistics.median(slow) / statistics.median(fast), low, high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=32)
    parser.add_argument("--alone", type=int, default=3, help="epochs of the run that is trained by itself")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    seeds = [*range(arguments.runs)]
    examples, held_out = draw(SpiralDistribution(), seeds)
    x, y = examples[0][0], examples[1][0]

    def at_once(every: int) -> spiral.Trajectory:
        return spiral.train(
            examples, held_out, seeds=seeds, rho=RHO, lr=LR, batch_size=BATCH, epochs=EPOCHS, every=every
        )

    times = interleaved(
        {
            "measured": lambda: at_once(1),
            "at once": lambda: at_once(EPOCHS),
            "alone": lambda: by_module(0, x, y, arguments.alone),
        },
        arguments.rounds,
    )
    one_by_one = [seconds * arguments.runs * EPOCHS / arguments.alone for seconds in times["alone"]]
    value, low, high = ratio(one_by_one, times["at once"])

    exact = draw(SpiralDistribution(), seeds[:1], dtype=torch.float64)
    networks = spiral.train(*exact, seeds=seeds[:1], rho=RHO, epochs=1).networks
    plain = by_module(0, exact[0][0][0], exact[0][1][0], 1).parameters()
    difference = max(float((a - b.detach()).abs().max()) for a, b in zip(networks, plain, strict=True))

    found = {
        "measured_s": statistics.median(times["measured"]), "at_once_s": statistics.median(times["at once"]),
        "one_by_one_s": statistics.median(one_by_one), "ratio": value, "low": low, "high": high,
        "difference": difference,
    }  # fmt: skip
    settings = {
        "hardware": f"{platform.machine()}, {arguments.threads} thread",
        "torch": torch.__version__,
        "runs": arguments.runs,
        "epochs": EPOCHS,
        "rounds": arguments.rounds,
    }
    print(", ".join(f"{name} {value}" for name, value in settings.items()))
    print(
        f"at once {found['at_once_s']:.2f} s ({found['measured_s']:.2f} with errors after every epoch), "
        f"one by one {found['one_by_one_s']:.1f} s: {value:.1f} times faster [{low:.1f}, {high:.1f}]; "
        f"weights differ by {difference:.1e}"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"settings": settings, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
