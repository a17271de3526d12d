r"""Real images with a shortcut, groups or domains: SGD against SAM, ERM against methods for groups.

    EVENLY_DATA=... python benchmarks/real_images.py features cifar-mnist --out runs/cifar-mnist --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py groups --out runs/celeba --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py groups --weights FILE --data-options '{"size": null}' \
        --out runs/celeba-tuned --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py groups --weights FILE --data-options '{"size": null}' \
        --methods erm,eiil,jtt,lff --name celeba-tuned-rivals --out runs/celeba-rivals --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py features celeba --weights FILE --seeds 4 --jobs 8 \
        --out runs/celeba-features --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py features cifar-mnist --seeds 4 --first-seed 10 --crossed-probes \
        --chosen docs/results/cifar-mnist.json --name cifar-mnist-4 --out runs/cifar-mnist-4 --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py domains --target cartoon --weights FILE --seeds 4 --jobs 8 \
        --out runs/pacs-cartoon --commit COMMIT

Every arm is run at every value of its grid, for every seed. Validation, averaged over the seeds, chooses the value; the
test set only measures. `features` and `domains` compare SAM with SGD and with SGD for twice the epochs, which costs as
much. Linear probes show what was learned (Springer et al. 2024, Tables 1 and 2). `groups` compares every method with
ERM, and one that costs more also with its control of equal cost. The results go into docs/results/NAME.json and .md,
beside published numbers where there are any. `page FILE...` makes the pages again.

A command that was killed goes on with what is left when it is run again: finished runs, and those of a seed whose rows
are written, are not repeated. `--trial` tries one value of each grid, on files of noise where EVENLY_DATA is not set.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from attrs import evolve
from feature_probes import CLASSES, both_features, both_features_crossed, hair_and_gender, loaded, on_target
from real_image_pages import Diverged, Row, known, write_page
from torch import nn
from trial_files import with_files

import evenly
from evenly.data.benchmarks.places import VARIABLE
from evenly.experiment.request import Request, erm_settings
from evenly.files import write_json
from evenly.papers.balanced.real_data import LONGER
from evenly.runs.arms import Arm
from evenly.runs.folder import FORMAT
from evenly.runs.summary import Row as ComparisonRow

Probing = Callable[[nn.Module, str, dict[str, Any], int], dict[str, float]]

COMPOSITE = {"lr": [0.01, 0.05, 0.1], "rho": [0.01, 0.03, 0.05, 0.07, 0.1, 0.2]}
"""Springer et al. (2024), App. B. Batches of 100, momentum and schedule come from the data's recipe."""
FACES = {"lr": [0.0005, 0.001, 0.005, 0.01], "rho": [0.01, 0.02, 0.05, 0.07]}
"""Their App. B for CelebA, whose batches of 128, momentum, weight decay and schedule are in the data's recipe."""
IN_COMMON = (
    "epochs", "batch_size", "momentum", "weight_decay", "schedule", "select", "evaluate_every", "augment", "normalise",
    "precision",
)  # fmt: skip
"""The settings that a page states."""
DOMAIN = {"lr": [0.005, 0.01, 0.02], "rho": [0.03, 0.05, 0.1]}
"""Their App. F, which gives neither the number of epochs nor the network."""
RATES = [0.001, 0.01, 0.1]
"""For groups: Deng et al. (2023) use 0.01 for PDE on CelebA. It is also the highest of Springer et al. (2024)."""
SMALL_SETS = {"epochs": 300, "batch_size": 64, "evaluate_every": 5}
GROUPED = {
    "pde": SMALL_SETS | {"warmup_epochs": 140, "every": 10, "add": 10, "decay": 0.01, "schedule": "constant"},
    "subsample": SMALL_SETS,
}
"""The balanced set has 160 images, about as many as that of Waterbirds. PDE therefore gets the settings for Waterbirds:
140 epochs of warm-up, 10 images every 10 epochs, batches of 64, and the decay (Deng et al. 2023, Table 8 and code). The
16 epochs for all of CelebA would be 32 steps here. An epoch of subsampling is as short."""

