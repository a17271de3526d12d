"""Units of work for a GPU that is at hand for minutes at a time: one arm on its seeds, side by side, in parts.

    python benchmarks/gpu.py queue
    EVENLY_DATA=... python benchmarks/gpu.py next --out runs/gpu --home results --commit $(git rev-parse HEAD)
    EVENLY_DATA=... python benchmarks/gpu.py sam-200 --out runs/sam-200 --commit $(git rev-parse HEAD)
    python benchmarks/gpu.py sgd-200 --out /tmp/trial --trial 40 --epochs 9
    python benchmarks/gpu.py page docs/results/cifar10-sgd-200.json

`queue` lists the units that claims of the papers wait for. `next` runs them one after the other. A part takes
`--seconds` at most. The same command goes on from the checkpoints in `--out`; its exit code is 0 once all is done and 3
while there is more to do. After each part `--home` holds a JSON file for each unit, with results, metrics and recorded
values; that of a unit with more to do is called .partial.json, and a unit that another script runs has its file once it
is done. Weights are left in `--out`. To make use of a file, copy it into docs/results, write its `page`, and run
`python benchmarks/claims.py`: the claims that waited for it are then judged. `--trial` trains a small network on that
many random images.

Measured on one NVIDIA H200 with three seeds side by side: `sgd-200` took 11 minutes in two parts, `useful-8` 14 and
`useful-4` and `random`, which follow no forgetting, 11 and 10.5. Minutes of the others are estimates from these.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_pages import write_page
from gpu_units import COMMANDS, QUEUE, UNITS, Command, Unit
from torch import nn

import evenly
from evenly.data import Data, Split, load
from evenly.engine.batches import Batches
from evenly.engine.evaluation import outputs_of
from evenly.engine.losses import predictions
from evenly.engine.side_by_side import side_by_side
from evenly.errors import EvenlyError, first_line
from evenly.papers.claims import Scale, all_claims
from evenly.papers.nodes import Stored, is_stored, nodes_in
from evenly.runs.folder import read_results

PER_CLASS, TOP = 100, 5
MORE_TO_DO = 3
STOPPING = 20.0
"""Seconds in which an interrupted script may end."""
RESULTS = Path(__file__).parents[1] / "docs" / "results"
WEIGHTS = Path(os.environ.get("EVENLY_DATA", ".")) / "weights" / "mobilenet_v2-b0353104.npz"


class PartOverError(Exception):
    """The time of this part is used up."""


class Answers:
    """Which training examples are right after each epoch: booleans (epochs, N) in a file beside the run.

    The pass is that of an evaluation, 1,024 images at a time in the precision that the network trains in, so that it
    takes less time on a GPU than `record={"forgetting": True}`: 256 images at a time in float32. The epoch is the one
    after the last of the final stage in the run's metrics, so that an epoch trained again after a stop replaces its
    row, and the first one those of an early network.
    """

    def __init__(self, data: Data, device: torch.device, epochs: int, run: Path) -> None:
        self.batches = Batches(data.train, None, device)
        self.labels, self.metrics = data.train.labels, run / "metrics.jsonl"
        file = answers_file(run)
        if not file.exists():
            if read_metrics(self.metrics):
                raise EvenlyError(f"{file} is gone, which forgetting is counted from; remove {run} and train it again")
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, np.zeros((epochs, len(data.train)), dtype=bool))
        self.rows = np.load(file, mmap_mode="r+")

    def __call__(self, model: nn.Module) -> dict[str, float]:
        right = predictions(outputs_of(model, self.batches)).cpu() == self.labels
        self.rows[len(read_metrics(self.metrics))] = right.numpy()
        return {"right": float(right.double().mean())}


class Spectrum:
    """The top eigenvalues over 100 training images of each class, as in the paper's App. C.2.

    The products are in float32 without TF32. An eigenvalue that has not converged is NaN, and so is left out.
    """

    def __init__(self, split: Split, seed: int) -> None:
        assert isinstance(split.inputs, torch.Tensor)
        classes = split.labels.unique()
        index = torch.cat([(split.labels == label).nonzero().flatten()[:PER_CLASS] for label in classes])
        self.part, self.seed = Split(split.inputs[index], split.labels[index]), seed

    def __call__(self, model: nn.Module) -> Any:
        tf32, started = torch.backends.cudnn.allow_tf32, time.perf_counter()
        torch.backends.cudnn.allow_tf32 = False
        try:
            spectrum = evenly.hessian_spectrum(model, "cross-entropy", self.part, top=TOP)
        finally:
            torch.backends.cudnn.allow_tf32 = tf32
        print(f"seed {self.seed}: {spectrum}, {time.perf_counter() - started:.1f} s", flush=True)
        return replace(spectrum, eigenvalues=spectrum.eigenvalues.masked_fill(~spectrum.converged, torch.nan))


def train(unit: Unit, seed: int, args: argparse.Namespace, device: torch.device, until: float) -> None:
    data = images(unit.data, seed, args.trial)
    run = args.out / f"seed{seed}"
    data.observe = Answers(data, device, unit.epochs, run) if unit.forgetting else None
    record = {"spectrum": Spectrum(data.train, seed), "l1": True, "epochs": list(unit.record_at)}

    def progress(share: float, note: str) -> None:
        if note and round(share * unit.epochs) % args.print_every == 0:
            print(f"{time.monotonic() - args.started:5.0f} s  seed {seed}: {note}", flush=True)
        if time.monotonic() > until and share < 1:
            raise PartOverError

    evenly.train(
        data=data, model="convnet" if args.trial else unit.model, method=unit.method, optimizer=unit.optimizer,
        seed=seed, epochs=unit.epochs, out=run, device=str(device), progress=progress,
        record=record if unit.record_at else None, **unit.options, **equal_cost(unit.control_of, seed, args),
    )  # fmt: skip


def equal_cost(name: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """What a control takes over from the unit that it is of: count, factor and budget."""
    if not name:
        return {}
    rows = json.loads(file_of(name, args).read_text())["rows"]
    of_seed = next(row["results"] for row in rows if row["seed"] == seed)
    return {"count": of_seed["chosen"], "factor": of_seed["factor"], "budget": of_seed["cost"]}


def file_of(name: str, args: argparse.Namespace) -> Path:
    """The file of a unit: the queue's own, or the one in docs/results."""
    file = f"{page_of(name)}.json"
    found = [path for path in (args.out.parent / name / "home" / file, args.results / file) if path.exists()]
    if not found:
        raise SystemExit(f"{args.results / file} is not there; run {name} first")
    return found[0]


