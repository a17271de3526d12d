"""What `evenly improve` hands back, on data where the answer is known.

    python benchmarks/improve.py given --seeds 300 301 302 303 304      # shortcut digits, groups given
    python benchmarks/improve.py unknown --seeds 300 301 302 303 304    # the same without groups and attributes
    python benchmarks/improve.py nothing --seeds 500 501                # digits without a shortcut: nothing to gain
    python benchmarks/improve.py noise --seeds 500 501                  # the same, 20% of the training labels flipped
    python benchmarks/improve.py summary runs/improve                   # a table of what has run

Each seed is one job with the defaults of the command line: a budget of 12 and three seeds. A line of JSON for each goes
to OUT/lines.jsonl. The true worst group, which a job without groups does not know, is measured here on its best model
and on ERM's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import evenly
from evenly.data import Data, Split, load
from evenly.engine import measure
from evenly.runs.improvement import Improvement
from evenly.runs.run import Run

SHORT = {"model": "mlp", "epochs": 20, "batch_size": 64}
"""Of the jobs in which there is nothing to gain: enough for 97% test accuracy."""


def digits(seed: int, flipped: float = 0.0) -> Data:
    """Digits 0-4 or 5-9 without a shortcut and without groups; a share of the training labels is wrong."""
    data = load("shortcut-digits", seed=seed, brightness=0.0)
    half = {"validation": len(data.validation) // 2, "test": len(data.test) // 2}  # every image is there twice
    splits = {}
    for name, split in data.splits.items():
        end = half.get(name, len(split))
        splits[name] = Split(split.inputs[:end], split.labels[:end].clone(), name=name)
    if flipped:
        labels = splits["train"].labels
        chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[
            : round(flipped * len(labels))
        ]
        labels[chosen] = 1 - labels[chosen]
    return Data(**splits, name="digits", class_names=data.class_names, recipe=SHORT)


def unknown(data: Data) -> Data:
    """The data without groups and attributes."""
    splits = {name: Split(split.inputs, split.labels, name=name) for name, split in data.splits.items()}
    recipe = {name: value for name, value in data.recipe.items() if name != "select"}
    return Data(**splits, name=data.name, class_names=data.class_names, recipe=recipe)


def worst_group(run: Run, data: Data) -> float:
    """The accuracy of the worst true group on the test set."""
    value = measure(run.outputs(data.test), data.test, data).worst_group
    assert value is not None
    return value


def job(kind: str, seed: int, out: Path) -> dict[str, Any]:
    started, folder = time.perf_counter(), out / f"{kind}-{seed}"
    known = load("shortcut-digits", seed=seed)
    given: dict[str, Any] = {
        "given": "shortcut-digits", "unknown": unknown(known), "nothing": digits(seed), "noise": digits(seed, 0.2),
    }  # fmt: skip
    improvement: Improvement = evenly.improve(given[kind], seed=seed, out=folder)
    test = {each.arm.name: each.summary for each in improvement.tested}
    chosen = test[improvement.choice.arm.name]
    accuracy = chosen.difference("accuracy")
    line = {
        "kind": kind, "seed": seed, "verdict": improvement.verdict, "chosen": improvement.choice.arm.name,
        "grouping": improvement.profile.grouping, "spent": improvement.spent_multiple,
        "budget": improvement.budget * len(improvement.seeds), "seconds": time.perf_counter() - started,
        "accuracy": [summary.mean("accuracy") for summary in (improvement.baseline.summary, chosen)],
        "accuracy_outcome": None if accuracy is None else accuracy.outcome,
    }  # fmt: skip
    if kind in ("given", "unknown"):
        erm = [evenly.load(folder / "runs" / name) for name in improvement.choice.runs["baseline"].values()]
        best = evenly.load(folder / "best")
        line["worst_group_erm"] = [worst_group(run, known) for run in erm]
        line["worst_group_best"] = worst_group(best, known)
    shutil.rmtree(folder / "runs")
    return line


def summary(out: Path) -> None:
    lines = [json.loads(line) for line in (out / "lines.jsonl").read_text().splitlines()]
    for kind in dict.fromkeys(line["kind"] for line in lines):
        rows = [line for line in lines if line["kind"] == kind]
        print(f"{kind}: {len(rows)} jobs, {mean(row['seconds'] for row in rows):.0f} s each")
        for row in rows:
            worst = ""
            if "worst_group_best" in row:
                worst = f"worst group {100 * mean(row['worst_group_erm']):.1f} -> {100 * row['worst_group_best']:.1f}, "
            print(
                f"  seed {row['seed']}: {row['verdict']}, {row['chosen']}, {worst}accuracy "
                f"{' -> '.join(f'{100 * value:.1f}' for value in row['accuracy'])} ({row['accuracy_outcome']}), "
                f"{row['spent']:.1f} of {row['budget']:g}"
            )
        if "worst_group_best" in rows[0]:
            gains = [100 * (row["worst_group_best"] - mean(row["worst_group_erm"])) for row in rows]
            print(f"  gain in the true worst group: mean {mean(gains):.1f}, {', '.join(f'{g:.1f}' for g in gains)}")
        else:
            below = sum(row["accuracy_outcome"] in ("lowered", "lowered-for-these") for row in rows)
            none = sum(row["verdict"] not in ("raised", "raised-for-these") for row in rows)
            print(f"  accuracy clearly below ERM's in {below}, no clear gain in {none} of {len(rows)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("given", "unknown", "nothing", "noise", "summary"))
    parser.add_argument("out", type=Path, nargs="?", default=Path("runs/improve"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[300])
    args = parser.parse_args()
    if args.kind == "summary":
        summary(args.out)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        line = job(args.kind, seed, args.out)
        with (args.out / "lines.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
