"""What the top of a Hessian's spectrum costs, here and by other libraries. One function per section; each returns rows.

    EVENLY_DATA=... python benchmarks/curvature.py
    EVENLY_DATA=... python benchmarks/curvature.py peers --threads 2 --rounds 3 --json curvature.json

The network is a ResNet-8 of 78,042 parameters after 5 epochs on the 1,000 images of CIFAR-10 (100 of each class) over
which its loss is then taken, in eval mode and float32; without EVENLY_DATA the images are random patches under their
classes' colours. Everyone is asked for the top 5. "worst residual" is the largest ||Hv - lambda v|| / lambda_max of the
five unit vectors that came back, by products that are not counted. Section "peers" needs curvlinops-for-pytorch and
PyHessian, and leaves out who is not installed.

- curvlinops' Hessian under scipy's eigsh, tol=1e-3, its own 20 vectors; the same batches; no check for determinism.
- PyHessian's power iteration with deflation on one batch, for which it keeps the graph. It stops where an eigenvalue
  changes by less than tol, which says nothing of the residual: its own tol=1e-3 leaves it short of the tolerance that
  the others are held to. Section "strict" asks it for more, with tol=1e-5, once; it takes its time.
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

from evenly.diagnose.hessian_spectrum import MeanHessian, hessian_spectrum
from evenly.diagnose.lanczos import extremes

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
        from evenly.data.images import cifar

        train = cifar.cifar10(n=count).train
        x, y = train.inputs.float() / 255, train.labels
    else:
        draw = torch.Generator().manual_seed(0)
        y = torch.arange(count) % 10
        colours = torch.rand(10, 3, 4, 4, generator=draw)
        x = F.interpolate(colours, 32)[y] + 0.3 * torch.randn(count, 3, 32, 32, generator=draw)
    return (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True), y


def trained(x: Tensor, y: Tensor, seed: int = 0, epochs: int = 5) -> nn.Module:
    """A ResNet-8 after so many epochs on (x, y): SGD with momentum 0.9, 0.05 to 0 by a cosine, batches of 50.

    At a constant rate the running statistics of so few steps lag behind the weights, and so does the loss in eval mode.
    """
    torch.manual_seed(seed)
    model = resnet8().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(x) // 50))
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(50):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


Answer = tuple[list[float], Tensor, int]
"""Eigenvalues, unit vectors (5, p), products."""


def by_evenly(model: nn.Module, x: Tensor, y: Tensor) -> Answer:
    found = hessian_spectrum(model, "cross-entropy", (x, y), TOP, tolerance=TOLERANCE, batch_size=BATCH, vectors=True)
    assert found.vectors is not None
    return found.eigenvalues.tolist(), found.vectors, found.products


def by_curvlinops(model: nn.Module, x: Tensor, y: Tensor) -> Answer:
    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import LinearOperator, eigsh

    weights = [w for w in model.parameters() if w.requires_grad]
    batches = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    hessian = HessianLinearOperator(model, nn.CrossEntropyLoss(), weights, batches, check_deterministic=False)
    inside = hessian.to_scipy()
    products = 0

    def times(v: Any) -> Any:
        nonlocal products
        products += 1
        return inside @ v

    start = np.random.default_rng(0).standard_normal(inside.shape[0]).astype(np.float32)
    counted = LinearOperator(inside.shape, matvec=times, dtype=np.float32)
    values, vectors = eigsh(counted, k=TOP, which="LA", tol=TOLERANCE, v0=start)
    return values[::-1].tolist(), torch.from_numpy(vectors[:, ::-1].T.copy()), products


def by_pyhessian(tol: float) -> Callable[[nn.Module, Tensor, Tensor], Answer]:
    def answer(model: nn.Module, x: Tensor, y: Tensor) -> Answer:
        module: Any = importlib.import_module("pyhessian.hessian")  # the package names its class the same

        products = 0
        inside = module.hessian_vector_product

        def times(*given: Any) -> Any:
            nonlocal products
            products += 1
            return inside(*given)

        module.hessian_vector_product = times
        try:
            torch.manual_seed(0)
            found = module.hessian(model, nn.CrossEntropyLoss(), data=(x, y), cuda=False)
            values, vectors = found.eigenvalues(maxIter=100, tol=tol, top_n=TOP)
        finally:
            module.hessian_vector_product = inside
            for w in model.parameters():  # its graph hangs on them
                w.grad = None
        flat = torch.stack([torch.cat([part.detach().reshape(-1) for part in each]) for each in vectors])
        return values, flat, products

    return answer


def worst_residual(model: nn.Module, x: Tensor, y: Tensor, answer: Answer) -> float:
    """The largest ||Hv - lambda v|| over the largest eigenvalue, by a product for each vector."""
    values, vectors, _ = answer
    names = [name for name, _ in model.named_parameters()]
    hessian = MeanHessian(model, names, "cross-entropy", x, y, batch_size=BATCH, memory=0, seed=0)
    units = vectors / vectors.norm(dim=1, keepdim=True)
    return max(float((hessian.times(v) - value * v).norm()) for value, v in zip(values, units, strict=True)) / max(
        values
    )


def peers(count: int, rounds: int) -> list[Row]:
    """Section "peers": interleaved rounds in one process, medians."""
    x, y = images(count)
    model = trained(x, y)
    calls: dict[str, Callable[[nn.Module, Tensor, Tensor], Answer]] = {"evenly": by_evenly}
    if importlib.util.find_spec("curvlinops"):
        calls["curvlinops + eigsh"] = by_curvlinops
    if importlib.util.find_spec("pyhessian"):
        calls["PyHessian, tol 1e-3"] = by_pyhessian(1e-3)
    times: dict[str, list[float]] = {name: [] for name in calls}
    answers: dict[str, Answer] = {}
    for number in range(rounds):
        for name, call in calls.items():
            started = time.perf_counter()
            answers[name] = call(model, x, y)
            times[name].append(time.perf_counter() - started)
            print(f"  round {number}, {name}: {times[name][-1]:.1f} s, {answers[name][2]} products", flush=True)
    own = statistics.median(times["evenly"])
    return [
        {
            "what": name, "products": answers[name][2], "seconds": statistics.median(times[name]),
            "of evenly's time": statistics.median(times[name]) / own, "fastest": min(times[name]),
            "worst residual": worst_residual(model, x, y, answers[name]),
            "in order": answers[name][0] == sorted(answers[name][0], reverse=True),
            "eigenvalues": " ".join(f"{value:.5g}" for value in answers[name][0]),
        }
        for name in calls
    ]  # fmt: skip


def strict(count: int, rounds: int) -> list[Row]:
    """Section "strict": PyHessian with a tol that brings its residuals nearer to the others', once."""
    x, y = images(count)
    model = trained(x, y)
    started = time.perf_counter()
    answer = by_pyhessian(1e-5)(model, x, y)
    taken = time.perf_counter() - started
    worst = worst_residual(model, x, y, answer)
    return [{"what": "PyHessian, tol 1e-5", "products": answer[2], "seconds": taken, "worst residual": worst}]


