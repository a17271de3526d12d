"""Training on images: the captured step against the plain float32 loop, SAM against SGD, seeds side by side.

    EVENLY_DATA=... python benchmarks/images.py speed --json speed.json
    EVENLY_DATA=... python benchmarks/images.py steps --json steps.json
    EVENLY_DATA=... python benchmarks/images.py agree --seed 0 --json captured-0.json
    EVENLY_DATA=... python benchmarks/images.py agree --seed 0 --plain --json plain-0.json

`speed` takes turns between the variants, a few epochs each, and gives seconds per 50,000 images (median over epochs; an
epoch is timed from one reading of its loss to the next, so checkpoints and recording are left out), and what USEFUL's
own part costs: outputs of the whole training set and clustering. `loop` is the float32 loop of the papers' codes, with
the images already on the GPU: torch's modules and SGD, a crop and a flip per batch, nothing of evenly's engine.
`loop, TF32` is the same with torch's defaults, by which convolutions round their inputs to TF32.
`steps` compares the first losses of the captured and the plain step, float32 and without augmentation, and, to tell
rounding from error, those of a plain run whose initial weights differ in the seventh digit. `agree` trains for ten
epochs and keeps the test error and the hard examples after epoch 8.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

import evenly
from evenly.data import Data, Everything, load
from evenly.data.augment import Augment
from evenly.engine import Fit, Objective, measure
from evenly.engine.batches import Batches
from evenly.engine.captured import CapturedStep, own_stream
from evenly.engine.evaluation import outputs_of
from evenly.engine.side_by_side import side_by_side
from evenly.engine.steps import Step
from evenly.models import factory
from evenly.models.standardised import Standardised, channel_moments
from evenly.optim.registry import builder
from evenly.settings import Execution, Settings

SETTINGS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "rho": 0.1}
IMAGES = 50_000


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.device = args, torch.device(args.device)
        self.data: Data = load(args.data, **({} if args.n is None else {"n": args.n}))
        self.moments = channel_moments(self.data.train)
        self.scale = IMAGES / len(self.data.train)

    def network(self, seed: int = 0) -> torch.nn.Module:
        fresh, _ = factory(self.args.model, self.data.train.example_shape, self.data.classes, seed)
        return Standardised(fresh(), *self.moments)

    def engine(self, optimizer: str = "sgd", epochs: int = 200, precision: str = "auto", **how: Any) -> Fit:
        """200 epochs are planned, as in the paper, and so the step is compiled, though a run may end after a few."""
        size = self.args.batch_size
        settings = Settings(epochs=epochs, schedule="step", batch_size=size, augment="basic", precision=precision)
        return Fit(settings, builder(optimizer, **SETTINGS), device=self.device, **how)

    def fit(self, optimizer: str, seed: int = 0, epochs: int | None = None, **how: Any) -> list[float]:
        """Seconds of every epoch but the first."""
        marks: list[float] = []
        engine = self.engine(
            optimizer, seed=seed, progress=lambda *_: marks.append(time.perf_counter()), execution=Execution(**how)
        )
        wanted = (epochs or self.args.epochs) + 1
        engine(self.network(seed), self.data, until=lambda history: len(history) >= wanted)
        return [self.scale * (b - a) for a, b in pairwise(marks)]

    def together(self) -> list[float]:
        """Seconds per 50,000 images of all replicas together."""
        count = self.args.replicas
        times = side_by_side([lambda s=seed: self.fit("sgd", s) for seed in range(count)], self.device, count)
        return [sum(each) / len(each) / count for each in zip(*times, strict=True)]

    def loop(self, tf32: bool) -> list[float]:
        """The papers' float32 loop."""
        torch.backends.cudnn.allow_tf32 = tf32
        try:
            return self._loop()
        finally:
            torch.backends.cudnn.allow_tf32 = True

    def _loop(self) -> list[float]:
        x, y = self.data.train.inputs.to(self.device), self.data.train.labels.to(self.device)
        model = self.network().to(self.device).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        times = []
        for _ in range(self.args.loop_epochs + 1):
            torch.cuda.synchronize() if self.device.type == "cuda" else None
            started, total = time.perf_counter(), 0.0
            for index in torch.randperm(len(x), device=self.device).split(self.args.batch_size):
                images = F.pad(x[index], (4, 4, 4, 4))
                down, right = torch.randint(9, (2,)).tolist()
                images = images[:, :, down : down + x.shape[2], right : right + x.shape[3]]
                images = torch.where(torch.rand(len(index), 1, 1, 1, device=self.device) < 0.5, images.flip(3), images)
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images.float() / 255), y[index])
                loss.backward()
                optimizer.step()
                total += loss.detach()
            float(total)
            times.append(self.scale * (time.perf_counter() - started))
        return times[1:]

    def useful_part(self) -> dict[str, float]:
        """Seconds of USEFUL's own part, and the share it marks after eight epochs."""
        run = self.engine()(self.network(), self.data, until=lambda history: len(history) >= self.args.separate_at)
        evenly.hard_examples(run.outputs(self.data.train), self.data.train.labels)  # loads kernels and scikit-learn
        started = time.perf_counter()
        outputs = run.outputs(self.data.train)
        between = time.perf_counter()
        hard = evenly.hard_examples(outputs, self.data.train.labels)
        done = time.perf_counter()
        return {
            "outputs": between - started, "clustering": done - between, "share": len(hard) / len(self.data.train),
        }  # fmt: skip


