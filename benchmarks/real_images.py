"""Real images with a shortcut, groups or domains: SGD against SAM, ERM against what is made for groups.

    EVENLY_DATA=... python benchmarks/real_images.py features cifar-mnist --out runs/cifar-mnist --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py groups --out runs/celeba --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py groups --weights FILE --out runs/celeba-tuned --commit COMMIT
    EVENLY_DATA=... python benchmarks/real_images.py domains --target photo --out runs/pacs --commit COMMIT

Each is one `evenly.compare` and goes on where it was stopped. `features` adds the probing error of either feature
(Springer et al. 2024, Table 1), `domains` that of a linear probe on the target domain (their Table 2). What was
measured goes into docs/results/NAME.json and .md, beside what was published where there is such a thing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

import evenly
from evenly.comparison import Comparison, paired
from evenly.data import Data, load
from evenly.data.images.domains import target_parts
from evenly.engine import Run

PLACE = Path(__file__).parents[1] / "docs" / "results"

PUBLISHED = {
    "cifar-mnist": "Springer et al. (2024), SGD -> SAM, error %: test 0.1 -> 0.0, digit 0.1 -> 0.1, picture 12.7 -> "
    "10.2.",
    "fashion-mnist-mnist": "Springer et al. (2024), SGD -> SAM, error %: test 0.5 -> 0.0, digit 5.8 -> 0.3, picture "
    "11.6 -> 10.5.",
    "celeba": "Deng et al. (2023), all of CelebA, a ResNet-50 from ImageNet's weights, worst group / average accuracy "
    "%: ERM 45.0 / 94.8, Subsample 86.1 / 91.3, GroupDRO 86.3 / 92.9, DFR-Tr 80.7 / 90.6, DFR-Val 88.3 / 91.3, PDE "
    "91.0 / 92.0.",
    "pacs": "Springer et al. (2024), classes in their own shares where ours are balanced, a ResNet-50 from ImageNet's "
    "weights, SGD -> SAM, accuracy of the probe: cartoon .897 -> .921, photo .955 -> .964.",
}  # fmt: skip

Probed = dict[str, float]


def features(args: argparse.Namespace) -> None:
    """The composites: test error, and the probing error of the digit and of the picture below it."""

    def probed(run: Run, data: Data, seed: int) -> Probed:
        apart = load(args.data, seed=seed, correlation=1 / data.classes, **args.data_options)
        hard = next(name for name in apart.test.attributes if name != "mnist")
        model = run.model.to(args.device)
        return {
            "digit (easy), probing error": evenly.probe(model, apart, "mnist", seed=seed).error,
            "picture (hard), probing error": evenly.probe(model, apart, hard, against=["mnist"], seed=seed).error,
        }

    table = evenly.compare(
        args.model, args.data, ["erm"], ["sgd", "sam"], args.seeds, out=args.out, device=args.device,
        data_options=args.data_options, **args.settings,
    )  # fmt: skip
    keep(args, args.data, table, probed)


def groups(args: argparse.Namespace) -> None:
    """CelebA: the worst group and the average of every method, from scratch or from weights."""
    started = {"model_options": {"weights": str(args.weights)}, "normalise": "imagenet"} if args.weights else {}
    table = evenly.compare(
        args.model or ("mobilenet_v2" if args.weights else None), "celeba", args.methods.split(","), ["sgd"],
        args.seeds, out=args.out, device=args.device, data_options=args.data_options,
        **started, **args.settings,
    )  # fmt: skip
    keep(args, "celeba-tuned" if args.weights else "celeba", table)


def domains(args: argparse.Namespace) -> None:
    """PACS with one domain left out: accuracy there, and that of a linear probe fitted on a part of it."""
    started = {"model_options": {"weights": str(args.weights)}, "normalise": "imagenet"} if args.weights else {}
    options = {"target": args.target, **args.data_options}

    def probed(run: Run, data: Data, seed: int) -> Probed:
        fitted, measured = target_parts(data, seed=seed)
        model = run.model.to(args.device)
        found = evenly.probe(model, fitted, "label", held_out=measured, against=(), seed=seed)
        return {"probe on the target, error": found.error}

    table = evenly.compare(
        args.model or ("mobilenet_v2" if args.weights else None), "pacs", ["erm"], ["sgd", "sam"], args.seeds,
        out=args.out, device=args.device, data_options=options, **started, **args.settings,
    )  # fmt: skip
    keep(args, f"pacs-{args.target}", table, probed, options)


def keep(
    args: argparse.Namespace,
    name: str,
    table: Comparison,
    probed: Callable[[Run, Data, int], Probed] | None = None,
    data_options: dict[str, Any] | None = None,
) -> None:
    """Probe every run, then write the results and their page."""
    found: dict[str, list[Probed]] = {}
    if probed is not None:
        for (arm, seed), run in table.runs.items():
            data = load(table.data, seed=seed, **(args.data_options if data_options is None else data_options))
            found.setdefault(arm, []).append(probed(run, data, seed))
    measured = {
        "commit": args.commit, "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__, "probes": found, **table.as_json(),
    }  # fmt: skip
    PLACE.mkdir(parents=True, exist_ok=True)
    (PLACE / f"{name}.json").write_text(json.dumps(measured, indent=1) + "\n")
    (PLACE / f"{name}.md").write_text("\n".join(_lines(name, measured)) + "\n")
    print("\n".join(_lines(name, measured)))


def _lines(name: str, measured: dict[str, Any]) -> list[str]:
    plan, found = measured["plan"], measured["probes"]
    common = ", ".join(f"{key} {value}" for key, value in plan["in_common"].items() if value not in (None, {}, "none"))
    probes = list(next(iter(found.values()), [{}])[0])
    grouped = any("worst_group" in entry for entry in measured["summary"]) and not probes
    columns = ["arm", "cost", "test error, %", *(["worst group, %"] if grouped else []), *(f"{p}, %" for p in probes)]
    lines = [
        f"# {measured['data']}: {plan['model']}", "",
        f"Seeds {', '.join(map(str, plan['seeds']))}; {common}. Selected by: {plan['rule']}. {measured['machine']}, "
        f"torch {measured['torch']}, commit `{measured['commit'][:12]}`. Mean ± standard deviation over seeds.", "",
        f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}",
    ]  # fmt: skip
    for entry in measured["summary"]:
        row = [entry["arm"], f"{entry['cost_multiple']:.2f}x", _spread([1 - v for v in entry["accuracy"]["values"]])]
        row += [_spread(entry["worst_group"]["values"])] if grouped else []
        row += [_spread([each[probe] for each in found[entry["arm"]]]) for probe in probes]
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", "Differences, paired by seed, with 95% t-intervals, in points:", ""]
    for entry in measured["summary"]:
        for metric in ("accuracy", "worst_group") if grouped else ("accuracy",):
            if gain := (entry.get(metric) or {}).get("difference"):
                lines.append(
                    f"- {entry['arm']} against {entry['control']}, {metric.replace('_', ' ')}: {_interval(gain)}"
                )
    for probe in probes:
        for arm, rows in found.items():
            first = next(iter(found))
            if arm != first:
                gain = paired([mine[probe] - theirs[probe] for mine, theirs in zip(rows, found[first], strict=True)])
                lines.append(f"- {arm} against {first}, {probe}: {_interval(gain)}")
    if published := PUBLISHED.get(name.removesuffix("-tuned").split("-photo")[0].split("-cartoon")[0]):
        lines += ["", f"Published: {published}"]
    return [*lines, "", f"Made by `benchmarks/real_images.py`; every number is in `{name}.json` beside this page."]


def _spread(values: list[float]) -> str:
    each = ", ".join(f"{100 * value:.1f}" for value in values)
    return f"{100 * mean(values):.2f} ± {100 * stdev(values) if len(values) > 1 else 0:.2f} ({each})"


def _interval(gain: dict[str, Any]) -> str:
    if gain["low"] is None:
        return f"{100 * gain['mean']:+.2f}"
    return f"{100 * gain['mean']:+.2f} [{100 * gain['low']:.2f}, {100 * gain['high']:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("features", "groups", "domains"):
        verb = verbs.add_parser(name)
        if name == "features":
            verb.add_argument("data", choices=("cifar-mnist", "fashion-mnist-mnist"))
        if name == "groups":
            verb.add_argument("--methods", default="erm,pde,group_dro,subsample,dfr,useful")
        if name == "domains":
            verb.add_argument("--target", default="photo")
        if name != "features":
            verb.add_argument("--weights", type=Path, help="start from these instead of at random")
        verb.add_argument("--model")
        verb.add_argument("--seeds", type=int, default=3)
        verb.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        verb.add_argument("--out", type=Path, required=True)
        verb.add_argument("--commit", required=True)
        verb.add_argument("--settings", type=json.loads, default={}, help='as JSON, e.g. {"epochs": 2}')
        verb.add_argument("--data-options", type=json.loads, default={}, help='as JSON, e.g. {"n": 600}')
    args = parser.parse_args()
    {"features": features, "groups": groups, "domains": domains}[args.verb](args)


if __name__ == "__main__":
    main()
