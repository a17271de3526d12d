r"""Real images with a shortcut, groups or domains: SGD against SAM, ERM against methods for groups.

    EVENLY_DATA=... python benchmarks/real_images.py features cifar-mnist --out runs/cifar-mnist --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py groups --out runs/celeba --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py groups --weights FILE --data-options '{"size": null}' \
        --out runs/celeba-tuned --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py groups --weights FILE --data-options '{"size": null}' \
        --methods erm,eiil,jtt,lff --name celeba-tuned-rivals --out runs/celeba-rivals --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py features celeba --weights FILE --seeds 4 --jobs 8 \
        --out runs/celeba-features --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py features cifar-mnist --seeds 4 --first-seed 3 --crossed-probes \
        --jobs 8 --name cifar-mnist-4 --out runs/cifar-mnist-4 --commit COMMIT
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
from statistics import mean, stdev
from typing import Any

import torch
from attrs import evolve, field, frozen
from feature_probes import CLASSES, both_features, both_features_crossed, hair_and_gender, loaded, on_target
from torch import nn
from trial_files import with_files

import evenly
from evenly.data.benchmarks.places import VARIABLE
from evenly.engine.accuracy import wilson
from evenly.experiment.request import Request, erm_settings
from evenly.runs.arms import Arm
from evenly.runs.differences import paired
from evenly.runs.folder import FORMAT
from evenly.runs.results import Measured
from evenly.runs.summary import Row as ComparisonRow
from evenly.values import Value

Probing = Callable[[nn.Module, str, dict[str, Any], int], dict[str, float]]

GROUPS = ("dark-haired women", "dark-haired men", "blond women", "blond men")
COMPOSITE = {"lr": [0.01, 0.05, 0.1], "rho": [0.01, 0.03, 0.05, 0.07, 0.1, 0.2]}
"""Springer et al. (2024), App. B. Batches of 100, momentum and schedule come from the data's recipe."""
FACES = {"lr": [0.0005, 0.001, 0.005, 0.01], "rho": [0.01, 0.02, 0.05, 0.07]}
"""Their App. B for CelebA, whose batches of 128, momentum, weight decay and schedule are in the data's recipe."""
IN_COMMON = (
    "epochs", "batch_size", "momentum", "weight_decay", "schedule", "select", "evaluate_every", "augment", "normalise",
    "precision",
)  # fmt: skip
"""The settings that a page states."""
LONGER = "SGD, twice the epochs"
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

NOTES = {
    "groups": (
        "ERM's learning rate is chosen in the same way as every other method's. ERM is therefore the control of every "
        "method that costs as much or less. DFR trains a network with ERM's settings again and fits its last layer. "
        "Two runs of one seed differ on a GPU, so DFR's networks were selected at other epochs than ERM's. DFR-Val "
        "fits the last layer to four times as many images as validation has blond men. The same blond men had chosen "
        "the epoch before. Weight decay is the same for all methods. Deng et al. (2023) use 0.1, and a learning rate "
        "of 0.00001 for GroupDRO.",
    ),
}
ONE_RATE_NOTE = "SAM and the longer SGD run at the learning rate chosen for SGD. The paper tries all combinations."
CROSSED_NOTES = {
    "composite": "Probes are fitted on all validation images and one half of the test images, where the two features "
    "are independent, and measured on the other half; then the other way round.",
    "celeba": "Test errors are not weighted: the test set has the groups' frequencies of training, to within one image "
    "in each group. Probes are balanced over hair and gender. Each quarter of the test images is measured by probes "
    "fitted on validation and the other quarters; errors are means over four draws.",
}
TARGETS = {"art": "art_painting", "cartoon": "cartoon", "photo": "photo", "sketch": "sketch"}
TITLES = {
    "cifar-mnist": "CIFAR-MNIST: an airplane or automobile below a digit that gives the label away",
    "fashion-mnist-mnist": "Fashion-MNIST-MNIST: one of five clothes below a digit that gives the label away",
    "celeba": "CelebA, the first 10,000 images: blond hair or not, in men and women",
    "celeba-tuned": "CelebA, the first 10,000 images: blond hair or not, in men and women, fine-tuned",
    "celeba-tuned-rivals": "CelebA, the first 10,000 images: EIIL, JTT and LfF, fine-tuned",
    "celeba-features": "CelebA, the first 10,000 images: SGD and SAM, and how well hair and gender can be read off",
    "cifar-mnist-4": "CIFAR-MNIST with four seeds and a larger probing set",
    "fashion-mnist-mnist-4": "Fashion-MNIST-MNIST with four seeds and a larger probing set",
    "pacs-art": "PACS: paintings left out of training",
    "pacs-photo": "PACS: photographs left out of training",
    "pacs-cartoon": "PACS: cartoons left out of training",
    "pacs-sketch": "PACS: sketches left out of training",
}
PUBLISHED = {
    "cifar-mnist": "Springer et al. (2024), SGD -> SAM, error %: test 0.1 -> 0.0, digit 0.1 -> 0.1, picture 12.7 -> "
    "10.2.",
    "fashion-mnist-mnist": "Springer et al. (2024), SGD -> SAM, error %: test 0.5 -> 0.0, digit 5.8 -> 0.3, picture "
    "11.6 -> 10.5.",
    "celeba": "Deng et al. (2023), all of CelebA (162,770 images to train on), a ResNet-50 from ImageNet's weights, "
    "worst group / average accuracy %: ERM 45.0 / 94.8, Subsample 86.1 / 91.3, GroupDRO 86.3 / 92.9, DFR-Tr "
    "80.7 / 90.6, DFR-Val 88.3 / 91.3, PDE 91.0 / 92.0.",
    "celeba-tuned-rivals": "Deng et al. (2023), all of CelebA (162,770 images to train on), a ResNet-50 from "
    "ImageNet's weights, worst group / average accuracy %: ERM 45.0 / 94.8, LfF 77.2 / 85.1, EIIL 81.7 / 85.7, JTT "
    "81.1 / 88.0, DFR-Tr 80.7 / 90.6, DFR-Val 88.3 / 91.3, PDE 91.0 / 92.0.",
    "celeba-features": "Springer et al. (2024), all of CelebA and a ResNet-18, SGD -> SAM, error %: test 4.7 -> 4.3, "
    "hair 10.9 -> 8.7, gender 20.9 -> 15.1.",
    "pacs-cartoon": "Springer et al. (2024), error % of the probe, SGD -> SAM: 10.3 -> 7.9.",
    "pacs-photo": "Springer et al. (2024), error % of the probe, SGD -> SAM: 4.5 -> 3.6.",
}  # fmt: skip


