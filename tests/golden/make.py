"""The numbers that evenly computes on small data, in one flat dictionary: a change that should move none is held to it.

    python tests/golden/make.py --out numbers.json                # every part; the demo takes over a minute
    python tests/golden/make.py --out numbers.json --only phase   # some parts
    python tests/golden/make.py --compare tests/golden/numbers.json

evenly is driven through its command line, on one thread. Keys depend on no file format: a reader class knows the
format of the folders, and turns a run into the names of `RUN`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import operator
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

Numbers = dict[str, Any]

METRICS = ("accuracy", "loss", "worst_class", "worst_group", "train_weighted", "groups", "group_counts")
RUN = (
    "cost",
    "cost_multiple",
    "evaluation_cost",
    "selected_epoch",
    "selected_after_epochs",
    "epochs",
    "chosen",
    "chosen_by_the_end",
    "used",
    "inferred_groups",
)
SUMMARY = ("accuracy", "worst_group", "train_weighted", "worst_class")
TOLERANCE = 1e-5
"""Of floats, absolute and relative, where the processor or a library is another one."""
LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn")
PER_GROUP = ("groups", "group_counts", "groups_shown")
NOT_NUMBERS = ("asked", "curves", "page", "seconds")
"""Entries of an audit or a card that say what was asked and drawn, and how long it took."""


# Reading folders


@dataclass
class TrainedRun:
    """A run as every reader returns it. `row` has the names of `RUN` and, for each split, those of `METRICS`."""

    key: str
    row: Mapping[str, Any]
    history: list[dict[str, Any]]
    weights: Mapping[str, torch.Tensor] | None
    is_control: bool = False


class SecondFormat:
    """Folders of `format` 2: rows name their arm by its parts, weights are in `model.safetensors`."""

    def runs(self, folder: Path) -> Iterator[TrainedRun]:
        """The runs of a comparison."""
        for row in json.loads((folder / "results.json").read_text())["rows"]:
            key, is_control = f"{self._key(row['arm'])}/seed{row['seed']}", row["arm"]["control_of"] is not None
            yield self._run(key, row["result"], folder / row["folder"], is_control)

    def run(self, folder: Path) -> TrainedRun:
        """A run of its own."""
        return self._run("", json.loads((folder / "results.json").read_text()), folder)

    def summaries(self, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        """For each arm that is no control its metrics' means, deviations and differences, and the cost to reach ERM."""
        for entry in json.loads((folder / "results.json").read_text())["summary"]:
            if entry["arm"]["control_of"] is not None:
                continue
            parts = ("mean", "sd", "difference")
            summary = {name: {part: entry["metrics"][name][part] for part in parts} for name in entry["metrics"]}
            reached = {
                f"{level['above_erm']:g}": {
                    "seeds_reached": sum(cost is not None for cost in level["costs"]),
                    "median_cost": level["median_cost"],
                }
                for level in entry["cost_to_reach"]
            }
            yield self._key(entry["arm"]), summary | {"to_reach": reached}

    def answer(self, file: Path) -> dict[str, Any]:
        """An audit, a stability card or a phase diagram."""
        content: dict[str, Any] = json.loads(file.read_text())
        return content

    def _key(self, arm: Mapping[str, Any]) -> str:
        if arm["control_of"] is not None:
            return f"{self._key(arm['control_of'])}/control"
        swept = [f"{name}={'full' if value is None else value}" for name, value in sorted(arm["swept"].items())]
        return ",".join([f"{arm['method']}+{arm['optimizer']}", *swept])

    def _run(self, key: str, result: dict[str, Any], folder: Path, is_control: bool = False) -> TrainedRun:
        row = {**result, **result["splits"], "cost_multiple": result["cost"] / result["unit"]}
        history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        # DFR fits the last layer after the last epoch
        weights = None if result["method"] == "dfr" else load_file(folder / "model.safetensors")
        return TrainedRun(key, row, history, weights, is_control)


def reader_of(folder: Path) -> SecondFormat:
    """The reader of a folder's format."""
    results = json.loads((folder / "results.json").read_text())
    if results.get("format") != 2:
        raise SystemExit(f"{folder} has format {results.get('format')}, which no reader here knows; add one")
    return SecondFormat()


# From what was read to numbers


def flat(value: Any, key: str = "") -> Numbers:
    """Every number in nested dictionaries and lists by its path; a list of numbers stays one. No strings, no None."""
    if isinstance(value, Mapping):
        named = [(name, inner) for name, inner in value.items() if name not in NOT_NUMBERS]
        nested = [flat(inner, f"{key}.{name}" if key else name) for name, inner in named]
        return {path: number for part in nested for path, number in part.items()}
    if isinstance(value, list):
        if all(inner is None or isinstance(inner, int | float) for inner in value):
            return {key: value} if value else {}
        return flat({str(place): inner for place, inner in enumerate(value)}, key)
    return {} if value is None or isinstance(value, str) else {key: value}


