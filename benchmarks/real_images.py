"""Real images with a shortcut, groups or domains: SGD against SAM, ERM against what is made for groups.

    EVENLY_DATA=... python benchmarks/real_images.py features cifar-mnist --out runs/cifar-mnist --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py groups --out runs/celeba --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py groups --weights FILE --out runs/celeba-tuned --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py domains --weights FILE --out runs/pacs --commit COMMIT

Every arm is run at every value of its grid, for every seed; validation, averaged over the seeds, chooses the value and
the test set only measures. `features` and `domains` set SAM beside SGD and beside SGD for twice the epochs, which costs
as much, and tell by linear probes what was learned (Springer et al. 2024, Tables 1 and 2); `groups` sets every method
beside its control of equal cost, at the values chosen for the method. All goes on where it was stopped. What was
measured goes into RESULTS/NAME.json and .md, beside what was published where there is such a thing.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import nn

import evenly
from evenly.comparison import Comparison, paired
from evenly.data import load
from evenly.data.images.domains import target_parts
from evenly.engine.accuracy import wilson

Row = dict[str, Any]
Probing = Callable[[nn.Module, str, dict[str, Any], int], dict[str, float]]

CLASSES = {"cifar-mnist": 2, "fashion-mnist-mnist": 5}
COMPOSITE = {"lr": [0.01, 0.05, 0.1], "rho": [0.01, 0.03, 0.05, 0.07, 0.1, 0.2]}
"""Springer et al. (2024), App. B; batches of 100, momentum and schedule are the data's recipe."""
LONGER = "SGD, twice the epochs"
DOMAIN = {"lr": [0.005, 0.01, 0.02], "rho": [0.03, 0.05, 0.1]}
"""Their App. F."""
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


def features(args: argparse.Namespace) -> None:
    """The composites: test error, and the probing error of the digit and of the picture below it."""
    rows = _sgd_and_sam(
        args, args.data, args.data_options, COMPOSITE, _both_features, {"epochs": 20, "precision": "float32"}
    )
    lines = [*_head(args, args.data, rows), *_chosen_table(rows), "", *_differences(rows)]
    lines += ["", "Probing error of the picture, %, mean over seeds, at every value:", "", *_grid_table(rows)]
    _keep(args, args.data, rows, lines)


def _both_features(model: nn.Module, data: str, options: dict[str, Any], seed: int) -> dict[str, float]:
    """Where the two features are independent, as in eq. 1: fitted on validation images, measured on test images."""
    apart = load(data, seed=seed, correlation=1 / CLASSES[data], **options)
    hard = next(name for name in apart.test.attributes if name != "mnist")
    return {
        "digit, probing error": evenly.probe(model, apart, "mnist", seed=seed).error,
        "picture, probing error": evenly.probe(model, apart, hard, against=["mnist"], seed=seed).error,
    }


def domains(args: argparse.Namespace) -> None:
    """PACS with one domain left out: error there, and that of a linear probe fitted on a part of it."""
    options = {"target": args.target, **args.data_options}
    rows = _sgd_and_sam(args, "pacs", options, DOMAIN, _on_target, _start(args) | {"epochs": 10})
    name = f"pacs-{args.target}"
    lines = [*_head(args, f"PACS, {args.target} left out", rows), *_chosen_table(rows), "", *_differences(rows)]
    lines += ["", "Error of the probe on the target, %, mean over seeds, at every value:", "", *_grid_table(rows)]
    _keep(args, name, rows, lines)


def _on_target(model: nn.Module, data: str, options: dict[str, Any], seed: int) -> dict[str, float]:
    """Eq. 46: fitted on 80% of the target domain as it is, measured on the rest."""
    fitted, measured = target_parts(load(data, seed=seed, **options), seed=seed)
    found = evenly.probe(model, fitted, "label", held_out=measured, balance=False, seed=seed)
    return {"probe on the target, error": found.error}