@frozen
class Row(Value):
    """One run.

    Args:
        label: what the page calls its arm.
        chosen: whether validation chose its settings.
        cost_multiple: its cost, in multiples of ERM's for the epochs that the page states.
    """

    arm: Arm
    label: str
    seed: int
    cost_multiple: float
    rule: str
    model: str
    step: str
    splits: Mapping[str, Measured]
    chosen: bool = False
    evaluation_cost_multiple: float | None = None
    selected_after_epochs: float | None = None
    probes: Mapping[str, float] = field(factory=dict)

    @property
    def settings(self) -> dict[str, float]:
        """What was swept over a grid."""
        return {name: value for name, value in self.arm.swept.items() if name in ("lr", "rho")}

    @property
    def test(self) -> Measured:
        return self.splits["test"]


@frozen
class Diverged(Value):
    """An arm at one value of its grid where the loss became infinite on one seed at least."""

    label: str
    settings: Mapping[str, float]


@dataclass(frozen=True)
class GridPoint:
    """An arm at one value of its grid, for all seeds: what a process is given to do."""

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
        if other := [reason for reason in reasons if "became NaN or infinite" not in reason]:
            raise evenly.EvenlyError(other[0])
        if reasons:
            return [Diverged(self.label, self.swept)]
        device = self.common["device"]
        rows = [self.row(each, table.runs[each.arm, each.seed].model.to(device)) for each in table.rows]
        file.write_text(json.dumps([row.to_dict() for row in rows]))
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
    the chosen values alone.
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


def _by_average(row: Row) -> tuple[float, float]:
    """Accuracy on validation; where that is the same, the loss."""
    validation = row.splits["validation"]
    return validation.accuracy, -_known(validation.loss)


def _by_worst_group(row: Row) -> tuple[float, float]:
    validation = row.splits["validation"]
    return _known(validation.worst_group), validation.accuracy


def _known(value: float | None) -> float:
    assert value is not None
    return value


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
    print(_page(file))


def page(args: argparse.Namespace) -> None:
    """The pages again, from what was measured."""
    for file in args.files:
        _page(file)


