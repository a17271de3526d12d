"""Data larger than memory: a streamed epoch against one in memory on a GPU, and images under a limit on memory.

    python benchmarks/streaming.py gpu --out DIR
    python benchmarks/streaming.py limit --gigabytes 20 --memory 2 --most 1.5 --out DIR

`gpu` trains a ResNet-50 (bf16, batch 64) on random images of 224 x 224, held on the GPU and streamed from a file in
turns, an epoch each, and compares the best epochs. `limit` puts random images into the cache of decoded images, as if
they were decoded from a folder, and trains a network of one strided convolution on that folder. That process is in a
control group of limited memory (cgroup v1 or v2, where one can be made), and all pages that it reads count for it. The
largest anonymous memory of the process is reported, sampled ten times a second: what is mapped from the file is in the
system's cache, which gives it up when memory is short.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from evenly.data import Data, Everything
from evenly.data.images.cache import DecodedFiles, Pixels, Room, load_or_decode
from evenly.data.mapped import MappedRows
from evenly.engine import Fit, Objective
from evenly.engine.captured import own_stream
from evenly.engine.loop import Loop
from evenly.models import factory
from evenly.optim.registry import builder
from evenly.randomness import isolated
from evenly.settings import Execution, Settings

CLASSES = 10
AT_ONCE = 256


def fill(array: Pixels, labels: torch.Tensor) -> None:
    """Random pixels, brighter from class to class, so that there is something to learn."""
    noise = np.random.default_rng(0).integers(0, 128, (AT_ONCE, *array.shape[1:]), dtype=np.uint8)
    for start in range(0, len(array), AT_ONCE):
        part = array[start : start + AT_ONCE]
        shade = (12 * labels[start : start + AT_ONCE]).numpy().astype(np.uint8)
        np.add(np.roll(noise, start, axis=0)[: len(part)], shade[:, None, None, None], out=part)


def gpu(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds per epoch, streamed and in memory, in turns."""
    device = torch.device(args.device)
    started = time.perf_counter()
    path = Path(tempfile.mkdtemp()) / "images.npy"
    shape = (args.images, 3, args.side, args.side)
    mapped = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
    labels = torch.arange(args.images) % CLASSES
    fill(mapped, labels)
    mapped.flush()
    mapped = np.load(path, mmap_mode="r")
    rows = MappedRows(mapped, torch.arange(args.images), labels)
    settings = Settings(epochs=args.epochs, batch_size=args.batch_size, precision="bf16", schedule="constant", lr=0.01)
    print(f"{args.images:,} images made in {time.perf_counter() - started:.0f} s", flush=True)
    loops: dict[str, Loop] = {}
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"}
    results |= {"torch": torch.__version__, "images": args.images, "side": args.side, "batch": args.batch_size}
    seconds: dict[str, list[float]] = {}
    with isolated(), own_stream(device):
        for name, inputs in (("in memory", rows.at(torch.arange(args.images))), ("streamed", rows)):
            began = time.perf_counter()
            fresh, _ = factory(args.model, shape[1:], CLASSES, 0)
            stream = "always" if name == "streamed" else "never"
            fit = Fit(settings, builder("sgd", lr=0.01), device=device, execution=Execution(stream=stream))
            loops[name] = Loop(
                fit,
                fresh(),
                Data(train=(inputs, labels)),
                sampler=Everything(args.images),
                objective=Objective(),
                stage="final",
                until=None,
                before_epoch=None,
                patient_from=0,
            )
            loops[name]._capture()
            results[f"step, {name}"], seconds[name] = loops[name].how, []
            print(f"{name}: {loops[name].how}, ready after {time.perf_counter() - began:.0f} s", flush=True)
        for turn in range(args.rounds):
            if turn > 1 and time.perf_counter() - started > args.seconds:
                break
            for name, loop in loops.items():
                began = time.perf_counter()
                loop._one_epoch()
                seconds[name].append(time.perf_counter() - began)
                print(f"{name}: {seconds[name][-1]:.2f} s, loss {loop.history[-1]['train_loss']:.4f}", flush=True)
    results["seconds"] = seconds
    results["losses"] = {name: [row["train_loss"] for row in loop.history] for name, loop in loops.items()}
    results["ratio"] = min(seconds["streamed"]) / min(seconds["in memory"])
    shutil.rmtree(path.parent)
    print(f"a streamed epoch takes {results['ratio']:.3f} of one in memory")
    return results