def numbers_of_run(run: TrainedRun, whole_history: bool = False) -> Numbers:
    """Measures of all splits, cost, history and weights; of a control only what the file has room for."""
    numbers = flat({name: run.row[name] for name in RUN if name in run.row})
    for split in ("test",) if run.is_control else ("train", "validation", "test"):
        measured = run.row.get(split) or {}
        numbers |= flat({name: measured[name] for name in METRICS if name in measured}, split)
    for stage in dict.fromkeys(row["stage"] for row in run.history):
        rows = [row for row in run.history if row["stage"] == stage]
        numbers[f"{stage}.first.train_loss"] = rows[0]["train_loss"]
        numbers[f"{stage}.last.train_loss"] = rows[-1]["train_loss"]
        validation = rows[-1].get("validation") or {}
        numbers |= flat({name: validation[name] for name in validation if name not in PER_GROUP}, f"{stage}.last")
        for row in rows if whole_history else []:
            numbers |= flat({name: row[name] for name in row if name != "epoch"}, f"{stage}.{row['epoch']}")
    if run.weights is not None:
        numbers["weights"] = digest(run.weights)
    if run.is_control:
        return {key: value for key, value in numbers.items() if key.rpartition(".")[2] not in PER_GROUP}
    return numbers


def digest(weights: Mapping[str, torch.Tensor]) -> str:
    """Of the sorted names and the values in float32."""
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode())
        found.update(weights[name].float().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def joined(parts: Mapping[str, Numbers]) -> Numbers:
    """The numbers of all parts, each under the name of its part."""
    return {f"{part}/{key}": value for part, numbers in parts.items() for key, value in numbers.items()}


def of_comparison(folder: Path) -> Numbers:
    reader = reader_of(folder)
    runs = {run.key: numbers_of_run(run) for run in reader.runs(folder)}
    return joined(runs) | joined({key: flat(summary) for key, summary in reader.summaries(folder)})


def of_run(folder: Path, whole_history: bool = False) -> Numbers:
    return numbers_of_run(reader_of(folder).run(folder), whole_history)


def of_answer(file: Path) -> Numbers:
    return flat(SecondFormat().answer(file))


def of_demo(folder: Path) -> Numbers:
    """Of the comparison. What was chosen on the digits is checked by `.ci/check_demo.py`: on another processor, runs
    that end a little differently may be chosen."""
    return joined({"patches": of_comparison(folder / "patches")})


# Small data


def make_data(folder: Path) -> None:
    """Two classes and an attribute that goes with the class in most examples, in three kinds of files; and colour
    images of three classes."""
    rng = np.random.default_rng(14)
    n = 300
    labels, attribute, split = _drawn(rng, n, 2)
    images = _images(rng, labels, attribute, channels=1)
    np.savez(folder / "images.npz", x=images, y=labels, groups=2 * labels + attribute, split=split)
    words = [["plot", "scene", "actor"], ["song", "beat", "choir"]]
    places = [["north", "snow"], ["south", "sand"]]
    filler = ["a", "the", "very", "some", "long", "day", "night", "and", "then"]
    lines = ["text,label,place"]
    for label, place in zip(labels, attribute, strict=True):
        told = [*rng.choice(words[label if rng.random() < 0.8 else 1 - label], 2), *rng.choice(places[place], 2)]
        text = " ".join(rng.permutation([*told, *rng.choice(filler, 4)]))
        lines.append(f"{text},{['no', 'yes'][label]},p{place}")
    (folder / "texts.csv").write_text("\n".join(lines) + "\n")
    lines = ["a,b,c,d,label,city,split"]
    x = rng.normal(size=(n, 4)) + np.stack([0.9 * labels, 2.5 * attribute, 0 * labels, 0.4 * labels], axis=1)
    for row, label, city, part in zip(x, labels, attribute, split, strict=True):
        lines.append(",".join([*(f"{number:.4f}" for number in row), f"c{label}", "lh"[city], part]))
    (folder / "numbers.csv").write_text("\n".join(lines) + "\n")
    labels, attribute, split = _drawn(rng, n, 3)
    images = _images(rng, labels, attribute, channels=3)
    np.savez(folder / "colours.npz", x=images, y=labels, groups=2 * labels + attribute, split=split)


def _drawn(rng: np.random.Generator, n: int, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    labels = np.arange(n) % classes
    attribute = np.where(rng.random(n) < 0.8, labels % 2, 1 - labels % 2)
    return labels, attribute, rng.choice(["train", "validation", "test"], n, p=[0.5, 0.2, 0.3])


def _images(rng: np.random.Generator, labels: np.ndarray, attribute: np.ndarray, channels: int) -> np.ndarray:
    """The class is a faint square in a place of its own, the attribute a bright edge."""
    x = rng.normal(90, 35, size=(len(labels), channels, 8, 8))
    for image, label, edge in zip(x, labels, attribute, strict=True):
        image[:, 2:5, 1 + 2 * label : 4 + 2 * label] += 60
        image[:, 0 if edge else 7] += 100
    return x.clip(0, 255).astype(np.uint8)


# The parts


def evenly(folder: Path, command: str, codes: tuple[int, ...] = (0,)) -> None:
    """Run a command line in a folder, on one thread."""
    one_thread = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-m", "evenly", *command.split()],
        cwd=folder,
        env=os.environ | one_thread,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in codes:
        raise SystemExit(f"evenly {command}: exit code {done.returncode}\n{done.stderr or done.stdout}")


METHODS = (
    "erm,useful,upweight,quantile,misclassification,jtt,random_upsample,subsample,reweight,group_dro,pde,lff,eiil,dfr"
)
SHORT = "--epochs 5 --batch-size 32 --device cpu"
EVERY_METHOD = f"{SHORT} --methods {METHODS} --sweep dfr.on=train,validation -o random_upsample.count=20"
COMPARISONS = {
    "compare-images": f"images.npz {EVERY_METHOD} --optimizers sgd,sam --seeds 2",
    "compare-texts": f"texts.csv {EVERY_METHOD} --optimizers sgd,sam --seeds 1 --lr 0.2",
    "compare-numbers": f"numbers.csv {EVERY_METHOD} --optimizers sgd,sam --seeds 1 --groups label,city",
    "compare-optimizers": f"images.npz {SHORT} --methods erm,useful,group_dro --optimizers asam,adam,adamw --seeds 2"
    " --lr 0.003 --weight-decay 0.01",
    "compare-select": "images.npz --epochs 12 --batch-size 32 --device cpu --methods erm,useful,pde,lff,dfr"
    " --optimizers sgd,sam --seeds 2 --select worst-group --patience 3",
    "compare-colours": f"colours.npz {SHORT} --methods erm,useful,reweight,dfr --optimizers sgd,sam --seeds 1"
    " --model convnet --augment basic --normalise data --schedule cosine",
    "compare-options": "numbers.csv --methods erm,useful,quantile,upweight,reweight,group_dro,pde,lff,eiil --seeds 1"
    " --epochs 8 --batch-size 32 --device cpu --schedule step --select average -o useful.on=features"
    " -o useful.separating_epoch=2 -o quantile.above=0.7 -o upweight.factor=3 -o reweight.by=loss"
    " -o group_dro.step_size=0.1 -o group_dro.C=1 -o pde.warmup_epochs=3 -o pde.every=2 -o pde.add=5"
    " -o pde.draw=random -o pde.decay=0.5 -o pde.reset_momentum=true -o lff.q=0.5 -o eiil.step_size=0.05",
    "sweep": "images.npz --epochs 5 --device cpu --methods erm,useful --optimizers sgd,sam --seeds 2"
    " --sweep batch_size=16,full --sweep useful.factor=2,3",
    "infer-useful": f"images.npz {SHORT} --methods erm,useful,group_dro,pde --seeds 2 --select worst-group"
    " --groups infer --infer useful",
    "infer-eiil": f"numbers.csv {SHORT} --methods erm,subsample,group_dro,dfr --seeds 2 --select worst-group"
    " --groups infer --infer eiil -d groups=label,city",
}
TRAINED = {
    "learned-images": f"images.npz {SHORT} --method useful --optimizer sam",
    "learned-texts": f"texts.csv {SHORT} --method pde --lr 0.2",
    "learned-numbers": f"numbers.csv {SHORT} --method erm --optimizer adam --lr 0.01",
}
RECORDED = (
    f"images.npz {SHORT} --record forgetting=true --record probes=true --record importance=0.05 --record spectrum=2"
    " --record l1=true --record every=2"
)
FEW_CELLS = "--x-values 1,4 --y-values 1,3,9 --n 20 --steps 100 --repeats 3"


def comparison(name: str, folder: Path) -> Numbers:
    evenly(folder, f"compare {COMPARISONS[name]} --jobs 1 --out out")
    return of_comparison(folder / "out")


def learned(name: str, folder: Path) -> Numbers:
    """A run, its audit and its stability card, whose exit code says whether the minimum is stable."""
    evenly(folder, f"train {TRAINED[name]} --out out")
    evenly(folder, "audit out --top 2 --samples 100 --device cpu --out audit")
    evenly(folder, "stability out --samples 60 --device cpu --out stability", codes=(0, 1))
    parts = {
        "run": of_run(folder / "out"),
        "audit": of_answer(folder / "audit" / "audit.json"),
        "stability": of_answer(folder / "stability" / "stability.json"),
    }
    return joined(parts)


def record(name: str, folder: Path) -> Numbers:
    evenly(folder, f"train {RECORDED} --out out")
    return of_run(folder / "out", whole_history=True)


def phase(name: str, folder: Path) -> Numbers:
    evenly(folder, f"stability {FEW_CELLS} --out out")
    return of_answer(folder / "out" / "stability.json")


def demo(name: str, folder: Path) -> Numbers:
    evenly(folder, "demo --jobs 2 --out out")
    return of_demo(folder / "out")


PARTS: dict[str, Callable[[str, Path], Numbers]] = {
    **dict.fromkeys(COMPARISONS, comparison),
    **dict.fromkeys(TRAINED, learned),
    "record": record,
    "phase": phase,
    "demo": demo,
}


def made(names: list[str]) -> Numbers:
    parts: dict[str, Numbers] = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            make_data(Path(folder))
            parts[name] = PARTS[name](name, Path(folder))
        print(f"{name}: {len(parts[name])} numbers", file=sys.stderr)
    return joined(parts)


# The file


def write(file: Path, numbers: Numbers) -> None:
    """As JSON, where and with what they were made and a line for each run: keys up to the last slash, with the rest."""
    runs: dict[str, Numbers] = {}
    for key, value in numbers.items():
        run, _, name = key.rpartition("/")
        runs.setdefault(run, {})[name] = value
    lines = [f"{json.dumps(run)}: {json.dumps(found, separators=(',', ':'))}" for run, found in runs.items()]
    body = ",\n".join(lines)
    file.write_text(f'{json.dumps(here())[:-1]}, "numbers": {{\n{body}\n}}}}\n')


def read(file: Path) -> tuple[dict[str, Any], Numbers]:
    """Where the numbers of a file were made, and the numbers."""
    place = json.loads(file.read_text())
    runs = place.pop("numbers")
    return place, joined(runs)


def here() -> dict[str, Any]:
    """What decides the last bits: the processor, the instructions torch uses of it, the libraries, the threads."""
    described: dict[str, str] = {}
    if (info := Path("/proc/cpuinfo")).exists():
        for line in info.read_text().split("\n\n")[0].splitlines():
            name, _, value = line.partition(":")
            described[name.strip()] = value.strip()
    named = [described.get(name, "?") for name in ("model name", "cpu family", "model")]
    cpu = f"{named[0]}, family {named[1]}, model {named[2]}, {torch.backends.cpu.get_cpu_capability()}"
    return {"cpu": cpu, **{name: version(name) for name in LIBRARIES}, "threads": 1}


# Comparing


def differences(old: Numbers, new: Numbers, exact: bool) -> list[tuple[str, Any, Any]]:
    """(key, old, new) of the numbers that differ; None for one that is not there."""
    same = operator.eq if exact else close
    keys = dict.fromkeys([*old, *new])
    return [(key, old.get(key), new.get(key)) for key in keys if not same(old.get(key), new.get(key))]


def close(old: Any, new: Any) -> bool:
    """Whether a number may be the old one on another processor: integers are the same, floats nearly, and digests of
    weights are not compared."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(close, old, new))
    if isinstance(old, str) and isinstance(new, str):
        return True
    if isinstance(old, float) and isinstance(new, int | float):
        return math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(old == new)


def report(file: Path, new: Numbers) -> bool:
    """Print what differs from the same parts of a file, to the last bit where that was made in such a place; whether
    nothing does."""
    place, stored = read(file)
    exact = place == here()
    parts = {key.partition("/")[0] for key in new}
    old = {key: value for key, value in stored.items() if key.partition("/")[0] in parts}
    found = differences(old, new, exact)
    for key, before, now in found:
        print(f"{key}: {before} -> {now}")
    how = "exactly" if exact else f"to {TOLERANCE:g}, as processor or libraries are others"
    print(f"{len(found)} of {len(new)} numbers differ from {file} (compared {how})")
    return not found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="file to write the numbers to")
    parser.add_argument("--compare", type=Path, help="file to compare the numbers with; exit code 1 where they differ")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts; all where not given")
    parser.add_argument("--demo", type=Path, help="folder of a finished demo, to read instead of running any part")
    asked = parser.parse_args()
    if not asked.out and not asked.compare:
        parser.error("nothing to do; give --out, --compare or both")
    numbers = made(asked.only) if asked.demo is None else joined({"demo": of_demo(asked.demo)})
    if asked.out:
        write(asked.out, numbers)
    return 0 if not asked.compare or report(asked.compare, numbers) else 1


if __name__ == "__main__":
    sys.exit(main())
