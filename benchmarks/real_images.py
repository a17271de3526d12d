r"""Real images with a shortcut, groups or domains: SGD against SAM, ERM against what is made for groups.

    EVENLY_DATA=... python benchmarks/real_images.py features cifar-mnist --out runs/cifar-mnist --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py groups --out runs/celeba --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py groups --weights FILE --data-options '{"size": null}' \
        --out runs/celeba-tuned --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py domains --weights FILE --out runs/pacs --commit COMMIT

Every arm is run at every value of its grid, for every seed; validation, averaged over the seeds, chooses the value and
the test set only measures. `features` and `domains` set SAM beside SGD and beside SGD for twice the epochs, which costs
as much, and tell by linear probes what was learned (Springer et al. 2024, Tables 1 and 2); `groups` sets every method
beside ERM, and one that costs more beside its control of equal cost. All goes on where it was stopped. What was
measured goes into docs/results/NAME.json and .md, beside what was published where there is such a thing; `page FILE...`
writes the pages anew.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from evenly.comparison import paired
from torch import nn

import evenly
from evenly.data import Data, load
from evenly.data.benchmarks.domains import target_parts
from evenly.engine.accuracy import wilson
from evenly.experiment import resolve

Row = dict[str, Any]
Probing = Callable[[nn.Module, str, dict[str, Any], int], dict[str, float]]

GROUPS = ("dark-haired women", "dark-haired men", "blond women", "blond men")
CLASSES = {"cifar-mnist": 2, "fashion-mnist-mnist": 5}
COMPOSITE = {"lr": [0.01, 0.05, 0.1], "rho": [0.01, 0.03, 0.05, 0.07, 0.1, 0.2]}
"""Springer et al. (2024), App. B; batches of 100, momentum and schedule are the data's recipe."""
LONGER = "SGD, twice the epochs"
DOMAIN = {"lr": [0.005, 0.01, 0.02], "rho": [0.03, 0.05, 0.1]}
"""Their App. F; how long and which network it does not say."""
RATES = [0.001, 0.01, 0.1]
"""For groups: 0.01 is that of Deng et al. (2023) for PDE on CelebA, and the highest of Springer et al. (2024)."""
SMALL_SETS = {"epochs": 300, "batch_size": 64, "evaluate_every": 5}
GROUPED = {
    "pde": SMALL_SETS | {"warmup_epochs": 140, "every": 10, "add": 10, "decay": 0.01, "schedule": "constant"},
    "subsample": SMALL_SETS,
}
"""A balanced set of 160 images is as small as that of Waterbirds, whose 140 epochs of warm-up, 10 images every 10
epochs, batches of 64 and decay are taken (Deng et al. 2023, Table 8 and code); those for all of CelebA, 16 epochs,
would be 32 steps. An epoch of subsampling is as short."""