def speed(args: argparse.Namespace) -> dict[str, Any]:
    bench = Bench(args)
    every: dict[str, Callable[[], list[float]]] = {
        "captured sgd": lambda: bench.fit("sgd"),
        "captured sam": lambda: bench.fit("sam"),
        f"captured sgd, {args.replicas} side by side": bench.together,
        "float32 loop": lambda: bench.loop(tf32=False),
        "float32 loop, TF32": lambda: bench.loop(tf32=True),
        "plain sgd": lambda: bench.fit("sgd", epochs=args.loop_epochs, capture=False),
    }
    variants = {name: run for name, run in every.items() if args.only is None or name in args.only}
    for name, run in variants.items():
        if name.startswith("captured"):
            started = time.perf_counter()
            run()
            print(f"{name}: first time, compiling included, {time.perf_counter() - started:.0f} s", flush=True)
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(args.rounds):
        for name, run in variants.items():
            times[name] += run()
    seconds = {name: median(each) for name, each in times.items()}
    for name, each in times.items():
        print(f"{name:32} {seconds[name]:7.3f} s per {IMAGES:,} images ({min(each):.3f} to {max(each):.3f})")
    sgd = seconds["captured sgd"]
    part = bench.useful_part()
    ratios = {f"{name} / captured sgd": value / sgd for name, value in seconds.items() if name != "captured sgd"}
    ratios["useful's part in epochs"] = bench.scale * (part["outputs"] + part["clustering"]) / sgd
    ratios["share marked hard"] = part["share"]
    for name, value in ratios.items():
        print(f"{name:44} {value:7.3f}")
    return {"seconds": seconds, "all": times, "ratios": ratios, "useful": part}


def steps(args: argparse.Namespace) -> dict[str, Any]:
    """The first losses of both steps, float32, no augmentation, TF32 off, the same algorithms of cuDNN for both."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    bench, every = Bench(args), {}
    for optimizer in ("sgd", "sam"):
        for lr in args.lrs:
            plain = first_losses(bench, optimizer, lr, "plain")
            for way in ("plain, nudged", "captured", "captured and compiled"):
                losses = first_losses(bench, optimizer, lr, way)
                apart = [abs(a / b - 1) for a, b in zip(losses, plain, strict=True)]
                name = f"{optimizer}, lr {lr}: {way}"
                print(f"{name:40} from plain: step 10 {max(apart[:10]):.1e}, {args.count} {max(apart):.1e}", flush=True)
                every[name] = {"losses": losses, "apart": apart, "plain": plain}
    return every


def first_losses(bench: Bench, optimizer: str, lr: float, way: str) -> list[float]:
    args, device = bench.args, bench.device
    with own_stream(device):
        model = bench.network()
        if way == "plain, nudged":
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(1 + 1e-7 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
        model = model.to(device).to(memory_format=torch.channels_last).train()
        stepper = builder(optimizer, **SETTINGS | {"lr": lr})(model.parameters())
        if optimizer == "sam":
            stepper.model = model
        batches = Batches(bench.data.train, args.batch_size, device, augment=Augment("none"))
        step = Step(model, stepper, Objective(), "float32", device)
        captured = None
        if way.startswith("captured") and device.type == "cuda":
            captured = CapturedStep(step, batches, compiled=way.endswith("compiled"))
            captured.set_rates()
        losses = []
        for place in batches.places(Everything(len(bench.data.train), 0))[: args.count]:
            captured(place) if captured else step(batches.at(place, None))
            losses.append(step.read()[0] / len(place))
    return losses


def agree(args: argparse.Namespace) -> dict[str, Any]:
    bench = Bench(args)
    model, hard = bench.network(args.seed), []
    precision = args.precision

    def after_eight(epoch: int, _: Any) -> None:
        if epoch == args.separate_at:
            outputs = outputs_of(model, Batches(bench.data.train, None, bench.device, precision=precision))
            hard.extend(evenly.hard_examples(outputs.cpu(), bench.data.train.labels).tolist())

    how = Execution(capture=not args.plain)
    engine = bench.engine(epochs=args.epochs, precision=precision, seed=args.seed, execution=how)
    run = engine(model, bench.data, before_epoch=after_eight)
    result = measure(run.outputs(bench.data.test), bench.data.test, bench.data)
    print(f"seed {args.seed}, {run.step}: test error {100 * (1 - result['accuracy']):.2f}%, {len(hard)} hard")
    return {"seed": args.seed, "step": run.step, "test_error": 1 - result["accuracy"], "hard": hard,
            "losses": [row["train_loss"] for row in run.history]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "steps", "agree"))
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--n", type=int, help="use only so many images")
    parser.add_argument("--model", default="preact_resnet18")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, help="timed in a turn (speed, 4), or trained (agree, 10)")
    parser.add_argument("--loop-epochs", type=int, default=1, help="timed in a turn of the plain loops")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--separate-at", type=int, default=8)
    parser.add_argument("--count", type=int, default=100, help="losses that `steps` compares")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="nothing recorded")
    parser.add_argument("--precision", default="auto", help="of `agree`")
    parser.add_argument("--lrs", type=float, nargs="+", default=[0.1, 0.01], help="of `steps`")
    parser.add_argument("--only", nargs="+", help="these variants of `speed`, by name")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.epochs = args.epochs or {"speed": 4, "agree": 10, "steps": 1}[args.what]
    machine = torch.cuda.get_device_name() if args.device.startswith("cuda") else "CPU"
    print(f"{machine}, torch {torch.__version__}, {args.model} on {args.data}, batch {args.batch_size}", flush=True)
    results = {"speed": speed, "steps": steps, "agree": agree}[args.what](args)
    if args.json:
        settings = {key: str(value) for key, value in vars(args).items() if key != "json"}
        everything = {"machine": machine, "torch": torch.__version__, "settings": settings, **results}
        args.json.write_text(json.dumps(everything, indent=2))


if __name__ == "__main__":
    main()