@cache
def images(name: str, seed: int, trial: int | None) -> Data:
    """The data of a seed, read once, or so many random images."""
    return random_images(trial) if trial else load(name, seed=seed)


def random_images(count: int) -> Data:
    draw = torch.Generator().manual_seed(0)
    train, test = (
        (torch.randint(256, (n, 3, 32, 32), generator=draw, dtype=torch.uint8), torch.arange(n) % 10)
        for n in (count, 20)
    )
    return Data(train, test=test, name="random images", recipe={"augment": "basic", "normalise": "data"})


def run(unit: Unit, args: argparse.Namespace) -> bool:
    """Train until the unit is done or the part's time is over; whether it is done."""
    device = torch.device(args.device)
    until = args.started + args.seconds
    jobs = [partial(train, unit, seed, args, device, until) for seed in unit.seeds]
    done = True
    try:
        side_by_side(jobs, device, len(jobs) if device.type == "cuda" else 1)
    except PartOverError:
        done = False
    bring_home(unit, args, device)
    return done


def bring_home(unit: Unit, args: argparse.Namespace, device: torch.device) -> None:
    """Write what is there so far of every seed."""
    rows, settings = [], {}
    for seed in unit.seeds:
        run = args.out / f"seed{seed}"
        metrics = read_metrics(run / "metrics.jsonl")
        if not metrics:
            continue
        config = json.loads((run / "config.json").read_text())
        plan = config["plan"]
        settings = plan["settings"] | {"data": plan["data"]["name"], "model": plan["model"]["name"]}
        row: dict[str, Any] = {
            "seed": seed,
            "epochs": len(metrics),
            "train_loss": [row["train_loss"] for row in metrics],
        }
        if unit.forgetting:
            row |= forgetting_row(metrics, np.load(answers_file(run)))
        if (run / "results.json").exists():
            results = read_results(run)
            row |= {
                "test_error": 100 * (1 - results.splits["test"].accuracy),
                "cost_multiple": results.cost_multiple,
                "results": results.to_dict(),
            }
        rows.append(row)
    measured = {
        "unit": args.unit, "commit": args.commit,
        "command": f"python benchmarks/gpu.py {args.unit} --out FOLDER",
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else "CPU", "torch": torch.__version__,
        "settings": settings, "record_at": unit.record_at, **({"trial": args.trial} if args.trial else {}),
        "rows": rows,
    }  # fmt: skip
    done = len([row for row in rows if "results" in row]) == len(unit.seeds)
    for home in filter(None, (args.out / "home", args.home)):
        home.mkdir(parents=True, exist_ok=True)
        partly = home / f"{unit.page}.partial.json"
        partly.unlink(missing_ok=True)
        file = home / f"{unit.page}.json" if done else partly
        file.write_text(json.dumps(measured, indent=1) + "\n")


