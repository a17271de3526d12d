"""How many images a second are augmented, beside Pillow's operations one image at a time.

    python benchmarks/augment.py --rounds 50 --json augment.json
    python benchmarks/augment.py --device cuda

Batches of 128 images 3x32x32, uint8, already on the device, with a new index and epoch each time. Every round takes one
batch of every recipe in random order; the figure is images per second at the median time, with the 10th and 90th
percentile. On CUDA each recipe is also captured in a graph and replayed. On the CPU `by Pillow` is TrivialAugment as a
DataLoader's worker would do it, an image at a time in one process, and `all at once` the form that CUDA uses.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from evenly.data.augment import Augment, keyed, trivial_augment
from evenly.data.augment.trivial import apply, choices

RECIPES = ("basic", "trivial", "basic+trivial", "resized")


def eager(recipe: str, images: Tensor, index: Tensor, epoch: Tensor) -> Callable[[], object]:
    augment = Augment(recipe)
    return lambda: augment(images, index, epoch, 0)


def captured(recipe: str, images: Tensor, index: Tensor, epoch: Tensor) -> Callable[[], object]:
    """The same in a CUDA graph; `index` and `epoch` are read anew at every replay."""
    run = eager(recipe, images, index, epoch)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def by_pillow(images: Tensor, index: Tensor, epoch: Tensor) -> Callable[[], object]:
    """TrivialAugment with Pillow, image by image, under the same draws."""
    pictures = [Image.fromarray(image) for image in images.permute(0, 2, 3, 1).numpy()]
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Sharpness)

    def one(picture: Image.Image, operation: int, level: int, sign: int) -> Image.Image:
        share, shift = sign * level * 0.99 / 30, sign * (level * 32 // 30)
        rows = [(1, share, 0, 0, 1, 0), (1, 0, 0, share, 1, 0), (1, 0, shift, 0, 1, 0), (1, 0, 0, 0, 1, shift)]
        if 1 <= operation <= 4:
            return picture.transform(picture.size, Image.Transform.AFFINE, rows[operation - 1])
        if 6 <= operation <= 9:
            return enhancers[operation - 6](picture).enhance(1 + share)
        others: dict[int, Callable[[], Image.Image]] = {
            0: lambda: picture,
            5: lambda: picture.rotate(sign * 4.5 * level),
            10: lambda: ImageOps.posterize(picture, 8 - round(level / 5)),
            11: lambda: ImageOps.solarize(picture, 255 - 8.5 * level),
            12: lambda: ImageOps.autocontrast(picture),
            13: lambda: ImageOps.equalize(picture),
        }
        return others[operation]()

    def run() -> Tensor:
        drawn = (each.tolist() for each in choices(keyed(0, epoch, index)))
        done = [np.asarray(one(*each)) for each in zip(pictures, *drawn, strict=True)]
        return torch.from_numpy(np.stack(done)).permute(0, 3, 1, 2)

    if not torch.equal(run(), trivial_augment(images, keyed(0, epoch, index))):
        raise SystemExit("Pillow's images differ from evenly's; the two are not doing the same work")
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    shape = (args.batch_size, 3, args.side, args.side)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).to(device)
    index = torch.arange(args.batch_size, device=device)
    epoch = torch.zeros((), dtype=torch.int64, device=device)

    variants: dict[str, Callable[[], object]] = {recipe: eager(recipe, images, index, epoch) for recipe in RECIPES}
    if device.type == "cuda":
        variants |= {f"{recipe}, captured": captured(recipe, images, index, epoch) for recipe in RECIPES}
    else:
        variants["trivial, all at once"] = lambda: apply(images, *choices(keyed(0, epoch, index)), at_once=True)
        variants["trivial by Pillow"] = by_pillow(images, index, epoch)

    times: dict[str, list[float]] = {name: [] for name in variants}
    order = random.Random(0)
    for round_ in range(args.rounds + 3):
        index.add_(args.batch_size)
        epoch.add_(1)
        for name in order.sample(list(variants), len(variants)):
            if device.type == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
            variants[name]()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if round_ >= 3:  # the first rounds warm up
                times[name].append(time.perf_counter() - started)

    machine = torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()} CPU"
    print(f"{machine}, {args.threads} thread(s), torch {torch.__version__}, batches {shape}, {args.rounds} rounds")
    results = {}
    for name, seconds in times.items():
        low, median, high = np.quantile(seconds, [0.1, 0.5, 0.9])
        speed = args.batch_size / median
        results[name] = {"ms": 1e3 * median, "images_per_s": speed}
        print(f"{name:26} {1e3 * median:8.3f} ms ({1e3 * low:.3f}-{1e3 * high:.3f}) {speed:12,.0f} images/s")
    if args.json:
        settings = {"machine": machine, "torch": torch.__version__, "shape": shape, "rounds": args.rounds}
        args.json.write_text(json.dumps({**settings, "threads": args.threads, "results": results}, indent=2))


if __name__ == "__main__":
    main()
