"""What coherence costs, and how far its sketch is off. One function per section; each returns rows of a table.

    python benchmarks/stability.py
    python benchmarks/stability.py coherence --threads 2 --json stability.json

"definition" takes the square root of every sample's Gauss-Newton matrix and the norm of every product of two roots.
Times against it are medians of interleaved rounds in one process. Sizes are measured in a process of their own: seconds
of the one call, and the peak of the whole process's resident memory, torch included.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import resource
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evenly.diagnose import coherence
from evenly.theory.coherence import of_hessians

Row = dict[str, Any]


def perceptron(*widths: int) -> nn.Module:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convnet(outputs: int) -> nn.Module:
    """Three convolutions on 8 x 8 images and a linear layer: 97,745 parameters for one output."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 96, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(96, 48, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(192, outputs),
    )  # fmt: skip


def seeded(build: Callable[..., nn.Module], *arguments: int) -> nn.Module:
    torch.manual_seed(0)
    return build(*arguments)


def root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T


def by_definition(model: nn.Module, x: Tensor) -> tuple[Tensor, float, float]:
    """S, lambda_max(S) and max_i lambda_max(H_i) of the squared loss for one output, with matrix square roots."""
    hessians = []
    for each in x:
        gradient = torch.autograd.grad(model(each[None]).sum(), list(model.parameters()))
        g = torch.cat([part.reshape(-1) for part in gradient])
        hessians.append(torch.outer(g, g))
    roots = [root(h) for h in hessians]
    s = torch.stack([torch.stack([torch.linalg.matrix_norm(a @ b) for a in roots]) for b in roots])
    largest = max(float(torch.linalg.eigvalsh(h)[-1]) for h in hessians)
    return s, float(torch.linalg.eigvalsh(s)[-1]), largest


def roots_of_hessians(hessians: Tensor) -> Tensor:
    """S of given Hessians with matrix square roots."""
    roots = [root(h) for h in hessians]
    return torch.stack([torch.stack([torch.linalg.matrix_norm(a @ b) for a in roots]) for b in roots])


def against_the_definition(rounds: int) -> list[Row]:
    """n = 50 samples of the 15-10-1 network with 171 parameters, float64."""
    model = seeded(perceptron, 15, 10, 1).double()
    x = torch.randn(50, 15, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = x[:, 0] * x[:, 1]
    gradients = torch.func.vmap(
        torch.func.grad(lambda w, one: torch.func.functional_call(model, w, (one,)).sum()), (None, 0)
    )({name: w.detach() for name, w in model.named_parameters()}, x)
    g = torch.cat([part.reshape(50, -1) for part in gradients.values()], 1)
    dense = g[:, :, None] * g[:, None, :]
    calls: dict[str, Callable[[], Any]] = {
        "model, definition": lambda: by_definition(model, x),
        "model, evenly": lambda: coherence(model, "squared", (x, y)),
        "hessians, definition": lambda: roots_of_hessians(dense),
        "hessians, evenly": lambda: of_hessians(dense),
    }
    apart = float((calls["model, definition"]()[0] - calls["model, evenly"]().matrix).abs().max())
    apart_dense = float((calls["hessians, definition"]() - calls["hessians, evenly"]().matrix).abs().max())
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            # short calls are repeated, so that a neighbour's time slice does not decide
            repeats = 5 if name == "model, evenly" else 1
            started = time.perf_counter()
            for _ in range(repeats):
                call()
            times[name].append((time.perf_counter() - started) / repeats)
    medians = {name: statistics.median(each) for name, each in times.items()}
    return [
        {
            "what": f"n=50, p=171, {name}", "seconds": medians[name],
            "times faster": medians[name.split(",")[0] + ", definition"] / medians[name],
            "error": apart if name.startswith("model") else apart_dense,
        }
        for name in calls
    ]  # fmt: skip


def _measured(queue: Any, threads: int, call: Callable[[], Row]) -> None:
    torch.set_num_threads(threads)
    started = time.perf_counter()
    row = call()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    queue.put({"seconds": time.perf_counter() - started, "peak GiB": peak} | row)


def alone(threads: int, call: Callable[[], Row]) -> Row:
    """A call in a new process: its seconds and its peak memory."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_measured, args=(queue, threads, call))
    process.start()
    row: Row = queue.get()
    process.join()
    return row


def layers_of_a_hundred_thousand() -> Row:
    model = seeded(perceptron, 200, 400, 50, 1)
    return one_output(model, torch.randn(2000, 200), "linear layers")


def convolutions_of_a_hundred_thousand() -> Row:
    return one_output(seeded(convnet, 1), torch.randn(2000, 64), "convolutions")


def layers_of_a_million() -> Row:
    model = seeded(perceptron, 784, 1000, 250, 1)
    return one_output(model, torch.randn(10_000, 784), "linear layers")


def one_output(model: nn.Module, x: Tensor, kind: str) -> Row:
    found = coherence(model, "squared", (x, x[:, 0]))
    p = sum(w.numel() for w in model.parameters())
    return {"what": f"n={len(x):,}, p={p:,}, 1 output, {kind}", "measure": found.measure}


def ten_classes() -> Row:
    """The exact coherence of ten classes, 99,482 parameters, n = 200, and its sketch to 4096 columns on five seeds."""
    model, x = seeded(convnet, 10), torch.randn(200, 64)
    y = torch.arange(200) % 10
    started = time.perf_counter()
    exact = coherence(model, "cross-entropy", (x, y))
    taken = time.perf_counter() - started
    started = time.perf_counter()
    found = [coherence(model, "cross-entropy", (x, y), sketch=4096, seed=seed) for seed in range(5)]
    sketch = (time.perf_counter() - started) / len(found)
    error = max(abs(each.largest_eigenvalue - exact.largest_eigenvalue) for each in found) / exact.largest_eigenvalue
    return {
        "what": "n=200, p=99,482, 10 classes, sketch 4096", "seconds": sketch, "seconds, exact": taken, "error": error,
        "bound": found[0].error_bound / exact.largest_eigenvalue,
    }  # fmt: skip


def coherence_section(rounds: int, threads: int) -> list[Row]:
    """Section "coherence"."""
    torch.set_num_threads(threads)
    sizes = [layers_of_a_hundred_thousand, convolutions_of_a_hundred_thousand, layers_of_a_million, ten_classes]
    return against_the_definition(rounds) + [alone(threads, call) for call in sizes]


SECTIONS: dict[str, Callable[[int, int], list[Row]]] = {"coherence": coherence_section}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    for name in arguments.sections:
        if name not in SECTIONS:
            parser.error(f"no section is called {name!r}; there are: {', '.join(SECTIONS)}")
    settings = {"machine": platform.machine(), "threads": arguments.threads, "torch": torch.__version__}
    results = {}
    print(", ".join(f"{name} {value}" for name, value in settings.items()))
    for name in arguments.sections or SECTIONS:
        results[name] = SECTIONS[name](arguments.rounds, arguments.threads)
        print(f"\n{name}")
        for row in results[name]:
            numbers = (f"{key} {value:.3g}" for key, value in row.items() if key != "what")
            print(f"  {row['what']:48}  {', '.join(numbers)}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"settings": settings, "sections": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
