"""Arms of the 3-layer MLP on CIFAR-10, one after the other, each on three seeds; in parts, as benchmarks/gpu.py.

    EVENLY_DATA=... python benchmarks/gpu_mlp.py run --out runs/mlp --commit $(git rev-parse HEAD)
    python benchmarks/gpu_mlp.py run --out /tmp/trial --trial 200 --device cpu
    python benchmarks/gpu_mlp.py page docs/results/cifar10-mlp.json

A series is the arms of a figure, and makes one JSON file in `--home` (`--out`/home). While it has arms left to run the
file is called .partial.json. `run` takes the series in the order of `SERIES`, or those of `--series`. It stops after
`--seconds`, and the same command goes on. Its exit code is 0 once all is done and 3 while there is more to do. Seconds
are printed for each arm.

A control repeats as many random images as its arm, at its arm's whole cost, seed by seed. Training that diverges is
kept as a failure, and the other runs go on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from gpu import MORE_TO_DO, PartOverError, read_metrics, train
from gpu_pages import TRAINING_IMAGES, mean_sd
from gpu_units import Unit

from evenly.engine.side_by_side import side_by_side
from evenly.errors import EvenlyError
from evenly.runs.folder import read_results

SEEDS, EPOCHS, TRIAL_EPOCHS = (0, 1, 2), 200, 12
SEPARATING_EPOCH = 8
"""Of Nguyen et al. 2024, App. C.2, on CIFAR-10; they name no other for the MLP."""
LOWER_RATE = 0.01
"""At the paper's 0.1 this network's training loss stays near 2.0 until the rate falls, and at 0.2 it learns nothing."""
FAILED = "failed.txt"


@dataclass(frozen=True)
class Arm:
    """A method with an optimizer and options; a control takes cost and count from the arm that it is of."""

    name: str
    method: str = "erm"
    optimizer: str = "sgd"
    options: Mapping[str, Any] = field(default_factory=dict)
    control_of: str = ""


@dataclass(frozen=True)
class Series:
    """Arms for a figure.

    Attributes:
        beside: arms of other series that belong to the figure as well.
    """

    page: str
    title: str
    arms: tuple[Arm, ...]
    beside: str = ""


def sgd(name: str = "sgd", **options: Any) -> Arm:
    return Arm(name, options=options)


def useful(name: str = "useful", optimizer: str = "sgd", **options: Any) -> Arm:
    return Arm(name, "useful", optimizer, {"separating_epoch": SEPARATING_EPOCH} | options)


def all_six(prefix: str = "", **options: Any) -> tuple[Arm, ...]:
    """SGD and SAM, each plain, with USEFUL, and with random upsampling at USEFUL's cost."""
    names = {optimizer: f"{prefix}{'' if optimizer == 'sgd' else 'sam-'}" for optimizer in ("sgd", "sam")}
    plain = (Arm(f"{prefix}{optimizer}", "erm", optimizer, options) for optimizer in names)
    chosen = (useful(f"{name}useful", optimizer, **options) for optimizer, name in names.items())
    random = (
        Arm(f"{name}random", "random_upsample", optimizer, options, f"{name}useful")
        for optimizer, name in names.items()
    )
    return (*plain, *chosen, *random)


def pairs(option: str, *values: float, **options: Any) -> tuple[Arm, ...]:
    """SGD and USEFUL at each value of an option."""
    at = [(f"{option}-{value}", options | {option: value}) for value in values]
    return tuple(arm(f"{word}-{name}", **each) for name, each in at for word, arm in (("sgd", sgd), ("useful", useful)))


SERIES = {
    "methods": Series("cifar10-mlp", "CIFAR-10: a 3-layer MLP with the paper's recipe", all_six()),
    "lower-rate": Series(
        "cifar10-mlp-lower-rate",
        "CIFAR-10: a 3-layer MLP at a tenth of the paper's learning rate",
        all_six("lower-", lr=LOWER_RATE),
    ),
    "epochs": Series(
        "cifar10-mlp-epochs",
        "CIFAR-10: a 3-layer MLP, USEFUL separated after other epochs",
        tuple(useful(f"useful-{t}", separating_epoch=t, lr=LOWER_RATE) for t in (4, 5, 6, 7, 10)),
        "8 epochs: cifar10-mlp-lower-rate.md",
    ),
    "factors": Series(
        "cifar10-mlp-factors",
        "CIFAR-10: a 3-layer MLP, USEFUL with other factors",
        tuple(useful(f"useful-x{k}", factor=k, lr=LOWER_RATE) for k in (3, 4, 5)),
        "factor 2 and SGD: cifar10-mlp-lower-rate.md",
    ),
    "batches": Series(
        "cifar10-mlp-batches",
        "CIFAR-10: a 3-layer MLP with larger batches",
        pairs("batch_size", 256, 512, lr=LOWER_RATE),
        "batches of 128: cifar10-mlp-lower-rate.md",
    ),
    "rates": Series(
        "cifar10-mlp-rates",
        "CIFAR-10: a 3-layer MLP at two and four times the lower learning rate",
        pairs("lr", 2 * LOWER_RATE, 4 * LOWER_RATE),
        "learning rates 0.01 and 0.1: cifar10-mlp-lower-rate.md and cifar10-mlp.md",
    ),
}
"""In the order of worth."""