NOTES = {
    "groups": (
        "ERM's learning rate is chosen as every method's is, so ERM is the control of what costs as much or less. DFR "
        "fits the last layer of a network that is trained with ERM's settings again, and runs of one seed are not the "
        "same twice on a GPU: its networks were kept after other epochs than ERM's. DFR-Val fits it to four times as "
        "many images as validation has blond men, by whom the epoch was chosen before. Weight decay is the same for "
        "all; Deng et al. (2023) have 0.1 and a rate of 0.00001 for GroupDRO.",
    ),
    "domains": ("SAM and the longer SGD run at the learning rate chosen for SGD; the paper crosses all of them.",),
}
TITLES = {
    "cifar-mnist": "CIFAR-MNIST: an airplane or automobile below a digit that tells it",
    "fashion-mnist-mnist": "Fashion-MNIST-MNIST: one of five clothes below a digit that tells it",
    "celeba": "CelebA, the first 10,000 images: blond hair or not, in men and women",
    "celeba-tuned": "CelebA, the first 10,000 images: blond hair or not, in men and women, fine-tuned",
    "pacs-photo": "PACS: photographs left out of training",
    "pacs-cartoon": "PACS: cartoons left out of training",
}
PUBLISHED = {
    "cifar-mnist": "Springer et al. (2024), SGD -> SAM, error %: test 0.1 -> 0.0, digit 0.1 -> 0.1, picture 12.7 -> "
    "10.2.",
    "fashion-mnist-mnist": "Springer et al. (2024), SGD -> SAM, error %: test 0.5 -> 0.0, digit 5.8 -> 0.3, picture "
    "11.6 -> 10.5.",
    "celeba": "Deng et al. (2023), all of CelebA (162,770 images to train on), a ResNet-50 from ImageNet's weights, "
    "worst group / average accuracy %: ERM 45.0 / 94.8, Subsample 86.1 / 91.3, GroupDRO 86.3 / 92.9, DFR-Tr "
    "80.7 / 90.6, DFR-Val 88.3 / 91.3, PDE 91.0 / 92.0.",
    "pacs-cartoon": "Springer et al. (2024), error % of the probe, SGD -> SAM: 10.3 -> 7.9.",
    "pacs-photo": "Springer et al. (2024), error % of the probe, SGD -> SAM: 4.5 -> 3.6.",
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """An arm at one value of its grid, for all seeds: what a process is given to do."""

    folder: Path
    data: str
    arm: str
    method: str
    optimizer: str
    at: dict[str, Any]
    common: dict[str, Any]
    data_options: dict[str, Any]
    times: int = 1
    probing: Probing | None = None

    def __call__(self) -> list[Row]:
        """Its rows, with probes; one that says so where a seed diverged. What is done is kept in the folder."""
        made_by = json.dumps([self.arm, self.at, self.common, self.data, self.data_options], default=str)
        kept = self.folder / f"rows-{hashlib.sha256(made_by.encode()).hexdigest()[:8]}.json"
        if kept.exists():
            rows: list[Row] = json.loads(kept.read_text())
            return rows
        drawn = functools.partial(_loaded, self.data, json.dumps(self.data_options))
        try:
            table = evenly.compare(
                data=drawn, methods=[self.method], optimizers=[self.optimizer], out=self.folder,
                sweep={name: [value] for name, value in self.at.items()}, **self.common,
            )  # fmt: skip
        except evenly.EvenlyError as error:
            if "became NaN or infinite" not in str(error):
                raise
            return [{"diverged": True, "arm": self.arm, "settings": self.at}]
        rows = [self.row(each) for each in table.rows]
        for row in rows if self.probing else ():
            model = table.runs[row["name"], row["seed"]].model.cpu()
            row["probes"] = self.probing(model, self.data, self.data_options, row["seed"])
        kept.write_text(json.dumps(rows))
        return rows

    def row(self, found: Row) -> Row:
        """What is kept of a run."""
        measured = {
            split: {key: found[split].get(key) for key in
                    ("accuracy", "loss", "worst_group", "train_weighted", "groups", "group_counts")}
            for split in ("validation", "test")
        }  # fmt: skip
        own = found["method"] == self.method
        return {
            "name": found["arm"], "arm": self.arm if own else f"{found['method']} at the cost of {self.arm}",
            "settings": {name: value for name, value in found["sweep"].items() if name in ("lr", "rho")},
            "seed": found["seed"], "chosen": False, "cost_multiple": self.times * found["cost_multiple"],
            "evaluation_cost_multiple": self.times * found["evaluation_cost_multiple"],
            "kept_after_epochs": found.get("selected_after_epochs"), "rule": found["rule"], "model": found["model"],
            "step": found.get("step"), **measured,
        }  # fmt: skip


@functools.cache
def _loaded(data: str, options: str, seed: int) -> Data:
    return load(data, seed=seed, **json.loads(options))


def _all(pool: ProcessPoolExecutor, values: Iterable[Value]) -> list[Row]:
    """The rows of all values, in their order."""
    return [row for done in [pool.submit(value) for value in values] for row in done.result()]


def features(args: argparse.Namespace) -> None:
    """The composites: test error, and the probing error of the digit and of the picture below it."""
    settings = {"epochs": 20, "precision": "float32"}
    rows = _sgd_and_sam(args, args.data, args.data_options, COMPOSITE, _both_features, settings)
    _keep(args, args.data, rows, args.data, settings)


def _both_features(model: nn.Module, data: str, options: dict[str, Any], seed: int) -> dict[str, float]:
    """Where the two features are independent, as in eq. 1: fitted on validation images, measured on test images."""
    apart = _loaded(data, json.dumps({"correlation": 1 / CLASSES[data], **options}), seed)
    assert apart.test is not None
    hard = next(name for name in apart.test.attributes if name != "mnist")
    return {
        "digit, probing error": evenly.probe(model, apart, "mnist", seed=seed).error,
        "picture, probing error": evenly.probe(model, apart, hard, against=["mnist"], seed=seed).error,
    }


def domains(args: argparse.Namespace) -> None:
    """PACS with one domain left out: error there, and that of a linear probe fitted on a part of it."""
    options = {"target": args.target, **args.data_options}
    settings = {"epochs": 10, **_start(args)}
    rows = _sgd_and_sam(args, "pacs", options, DOMAIN, _on_target, settings, one_rate=True)
    _keep(args, f"pacs-{args.target}", rows, "pacs", settings)


def _on_target(model: nn.Module, data: str, options: dict[str, Any], seed: int) -> dict[str, float]:
    """Eq. 46: fitted on 80% of the target domain as it is, measured on the rest."""
    fitted, measured = target_parts(_loaded(data, json.dumps(options), seed), seed=seed)
    found = evenly.probe(model, fitted, "label", held_out=measured, balance=False, seed=seed)
    return {"probe on the target, error": found.error}


def _sgd_and_sam(
    args: argparse.Namespace,
    data: str,
    options: dict[str, Any],
    grid: dict[str, list[float]],
    probing: Probing,
    settings: dict[str, Any],
    one_rate: bool = False,
) -> list[Row]:
    """SGD and SAM over the grid, SGD for twice the epochs, the value of each that validation chose, and every probe.

    With `one_rate` all but SGD runs at the learning rate that is chosen for SGD.
    """
    settings = settings | args.settings
    rates, radii = (values[:1] if args.trial else values for values in grid.values())

    def value(arm: str, lr: float, rho: float | None = None, times: int = 1) -> Value:
        at = {"lr": lr} | ({} if rho is None else {"rho": rho})
        common = _common(args) | settings | {"controls": False, "epochs": times * settings["epochs"]}
        folder = args.out / " ".join([arm, *map(str, at.values())])
        return Value(folder, data, arm, "erm", "sgd" if rho is None else "sam", at, common, options, times, probing)

    with _workers(args.jobs) as pool:
        rows = _all(pool, [value("SGD", lr) for lr in rates]) if one_rate else []
        if one_rate:
            _choose(rows, _by_average)
            rates = [next(row["settings"]["lr"] for row in rows if row.get("chosen"))]
        plain = [] if one_rate else [value("SGD", lr) for lr in rates]
        dear = [*(value("SAM", *at) for at in product(rates, radii)), *(value(LONGER, lr, times=2) for lr in rates)]
        rows += _all(pool, [*plain, *dear])
    _choose(rows, _by_average)
    return rows


def _by_average(row: Row) -> tuple[float, float]:
    """Accuracy on validation; where that is the same, the loss."""
    return row["validation"]["accuracy"], -row["validation"]["loss"]


def _by_worst_group(row: Row) -> tuple[float, float]:
    return row["validation"]["worst_group"], row["validation"]["accuracy"]


def groups(args: argparse.Namespace) -> None:
    """CelebA: the worst group and the average of every method, from scratch or from weights."""
    settings = _start(args) | args.settings
    short = {"epochs": 2, "warmup_epochs": 1} if args.trial else {}
    options = {name: own | {key: short[key] for key in own.keys() & short.keys()} for name, own in GROUPED.items()}

    def value(method: str, lr: float, controls: bool = False, on: str | None = None) -> Value:
        arm = method if on is None else f"{method}, on {on}"
        at = {"lr": lr} | ({} if on is None else {"dfr.on": on})
        common = _common(args) | settings | {"options": options, "controls": controls}
        return Value(args.out / f"{arm} {lr}", "celeba", arm, method, "sgd", at, common, args.data_options)

    with _workers(args.jobs) as pool:
        rates = RATES[:1] if args.trial else RATES
        rows = _all(pool, [value(method, lr) for method in args.methods.split(",") for lr in rates])
        _choose(rows, _by_worst_group)
        best = {row["arm"]: row["settings"]["lr"] for row in rows if row["chosen"]}
        # ERM itself is the control of what costs as much or less: its learning rate, too, is chosen
        dear = [arm for arm in best if mean(row["cost_multiple"] for row in rows if row["arm"] == arm) > 1.01]
        final = [value(arm, best[arm], controls=True) for arm in dear]
        final += [value("dfr", best["erm"], on=on) for on in ("train", "validation")]
        known = {row["name"] for row in rows}
        rows += [row | {"chosen": True} for row in _all(pool, final) if row["name"] not in known]
    _keep(args, "celeba-tuned" if args.weights else "celeba", rows, "celeba", settings, options)


def _workers(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,))