def groups(args: argparse.Namespace) -> None:
    """CelebA: the worst group and the average of every method, from scratch or from weights."""
    settings = _start(args) | args.settings
    short = {"epochs": 2, "warmup_epochs": 1} if args.trial else {}
    options = {name: own | {key: short[key] for key in own.keys() & short.keys()} for name, own in GROUPED.items()}

    def compared(methods: list[str], sweep: dict[str, list[Any]], controls: bool) -> Comparison:
        return evenly.compare(
            args.model, "celeba", methods, ["sgd"], args.seeds, controls=controls, options=options, sweep=sweep,
            out=args.out, device=args.device, data_options=args.data_options, **settings,
        )  # fmt: skip

    rates = RATES[:1] if args.trial else RATES
    rows = _rows(compared(args.methods.split(","), {"lr": rates}, False))
    _choose(rows, lambda row: (row["validation"]["worst_group"], row["validation"]["accuracy"]))
    best = {row["arm"]: row["settings"]["lr"] for row in rows if row["chosen"]}
    final = [
        row for arm, lr in best.items() for row in _rows(compared([arm.split("+")[0]], {"lr": [lr]}, True), chosen=True)
    ]
    # the last layer is fitted anew to the network that ERM is chosen to be
    again = compared(["dfr"], {"lr": [best["erm+sgd"]], "dfr.on": ["train", "validation"]}, False)
    final += _rows(again, chosen=True, naming="on")
    known = {(row["arm"], json.dumps(row["settings"]), row["seed"]): row for row in [*rows, *final]}
    rows = list(known.values())
    name = "celeba-tuned" if args.weights else "celeba"
    lines = [
        *_head(args, "CelebA, 10,000 images, blond hair or not", rows),
        *_group_table(rows),
        "",
        *_seed_table(rows),
    ]
    _keep(args, name, rows, [*lines, "", *_differences(rows)])