def forgetting_row(metrics: list[dict[str, Any]], answers: Any) -> dict[str, Any]:
    """What is kept of forgetting. The score of an example that never was right is infinite."""
    history = answers[: len(metrics)]
    scores = evenly.forgetting_scores(history).numpy()
    times = scores[np.isfinite(scores)].astype(int)
    recorded = []
    for row in (row for row in metrics if "l1_norm" in row):
        so_far = evenly.forgetting_scores(history[: row["epoch"]])
        values = {name: row[name] for name in row if name.startswith("lambda_") or name in ("l1_norm", "right")}
        forgotten = float(so_far[so_far.isfinite()].mean())
        never = int(so_far.isinf().sum())
        recorded.append({"epoch": row["epoch"], **values, "mean_forgetting": forgotten, "never_right": never})
    return {
        "mean_forgetting": float(times.mean()),
        "never_right": int(np.isinf(scores).sum()),
        "forgotten_times": {str(k): int(n) for k, n in enumerate(np.bincount(times)) if n},
        "recorded": recorded,
        **{name: [row[name] for row in metrics] for name in ("train_accuracy", "right")},
    }


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """The epochs of the final stage."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [row for row in rows if row["stage"] == "final"]


def answers_file(run: Path) -> Path:
    return run.with_name(f"{run.name}-answers.npy")


def run_command(command: Command, args: argparse.Namespace) -> bool:
    """Run a unit of another script until it is done or the part's time is over; whether it is done."""
    needed = {"weights": args.weights, "results": args.results}
    if "{celeba-features}" in command.arguments:
        needed["celeba-features"] = file_of("celeba-features", args)
    template = command.arguments.replace("--weights {weights}", "") if args.trial else command.arguments
    arguments = shlex.split(template.format(**needed))
    home = args.out / "home"
    line = [sys.executable, str(Path(__file__).with_name(f"{command.script}.py")), *arguments, "--out", str(args.out)]
    line += ["--home" if command.in_parts else "--results", str(home), "--commit", args.commit, "--device", args.device]
    if command.in_parts:
        line += ["--seconds", str(args.started + args.seconds - time.monotonic())]
    if args.trial:
        line += ["--trial", str(args.trial)] if command.in_parts else ["--trial", "--model", "convnet", "--jobs", "1"]
    process = subprocess.Popen(line)
    try:
        slack = STOPPING if command.in_parts else 0
        code = process.wait(max(args.started + args.seconds + slack - time.monotonic(), 1))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOPPING)
        except subprocess.TimeoutExpired:
            process.kill()
        return False
    if code not in (0, MORE_TO_DO):
        sys.exit(code)
    for file in home.glob(f"{command.page}.*") if code == 0 and args.home else ():
        args.home.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, args.home)
    return code == 0


