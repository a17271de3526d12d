"""What a full-batch step of the cubic network costs: the closed-form simulator beside the module under autograd.

    python benchmarks/cubic.py --rounds 40 --json cubic.json

The papers' patch data (d 50, P 3, 40 filters, float32), by default N = 2,000 on one thread. Every round trains each
variant for the same number of steps from the same weights, in random order; the simulator's time includes the set-up of
each call and its recordings at the ends. A ratio is the median time of the module over the median time of the
simulator, its interval a 95% bootstrap interval over rounds. Folding, done once per data set, is given in steps of the
simulator. The largest difference of the weights after a round says that both did the same work.
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
from evenly.data.patches import PatchDistribution
from evenly.models.cubic import CubicCNN
from evenly.theory import cubic

LR, RHO = 0.1, 0.02


def by_module(w0: Tensor, x: Tensor, y: Tensor, steps: int, rho: float) -> Tensor:
    """The weights after `steps` of torch's SGD, or evenly.SAM around it."""
    model = CubicCNN(w0.shape[1], len(w0))
    model.filters.data.copy_(w0)
    sgd = torch.optim.SGD(model.parameters(), lr=LR)
    optimizer = evenly.SAM(sgd, rho=rho) if rho else sgd

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return model.filters.detach()


def interleaved(variants: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every variant in every round, in random order; the first two rounds are not counted."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    order = random.Random(0)
    for round_ in range(rounds + 2):
        for name in order.sample(list(variants), len(variants)):
            started = time.perf_counter()
            variants[name]()
            if round_ >= 2:
                times[name].append(time.perf_counter() - started)
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
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--filters", type=int, default=40)
    parser.add_argument("--steps", type=int, default=50, help="per round")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    steps = arguments.steps

    patches = PatchDistribution()
    split = patches.sample(arguments.n, seed=0)
    features = torch.stack(patches.directions(0))
    x, y = split.inputs, split.labels.float()
    started = time.perf_counter()
    data = cubic.fold(x, split.labels)
    folding = time.perf_counter() - started
    w0 = 0.1 / 50**0.5 * torch.randn(arguments.filters, patches.dimension, generator=torch.Generator().manual_seed(0))

    def simulate(rho: float) -> Tensor:
        return cubic.train(w0, data, features, lr=LR, steps=steps, rho=rho, every=steps).weights

    variants: dict[str, Callable[[], Tensor]] = {
        "GD, module": lambda: by_module(w0, x, y, steps, 0.0),
        "GD, simulator": lambda: simulate(0.0),
        "SAM, module": lambda: by_module(w0, x, y, steps, RHO),
        "SAM, simulator": lambda: simulate(RHO),
    }
    times = interleaved(dict(variants), arguments.rounds)
    settings = {
        "hardware": f"{platform.machine()}, {arguments.threads} thread",
        "torch": torch.__version__,
        "n": arguments.n,
        "filters": arguments.filters,
        "steps": steps,
        "rounds": arguments.rounds,
    }
    print(", ".join(f"{name} {value}" for name, value in settings.items()))
    rows = []
    for name in ("GD", "SAM"):
        slow, fast = times[f"{name}, module"], times[f"{name}, simulator"]
        value, low, high = ratio(slow, fast)
        difference = float((variants[f"{name}, module"]() - variants[f"{name}, simulator"]()).abs().max())
        rows.append({
            "optimizer": name, "module_us": 1e6 * statistics.median(slow) / steps,
            "simulator_us": 1e6 * statistics.median(fast) / steps, "ratio": value, "low": low, "high": high,
            "difference": difference,
        })  # fmt: skip
        print(
            f"{name:4} module {rows[-1]['module_us']:8.0f} us a step, simulator {rows[-1]['simulator_us']:7.0f}, "
            f"{value:5.2f} times faster [{low:.2f}, {high:.2f}]; weights differ by {difference:.1e}"
        )
    in_steps = folding / (statistics.median(times["GD, simulator"]) / steps)
    print(f"folding {1e3 * folding:.1f} ms, {in_steps:.0f} steps of the simulator")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"settings": settings, "rows": rows, "folding_ms": 1e3 * folding}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