def _sgd_and_sam(
    args: argparse.Namespace,
    data: str,
    options: dict[str, Any],
    grid: dict[str, list[float]],
    probing: Probing,
    settings: dict[str, Any],
) -> list[Row]:
    """SGD and SAM over the grid, SGD for twice the epochs, the value of each that validation chose, and every probe.

    A value at which some seed diverges is left out of the rows and cannot be chosen.
    """
    settings = settings | args.settings
    rates, radii = (values[:1] if args.trial else values for values in grid.values())
    arms = [
        *(("SGD", "sgd", 1, {"lr": [lr]}) for lr in rates),
        *(("SAM", "sam", 1, {"lr": [lr], "rho": [rho]}) for lr, rho in product(rates, radii)),
        *((LONGER, "sgd", 2, {"lr": [lr]}) for lr in rates),
    ]
    rows, asked = [], []
    with ProcessPoolExecutor(args.jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        for arm, optimizer, times, at in arms:
            try:
                table = evenly.compare(
                    args.model, data, ["erm"], [optimizer], args.seeds, controls=False, sweep=at,
                    out=args.out / f"{times} x", device=args.device, data_options=options,
                    **settings | {"epochs": times * settings["epochs"]},
                )  # fmt: skip
            except evenly.EvenlyError as error:
                if "became NaN or infinite" not in str(error):
                    raise
                print(f"{arm}, {at}: {error}", flush=True)
                continue
            for row in _rows(table):
                model = table.runs[row["name"], row["seed"]].model.cpu()
                asked.append(pool.submit(probing, model, data, options, row["seed"]))
                rows.append(row | {"arm": arm, "cost_multiple": times * row["cost_multiple"]})
        for row, found in zip(rows, asked, strict=True):
            row["probes"] = found.result()
    _choose(rows, lambda row: (row["validation"]["accuracy"], -row["validation"]["loss"]))
    return rows


def _start(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of a network that starts from ImageNet's weights."""
    if args.weights is None:
        return {}
    args.model = args.model or "mobilenet_v2"
    return {"model_options": {"weights": str(args.weights)}, "normalise": "imagenet"}


def _rows(table: Comparison, chosen: bool = False, naming: str | None = None) -> list[Row]:
    """What is kept of every run; an arm is named without its swept values, but for the one it is to be named by."""
    rows = []
    for each in table.rows:
        swept = {name.rpartition(".")[2]: value for name, value in each["sweep"].items()}
        own = f"{each['method']}+{each['optimizer']}"
        if naming in swept:
            own += f", {naming} {swept.pop(naming)}"
        if each["control_of"]:
            own += f" at the cost of {each['control_of'].split(',')[0]}"
        kept = {
            split: {key: each[split].get(key) for key in
                    ("accuracy", "loss", "worst_group", "train_weighted", "groups", "group_counts")}
            for split in ("validation", "test")
        }  # fmt: skip
        rows.append({
            "name": each["arm"], "arm": own, "settings": swept, "seed": each["seed"],
            "chosen": chosen, "control": each["control"], "cost_multiple": each["cost_multiple"],
            "kept_after_epochs": each.get("selected_after_epochs"), "rule": each["rule"], "model": each["model"],
            **kept,
        })  # fmt: skip
    return rows


def _choose(rows: list[Row], score: Callable[[Row], tuple[float, float]]) -> None:
    """Mark, in each arm, the settings with the best score averaged over seeds."""
    for arm in dict.fromkeys(row["arm"] for row in rows):
        its = [row for row in rows if row["arm"] == arm]
        scores: dict[str, list[tuple[float, float]]] = {}
        for row in its:
            scores.setdefault(row["name"], []).append(score(row))
        best = max(scores, key=lambda name: tuple(mean(part) for part in zip(*scores[name], strict=True)))
        for row in its:
            row["chosen"] = row["name"] == best


def _head(args: argparse.Namespace, title: str, rows: list[Row]) -> list[str]:
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    start = "ImageNet's weights" if getattr(args, "weights", None) else "random weights"
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(row["seed"] for row in rows))
    return [
        f"# {title}", "",
        f"{rows[0]['model']} from {start}; seeds {seeds}; kept weights: {rows[0]['rule']}. Values of the grid chosen "
        f"on validation, averaged over the seeds. {machine}, torch {torch.__version__}, commit `{args.commit[:12]}`. "
        "Mean ± standard deviation over seeds, then every seed.", "",
    ]  # fmt: skip


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
        cells = [arm, _settings(its[0]), f"{mean(row['cost_multiple'] for row in its):.2f}x"]
        cells += [_spread([1 - row[split]["accuracy"] for row in its]) for split in ("validation", "test")]
        lines.append(_line(cells + [_spread([row["probes"][probe] for row in its]) for probe in probes]))
    return lines


def _grid_table(rows: list[Row]) -> list[str]:
    """The last probe of every arm at every value, learning rates across."""
    probe = list(rows[0]["probes"])[-1]
    rates = sorted({row["settings"]["lr"] for row in rows})
    kinds = dict.fromkeys((row["arm"], row["settings"].get("rho")) for row in rows)
    lines = _header(["arm", *(f"lr {rate:g}" for rate in rates)])
    for arm, rho in kinds:
        cells = []
        for rate in rates:
            its = [row for row in rows if row["arm"] == arm and row["settings"] == {"lr": rate} | _given(rho)]
            value = f"{100 * mean(row['probes'][probe] for row in its):.1f}" if its else "diverged"
            cells.append(f"**{value}**" if its and its[0]["chosen"] else value)
        lines.append(_line([arm if rho is None else f"{arm}, rho {rho:g}", *cells]))
    return [*lines, "", "Bold: what validation chose. Diverged: on one seed at least."]


def _given(rho: float | None) -> dict[str, float]:
    return {} if rho is None else {"rho": rho}


def _group_table(rows: list[Row]) -> list[str]:
    lines = _header(["arm", "chosen", "cost", "kept after, epochs of the full set", "average, %", "worst group, %"])
    for arm, its in _of_arm(rows).items():
        after = [row["kept_after_epochs"] for row in its]
        cells = [arm, _settings(its[0]), f"{mean(row['cost_multiple'] for row in its):.2f}x"]
        cells += ["-" if None in after else f"{mean(after):.1f}"]
        lines.append(_line(cells + [_spread([row["test"][key] for row in its]) for key in ("accuracy", "worst_group")]))
    return lines


def _seed_table(rows: list[Row]) -> list[str]:
    """The rarest group of each seed's test set, with Wilson's interval."""
    arms = _of_arm(rows)
    first = next(iter(arms.values()))
    rarest = min(range(len(first[0]["test"]["group_counts"])), key=lambda g: first[0]["test"]["group_counts"][g])
    lines = ["Right in the rarest group (blond men), with 95% Wilson intervals; seeds share images, so these are not",
             "to be pooled:", "", *_header(["arm", *(f"seed {row['seed']}" for row in first)])]  # fmt: skip
    for arm, its in arms.items():
        cells = []
        for row in its:
            n = row["test"]["group_counts"][rarest]
            right = round(row["test"]["groups"][rarest] * n)
            low, high = wilson(right, n)
            cells.append(f"{right} of {n} [{100 * low:.0f}, {100 * high:.0f}]%")
        lines.append(_line([arm, *cells]))
    return lines


def _differences(rows: list[Row]) -> list[str]:
    """Of SAM from SGD, or of every method from ERM and from its control of equal cost, paired by seed."""
    arms = _of_arm(rows)
    arm_of = {row["name"]: arm for arm, its in arms.items() for row in its}
    lines = ["Differences, paired by seed, with 95% t-intervals, in points:", ""]
    for arm, its in arms.items():
        if "probes" in its[0]:
            others = [other for other in arms if arm == "SAM" and other != arm]
        else:
            own = [] if " at the cost of " in arm else ["erm+sgd", arm_of.get(its[0]["control"] or "")]
            others = [other for other in dict.fromkeys(own) if other and other != arm]
        for other in others:
            gains = [
                f"{what} {_interval([of(mine) - of(its_own) for mine, its_own in zip(its, arms[other], strict=True)])}"
                for what, of in _quantities(its[0])
            ]
            lines.append(f"- {arm} against {other}: {', '.join(gains)}")
    return lines


def _quantities(row: Row) -> list[tuple[str, Callable[[Row], float]]]:
    """What arms are compared by, and how a row tells it."""
    if "probes" in row:
        told: list[tuple[str, Callable[[Row], float]]] = [("test error", lambda row: 1 - row["test"]["accuracy"])]
        return told + [(probe, lambda row, probe=probe: row["probes"][probe]) for probe in row["probes"]]  # type: ignore[misc]
    return [("average", lambda row: row["test"]["accuracy"]), ("worst group", lambda row: row["test"]["worst_group"])]


def _keep(args: argparse.Namespace, name: str, rows: list[Row], lines: list[str]) -> None:
    measured = {
        "commit": args.commit, "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__, "settings": args.settings, "data_options": args.data_options, "rows": rows,
    }  # fmt: skip
    if published := PUBLISHED.get(name.removesuffix("-tuned")):
        lines += ["", f"Published: {published}"]
    lines += ["", f"Made by `benchmarks/real_images.py {args.verb}`; every run is in `{name}.json` beside this page."]
    args.results.mkdir(parents=True, exist_ok=True)
    (args.results / f"{name}.json").write_text(json.dumps(measured).replace('{"name"', '\n{"name"') + "\n")
    text = "\n".join(lines) + "\n"
    (args.results / f"{name}.md").write_text(text)
    print(text)


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
        verb.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 4), help="processes that probe")
        verb.add_argument("--out", type=Path, required=True)
        verb.add_argument("--results", type=Path, default=Path(__file__).parents[1] / "docs" / "results")
        verb.add_argument("--commit", required=True)
        verb.add_argument("--trial", action="store_true", help="one value of each grid, to see that all works")
        verb.add_argument("--settings", type=json.loads, default={}, help='as JSON, e.g. {"epochs": 2}')
        verb.add_argument("--data-options", type=json.loads, default={}, help='as JSON, e.g. {"n": 600}')
    args = parser.parse_args()
    {"features": features, "groups": groups, "domains": domains}[args.verb](args)


if __name__ == "__main__":
    main()