def run(args: argparse.Namespace) -> bool:
    """Train until every arm of the series is done or the part's time is over; whether all are done."""
    device, until = torch.device(args.device), args.started + args.seconds
    for name in args.series:
        for arm in SERIES[name].arms:
            began = time.monotonic()
            left = [seed for seed in SEEDS if not is_done(args.out / arm.name, seed)]
            jobs = [partial(train_arm, arm, seed, args, device, until) for seed in left]
            try:
                if time.monotonic() > until and left:
                    raise PartOverError
                side_by_side(jobs, device, args.side_by_side if device.type == "cuda" else 1)
            except PartOverError:
                bring_home(SERIES[name], args, device)
                print(f"{time.monotonic() - args.started:5.0f} s  {arm.name}: not done, {spent(began)}", flush=True)
                return False
            bring_home(SERIES[name], args, device)
            print(f"{time.monotonic() - args.started:5.0f} s  {arm.name}: done, {spent(began)}", flush=True)
    return True


def spent(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s in this part"


def is_done(folder: Path, seed: int) -> bool:
    return any((folder / f"seed{seed}" / name).exists() for name in ("results.json", FAILED))


def train_arm(arm: Arm, seed: int, args: argparse.Namespace, device: torch.device, until: float) -> None:
    """Train an arm on a seed; training that diverges leaves a file that says so."""
    out, options = args.out / arm.name, dict(arm.options)
    out.mkdir(parents=True, exist_ok=True)
    if arm.control_of:
        of = args.out / arm.control_of / f"seed{seed}"
        if (of / FAILED).exists():
            _fail(out, seed, f"{arm.control_of} failed")
            return
        results = read_results(of)
        options |= {"count": results.chosen, "factor": results.factor, "budget": results.cost}
    unit = Unit("", "", arm.method, arm.optimizer, model="mlp_512", options=options, epochs=args.epochs)
    try:
        train(unit, seed, argparse.Namespace(**vars(args) | {"out": out}), device, until)
    except EvenlyError as error:
        if "NaN or inf" not in str(error):
            raise
        _fail(out, seed, str(error))


def _fail(out: Path, seed: int, why: str) -> None:
    (out / f"seed{seed}").mkdir(exist_ok=True)
    (out / f"seed{seed}" / FAILED).write_text(why)


def bring_home(series: Series, args: argparse.Namespace, device: torch.device) -> None:
    """Write what is done of a series."""
    home = args.home or args.out / "home"
    home.mkdir(parents=True, exist_ok=True)
    arms, settings = {}, {}
    for arm in series.arms:
        rows = []
        for seed in SEEDS:
            folder = args.out / arm.name / f"seed{seed}"
            if (folder / FAILED).exists():
                rows.append({"seed": seed, "failed": (folder / FAILED).read_text()})
            elif (folder / "results.json").exists():
                results, plan = read_results(folder), json.loads((folder / "config.json").read_text())["plan"]
                settings = plan["settings"] | {"data": plan["data"]["name"], "model": plan["model"]["name"]}
                rows.append(
                    {
                        "seed": seed,
                        "test_error": 100 * (1 - results.splits["test"].accuracy),
                        "cost_multiple": results.cost_multiple,
                        "train_loss": [round(row["train_loss"], 5) for row in read_metrics(folder / "metrics.jsonl")],
                        "results": results.to_dict(),
                    }
                )
        if rows:
            arms[arm.name] = {
                "method": arm.method, "optimizer": arm.optimizer, "options": dict(arm.options),
                "control_of": arm.control_of, "rows": rows,
            }  # fmt: skip
    done = all(len(arms.get(arm.name, {"rows": ()})["rows"]) == len(SEEDS) for arm in series.arms)
    name = next(name for name, each in SERIES.items() if each is series)
    measured = {
        "series": name, "commit": args.commit,
        "command": f"python benchmarks/gpu_mlp.py run --out FOLDER --series {name}",
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else "CPU", "torch": torch.__version__,
        "settings": settings, "arms": arms, **({"trial": args.trial} if args.trial else {}),
    }  # fmt: skip
    partial_file = home / f"{series.page}.partial.json"
    partial_file.unlink(missing_ok=True)
    file = home / f"{series.page}.json" if done else partial_file
    file.write_text(json.dumps(measured, indent=None) + "\n")


def write_page(file: Path) -> None:
    """The page of a JSON file, beside it."""
    file.with_suffix(".md").write_text("\n".join(_lines(json.loads(file.read_text()))) + "\n")


def _lines(measured: dict[str, Any]) -> list[str]:
    series, settings = SERIES[measured["series"]], measured["settings"]
    note = f" {measured['note']}" if "note" in measured else ""
    beside = f" Beside it: {series.beside}." if series.beside else ""
    lines = [
        f"# {series.title}", "",
        f"3072-512-512-10, ReLU, dropout 0.1, {settings['epochs']} epochs, seeds {', '.join(map(str, SEEDS))}. Where "
        "the options say no other: batch 128, learning rate 0.1, divided by 10 at half and three quarters. Momentum "
        f"{settings['momentum']}, weight decay {settings['weight_decay']}, SAM's rho {settings['rho']}, zero padding "
        "of 4, crop and flip, bf16. The last epoch's weights; the test set selected nothing. A control repeats as "
        f"many random images as its arm, at its arm's whole cost. {measured['machine']}, torch {measured['torch']}, "
        f"commit `{measured['commit'][:12]}`.{note}{beside}", "",
        "| arm | options | test error, %, mean ± standard deviation over seeds (each seed) | cost, as a multiple of "
        "SGD's | images repeated, % | training loss after 8 epochs | at the end |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, arm in measured["arms"].items():
        rows = [row for row in arm["rows"] if "failed" not in row]
        options = ", ".join(f"{key} {value}" for key, value in arm["options"].items())
        options = options or (f"at the cost of {arm['control_of']}" if arm["control_of"] else "–")
        failed = f"; {len(arm['rows']) - len(rows)} diverged" if len(rows) < len(arm["rows"]) else ""
        if not rows:
            lines.append(f"| {name} | {options} | all diverged | | | | |")
            continue
        losses = [row["train_loss"] for row in rows]
        errors = [row["test_error"] for row in rows]
        repeated = [row["results"]["chosen"] for row in rows]
        cells = (
            name, options,
            (mean_sd(errors, 2) if len(errors) > 1 else f"{errors[0]:.2f}") + failed,
            f"{mean(row['cost_multiple'] for row in rows):.2f}",
            "" if None in repeated else f"{100 * mean(repeated) / TRAINING_IMAGES:.1f}",
            f"{mean(loss[min(8, len(loss)) - 1] for loss in losses):.3f}", f"{mean(loss[-1] for loss in losses):.3f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", f"Made by `{measured['command']}`; every number is in `{series.page}.json` beside this page."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("run", help="train the arms of all series, or of some")
    verb.add_argument("--out", type=Path, required=True, help="run folders; the same command goes on from them")
    verb.add_argument("--home", type=Path, help="where results are put after each arm, without weights")
    verb.add_argument("--series", nargs="+", choices=SERIES, default=list(SERIES))
    verb.add_argument("--commit", default="unknown")
    verb.add_argument("--seconds", type=float, default=570, help="of one part")
    verb.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    verb.add_argument("--side-by-side", type=int, default=3, metavar="RUNS")
    verb.add_argument("--epochs", type=int, help=f"{EPOCHS}, in a trial {TRIAL_EPOCHS}")
    verb.add_argument("--print-every", type=int, default=50, metavar="EPOCHS")
    verb.add_argument("--trial", type=int, metavar="N", help="train on N random images instead")
    verbs.add_parser("page", help="write the page of a JSON file").add_argument("file", type=Path)
    args = parser.parse_args()
    args.started = time.monotonic()
    if args.verb == "run" and args.epochs is None:
        args.epochs = TRIAL_EPOCHS if args.trial else EPOCHS
    if args.verb == "page":
        write_page(args.file)
        return
    sys.exit(0 if run(args) else MORE_TO_DO)


if __name__ == "__main__":
    main()
