"""What the top of a Hessian's spectrum costs, here and by other libraries. One function per section; each returns rows.

    EVENLY_DATA=... python benchmarks/curvature.py
    EVENLY_DATA=... python benchmarks/curvature.py peers --images 1000 --rounds 2 --json curvature.json

The network is a ResNet-8 of 78,042 parameters after 5 epochs on the images of CIFAR-10 (as many of each class) over
which its loss is then taken, in eval mode and float32; without EVENLY_DATA the images are random patches under their
classes' colours. Three recipes of training, fixed before anything was measured. Everyone is asked for the top 5 to the
same tolerance, ||Hv - lambda v|| <= 1e-3 lambda_max of all five unit vectors: "worst residual" is the largest that is
found afterwards, by products that are not counted. Section "peers" needs curvlinops-for-pytorch and PyHessian, and
leaves out who is not installed. Each gets the loosest tol of a ladder with which its vectors hold the tolerance, found
beforehand:

- curvlinops' Hessian under scipy's eigsh, its own 20 vectors; the same batches; no check for determinism.
- PyHessian's power iteration with deflation on one batch, for which it keeps the graph. It stops where an eigenvalue
  changes by less than tol, which says nothing of the residual. Who needs more than `--cap` products is stopped there.

Seconds are of the processor, on one thread, so that what else the machine does counts little.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenly.diagnose.mean_hessian import MeanHessian
from evenly.diagnose.spectrum import hessian_spectrum

Row = dict[str, Any]
TOP, TOLERANCE, BATCH = 5, 1e-3, 100


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        straight = before == after and stride == 1
        self.shortcut: nn.Module = nn.Identity()
        if not straight:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        z = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(z)) + self.shortcut(x))


def resnet8(classes: int = 10) -> nn.Module:
    """A residual network of eight layers for 32 x 32 images: 16, 32 and 64 channels, 78,042 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes),
    )  # fmt: skip


def images(count: int) -> tuple[Tensor, Tensor]:
    """Normalised images (count, 3, 32, 32) and labels (count,): CIFAR-10's where there are any."""
    if os.environ.get("EVENLY_DATA"):
        from evenly.data.benchmarks import cifar

        train = cifar.cifar10(n=count).train
        x, y = train.inputs.float() / 255, train.labels
    else:
        draw = torch.Generator().manual_seed(0)
        y = torch.arange(count) % 10
        colours = torch.rand(10, 3, 4, 4, generator=draw)
        x = F.interpolate(colours, 32)[y] + 0.3 * torch.randn(count, 3, 32, 32, generator=draw)
    return (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True), y


RECIPES = {"constant 0.1": (0.1, False), "constant 0.02": (0.02, False), "cosine from 0.05": (0.05, True)}
"""Learning rate, and whether a cosine takes it to 0."""