CROSSED_NOTES = {
    "composite": "Probes are fitted on all validation images and one half of the test images, where the two features "
    "are independent, and measured on the other half; then the other way round.",
    "celeba": "The paper weights the test error of each group by its frequency in training, which changes little here: "
    "the splits are drawn within each group. Probes are balanced over hair and gender. Each quarter of the test images "
    "is measured by probes fitted on validation and the other quarters; errors are means over four draws.",
}
CHOSEN_NOTE = "Learning rates and radii are those that validation chose on other seeds ({}.json)."
DIVERGED = ("became NaN or infinite", "the model gives NaN")
"""What a run's failure says where its learning rate was too high."""
TARGETS = {"art": "art_painting", "cartoon": "cartoon", "photo": "photo", "sketch": "sketch"}


@dataclass(frozen=True)
class GridPoint:
    """An arm at one value of its grid, for some seeds: what a process is given to do."""

    folder: Path
    data: str
    label: str
    method: str
    optimizer: str
    swept: dict[str, Any]
    common: dict[str, Any]
    data_options: dict[str, Any]
    times: int = 1
    probing: Probing | None = None

    def __call__(self) -> list[Row | Diverged]:
        """Its runs, with probes. What is done is kept in the folder."""
        probing = self.probing and self.probing.__name__
        made_by = json.dumps([self.label, self.swept, self.common, self.data, self.data_options, probing], default=str)
        file = self.folder / f"rows-{hashlib.sha256(made_by.encode()).hexdigest()[:8]}.json"
        if file.exists():
            return [Row.from_dict(row) for row in json.loads(file.read_text())]
        started = time.perf_counter()
        drawn = functools.partial(loaded, self.data, json.dumps(self.data_options))
        reasons = []
        try:
            table = evenly.compare(
                drawn, methods=[self.method], optimizers=[self.optimizer], out=self.folder,
                sweep={name: [value] for name, value in self.swept.items()}, **self.common,
            )  # fmt: skip
            reasons = [failure.reason for failure in table.failures]
        except evenly.EvenlyError as error:
            reasons = [str(error)]
        if other := [reason for reason in reasons if not any(sign in reason for sign in DIVERGED)]:
            raise evenly.EvenlyError(other[0])
        if reasons:
            return [Diverged(self.label, self.swept)]
        device = self.common["device"]
        rows = [self.row(each, table.runs[each.arm, each.seed].model.to(device)) for each in table.rows]
        write_json(file, [row.to_dict() for row in rows])
        print(f"{self.folder.name}: {time.perf_counter() - started:.0f} s", flush=True)
        return list(rows)

    def row(self, row: ComparisonRow, model: nn.Module) -> Row:
        """What is kept of a run."""
        result, own = row.result, row.arm.method == self.method
        return Row(
            arm=row.arm,
            label=self.label if own else f"{row.arm.method} at the cost of {self.label}",
            seed=row.seed,
            cost_multiple=self.times * result.cost_multiple,
            rule=result.rule,
            model=result.model,
            step=result.step,
            splits={name: result.splits[name] for name in ("validation", "test")},
            evaluation_cost_multiple=self.times * result.evaluation_cost_multiple,
            selected_after_epochs=result.selected_after_epochs,
            probes=self.probing(model, self.data, self.data_options, row.seed) if self.probing else {},
        )


def _all(pool: Executor, points: Iterable[GridPoint]) -> list[Row | Diverged]:
    """The rows of all points of the grid, in their order."""
    return [row for done in [pool.submit(point) for point in points] for row in done.result()]


def _finished(rows: Iterable[Row | Diverged]) -> list[Row]:
    return [row for row in rows if isinstance(row, Row)]