def run_named(name: str, args: argparse.Namespace) -> bool:
    """Run a unit; whether it is done."""
    if name in COMMANDS:
        return run_command(COMMANDS[name], args)
    unit = UNITS[name]
    epochs = args.epochs or unit.epochs
    at = tuple(args.record_at) if args.record_at is not None else tuple(min(at, epochs) for at in unit.record_at)
    return run(replace(unit, epochs=epochs, record_at=at), args)


def run_queue(args: argparse.Namespace) -> bool:
    """Run the units whose files are not in docs/results, one after the other; whether all are done."""
    out = args.out
    for name in QUEUE:
        done = out / name / ("done-trial" if args.trial else "done")
        if done.exists() or (args.results / f"{page_of(name)}.json").exists():
            continue
        if time.monotonic() > args.started + args.seconds:
            return False
        print(f"{time.monotonic() - args.started:5.0f} s  {name}", flush=True)
        folder = COMMANDS[name].folder if name in COMMANDS else ""
        unit = argparse.Namespace(**vars(args) | {"out": out / (folder or name), "unit": name})
        if not run_named(name, unit):
            return False
        done.parent.mkdir(exist_ok=True)
        done.touch()
    return True


def page_of(name: str) -> str:
    """The name of a unit's file in docs/results, without the suffix."""
    return COMMANDS[name].page if name in COMMANDS else UNITS[name].page


def waiting() -> dict[str, tuple[int, list[str]]]:
    """Files that claims wait for, without the suffix: minutes of a GPU, and those claims."""
    files: dict[str, tuple[int, list[str]]] = {}
    for id, claim in all_claims().items():
        for node in nodes_in(claim.uses(Scale())) if claim.uses is not None else ():
            if isinstance(node, Stored) and not is_stored(node):
                _, claims = files.setdefault(node.file.removesuffix(".json"), (node.minutes, []))
                claims.append(id)
    return files


def print_queue() -> None:
    """The units that claims wait for, in the order of the queue."""
    files = waiting()
    for name in QUEUE:
        if page_of(name) in files:
            minutes, claims = files[page_of(name)]
            text = f"{name:<20} {minutes:>4} min  {', '.join(dict.fromkeys(claims))}"
            print(textwrap.fill(text, 100, subsequent_indent=" " * 31, break_on_hyphens=False))
    print(f"{sum(minutes for minutes, _ in files.values()):>25} min in all")


def at_least_1(text: str) -> int:
    """A number on the command line."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="unit", required=True, metavar="UNIT")
    titles = {name: unit.title for name, unit in UNITS.items()}
    titles |= {name: f"{command.script}.py {command.arguments}" for name, command in COMMANDS.items()}
    for name, title in ({"next": "run the queue, each unit in a folder of its own"} | titles).items():
        verb = verbs.add_parser(name, help=title)
        verb.add_argument("--out", type=Path, required=True, help="run folders; the same command goes on from them")
        verb.add_argument("--home", type=Path, help="where results are put after each part, without weights")
        verb.add_argument("--results", type=Path, default=RESULTS, help="results that are there already")
        verb.add_argument("--weights", type=Path, default=WEIGHTS, help="ImageNet's weights of a MobileNetV2")
        verb.add_argument("--commit", default="unknown")
        verb.add_argument("--seconds", type=float, default=570, help="of one part")
        verb.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        verb.add_argument("--epochs", type=at_least_1, help="instead of the unit's")
        verb.add_argument("--record-at", type=int, nargs="*", metavar="EPOCH", help="instead of the unit's")
        verb.add_argument("--print-every", type=int, default=10, metavar="EPOCHS")
        verb.add_argument(
            "--trial", type=at_least_1, metavar="N", help="train a small network on N random images instead"
        )
    verbs.add_parser("queue", help="list the units that claims wait for")
    verbs.add_parser("page", help="write the page of a JSON file").add_argument("file", type=Path)
    args = parser.parse_args()
    args.started = time.monotonic()
    try:
        if args.unit == "page":
            write_page(args.file)
        elif args.unit == "queue":
            print_queue()
        else:
            sys.exit(0 if (run_queue(args) if args.unit == "next" else run_named(args.unit, args)) else MORE_TO_DO)
    except (EvenlyError, OSError, ValueError) as error:
        print(f"gpu.py: {first_line(error)}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