def _common(args: argparse.Namespace) -> dict[str, Any]:
    return {"model": args.model, "seeds": args.seeds, "device": args.device}


def _start(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of a network that starts from ImageNet's weights."""
    if args.weights is None:
        return {}
    args.model = args.model or "mobilenet_v2"
    return {"model_options": {"weights": str(args.weights)}, "normalise": "imagenet"}


def _choose(rows: list[Row], score: Callable[[Row], tuple[float, float]]) -> None:
    """Mark, in each arm, the settings with the best score averaged over seeds."""
    for arm in dict.fromkeys(row["arm"] for row in rows):
        its = [row for row in rows if row["arm"] == arm and "diverged" not in row]
        scores: dict[str, list[tuple[float, float]]] = {}
        for row in its:
            scores.setdefault(row["name"], []).append(score(row))
        best = max(scores, key=lambda name: tuple(mean(part) for part in zip(*scores[name], strict=True)))
        for row in its:
            row["chosen"] = row["name"] == best


def _keep(
    args: argparse.Namespace,
    name: str,
    rows: list[Row],
    data: str,
    settings: dict[str, Any],
    options: dict[str, Any] | None = None,
) -> None:
    first = _loaded(data, json.dumps(args.data_options), 0)
    common = resolve(first, "erm", settings | args.settings, args.model)[0]
    common = {key: value for key, value in common.items() if key not in ("model", "model_options", "lr", "rho")}
    measured = {
        "verb": args.verb, "commit": args.commit,
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU", "torch": torch.__version__,
        "weights": getattr(args, "weights", None) is not None, "in_common": common, "options": options or {},
        "shape": list(first.train.example_shape), "data_options": args.data_options, "notes": [],
        "diverged": [row for row in rows if "diverged" in row],
        "rows": [row for row in rows if "diverged" not in row],
    }  # fmt: skip
    args.results.mkdir(parents=True, exist_ok=True)
    file = args.results / f"{name}.json"
    file.write_text(json.dumps(measured).replace('{"name"', '\n{"name"') + "\n")
    print(_page(file))


def page(args: argparse.Namespace) -> None:
    """The pages again, from what was measured."""
    for file in args.files:
        _page(file)


def _page(file: Path) -> str:
    """Write the page beside a file of what was measured."""
    measured = json.loads(file.read_text())
    name, rows = file.stem, measured["rows"]
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(row["seed"] for row in rows))
    lines = [
        f"# {TITLES.get(name, name)}", "",
        f"{rows[0]['model']} from {'the weights of ImageNet' if measured['weights'] else 'random weights'}, images of "
        f"{' x '.join(map(str, measured['shape'][1:]))}; {_told(measured['in_common'])}; seeds {seeds}. "
        + "".join(f"Of {method} alone: {_told(own)}. " for method, own in measured["options"].items())
        + "Learning rates and radii are chosen on validation, averaged over the seeds, "
        f"{'by its worst group' if measured['verb'] == 'groups' else 'by accuracy, then loss'}; the test set chooses "
        f"nothing. {measured['machine']}, torch {measured['torch']}, commit `{measured['commit'][:12]}`. Mean ± "
        "standard deviation over seeds, then every seed.", "",
    ]  # fmt: skip
    for note in (*NOTES.get(measured["verb"], ()), *measured["notes"]):
        lines += [note, ""]
    if measured["verb"] == "groups":
        lines += [*_group_table(rows), "", *_seed_table(rows), "", *_differences(rows)]
    else:
        probe = list(rows[0]["probes"])[-1]
        lines += [*_chosen_table(rows), "", *_differences(rows), ""]
        lines += [f"{probe[0].upper()}{probe[1:]}, %, mean over seeds, at every value:", "", *_grid_table(measured)]
    if published := PUBLISHED.get(name.removesuffix("-tuned")):
        lines += ["", f"Published: {published}"]
    lines += [
        "",
        f"Made by `benchmarks/real_images.py {measured['verb']}`; every run is in `{file.name}` beside this page.",
    ]
    text = "\n".join(lines) + "\n"
    file.with_suffix(".md").write_text(text)
    return text