def features(args: argparse.Namespace) -> None:
    """Test error, and the probing errors of an easy and a hard feature: of both pictures joined in one, or of faces."""
    if args.data == "celeba":
        settings = {"epochs": 20, "precision": "float32", "select": "last", **_start(args)}
        rows = _sgd_and_sam(args, "celeba", args.data_options, FACES, hair_and_gender, settings, chosen_only=True)
        _keep(args, args.name or "celeba-features", rows, "celeba", settings, notes=[CROSSED_NOTES["celeba"]])
        return
    settings = {"epochs": 20, "precision": "float32"}
    probing = both_features_crossed if args.crossed_probes else both_features
    rows = _sgd_and_sam(
        args, args.data, args.data_options, COMPOSITE, probing, settings, chosen_only=args.crossed_probes
    )
    notes = [CROSSED_NOTES["composite"]] if args.crossed_probes else []
    notes += [CHOSEN_NOTE.format(args.chosen.stem)] if args.chosen is not None else []
    _keep(args, args.name or args.data, rows, args.data, settings, notes=notes)


def domains(args: argparse.Namespace) -> None:
    """PACS with one domain left out: error there, and that of a linear probe fitted on a part of it."""
    options = {"target": TARGETS[args.target], **args.data_options}
    settings = {"epochs": 10, **_start(args)}
    rows = _sgd_and_sam(args, "pacs", options, DOMAIN, on_target, settings, one_rate=args.one_rate)
    _keep(args, f"pacs-{args.target}", rows, "pacs", settings)


def _sgd_and_sam(
    args: argparse.Namespace,
    data: str,
    options: dict[str, Any],
    grid: dict[str, list[float]],
    probing: Probing,
    settings: dict[str, Any],
    one_rate: bool = False,
    chosen_only: bool = False,
) -> list[Row | Diverged]:
    """SGD and SAM over the grid, SGD for twice the epochs, the value of each that validation chose, and every probe.

    With `one_rate` all but SGD runs at the learning rate that is chosen for SGD. With `chosen_only` there are probes at
    the chosen values alone. Where the user names a file, the values are those that were chosen there, on other seeds.
    """
    settings = settings | args.settings
    rates, radii = (values[:1] if args.trial else values for values in grid.values())
    seeds = range(args.first_seed, args.first_seed + args.seeds)

    def point(label: str, swept: Mapping[str, float], seed: int, probing: Probing | None) -> GridPoint:
        times = 2 if label == LONGER else 1
        common = _common(args) | settings | {"controls": False, "epochs": times * settings["epochs"], "seeds": [seed]}
        folder = args.out / " ".join([label, *map(str, swept.values()), f"seed {seed}"])
        optimizer = "sam" if "rho" in swept else "sgd"
        return GridPoint(folder, data, label, "erm", optimizer, dict(swept), common, options, times, probing)

    def run(pool: Executor, arms: Iterable[tuple[str, Mapping[str, float]]]) -> list[Row | Diverged]:
        everywhere = None if chosen_only else probing
        return _all(pool, [point(label, swept, seed, everywhere) for label, swept in arms for seed in seeds])

    with workers(args.jobs) as pool:
        if getattr(args, "chosen", None) is not None:
            arms = chosen_settings(args.chosen).items()
            return _chosen(_all(pool, [point(*arm, seed, probing) for arm in arms for seed in seeds]), _by_average)
        plain = [("SGD", {"lr": lr}) for lr in rates]
        rows = _chosen(run(pool, plain), _by_average) if one_rate else []
        if one_rate:
            rates, plain = [next(row.settings["lr"] for row in _finished(rows) if row.chosen)], []
        sam = [("SAM", {"lr": lr, "rho": rho}) for lr, rho in product(rates, radii)]
        rows = _chosen(rows + run(pool, [*plain, *sam, *((LONGER, {"lr": lr}) for lr in rates)]), _by_average)
        if not chosen_only:
            return rows
        chosen = [row for row in _finished(rows) if row.chosen]
        probed = _finished(_all(pool, [point(row.label, row.settings, row.seed, probing) for row in chosen]))
    probes = {(row.label, row.seed): row.probes for row in probed}
    return [
        evolve(row, probes=probes[row.label, row.seed]) if isinstance(row, Row) and row.chosen else row for row in rows
    ]


