"""CIFAR-10 with the pre-activation ResNet-18 of USEFUL's paper: plain training, USEFUL and random upsampling.

    EVENLY_DATA=... python benchmarks/cifar10.py run --out runs/cifar10 --commit $(git rev-parse HEAD)
    EVENLY_DATA=... python benchmarks/cifar10.py run --methods erm --optimizers sam --out runs/sam --json sam.json ...
    python benchmarks/cifar10.py page measured.json sam.json captured-*.json plain-*.json

`run` is one `evenly.compare`: it goes on where it was stopped, and is worth a GPU; `collect` takes what is finished of
one that is not. `page` puts what was measured (of one `run`, and of others with the same settings after it) beside what
the paper printed (Nguyen et al. 2024, Tables 2 and 6; 200 epochs) into docs/results/cifar10.json and .md, with the
agreement of captured and plain training that `benchmarks/images.py agree` measured.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import evenly.comparison
import numpy as np
import torch

import evenly

PUBLISHED = {
    "erm+sgd": (5.07, 0.04),
    "useful+sgd": (4.79, 0.05),
    "random_upsample+sgd": (5.14, 0.11),
    "erm+sam": (4.23, 0.08),
    "useful+sam": (4.04, 0.06),
    "random_upsample+sam": (4.17, 0.03),
}
NAMES = {"erm": "plain", "useful": "USEFUL", "random_upsample": "random upsampling"}
PLACE = Path(__file__).parents[1] / "docs" / "results"


def run(args: argparse.Namespace) -> None:
    table = evenly.compare(
        "preact_resnet18", "cifar10", args.methods.split(","), args.optimizers.split(","), args.seeds,
        epochs=args.epochs, out=args.out, device=args.device, together=args.together,
        data_options={} if args.n is None else {"n": args.n},
    )  # fmt: skip
    keep(args, table.rows, table.summary, table.plan)


def collect(args: argparse.Namespace) -> None:
    """What is finished in the folder of a `run` that is not: rows without controls, whose arms are not all there."""
    rows = []
    for folder in sorted((args.out / "runs").iterdir()):
        if (folder / "results.json").exists():
            row = json.loads((folder / "results.json").read_text())
            rows.append({"arm": f"{row['method']}+{row['optimizer']}", **row, "sweep": {}, "control": None,
                         "control_of": None})  # fmt: skip
    settings = json.loads((args.out / "runs" / _folder_of(rows[0]) / "config.json").read_text())["settings"]
    seeds = sorted({row["seed"] for row in rows})
    keep(args, rows, evenly.comparison.summarise(rows), {"seeds": seeds, "in_common": settings, "unfinished": True})


def keep(args: argparse.Namespace, rows: list[dict[str, Any]], summary: list[dict[str, Any]], plan: Any) -> None:
    selections = []
    for row in rows:
        file = args.out / "runs" / _folder_of(row) / "selection.npz"
        if file.exists() and "separating_epoch" in (chosen := np.load(file)):
            selections.append({
                "arm": row["arm"], "seed": row["seed"], "separating_epoch": int(chosen["separating_epoch"]),
                "decided": str(chosen["decided"]), "share": row["chosen"] / (args.n or 50_000),
                "early_losses": chosen["early_losses"].tolist(),
            })  # fmt: skip
    measured = {
        "commit": args.commit, "machine": args.machine or _machine(), "torch": args.torch or torch.__version__,
        "plan": plan, "summary": summary, "rows": rows, "selections": selections,
    }  # fmt: skip
    args.json.write_text(json.dumps(measured, indent=2))
    for entry in summary:
        print(entry["arm"], f"{100 - 100 * entry['accuracy']['mean']:.2f} +- {100 * entry['accuracy']['sd']:.2f}")


def _folder_of(row: dict[str, Any]) -> str:
    return f"{row['arm'].replace('+', '-')}-seed{row['seed']}"


def _machine() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def page(args: argparse.Namespace) -> None:
    measured: dict[str, Any] = json.loads(args.files[0].read_text())
    others = [json.loads(file.read_text()) for file in args.files[1:]]
    agreeing = [other for other in others if "step" in other]
    for other in (other for other in others if "summary" in other):
        ours, theirs = measured["plan"]["in_common"], other["plan"]["in_common"]
        if any(theirs[key] != ours[key] for key in ours.keys() & theirs) or other["commit"] != measured["commit"]:
            raise SystemExit("the runs differ in their settings or their commit; put those with the same on one page")
        for part in ("summary", "rows", "selections"):
            measured[part] += other[part]
    ways = {way: [each for each in agreeing if each["step"].startswith(way)] for way in ("captured", "plain")}
    if agreeing:
        measured["captured and plain"] = agreement(ways["captured"], ways["plain"])
    PLACE.mkdir(parents=True, exist_ok=True)
    (PLACE / "cifar10.json").write_text(json.dumps(measured, indent=1) + "\n")
    (PLACE / "cifar10.md").write_text("\n".join(_lines(measured)) + "\n")


def _points(gain: dict[str, Any]) -> str:
    """A mean difference and its interval, which a single seed has not."""
    ends = "" if gain["low"] is None else f" [{100 * gain['low']:.2f}, {100 * gain['high']:.2f}]"
    return f"{100 * gain['mean']:+.2f}{ends}"


def agreement(captured: list[dict[str, Any]], plain: list[dict[str, Any]]) -> dict[str, Any]:
    """Test errors of both and their standard error; overlap (intersection over union) of the hard sets."""

    def overlap(a: dict[str, Any], b: dict[str, Any]) -> float:
        one, other = set(a["hard"]), set(b["hard"])
        return len(one & other) / len(one | other)

    errors = {"captured": [each["test_error"] for each in captured], "plain": [each["test_error"] for each in plain]}
    variances = [np.var(values, ddof=1) / len(values) for values in errors.values()]
    paired = evenly.comparison.paired([a - b for a, b in zip(*errors.values(), strict=True)])
    return {
        "paired": paired,
        "seeds": [each["seed"] for each in captured], "epochs": len(captured[0]["losses"]), "test_errors": errors,
        "difference": float(np.mean(errors["captured"]) - np.mean(errors["plain"])),
        "standard_error": float(np.sqrt(sum(variances))),
        "overlap": [overlap(a, b) for a, b in zip(captured, plain, strict=True)],
        "overlap_of_seeds": [overlap(a, b) for way in (captured, plain) for a, b in combinations(way, 2)],
        "losses": {"captured": [each["losses"] for each in captured], "plain": [each["losses"] for each in plain]},
    }  # fmt: skip


def _lines(measured: dict[str, Any]) -> list[str]:
    plan, common = measured["plan"], measured["plan"]["in_common"]
    seeds = len(plan["seeds"])
    lines = [
        "# CIFAR-10: USEFUL with a pre-activation ResNet-18", "",
        f"Pre-activation ResNet-18, {common['epochs']} epochs, {seeds} seeds ({', '.join(map(str, plan['seeds']))}), "
        f"batch {common['batch_size']}, learning rate {common['lr']} divided by 10 at half and three quarters, "
        f"momentum {common['momentum']}, weight decay {common['weight_decay']}, zero padding of 4, crop and flip, "
        "bf16. The last epoch's weights; the test set selected nothing. "
        f"{measured['machine']}, torch {measured['torch']}, commit `{measured['commit'][:12]}`.", "",
        "| arm | test error, % | cost | paper, 200 epochs |", "|---|---|---|---|",
    ]  # fmt: skip
    for entry in measured["summary"]:
        accuracy = entry["accuracy"]
        errors = ", ".join(f"{100 - 100 * value:.2f}" for value in accuracy["values"])
        paper = PUBLISHED.get(f"{entry['method']}+{entry['optimizer']}")
        name = f"{NAMES[entry['method']]}, {entry['optimizer'].upper()}"
        name += f", at the cost of {NAMES[entry['control_of'].split('+')[0]]}" if entry["control_of"] else ""
        lines.append(
            f"| {name} | {100 - 100 * accuracy['mean']:.2f} ± {100 * accuracy['sd']:.2f} ({errors}) "
            f"| {entry['cost_multiple']:.2f}x | {f'{paper[0]:.2f} ± {paper[1]:.2f}' if paper else '–'} |"
        )
    lines += ["", "Differences in accuracy, in points, paired by seed, with 95% t-intervals:", ""]
    for entry in measured["summary"]:
        if found := entry["accuracy"].get("difference"):
            lines.append(f"- {entry['arm']} against {entry['control']}: {_points(found)}")
    by_arm = {entry["arm"]: entry["accuracy"]["values"] for entry in measured["summary"]}
    for optimizer in dict.fromkeys(entry["optimizer"] for entry in measured["summary"]):
        of = [by_arm.get(f"{method}+{optimizer}", []) for method in ("erm", "useful")]
        if len(of[0]) == len(of[1]) > 1:
            gain = evenly.comparison.paired([b - a for a, b in zip(*of, strict=True)])
            lines.append(f"- useful+{optimizer} against erm+{optimizer}, which costs less: {_points(gain)}")
    controlled = {entry["control_of"] for entry in measured["summary"]}
    for entry in measured["summary"]:
        if entry["cost_multiple"] > 1.01 and not entry["control_of"] and entry["arm"] not in controlled:
            lines += [
                "",
                f"The control of {entry['arm']}'s cost has not been run: how much of its difference from "
                "plain SGD its extra passes would have brought by themselves, these runs do not tell.",
            ]
    for each in measured["selections"]:
        course = ", ".join(f"{loss:.3f}" for loss in each["early_losses"])
        lines += ["", f"Seed {each['seed']}: separated after epoch {each['separating_epoch']} "
                  f"({'by the rule' if each['decided'] == 'rule' else each['decided']}), {each['share']:.1%} marked as "
                  f"hard; early training losses {course}."]  # fmt: skip
    if found := measured.get("captured and plain"):
        means = {way: 100 * float(np.mean(errors)) for way, errors in found["test_errors"].items()}
        lines += [
            "", f"Recorded against plain steps, {found['epochs']} epochs, {len(found['seeds'])} seeds: test error "
            f"{means['captured']:.2f}% and {means['plain']:.2f}%, {100 * found['difference']:+.2f} points apart with a "
            f"standard error of {100 * found['standard_error']:.2f}; paired by seed, 95% interval "
            f"[{100 * found['paired']['low']:.2f}, {100 * found['paired']['high']:.2f}]. The hard sets after epoch 8 "
            f"overlap by {np.mean(found['overlap']):.0%} (of their union) for one seed, by "
            f"{np.mean(found['overlap_of_seeds']):.0%} between seeds: rounding sends a run of this network on "
            "a way of its own within a few steps.",
        ]  # fmt: skip
    how = "collect` from an unfinished `run" if plan.get("unfinished") else "run"
    lines += ["", f"Made by `benchmarks/cifar10.py {how}`; every number is in `cifar10.json` beside this page."]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    runs, collects = verbs.add_parser("run"), verbs.add_parser("collect")
    for verb in (runs, collects):
        verb.add_argument("--out", type=Path, required=True)
        verb.add_argument("--commit", required=True)
        verb.add_argument("--json", type=Path, default=Path("measured.json"))
        verb.add_argument("--n", type=int, help="use only so many images")
        verb.add_argument("--machine", help="where it ran, if not here")
        verb.add_argument("--torch", help="which version it ran with, if not this")
    runs.add_argument("--methods", default="erm,useful")
    runs.add_argument("--optimizers", default="sgd")
    runs.add_argument("--seeds", type=int, default=3)
    runs.add_argument("--epochs", type=int, default=100)
    runs.add_argument("--together", type=int, default=3)
    runs.add_argument("--device", default="auto")
    pages = verbs.add_parser("page")
    pages.add_argument("files", type=Path, nargs="+", help="measured.json first, then others to keep beside it")
    args = parser.parse_args()
    {"run": run, "collect": collect, "page": page}[args.verb](args)


if __name__ == "__main__":
    main()