def _of_arm(rows: list[Row]) -> dict[str, list[Row]]:
    """The chosen rows of each arm, by seed."""
    arms: dict[str, list[Row]] = {}
    for row in rows:
        if row["chosen"]:
            arms.setdefault(row["arm"], []).append(row)
    return {arm: sorted(each, key=lambda row: row["seed"]) for arm, each in arms.items()}


def _chosen_table(rows: list[Row]) -> list[str]:
    probes = list(rows[0]["probes"])
    columns = ["arm", "chosen", "cost", "validation error, %", "test error, %", *(f"{probe}, %" for probe in probes)]
    lines = _header(columns)
    for arm, its in _of_arm(rows).items():
        values = len({row["name"] for row in rows if row["arm"] == arm})
        chosen = f"{_settings(its[0])}, of {values}" if values > 1 else _settings(its[0])
        cells = [arm, chosen, f"{mean(row['cost_multiple'] for row in its):.2f}x"]
        cells += [_spread([1 - row[split]["accuracy"] for row in its]) for split in ("validation", "test")]
        lines.append(_line(cells + [_spread([row["probes"][probe] for row in its]) for probe in probes]))
    return lines


def _grid_table(measured: dict[str, Any]) -> list[str]:
    """The last probe of every arm at every value, learning rates across."""
    rows = measured["rows"]
    diverged = [(row["arm"], row["settings"]) for row in measured["diverged"]]
    probe = list(rows[0]["probes"])[-1]
    rates = sorted({row["settings"]["lr"] for row in rows})
    kinds = dict.fromkeys((row["arm"], row["settings"].get("rho")) for row in rows)
    lines = _header(["arm", *(f"lr {rate:g}" for rate in rates)])
    for arm, rho in kinds:
        cells = []
        for rate in rates:
            at = {"lr": rate} | ({} if rho is None else {"rho": rho})
            its = [row for row in rows if row["arm"] == arm and row["settings"] == at]
            value = f"{100 * mean(row['probes'][probe] for row in its):.1f}" if its else ""
            value = "diverged" if (arm, at) in diverged else value
            cells.append(f"**{value}**" if its and its[0]["chosen"] else value)
        lines.append(_line([arm if rho is None else f"{arm}, rho {rho:g}", *cells]))
    return [*lines, "", "Bold: what validation chose. Diverged: on one seed at least."]