def chosen_settings(file: Path) -> dict[str, dict[str, float]]:
    """The settings of each arm that validation chose, from a file of results."""
    rows = [Row.from_dict(row) for row in json.loads(file.read_text())["rows"]]
    return {row.label: row.settings for row in rows if row.chosen}


def _by_average(row: Row) -> tuple[float, float]:
    """Accuracy on validation; where that is the same, the loss."""
    validation = row.splits["validation"]
    return validation.accuracy, -known(validation.loss)


def _by_worst_group(row: Row) -> tuple[float, float]:
    validation = row.splits["validation"]
    return known(validation.worst_group), validation.accuracy


def groups(args: argparse.Namespace) -> None:
    """CelebA: the worst group and the average of every method, from scratch or from weights."""
    settings = _start(args) | args.settings
    short = {"epochs": 2, "warmup_epochs": 1} if args.trial else {}
    options = {name: own | {key: short[key] for key in own.keys() & short.keys()} for name, own in GROUPED.items()}

    def point(method: str, lr: float, controls: bool = False, on: str | None = None) -> GridPoint:
        label = method if on is None else f"{method}, on {on}"
        swept = {"lr": lr} | ({} if on is None else {"dfr.on": on})
        own = {method: options[method]} if method in options else {}
        common = _common(args) | settings | {"options": own, "controls": controls}
        return GridPoint(args.out / f"{label} {lr}", "celeba", label, method, "sgd", swept, common, args.data_options)

    with workers(args.jobs) as pool:
        rates = RATES[:1] if args.trial else RATES
        rows = _all(pool, [point(method, lr) for method in args.methods.split(",") for lr in rates])
        rows = _chosen(rows, _by_worst_group)
        best = {row.label: row.settings["lr"] for row in _finished(rows) if row.chosen}
        # ERM itself is the control of what costs as much or less: its learning rate, too, is chosen
        costs = {label: mean(row.cost_multiple for row in _finished(rows) if row.label == label) for label in best}
        final = [point(label, best[label], controls=True) for label, cost in costs.items() if cost > 1.01]
        final += [point("dfr", best["erm"], on=on) for on in ("train", "validation")]
        known = {row.arm for row in _finished(rows)}
        rows += [evolve(row, chosen=True) for row in _finished(_all(pool, final)) if row.arm not in known]
    name = args.name or ("celeba-tuned" if args.weights else "celeba")
    _keep(args, name, rows, "celeba", settings, options)


class ThisProcess(Executor):
    """Does at once what is submitted to it."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function(*arguments, **options))
        return done


def workers(jobs: int) -> Executor:
    """So many processes on one thread each, which end with this one, also if it is killed; or this one."""
    if jobs == 1:
        return ThisProcess()
    return ProcessPoolExecutor(jobs, get_context("spawn"), _end_with, (os.getpid(),))


def _end_with(parent: int) -> None:
    torch.set_num_threads(1)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _common(args: argparse.Namespace) -> dict[str, Any]:
    return {"model": args.model, "seeds": args.seeds, "device": args.device}


def _start(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of a network that starts from ImageNet's weights."""
    if args.weights is None:
        return {}
    args.model = args.model or "mobilenet_v2"
    args.weights = args.weights.absolute()
    return {"model_options": {"weights": str(args.weights)}, "normalise": "imagenet"}