def trained(x: Tensor, y: Tensor, recipe: str = "cosine from 0.05", seed: int = 0, epochs: int = 5) -> nn.Module:
    """A ResNet-8 after so many epochs on (x, y): SGD with momentum 0.9, weight decay 5e-4, batches of 50."""
    rate, cosine = RECIPES[recipe]
    torch.manual_seed(seed)
    model = resnet8().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
    steps = epochs * -(-len(x) // 50)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if cosine else None
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(50):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            if schedule:
                schedule.step()
    return model.eval()


Answer = tuple[list[float], Tensor, float]
"""Eigenvalues, unit vectors (5, p), products over all samples (evenly's with its pilot)."""
Call = Callable[[nn.Module, Tensor, Tensor], Answer]


class TooManyError(Exception):
    """More products than the cap allows."""


def counted(times: Callable[..., Any], cap: int) -> tuple[Callable[..., Any], list[int]]:
    """The same function, stopped after `cap` calls, and their number."""
    calls = [0]

    def counting(*given: Any) -> Any:
        if calls[0] >= cap:
            raise TooManyError
        calls[0] += 1
        return times(*given)

    return counting, calls


def by_evenly(pilot: bool) -> Call:
    def answer(model: nn.Module, x: Tensor, y: Tensor) -> Answer:
        found = hessian_spectrum(
            model, "cross-entropy", (x, y), TOP, tolerance=TOLERANCE, batch_size=BATCH, pilot=pilot, vectors=True
        )
        assert found.vectors is not None
        return found.eigenvalues.tolist(), found.vectors, found.cost

    return answer


def by_curvlinops(tol: float, cap: int) -> Call:
    def answer(model: nn.Module, x: Tensor, y: Tensor) -> Answer:
        from scipy.sparse.linalg import LinearOperator, eigsh

        operators: Any = importlib.import_module("curvlinops")
        weights = [w for w in model.parameters() if w.requires_grad]
        batches = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
        hessian = operators.HessianLinearOperator(
            model, nn.CrossEntropyLoss(), weights, batches, check_deterministic=False
        )
        inside = hessian.to_scipy()
        times, calls = counted(lambda v: inside @ v, cap)
        start = np.random.default_rng(0).standard_normal(inside.shape[0]).astype(np.float32)
        operator = LinearOperator(inside.shape, matvec=times, dtype=np.float32)
        values, vectors = eigsh(operator, k=TOP, which="LA", tol=tol, v0=start)
        return values[::-1].tolist(), torch.from_numpy(vectors[:, ::-1].T.copy()), calls[0]

    return answer


def by_pyhessian(tol: float, cap: int) -> Call:
    def answer(model: nn.Module, x: Tensor, y: Tensor) -> Answer:
        module: Any = importlib.import_module("pyhessian.hessian")  # the package names its class the same
        inside = module.hessian_vector_product
        module.hessian_vector_product, calls = counted(inside, cap)
        try:
            torch.manual_seed(0)
            found = module.hessian(model, nn.CrossEntropyLoss(), data=(x, y), cuda=False)
            values, vectors = found.eigenvalues(maxIter=cap, tol=tol, top_n=TOP)
        finally:
            module.hessian_vector_product = inside
            for w in model.parameters():  # its graph hangs on them
                w.grad = None
        flat = torch.stack([torch.cat([part.detach().reshape(-1) for part in each]) for each in vectors])
        return values, flat, calls[0]

    return answer


LADDERS: dict[str, tuple[str, Callable[[float, int], Call], tuple[float, ...]]] = {
    "curvlinops + eigsh": ("curvlinops", by_curvlinops, (1e-1, 1e-2, 1e-3)),
    "PyHessian": ("pyhessian", by_pyhessian, (1e-3, 1e-4, 1e-5, 1e-6)),
}


def worst_residual(model: nn.Module, x: Tensor, y: Tensor, answer: Answer) -> float:
    """The largest ||Hv - lambda v|| over the largest eigenvalue, by a product for each vector."""
    values, vectors, _ = answer
    names = [name for name, _ in model.named_parameters()]
    hessian = MeanHessian(model, names, "cross-entropy", x, y, batch_size=BATCH, memory=0, seed=0)
    units = vectors / vectors.norm(dim=1, keepdim=True)
    return max(float((hessian.times(v) - value * v).norm()) for value, v in zip(values, units, strict=True)) / max(
        values
    )


def peers(options: argparse.Namespace) -> list[Row]:
    """Section "peers": interleaved rounds in one process, medians."""
    x, y = images(options.images)
    model = trained(x, y)
    calls: dict[str, Call] = {"evenly": by_evenly(False), "evenly, pilot": by_evenly(True)}
    rows: list[Row] = []
    for name, (package, build, ladder) in LADDERS.items():
        for tol in ladder if importlib.util.find_spec(package) else ():
            label, call = f"{name}, tol {tol:g}", build(tol, options.cap)
            started = time.process_time()
            try:
                answer = call(model, x, y)
            except TooManyError:
                taken = time.process_time() - started
                held = f"not within {options.cap} products"
                rows.append({"what": label, "tolerance held": held, "products": options.cap, "seconds": taken})
                print(f"  {label}: {held}, {taken:.1f} s", flush=True)
                break
            worst = worst_residual(model, x, y, answer)
            print(f"  {label}: worst residual {worst:.2g}, {answer[2]} products", flush=True)
            if worst <= TOLERANCE:
                calls[label] = call
                break
            rows.append({"what": label, "tolerance held": "no", "products": answer[2], "worst residual": worst})
    times: dict[str, list[float]] = {name: [] for name in calls}
    answers: dict[str, Answer] = {}
    for number in range(options.rounds):
        for name, call in calls.items():
            started = time.process_time()
            answers[name] = call(model, x, y)
            times[name].append(time.process_time() - started)
            print(f"  round {number}, {name}: {times[name][-1]:.1f} s, {answers[name][2]:.4g} products", flush=True)
    reached: list[Row] = [
        {
            "what": name, "tolerance held": "yes", "products": answers[name][2],
            "seconds": statistics.median(times[name]), "fastest": min(times[name]),
            "worst residual": worst_residual(model, x, y, answers[name]),
            "in order": answers[name][0] == sorted(answers[name][0], reverse=True),
            "eigenvalues": " ".join(f"{value:.5g}" for value in answers[name][0]),
        }
        for name in calls
    ]  # fmt: skip
    rows = reached + rows
    for row in rows:
        if "seconds" in row:
            row["of evenly's time"] = row["seconds"] / statistics.median(times["evenly"])
    return rows


def products(options: argparse.Namespace) -> list[Row]:
    """Section "products": what evenly alone needs, by recipe of training and seed, `rounds` seeds."""
    x, y = images(options.images)
    rows = []
    for recipe in RECIPES:
        for seed in range(options.rounds):
            model = trained(x, y, recipe, seed)
            for start in options.starts:
                found = hessian_spectrum(
                    model, "cross-entropy", (x, y), TOP, tolerance=TOLERANCE, batch_size=BATCH, pilot=start == "pilot"
                )
                row = {
                    "what": f"{recipe}, seed {seed}, {start}", "products": found.products,
                    "with the pilot's": found.cost,
                    "worst residual": float(found.residuals.max() / found.eigenvalues[0]),
                    "eigenvalues": " ".join(f"{value:.5g}" for value in found.eigenvalues.tolist()),
                }  # fmt: skip
                rows.append(row)
                print(f"  {row}", flush=True)
    return rows


def density(options: argparse.Namespace) -> list[Row]:
    """Section "density": the Wasserstein distance to all eigenvalues of a small network, by the number of runs."""
    from scipy.stats import wasserstein_distance

    draw = torch.Generator().manual_seed(0)
    x = torch.randn(200, 10, generator=draw, dtype=torch.float64)
    y = (x[:, 0] * x[:, 1] > 0).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 30), nn.Tanh(), nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(100):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    names = [name for name, _ in model.named_parameters()]
    hessian = MeanHessian(model, names, "cross-entropy", x, y, batch_size=200, memory=2**30, seed=0)
    dense = torch.stack([hessian.times(row) for row in torch.eye(len(hessian.flat), dtype=torch.float64)])
    exact = torch.linalg.eigvalsh((dense + dense.T) / 2)
    rows = []
    for runs, least in ((1, 1), (1, 40), (4, 40), (16, 40)):
        apart = []
        for seed in range(options.rounds):
            found = hessian_spectrum(model, "cross-entropy", (x, y), runs=runs, least_steps=least, seed=seed)
            apart.append(wasserstein_distance(found.density.nodes, exact, found.density.weights))
            grid, values = found.density.curve()
        row = {
            "Wasserstein / lambda_max": statistics.mean(apart) / float(exact[-1]),
            "worst": max(apart) / float(exact[-1]),
            "mean |lambda| / lambda_max": float(exact.abs().mean() / exact[-1]),
            "integral": float(torch.trapezoid(values, grid)),
        }
        rows.append({"what": f"p={len(exact)}, {found.runs} runs, {found.products} products"} | row)
    return rows


SECTIONS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "products": products,
    "peers": peers,
    "density": density,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cap", type=int, default=200, help="products after which a peer is stopped")
    parser.add_argument("--starts", nargs="+", default=["random", "pilot"], help="of section products")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    for name in arguments.sections:
        if name not in SECTIONS:
            parser.error(f"no section is called {name!r}; there are: {', '.join(SECTIONS)}")
    torch.set_num_threads(arguments.threads)
    settings = {
        "machine": platform.machine(), "threads": arguments.threads, "torch": torch.__version__,
        "images": arguments.images, "rounds": arguments.rounds, "cap": arguments.cap,
        "data": bool(os.environ.get("EVENLY_DATA")),
    }  # fmt: skip
    results = {}
    print(", ".join(f"{name} {value}" for name, value in settings.items()), flush=True)
    for name in arguments.sections or SECTIONS:
        results[name] = SECTIONS[name](arguments)
        print(f"\n{name}")
        for row in results[name]:
            shown = (
                f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
                for key, value in row.items()
                if key != "what"
            )
            print(f"  {row['what']:40}  {', '.join(shown)}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"settings": settings, "sections": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