def _page(file: Path) -> str:
    """Write the page beside a file of what was measured."""
    measured = json.loads(file.read_text())
    name, rows = file.stem, [Row.from_dict(row) for row in measured["rows"]]
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(row.seed for row in rows))
    methods = {row.arm.method for row in rows}
    options = {method: own for method, own in measured["options"].items() if method in methods}
    lines = [
        f"# {TITLES.get(name, name)}", "",
        f"{rows[0].model} from {'the weights of ImageNet' if measured['weights'] else 'random weights'}, images of "
        f"{' x '.join(map(str, measured['shape'][1:]))}; {_sentence(measured['in_common'])}; seeds {seeds}. "
        + "".join(f"{method} alone has {_sentence(own)}. " for method, own in options.items())
        + "Validation chooses learning rates and radii, averaged over the seeds, by "
        f"{'the worst group' if measured['verb'] == 'groups' else 'accuracy, then loss'}. The test set chooses "
        f"nothing. {measured['machine']}, torch {measured['torch']}, commit `{measured['commit'][:12]}`. Mean ± "
        "standard deviation over seeds, then every seed.", "",
    ]  # fmt: skip
    rates = {label: {row.settings.get("lr") for row in rows if row.label == label} for label in ("SGD", "SAM")}
    one_rate = measured["verb"] == "domains" and len(rates["SAM"]) < len(rates["SGD"])
    for note in (*NOTES.get(measured["verb"], ()), *([ONE_RATE_NOTE] if one_rate else []), *measured["notes"]):
        lines += [note, ""]
    if measured["verb"] == "groups":
        lines += [*_group_table(rows), "", *_seed_table(rows), "", *_differences(rows)]
    else:
        diverged = [Diverged.from_dict(each) for each in measured["diverged"]]
        lines += [*_chosen_table(rows), "", *_differences(rows), "", *_grid_table(rows, diverged)]
    if published := PUBLISHED.get(name.removesuffix("-tuned").removesuffix("-4")):
        lines += ["", f"Published: {published}"]
    lines += [
        "",
        f"Made by `benchmarks/real_images.py {measured['verb']}`; every run is in `{file.name}` beside this page.",
    ]
    text = "\n".join(lines) + "\n"
    file.with_suffix(".md").write_text(text)
    return text


def _by_label(rows: list[Row]) -> dict[str, list[Row]]:
    """The chosen rows of each arm, by seed."""
    arms: dict[str, list[Row]] = {}
    for row in rows:
        if row.chosen:
            arms.setdefault(row.label, []).append(row)
    return {label: sorted(each, key=lambda row: row.seed) for label, each in arms.items()}


def _chosen_table(rows: list[Row]) -> list[str]:
    probes = list(next(row.probes for row in rows if row.chosen))
    columns = ["arm", "chosen", "cost", "validation error, %", "test error, %", *(f"{probe}, %" for probe in probes)]
    lines = _header(columns)
    for label, chosen in _by_label(rows).items():
        values = len({row.arm for row in rows if row.label == label})
        settings = f"{_settings(chosen[0])}, of {values}" if values > 1 else _settings(chosen[0])
        cells = [label, settings, f"{mean(row.cost_multiple for row in chosen):.2f}x"]
        cells += [_spread([1 - row.splits[split].accuracy for row in chosen]) for split in ("validation", "test")]
        lines.append(_line(cells + [_spread([row.probes[probe] for row in chosen]) for probe in probes]))
    return lines


def _grid_table(rows: list[Row], diverged: list[Diverged]) -> list[str]:
    """The last probe of every arm at every value, learning rates across; the validation error where some have none."""
    probe = list(rows[0].probes)[-1] if all(row.probes for row in rows) else None

    def error(row: Row) -> float:
        return 1 - row.splits["validation"].accuracy if probe is None else row.probes[probe]

    shown = probe or "validation error"
    rates = sorted({row.settings["lr"] for row in rows})
    lines = [f"{shown[0].upper()}{shown[1:]}, %, mean over seeds, at every value:", ""]
    lines += _header(["arm", *(f"lr {rate:g}" for rate in rates)])
    for label, rho in dict.fromkeys((row.label, row.settings.get("rho")) for row in rows):
        cells = []
        for rate in rates:
            settings = {"lr": rate} | ({} if rho is None else {"rho": rho})
            runs = [row for row in rows if row.label == label and row.settings == settings]
            value = f"{100 * mean(map(error, runs)):.1f}" if runs else ""
            value = "diverged" if Diverged(label, settings) in diverged else value
            cells.append(f"**{value}**" if runs and runs[0].chosen else value)
        lines.append(_line([label if rho is None else f"{label}, rho {rho:g}", *cells]))
    return [*lines, "", "Bold: what validation chose. Diverged: on one seed at least."]