def _group_table(rows: list[Row]) -> list[str]:
    told = all(row["evaluation_cost_multiple"] is not None for row in rows)
    lines = _header([
        "arm", "chosen", "cost", *(["looks"] if told else []), "kept after, epochs of the full set", "average, %",
        "worst group, %",
    ])  # fmt: skip
    for arm, its in _of_arm(rows).items():
        cells = [arm, _settings(its[0]), f"{mean(row['cost_multiple'] for row in its):.2f}x"]
        cells += [f"{mean(row['evaluation_cost_multiple'] for row in its):.2f}x"] if told else []
        after = [row["kept_after_epochs"] for row in its]
        cells += ["" if None in after else f"{mean(after):.1f}"]
        lines.append(_line(cells + [_spread([row["test"][key] for row in its]) for key in ("accuracy", "worst_group")]))
    return lines


def _seed_table(rows: list[Row]) -> list[str]:
    """The worst group of each seed's test set, with Wilson's interval."""
    arms = _of_arm(rows)
    first = next(iter(arms.values()))
    few = min(first[0]["validation"]["group_counts"])
    lines = [
        "The worst group of each seed, how many of it are told right, with 95% Wilson intervals. The seeds' test sets "
        f"share images: do not pool them. Validation has {few} blond men, and most often it is they who choose the "
        "epoch and the learning rate.",
        "", *_header(["arm", *(f"seed {row['seed']}" for row in first)]),
    ]  # fmt: skip
    for arm, its in arms.items():
        cells = []
        for test in (row["test"] for row in its):
            worst = min(range(len(GROUPS)), key=lambda g: test["groups"][g])
            n = test["group_counts"][worst]
            right = round(test["groups"][worst] * n)
            low, high = wilson(right, n)
            cells.append(f"{right:,} of {n:,} {GROUPS[worst]} [{100 * low:.0f}, {100 * high:.0f}]%")
        lines.append(_line([arm, *cells]))
    return lines