def _chosen(rows: Sequence[Row | Diverged], score: Callable[[Row], tuple[float, float]]) -> list[Row | Diverged]:
    """The rows, in each arm those marked whose settings have the best score averaged over seeds.

    Settings at which some seed diverged have no rows.
    """
    diverged: list[Row | Diverged] = []
    for row in rows:
        if isinstance(row, Diverged) and row not in diverged:
            diverged.append(row)
    rows = [*(row for row in _finished(rows) if Diverged(row.label, row.settings) not in diverged), *diverged]
    scores: dict[str, dict[Arm, list[tuple[float, float]]]] = {}
    for row in _finished(rows):
        scores.setdefault(row.label, {}).setdefault(row.arm, []).append(score(row))
    best = {
        label: max(arms, key=lambda arm: tuple(mean(part) for part in zip(*arms[arm], strict=True)))
        for label, arms in scores.items()
    }
    return [evolve(row, chosen=row.arm == best[row.label]) if isinstance(row, Row) else row for row in rows]


def _keep(
    args: argparse.Namespace,
    name: str,
    rows: Sequence[Row | Diverged],
    data: str,
    settings: dict[str, Any],
    options: dict[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> None:
    first = loaded(data, json.dumps(args.data_options), 0)
    values = {key: value for key, value in (settings | args.settings).items() if key != "model"}
    common = erm_settings(Request("erm", "sgd", args.model, values), first).to_dict()
    measured = {
        "format": FORMAT, "verb": args.verb, "commit": args.commit,
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU", "torch": torch.__version__,
        "weights": getattr(args, "weights", None) is not None,
        "in_common": {key: common[key] for key in IN_COMMON}, "options": options or {},
        "shape": list(first.train.example_shape), "data_options": args.data_options, "notes": list(notes),
        "diverged": [row.to_dict() for row in rows if isinstance(row, Diverged)],
        "rows": [row.to_dict() for row in _finished(rows)],
    }  # fmt: skip
    args.results.mkdir(parents=True, exist_ok=True)
    file = args.results / f"{name}.json"
    file.write_text(json.dumps(measured).replace('{"arm": {"method"', '\n{"arm": {"method"') + "\n")
    print(write_page(file))


def page(args: argparse.Namespace) -> None:
    """The pages again, from what was measured."""
    for file in args.files:
        write_page(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("features", "groups", "domains"):
        verb = verbs.add_parser(name)
        if name == "features":
            verb.add_argument("data", choices=[*CLASSES, "celeba"])
            verb.add_argument("--crossed-probes", action="store_true", help="fit a composite's probes on more images")
            verb.add_argument("--chosen", type=Path, metavar="FILE", help="settings chosen there, instead of a grid")
        if name == "groups":
            verb.add_argument("--methods", default="erm,subsample,group_dro,pde,useful")
        if name == "domains":
            verb.add_argument("--target", default="photo", choices=list(TARGETS))
            verb.add_argument("--one-rate", action="store_true", help="all but SGD at the learning rate chosen for SGD")
        else:
            verb.add_argument("--name", help="of the files in docs/results, by default that of the data")
        if name != "groups":
            verb.add_argument("--first-seed", type=int, default=0)
        verb.add_argument("--weights", type=Path, help="start from these instead of at random")
        verb.add_argument("--model")
        verb.add_argument("--seeds", type=int, default=3)
        verb.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        verb.add_argument("--jobs", type=int, default=1, help="processes that share the grid, on one GPU")
        verb.add_argument("--out", type=Path, required=True)
        verb.add_argument("--results", type=Path, default=Path(__file__).parents[1] / "docs" / "results")
        verb.add_argument("--commit", required=True)
        verb.add_argument("--trial", action="store_true", help="one value of each grid, to see that all works")
        verb.add_argument("--settings", type=json.loads, default={}, help='as JSON, e.g. {"epochs": 2}')
        verb.add_argument("--data-options", type=json.loads, default={}, help='as JSON, e.g. {"n": 600}')
    verbs.add_parser("page").add_argument("files", nargs="+", type=Path)
    args = parser.parse_args()
    if getattr(args, "trial", False) and VARIABLE not in os.environ:
        with_files(args.out / "data")
    {"features": features, "groups": groups, "domains": domains, "page": page}[args.verb](args)


if __name__ == "__main__":
    main()
