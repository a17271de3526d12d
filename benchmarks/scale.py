"""Time over the number of groups and examples, as ratios within one run.

    python benchmarks/scale.py            # 2,500 and 10,000 groups, gaps between their numbers; half a minute
    python benchmarks/scale.py --large    # group_accuracy on 10^7 examples in 10^4 groups as well

A tiny network is trained for two epochs by each method that goes by groups, in a folder, with its page. Then two
methods are compared. The last column is the time of the larger over that of the smaller: 4 is linear, 16 is quadratic.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

import evenly

SIZES = (2_500, 10_000)
EXAMPLES = 4
"""Per group."""
METHODS = ("erm", "pde", "reweight", "subsample", "group_dro")


def data(groups: int) -> evenly.Data:
    """Every group has `EXAMPLES` examples; every third number is a group without any."""
    count = EXAMPLES * groups
    numbers = torch.arange(count) % groups
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    split = (inputs, (inputs[:, 0] > 0).long(), numbers + numbers // 2)
    return evenly.Data(train=split, validation=split, test=split)


def trained(groups: int, method: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        evenly.train(data(groups), method=method, epochs=2, batch_size=1024, device="cpu", out=Path(folder) / "run")


def compared(groups: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = {"epochs": 2, "batch_size": 1024, "device": "cpu", "out": Path(folder) / "both"}
        evenly.compare(data(groups), methods=["erm", "subsample"], seeds=2, **settings)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main(large: bool) -> None:
    warnings.simplefilter("ignore")  # of many groups with few examples each
    small, many = SIZES
    trained(10, "erm")  # imports
    print(f"{'':<34}{small:>9,} {many:>9,}   ratio (linear: {many / small:g})")
    for method in METHODS:
        times = [seconds(lambda size=size, method=method: trained(size, method)) for size in SIZES]
        print(f"{f'train and report, {method}':<34}{times[0]:>8.2f}s {times[1]:>8.2f}s   {times[1] / times[0]:.1f}")
    times = [seconds(lambda size=size: compared(size)) for size in SIZES]
    print(f"{'compare and report':<34}{times[0]:>8.2f}s {times[1]:>8.2f}s   {times[1] / times[0]:.1f}")
    if large:
        count, groups = 10**7, 10**4
        numbers, labels = torch.arange(count) % groups, torch.zeros(count, dtype=torch.long)
        outputs = torch.randn(count, 2)
        took = seconds(lambda: evenly.group_accuracy(outputs, labels, numbers, numbers))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"group_accuracy, 10^7 examples in 10^4 groups: {took:.1f}s, peak memory of the process {peak:.1f} GiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true")
    main(parser.parse_args().large)