def _differences(rows: list[Row]) -> list[str]:
    """Of SAM from SGD, or of every method from ERM and from its control of equal cost, paired by seed."""
    arms = _of_arm(rows)
    lines = ["Differences, paired by seed, with 95% t-intervals, in points:", ""]
    for arm, its in arms.items():
        if "probes" in its[0]:
            others = [other for other in arms if arm == "SAM" and other != arm]
        else:
            others = [other for other in arms if " at the cost of " not in arm and arm != other
                      and (other == "erm" or other.endswith(f" at the cost of {arm}"))]  # fmt: skip
        for other in others:
            pairs = [(_quantities(mine), _quantities(theirs)) for mine, theirs in zip(its, arms[other], strict=True)]
            gains = [
                f"{what} {_interval([mine[what] - theirs[what] for mine, theirs in pairs])}" for what in pairs[0][0]
            ]
            lines.append(f"- {arm} against {other}: {', '.join(gains)}")
    return lines


def _quantities(row: Row) -> dict[str, float]:
    """What arms are compared by."""
    if "probes" in row:
        return {"test error": 1 - row["test"]["accuracy"], **row["probes"]}
    return {"average": row["test"]["accuracy"], "worst group": row["test"]["worst_group"]}


def _told(settings: dict[str, Any]) -> str:
    plain = {"precision": {"auto": "bf16 on a GPU"}}
    return ", ".join(
        f"{name.replace('_', ' ')} {plain.get(name, {}).get(value, value) if isinstance(value, str) else value}"
        for name, value in settings.items()
    )


def _settings(row: Row) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in row["settings"].items()) or "-"


def _header(columns: Sequence[str]) -> list[str]:
    return [_line(columns), f"|{'---|' * len(columns)}"]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _spread(values: list[float]) -> str:
    each = ", ".join(f"{100 * value:.1f}" for value in values)
    return f"{100 * mean(values):.2f} ± {100 * stdev(values) if len(values) > 1 else 0:.2f} ({each})"


def _interval(differences: list[float]) -> str:
    gain = paired(differences)
    if gain["low"] is None:
        return f"{100 * gain['mean']:+.2f}"
    return f"{100 * gain['mean']:+.2f} [{100 * gain['low']:.2f}, {100 * gain['high']:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("features", "groups", "domains"):
        verb = verbs.add_parser(name)
        if name == "features":
            verb.add_argument("data", choices=list(CLASSES))
        if name == "groups":
            verb.add_argument("--methods", default="erm,subsample,group_dro,pde,useful")
        if name == "domains":
            verb.add_argument("--target", default="photo")
        if name != "features":
            verb.add_argument("--weights", type=Path, help="start from these instead of at random")
        verb.add_argument("--model")
        verb.add_argument("--seeds", type=int, default=3)
        verb.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        verb.add_argument("--jobs", type=int, default=1, help="processes that share the values of the grid")
        verb.add_argument("--out", type=Path, required=True)
        verb.add_argument("--results", type=Path, default=Path(__file__).parents[1] / "docs" / "results")
        verb.add_argument("--commit", required=True)
        verb.add_argument("--trial", action="store_true", help="one value of each grid, to see that all works")
        verb.add_argument("--settings", type=json.loads, default={}, help='as JSON, e.g. {"epochs": 2}')
        verb.add_argument("--data-options", type=json.loads, default={}, help='as JSON, e.g. {"n": 600}')
    verbs.add_parser("page").add_argument("files", nargs="+", type=Path)
    args = parser.parse_args()
    {"features": features, "groups": groups, "domains": domains, "page": page}[args.verb](args)


if __name__ == "__main__":
    main()
