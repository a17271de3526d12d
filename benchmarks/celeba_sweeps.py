"""PDE's ablations on real images: arms on the first 10,000 images of CelebA, each on three seeds, in parts.

    EVENLY_DATA=... python benchmarks/celeba_sweeps.py run --out runs/sweeps --commit $(git rev-parse HEAD)
    EVENLY_DATA=... python benchmarks/celeba_sweeps.py run --series sizes --out runs/sweeps --commit COMMIT
    python benchmarks/celeba_sweeps.py run --out /tmp/trial --trial 80 --device cpu
    python benchmarks/celeba_sweeps.py page docs/results/celeba-pde-sizes.json

A series is the arms of a table of Deng et al. (2023), and makes one JSON file in `--home` (`--out`/home). While it has
arms left to run the file is called .partial.json. Series that share an arm share its runs, if they have the same
`--out`. `run` stops after `--seconds`, and the same command goes on; killed, too. Its exit code is 0 once all is done
and 3 while there is more to do. A finished run needs only its file in `--home`/rows, so that another machine can go on
from that folder alone.

Every arm fine-tunes a MobileNetV2 from ImageNet's weights. PDE has `GROUPED` of real_images.py and the learning rate
0.01 that validation chose (docs/results/celeba-tuned.md). Validation selects epochs. The test set is measured after
every evaluation on validation, so that one run shows what each of its stages had reached and what it had at any cost.
It selects nothing. `--trial` trains a small network on random images, to see that all works.

The series "attention" is for Figure 1 (C) and on CIFAR-MNIST, a picture below a digit: there it is known where the core
feature is and where the spurious one. CelebA's images come without masks of the hair.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from gpu import MORE_TO_DO, PartOverError, read_metrics
from gpu_pages import mean_sd
from real_images import GROUPED
from torch import nn

import evenly
from evenly.data import Data, load
from evenly.data.benchmarks import RECIPES
from evenly.engine.accuracy import measure
from evenly.engine.batches import Batches
from evenly.engine.evaluation import outputs_of
from evenly.engine.side_by_side import side_by_side
from evenly.methods.pde import expansions
from evenly.runs.run import Run

SEEDS, RATE = (0, 1, 2), 0.01
"""The rate that validation chose for PDE and for ERM: docs/results/celeba-tuned.md."""
WEIGHTS = Path("weights") / "mobilenet_v2-b0353104.npz"
PDE = GROUPED["pde"] | {"lr": RATE}
DRO = {name: RECIPES["celeba"]["group-dro-paper"][name] for name in ("lr", "weight_decay", "batch_size")}
DRO |= {"epochs": 300, "evaluate_every": 1, "schedule": "constant"}
"""The published recipe. Its 23.7 passes over 162,770 images up to the best epoch have as many steps as 750 epochs here;
300 epochs have as many as 9 passes there."""


@dataclass(frozen=True)
class Arm:
    """A method with settings.

    Attributes:
        continued: whether the expansions are empty and epochs are added until the run costs what it would with them.
        data: "celeba", or "cifar-mnist", where Grad-CAM is measured as well.
    """

    name: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    continued: bool = False
    data: str = "celeba"

    @property
    def file_name(self) -> str:
        """Its name without spaces and commas, which do not survive every way home."""
        return self.name.replace(",", "").replace(" ", "-")


@dataclass(frozen=True)
class Series:
    """The arms of a table.

    The claims that wait for its file have an estimate of its minutes, by itself. `evenly improve`
    (docs/results/improve-celeba.md) took at most 27 s, all told, for what one run of ERM costs, 800 steps with their
    evaluations; a run of PDE has 1,100 steps. For GroupDRO's 12,000 steps, which are compiled, 10 ms each are assumed,
    and 100 s for compiling and evaluations.
    """

    page: str
    title: str
    arms: tuple[Arm, ...]


def pde(name: str = "pde", **settings: Any) -> Arm:
    return Arm(name, "pde", PDE | settings)


def group_dro(name: str = "group_dro", **settings: Any) -> Arm:
    return Arm(name, "group_dro", DRO | settings)


COMPOSITE = {"lr": 0.05, "weight_decay": 5e-4, "batch_size": 128, "evaluate_every": 1}
"""The middle one of the learning rates of Springer et al. (2024, App. B) for this data."""
STAGES = {"epochs": 180, "warmup_epochs": 120, "every": 6, "add": 45, "decay": 0.01, "schedule": "constant"}
"""PDE's: two thirds of the epochs to warm up, then ten expansions by a twentieth, as is the default; 180 epochs cost
what 20 of ERM cost."""
CORRELATION = 0.95
"""The share of the images whose digit agrees with the label: that of Waterbirds' backgrounds."""
ERM = Arm("erm", "erm", {"lr": RATE, "epochs": 20, "batch_size": 128, "schedule": "cosine"})
SERIES = {
    "stages": Series(
        "celeba-pde-stages",
        "CelebA, the first 10,000 images: PDE after each stage",
        (pde(), replace(pde("warm-up continued"), continued=True), ERM),
    ),
    "sizes": Series(
        "celeba-pde-sizes",
        "CelebA, the first 10,000 images: PDE with expansions of 5, 10 and 50",
        (pde("add 5", add=5), pde(), pde("add 50", add=50)),
    ),
    "rates": Series(
        "celeba-pde-rates",
        "CelebA, the first 10,000 images: PDE with other learning rates in the expansion stage",
        (pde("factor 1", decay=1.0), pde("factor 0.1", decay=0.1), pde(), pde("factor 0.001", decay=0.001)),
    ),
    "momentum": Series(
        "celeba-pde-momentum",
        "CelebA, the first 10,000 images: PDE with its momentum kept or reset after the warm-up",
        (pde(), pde("reset", reset_momentum=True)),
    ),
    "recipe": Series(
        "celeba-dro-recipe",
        "CelebA, the first 10,000 images: GroupDRO at its published learning rate and weight decay, and PDE",
        (pde(), group_dro()),
    ),
    "augment": Series(
        "celeba-pde-augment",
        "CelebA, the first 10,000 images: GroupDRO and PDE with and without augmentation",
        (pde(), pde("pde, basic", augment="basic"), group_dro(), group_dro("group_dro, basic", augment="basic")),
    ),
    "attention": Series(
        "cifar-mnist-attention",
        "CIFAR-MNIST: where ERM and PDE look, by Grad-CAM",
        (
            Arm("erm on composites", "erm", COMPOSITE | {"epochs": 20, "schedule": "cosine"}, data="cifar-mnist"),
            Arm("pde on composites", "pde", COMPOSITE | STAGES, data="cifar-mnist"),
        ),
    ),
}
"""In the order of worth for their minutes."""
SHORT = {"epochs": 6, "warmup_epochs": 3, "every": 1, "evaluate_every": 1, "batch_size": 16}
"""What a trial has instead."""


