"""What a SAM step costs, in steps of its own base optimizer, beside other implementations.

    python benchmarks/sam_step.py --rounds 300 --json sam_step.json
    python benchmarks/sam_step.py --device cuda

Every round takes one step of every variant, in random order, on the same batch; a ratio is the median time of the SAM
step over the median time of the plain step of the same base class with the same flags, both from one run. Intervals are
95% bootstrap intervals over rounds. `two-step` is the widely copied SAM of two hand-driven half steps, written here
as its users write it; pytorch_optimizer's is measured where that package is installed.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import evenly

Step = Callable[[], None]


class TwoStep:
    """SAM as two half steps, tensor by tensor, the perturbed weights restored from a fresh copy."""

    def __init__(self, base: Optimizer, rho: float) -> None:
        self.base, self.rho = base, rho
        self.old: dict[Tensor, Tensor] = {}

    def parameters(self) -> Iterable[Tensor]:
        return (p for group in self.base.param_groups for p in group["params"] if p.grad is not None)

    @torch.no_grad()
    def first_step(self) -> None:
        norm = torch.norm(torch.stack([p.grad.norm(p=2) for p in self.parameters()]), p=2)
        scale = self.rho / (norm + 1e-12)
        for p in self.parameters():
            self.old[p] = p.data.clone()
            p.add_(p.grad * scale.to(p))
        self.base.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for p in self.parameters():
            p.data = self.old[p]
        self.base.step()
        self.base.zero_grad()


def many_tensors() -> nn.Module:
    """61 linear layers of width 32: 122 small tensors."""
    layers: list[nn.Module] = []
    for _ in range(60):
        layers += [nn.Linear(32, 32), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(32, 10))


def convnet() -> nn.Module:
    """Four 3x3 convolutions with batch normalisation on 32 x 32 images."""
    layers: list[nn.Module] = []
    for before, after, stride in ((3, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)):
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "many-tensors": (many_tensors, (32, 32), 5),
    "convnet": (convnet, (64, 3, 32, 32), 1),
}
"""Network, shape of a batch, and rounds in units of ``--rounds``: quick steps are measured more often."""


def variants(build: Callable[[], nn.Module], x: Tensor, y: Tensor, foreach: bool) -> dict[str, Step]:
    """One closure per variant that takes one training step of its own copy of the network."""

    def start() -> tuple[nn.Module, SGD]:
        torch.manual_seed(0)
        model = build().to(x.device)
        return model, SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=foreach)

    def backward(model: nn.Module, zero: Callable[[], None]) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            zero()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return closure

    steps: dict[str, Step] = {}
    model, sgd = start()
    plain = backward(model, sgd.zero_grad)
    steps["sgd"] = lambda: (plain(), sgd.step())  # type: ignore[assignment,return-value]

    model, base = start()
    ours = evenly.SAM(base, rho=0.05, model=model)
    closure = backward(model, ours.zero_grad)
    steps["evenly"] = lambda: ours.step(closure)  # type: ignore[assignment,return-value]

    model, base = start()
    two = TwoStep(base, rho=0.05)
    half = backward(model, lambda: None)

    def two_step() -> None:
        half()
        two.first_step()
        half()
        two.second_step()

    steps["two-step"] = two_step
    try:
        import pytorch_optimizer
    except ImportError:
        return steps
    model, base = start()
    theirs = pytorch_optimizer.SAM(
        model.parameters(), base_optimizer=SGD, rho=0.05, lr=1e-3, momentum=0.9, foreach=foreach
    )
    first = backward(model, lambda: None)

    def pytorch_optimizer_step() -> None:
        first()
        theirs.first_step(zero_grad=True)
        first()
        theirs.second_step(zero_grad=True)

    steps["pytorch_optimizer"] = pytorch_optimizer_step
    return steps


def captured(build: Callable[[], nn.Module], x: Tensor, y: Tensor) -> dict[str, Step]:
    """SGD and SAM steps recorded once as CUDA graphs and replayed."""
    steps: dict[str, Step] = {}
    for name in ("sgd, captured", "evenly, captured"):
        torch.manual_seed(0)
        model = build().to(x.device)
        base = SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
        opt = base if name.startswith("sgd") else evenly.SAM(base, rho=0.05, model=model)

        def closure(model: nn.Module = model, opt: Optimizer = opt) -> Tensor:
            opt.zero_grad(set_to_none=False)
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                opt.step(closure)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            opt.step(closure)
        # the graph reads and writes the memory of these, so they must live as long as it does
        steps[name] = lambda graph=graph, kept=(model, opt): graph.replay()  # type: ignore[misc]
    return steps


def interleaved(steps: dict[str, Step], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds of every step of every variant, one of each per round, in random order."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    order = random.Random(0)
    for round_ in range(rounds + 10):
        for name in order.sample(list(steps), len(steps)):
            if device.type == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
            steps[name]()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if round_ >= 10:
                times[name].append(time.perf_counter() - started)
    return times


def ratio(times: list[float], plain: list[float], draws: int = 1000) -> tuple[float, float, float]:
    """Ratio of medians and its 95% bootstrap interval over rounds."""
    a, b = torch.tensor(times), torch.tensor(plain)
    chosen = torch.randint(len(a), (draws, len(a)), generator=torch.Generator().manual_seed(0))
    low, high = (
        (a[chosen].median(1).values / b[chosen].median(1).values).quantile(torch.tensor([0.025, 0.975])).tolist()
    )
    return statistics.median(times) / statistics.median(plain), low, high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    hardware = (
        torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()}, {arguments.threads} thread"
    )
    rows = []
    for network, (build, shape, often) in NETWORKS.items():
        x, y = torch.randn(shape, device=device), torch.randint(10, shape[:1], device=device)
        for foreach in (True, False):
            steps = variants(build, x, y, foreach)
            if device.type == "cuda" and foreach:
                steps |= captured(build, x, y)
            times = interleaved(steps, often * arguments.rounds, device)
            for name in steps:
                plain = times["sgd, captured" if "captured" in name else "sgd"]
                value, low, high = ratio(times[name], plain)
                rows.append({
                    "network": network, "foreach": foreach, "variant": name, "ms": 1e3 * statistics.median(times[name]),
                    "ratio": value, "low": low, "high": high,
                })  # fmt: skip
    print(f"SAM step / SGD step, {hardware}, torch {torch.__version__}")
    print(
        f"interleaved rounds: {', '.join(f'{often * arguments.rounds} ({n})' for n, (*_, often) in NETWORKS.items())}"
    )
    print(f"{'network':14}{'foreach':9}{'variant':20}{'ms':>9}{'ratio':>8}   95% interval")
    for row in rows:
        print(
            f"{row['network']:14}{row['foreach']!s:9}{row['variant']:20}{row['ms']:9.3f}{row['ratio']:8.3f}"
            f"   [{row['low']:.3f}, {row['high']:.3f}]"
        )
    if arguments.json:
        settings = {"hardware": hardware, "torch": torch.__version__, "rounds": arguments.rounds}
        arguments.json.write_text(json.dumps({"settings": settings, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