def starts(count: int, rounds: int) -> list[Row]:
    """Section "starts": products from a random vector and from the gradient, `rounds` networks."""
    x, y = images(count)
    rows = []
    for seed in range(rounds):
        model = trained(x, y, seed)
        names = [name for name, _ in model.named_parameters()]
        hessian = MeanHessian(model, names, "cross-entropy", x, y, batch_size=BATCH, memory=2**33, seed=0)
        loss = F.cross_entropy(model(x), y)
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
        for what, draw in (("random", hessian.random), ("gradient", lambda _, g=gradient: g)):
            found = extremes(hessian.times, draw, TOP, tolerance=TOLERANCE)
            shown = " ".join(f"{value:.5g}" for value in found.values)
            row = {"products": found.products, "loss": float(loss.detach()), "eigenvalues": shown}
            rows.append({"what": f"network {seed}, {what}"} | row)
    return rows


def density(count: int, rounds: int) -> list[Row]:
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
        for seed in range(rounds):
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


SECTIONS: dict[str, Callable[[int, int], list[Row]]] = {
    "peers": peers,
    "strict": strict,
    "starts": starts,
    "density": density,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    for name in arguments.sections:
        if name not in SECTIONS:
            parser.error(f"no section is called {name!r}; there are: {', '.join(SECTIONS)}")
    torch.set_num_threads(arguments.threads)
    settings = {
        "machine": platform.machine(), "threads": arguments.threads, "torch": torch.__version__,
        "images": arguments.images, "rounds": arguments.rounds, "data": bool(os.environ.get("EVENLY_DATA")),
    }  # fmt: skip
    results = {}
    print(", ".join(f"{name} {value}" for name, value in settings.items()), flush=True)
    for name in arguments.sections or SECTIONS:
        results[name] = SECTIONS[name](arguments.images, arguments.rounds)
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