class TestAccuracy:
    """The accuracy on the test set by group, at the epochs that are evaluated on validation.

    The epoch is the one after the last in the run's metrics, so that a run that goes on is measured at the same ones.
    """

    def __init__(self, data: Data, device: torch.device, run: Path, settings: Mapping[str, Any]) -> None:
        assert data.test is not None
        self.data, self.batches = data, Batches(data.test, None, device)
        self.metrics, self.every, self.epochs = run / "metrics.jsonl", settings["evaluate_every"], settings["epochs"]

    def __call__(self, model: nn.Module) -> dict[str, Any]:
        epoch = 1 + len(read_metrics(self.metrics))
        if epoch % self.every and epoch < self.epochs:
            return {}
        return {"test": measure(outputs_of(model, self.batches), self.batches.split, self.data).row()}


def run(args: argparse.Namespace) -> bool:
    """Train until every arm of the series is done or the part's time is over; whether all are done."""
    device, until = torch.device(args.device), args.started + args.seconds
    for name in args.series:
        for arm in SERIES[name].arms:
            left = [seed for seed in SEEDS if not row_file(arm, seed, args).exists()]
            jobs = [partial(train, arm, seed, args, device, until) for seed in left]
            try:
                if left and time.monotonic() > until:
                    raise PartOverError
                side_by_side(jobs, device, args.side_by_side if device.type == "cuda" else 1)
            except PartOverError:
                bring_home(name, args)
                print(f"{time.monotonic() - args.started:5.0f} s  {name}, {arm.name}: not done", flush=True)
                return False
            print(f"{time.monotonic() - args.started:5.0f} s  {name}, {arm.name}: done", flush=True)
        bring_home(name, args)
    return True


def train(arm: Arm, seed: int, args: argparse.Namespace, device: torch.device, until: float) -> None:
    """Train an arm on a seed, and keep what is measured of it."""
    data, folder = images(arm.data, seed, args.trial), args.out / arm.file_name / f"seed{seed}"
    start: dict[str, Any] = {"model": "convnet"}
    settings: dict[str, Any] = {"evaluate_every": 1} | dict(arm.settings)
    if args.trial:
        settings |= {name: SHORT[name] for name in settings.keys() & SHORT.keys()}
    elif arm.data == "cifar-mnist":
        start = {"model": "preact_resnet18", "select": "worst-group-argmax"}
    else:
        start = {"model": "mobilenet_v2", "model_options": {"weights": str(args.weights)}, "normalise": "imagenet"}
    if arm.continued:
        settings |= continued(data, settings)
    data = replace(data, observe=TestAccuracy(data, device, folder, settings))

    def progress(share: float, note: str) -> None:
        if time.monotonic() > until and share < 1:
            raise PartOverError

    done = evenly.train(
        data=data, method=arm.method, seed=seed, out=folder, device=str(device), progress=progress, **start, **settings
    )
    row = row_of(done, len(data.train)) | {"commit": args.commit, "settings": settings}
    row["all_settings"] = done.plan.settings.to_dict() | dict(done.plan.method.options)
    if arm.data == "cifar-mnist":
        row["attention"] = attention(done.model, images(arm.data, seed, args.trial, correlation=0.5))
    file = row_file(arm, seed, args)
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_suffix(".tmp")
    scratch.write_text(json.dumps(row))
    scratch.replace(file)