def make_folder(root: Path, count: int, side: int) -> None:
    """A folder of so many image files, all empty, whose pixels the cache has."""
    per_class = count // CLASSES
    for name in map(str, range(CLASSES)):
        (root / name).mkdir(parents=True)
        for i in range(per_class):
            (root / name / f"{i:06}.png").touch()
    files = [f"{name}/{i:06}.png" for name in map(str, range(CLASSES)) for i in range(per_class)]

    def made(room: Room) -> DecodedFiles:
        array = room((len(files), 3, side, side))
        assert array is not None
        fill(array, torch.arange(len(files)) // per_class)
        return DecodedFiles(array.shape, array)

    load_or_decode(root, files, {"size": None, "channels": None}, made, memory=0)


def forget(folder: Path) -> None:
    """Drop the pages of the files from the system's cache, so that they count for the process that reads them."""
    for path in folder.rglob("*.npy"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def limit(args: argparse.Namespace) -> dict[str, Any]:
    """Make the images, and train on them in a process under the limit."""
    count = int(args.gigabytes * 1e9 / (3 * args.side**2)) // CLASSES * CLASSES
    with tempfile.TemporaryDirectory(dir=args.out) as place:
        os.environ["EVENLY_CACHE"] = f"{place}/cache"
        command = [
            sys.executable,
            __file__,
            "child",
            "--out",
            place,
            "--epochs",
            str(args.epochs),
            "--hold",
            str(args.hold),
        ]
        started = time.perf_counter()
        make_folder(Path(place, "images"), count, args.side)
        forget(Path(place, "cache"))
        made = time.perf_counter() - started
        print(f"{count:,} images of {3 * args.side**2:,} bytes made in {made:.0f} s", flush=True)
        group = limited_group(args.memory)
        try:
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
                if group is not None:
                    (group / "cgroup.procs").write_text(str(child.pid))
                output, _ = child.communicate("go\n")
            if child.returncode:
                raise SystemExit(f"training under a limit of {args.memory} GB ended with {child.returncode}")
        finally:
            if group is not None:
                group.rmdir()
    results = json.loads(output.splitlines()[-1])
    results |= {"images": count, "bytes": count * 3 * args.side**2, "limit": args.memory * 1e9 if group else None}
    print(
        f"{count:,} images, {results['bytes'] / 1e9:.1f} GB, "
        f"{f'under a limit of {args.memory} GB' if group else 'no group can be made here, so without a limit'}: "
        f"{results['steps']} steps in {results['seconds']:.0f} s, reading included; at most "
        f"{results['anonymous'] / 1e9:.2f} GB of anonymous memory, {results['resident'] / 1e9:.2f} GB with mapped files"
    )
    if results["anonymous"] > args.most * 1e9:
        raise SystemExit(f"more than {args.most} GB")
    return results


def limited_group(gigabytes: float) -> Path | None:
    """A control group below this process's own with a limit on its memory; None where it cannot be made."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kind, path = line.split(":", 2)
        if kind not in ("", "memory"):
            continue
        group = Path("/sys/fs/cgroup", kind, path.lstrip("/"), f"evenly-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / ("memory.limit_in_bytes" if kind else "memory.max")).write_text(str(int(gigabytes * 1e9)))
        except OSError:
            group.rmdir()
            continue
        return group
    return None


def child(args: argparse.Namespace) -> dict[str, Any]:
    """Train on the folder; what is printed last is the result."""
    sys.stdin.readline()  # by now this process is in its group
    peak, stop = [0, 0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            sizes = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            for i, name in enumerate(("RssAnon", "VmRSS")):
                peak[i] = max(peak[i], 1024 * int(sizes[name].split()[0]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    import evenly

    def network() -> nn.Module:
        convolution = nn.Conv2d(3, 8, 8, stride=8)
        return nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))

    started = time.perf_counter()

    def progress(share: float, note: str) -> None:
        print(f"{time.perf_counter() - started:.0f} s: {share:.0%} {note}", file=sys.stderr)

    settings = {"epochs": args.epochs, "batch_size": 64, "lr": 0.1, "device": "cpu", "progress": progress}
    run = evenly.train(str(args.out / "images"), model=network, data_options={"memory": args.hold}, **settings)
    stop.set()
    watcher.join()
    examples = sum(row["examples"] for row in run.history)
    return {
        "anonymous": peak[0],
        "resident": peak[1],
        "seconds": time.perf_counter() - started,
        "steps": -(-examples // 64),
        "accuracy": run.results.splits["test"].accuracy,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["gpu", "limit", "child"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--memory", type=float, default=2.0)
    parser.add_argument("--hold", type=float, default=4.0, help="GiB of images that are held in memory, if it is free")
    parser.add_argument("--most", type=float, default=1.5)
    args = parser.parse_args()
    args.epochs = args.epochs or (90 if args.what == "gpu" else 1)  # 90 are planned on the GPU, so steps are compiled
    args.out.mkdir(parents=True, exist_ok=True)
    results = {"gpu": gpu, "limit": limit, "child": child}[args.what](args)
    if args.what == "child":
        print(json.dumps(results))
    else:
        (args.out / f"streaming-{args.what}.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