def _group_table(rows: list[Row]) -> list[str]:
    known = all(row.evaluation_cost_multiple is not None for row in rows)
    lines = _header([
        "arm", "chosen", "cost", *(["evaluation"] if known else []), "selected after, epochs of the full set",
        "average, %", "worst group, %",
    ])  # fmt: skip
    for label, chosen in _by_label(rows).items():
        cells = [label, _settings(chosen[0]), f"{mean(row.cost_multiple for row in chosen):.2f}x"]
        cells += [f"{mean(row.evaluation_cost_multiple or 0 for row in chosen):.2f}x"] if known else []
        after = [row.selected_after_epochs for row in chosen if row.selected_after_epochs is not None]
        cells += [f"{mean(after):.1f}" if len(after) == len(chosen) else ""]
        cells += [_spread([row.test.accuracy for row in chosen]), _spread([_worst(row) for row in chosen])]
        lines.append(_line(cells))
    return lines


def _worst(row: Row) -> float:
    return _known(row.test.worst_group)


def _seed_table(rows: list[Row]) -> list[str]:
    """The worst group of each seed's test set, with Wilson's interval."""
    arms = _by_label(rows)
    first = next(iter(arms.values()))
    few = min(first[0].splits["validation"].group_counts)
    lines = [
        "The worst group of each seed and how many of its images are classified correctly, with 95% Wilson intervals. "
        "The test sets of the seeds share images, so the counts must not be added up. "
        f"Validation has {few} blond men. Most often they decide the epoch and the learning rate.",
        "", *_header(["arm", *(f"seed {row.seed}" for row in first)]),
    ]  # fmt: skip
    for label, chosen in arms.items():
        cells = []
        for test in (row.test for row in chosen):
            worst = min(range(len(GROUPS)), key=lambda g: _known(test.groups[g]))
            n = test.group_counts[worst]
            right = round(_known(test.groups[worst]) * n)
            low, high = wilson(right, n)
            cells.append(f"{right:,} of {n:,} {GROUPS[worst]} [{100 * low:.0f}, {100 * high:.0f}]%")
        lines.append(_line([label, *cells]))
    return lines


def _differences(rows: list[Row]) -> list[str]:
    """Of SAM from SGD, or of every method from ERM and from its control of equal cost, paired by seed."""
    arms = _by_label(rows)
    lines = ["Differences, paired by seed, with 95% t-intervals, in points:", ""]
    for label, chosen in arms.items():
        for other, others in arms.items():
            if not _is_compared(chosen[0], others[0]):
                continue
            pairs = [(_quantities(mine), _quantities(theirs)) for mine, theirs in zip(chosen, others, strict=True)]
            gains = [
                f"{what} {_interval([mine[what] - theirs[what] for mine, theirs in pairs])}" for what in pairs[0][0]
            ]
            lines.append(f"- {label} against {other}: {', '.join(gains)}")
    return lines


def _is_compared(row: Row, other: Row) -> bool:
    """Whether a page gives the difference of one arm from another."""
    if row.probes:
        return row.arm.optimizer == "sam" and other.arm.optimizer == "sgd"
    if row.arm.control_of is not None or row.label == other.label:
        return False
    return other.label == "erm" or other.arm.control_of == row.arm


def _quantities(row: Row) -> dict[str, float]:
    """What arms are compared by."""
    if row.probes:
        return {"test error": 1 - row.test.accuracy, **row.probes}
    return {"average": row.test.accuracy, "worst group": _worst(row)}


def _sentence(settings: dict[str, Any]) -> str:
    plain = {"precision": {"auto": "bf16 on a GPU"}}
    return ", ".join(
        f"{name.replace('_', ' ')} {plain.get(name, {}).get(value, value) if isinstance(value, str) else value}"
        for name, value in settings.items()
    )


def _settings(row: Row) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in row.settings.items()) or "-"


def _header(columns: Sequence[str]) -> list[str]:
    return [_line(columns), f"|{'---|' * len(columns)}"]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _spread(values: list[float]) -> str:
    each = ", ".join(f"{100 * value:.1f}" for value in values)
    return f"{100 * mean(values):.2f} ± {100 * stdev(values) if len(values) > 1 else 0:.2f} ({each})"


def _interval(differences: list[float]) -> str:
    gain = paired(differences)
    if gain.low is None or gain.high is None:
        return f"{100 * gain.mean:+.2f}"
    return f"{100 * gain.mean:+.2f} [{100 * gain.low:.2f}, {100 * gain.high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("features", "groups", "domains"):
        verb = verbs.add_parser(name)
        if name == "features":
            verb.add_argument("data", choices=[*CLASSES, "celeba"])
            verb.add_argument("--crossed-probes", action="store_true", help="fit a composite's probes on more images")
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