def continued(data: Data, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with empty expansions, and as many epochs as cost the same: the warm-up goes on at the lower rate."""
    options = {name: settings[name] for name in ("warmup_epochs", "every", "add")}
    sampler = expansions(data.train.groups, settings["epochs"], **options)
    cost = sum(sampler.size(epoch) for epoch in range(settings["epochs"]))
    epochs = round(cost / sampler.size(0))
    empty = -(-(epochs - settings["warmup_epochs"]) // settings["every"])
    return {"epochs": epochs, "add": [0] * empty + [1]}  # a list has to add something: after the last epoch


def attention(model: nn.Module, data: Data) -> dict[str, Any]:
    """The share of Grad-CAM's mass for the predicted class in the lower half of the test images, the picture's.

    The mean over images, and how many have no map that speaks for the class. Digit and picture are independent here.
    """
    assert data.test is not None
    assert isinstance(data.test.inputs, torch.Tensor)
    heat = evenly.grad_cam(model, data.test.inputs)
    mass, picture = heat.sum((1, 2)), heat[:, heat.shape[1] // 2 :].sum((1, 2))
    there = mass > 0
    return {"on_picture": float((picture[there] / mass[there]).mean()), "images": int(there.sum()),
            "without_map": int((~there).sum())}  # fmt: skip


def row_of(run: Run, training_images: int) -> dict[str, Any]:
    """What is kept of a run: a column for each quantity, over its evaluations."""
    rows, results = [row for row in run.history if "validation" in row], run.results
    columns = {"validation": ("worst_group", "accuracy"), "test": ("worst_group", "train_weighted", "groups")}
    return {
        "seed": results.seed,
        "training_images": training_images,
        "cost": results.cost,
        "epoch": [row["epoch"] for row in rows],
        "cost_so_far": [row["cost"] for row in rows],
        **{split: {name: [_short(row[split][name]) for row in rows] for name in columns[split]} for split in columns},
        "group_counts": {split: rows[-1][split]["group_counts"] for split in columns},
        "selected": {
            "epoch": results.selected_epoch,
            "after_epochs": results.selected_after_epochs,
            "test": {name: getattr(results.splits["test"], name) for name in columns["test"]},
        },
        "seconds": results.seconds,
        "step": results.step,
        "model": results.model,
    }


def _short(value: Any) -> Any:
    return [_short(each) for each in value] if isinstance(value, list | tuple) else round(value, 5)


def row_file(arm: Arm, seed: int, args: argparse.Namespace) -> Path:
    return _home(args) / "rows" / f"{arm.file_name}-seed{seed}.json"


def _home(args: argparse.Namespace) -> Path:
    return Path(args.home or args.out / "home")


@cache
def images(name: str, seed: int, trial: int | None, correlation: float = CORRELATION) -> Data:
    """The data of a seed, read once, or so many random images to train on."""
    if trial:
        return random_images(trial, seed)
    options: dict[str, Any] = {"size": None} if name == "celeba" else {"correlation": correlation}
    return load(name, seed=seed, **options)


def random_images(count: int, seed: int) -> Data:
    """Random images of two classes in four groups, the last of them small in training, as blond men are."""
    draw = torch.Generator().manual_seed(seed)

    def split(n: int, groups: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.randint(256, (n, 3, 16, 16), generator=draw, dtype=torch.uint8), groups // 2, groups

    few = torch.arange(count) % 10
    few = torch.where(few == 9, 3, few % 3)
    train, validation, test = split(count, few), split(24, torch.arange(24) % 4), split(40, torch.arange(40) % 4)
    recipe = {"select": "worst-group-argmax", "normalise": "data"}
    return Data(train, validation=validation, test=test, name="random images", recipe=recipe)


def bring_home(name: str, args: argparse.Namespace) -> None:
    """Write what is done of a series."""
    series, arms = SERIES[name], {}
    for arm in series.arms:
        files = [row_file(arm, seed, args) for seed in SEEDS]
        if rows := [json.loads(file.read_text()) for file in files if file.exists()]:
            alike = ("settings", "all_settings")
            settings = {key: rows[0][key] for key in alike}
            rows = [{key: value for key, value in row.items() if key not in alike} for row in rows]
            arms[arm.name] = {"method": arm.method, **settings, "rows": rows}
    on_gpu = torch.device(args.device).type == "cuda"
    measured = {
        "series": name, "commit": args.commit,
        "command": f"python benchmarks/celeba_sweeps.py run --out FOLDER --series {name}",
        "machine": torch.cuda.get_device_name() if on_gpu else "CPU", "torch": torch.__version__,
        "arms": arms, **({"trial": args.trial} if args.trial else {}),
    }  # fmt: skip
    _home(args).mkdir(parents=True, exist_ok=True)
    partial_file = _home(args) / f"{series.page}.partial.json"
    partial_file.unlink(missing_ok=True)
    done = [len(arms.get(arm.name, {"rows": ()})["rows"]) == len(SEEDS) for arm in series.arms]
    file = _home(args) / f"{series.page}.json" if all(done) else partial_file
    file.write_text(json.dumps(measured).replace('{"seed"', '\n{"seed"') + "\n")


def write_page(file: Path) -> None:
    """The page of a JSON file, beside it."""
    file.with_suffix(".md").write_text("\n".join(_lines(json.loads(file.read_text()), file.name)) + "\n")


def _lines(measured: dict[str, Any], name: str) -> list[str]:
    series, rows = SERIES[measured["series"]], [row for arm in measured["arms"].values() for row in arm["rows"]]
    few = {split: min(counts) for split, counts in rows[0]["group_counts"].items()}
    on_celeba = series.arms[0].data == "celeba"
    start = "from the weights of ImageNet, images of 109 x 89" if on_celeba else "from random weights"
    first = next(iter(measured["arms"].values()))["all_settings"]
    smallest = "blond men" if on_celeba else "images in its smallest group"
    lines = [
        f"# {series.title}", "",
        f"{rows[0]['model']} {start}, seeds {', '.join(map(str, SEEDS))}; momentum {first['momentum']}, weight decay "
        f"{first['weight_decay']} where the settings do not say another. "
        f"The epoch with the best worst group of validation, which has {few['validation']} {smallest}; the test set "
        f"has {few['test']} and selected nothing. Cost is in passes over the {rows[0]['training_images']:,} training "
        f"images; evaluations are not part of it. {measured['machine']}, torch {measured['torch']}, commit "
        f"`{measured['commit'][:12]}`. Mean ± standard deviation over seeds (each seed).", "",
        "| arm | settings | cost | selected after, passes | worst group, % | average, % | worst group at the end, % |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for label, arm in measured["arms"].items():
        own = arm["rows"]
        settings = arm["settings"] | ({"add": "0"} if isinstance(arm["settings"].get("add"), list) else {})
        shares = {key: [100 * row["selected"]["test"][key] for row in own] for key in ("worst_group", "train_weighted")}
        cells = (
            label, ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in settings.items()),
            f"{mean(row['cost'] / row['training_images'] for row in own):.1f}",
            mean_sd([row["selected"]["after_epochs"] for row in own], 1),
            mean_sd(shares["worst_group"], 1), mean_sd(shares["train_weighted"], 1),
            mean_sd([100 * row["test"]["worst_group"][-1] for row in own], 1),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    if "attention" in rows[0]:
        lines += ["", "The share of Grad-CAM's mass on the picture, %, where digit and picture are independent:", ""]
        lines += [
            f"- {label}: {mean_sd([100 * row['attention']['on_picture'] for row in arm['rows']], 1)}"
            for label, arm in measured["arms"].items()
        ]
    return [*lines, "", f"Made by `{measured['command']}`; every evaluation is in `{name}` beside this page."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("run", help="train the arms of all series, or of some")
    verb.add_argument("--out", type=Path, required=True, help="run folders; the same command goes on from them")
    verb.add_argument("--home", type=Path, help="where results are put after each run, without weights")
    verb.add_argument("--series", nargs="+", choices=SERIES, default=list(SERIES))
    verb.add_argument("--weights", type=Path, default=Path(os.environ.get("EVENLY_DATA", ".")) / WEIGHTS)
    verb.add_argument("--commit", default="unknown")
    verb.add_argument("--seconds", type=float, default=480, help="of one part; compiling may run over")
    verb.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    verb.add_argument("--side-by-side", type=int, default=3, metavar="RUNS")
    verb.add_argument("--trial", type=int, metavar="N", help="train on N random images instead")
    verbs.add_parser("page", help="write the page of a JSON file").add_argument("file", type=Path)
    args = parser.parse_args()
    args.started = time.monotonic()
    if args.verb == "page":
        write_page(args.file)
        return
    sys.exit(0 if run(args) else MORE_TO_DO)


if __name__ == "__main__":
    main()
