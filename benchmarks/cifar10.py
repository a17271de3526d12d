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

import numpy as np
import torch

import evenly
from evenly.runs.arms import Arm
from evenly.runs.comparison import Comparison, ComparisonPlan
from evenly.runs.differences import Difference, paired
from evenly.runs.summary import Row, summarise

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
        "cifar10", model="preact_resnet18", methods=args.methods.split(","), optimizers=args.optimizers.split(","),
        seeds=args.seeds, epochs=args.epochs, out=args.out, device=args.device, together=args.together,
        data_options={} if args.n is None else {"n": args.n},
    )  # fmt: skip
    keep(args, table)


def collect(args: argparse.Namespace) -> None:
    """What is finished in the folder of a `run` that is not; controls are left out, since not all of them are there."""
    runs = [evenly.load(file.parent) for file in sorted((args.out / "runs").glob("*/results.json"))]
    runs = [run for run in runs if run.plan.budget is None]
    rows = tuple(Row(Arm(run.results.method, run.results.optimizer), run.results.seed, run.results) for run in runs)
    first = runs[0]
    plan = ComparisonPlan(
        methods=tuple(dict.fromkeys(row.arm.method for row in rows)),
        optimizers=tuple(dict.fromkeys(row.arm.optimizer for row in rows)),
        seeds=tuple(sorted({row.seed for row in rows})),
        model=first.results.model,
        rule=first.results.rule,
        judged=first.results.judged,
        in_common=first.plan.settings,
    )
    by_arm = {(row.arm, row.seed): run for row, run in zip(rows, runs, strict=True)}
    keep(args, Comparison(first.results.data.name, plan, rows, summarise(rows), runs=by_arm), unfinished=True)


def keep(args: argparse.Namespace, table: Comparison, unfinished: bool = False) -> None:
    selections = []
    for (arm, seed), run in table.runs.items():
        if run.selection is not None and "separating_epoch" in (details := run.selection.details):
            selections.append({
                "arm": arm.name, "seed": seed, "separating_epoch": int(details["separating_epoch"]),
                "decided": str(details["decided"]), "share": len(run.selection.indices) / (args.n or 50_000),
                "early_losses": np.asarray(details["early_losses"]).tolist(),
            })  # fmt: skip
    measured = {
        "commit": args.commit, "machine": args.machine or _machine(), "torch": args.torch or torch.__version__,
        "unfinished": unfinished, "comparison": table.to_dict(), "selections": selections,
    }  # fmt: skip
    args.json.write_text(json.dumps(measured, indent=2))
    for each in table.summary:
        accuracy = each.metrics["accuracy"]
        print(each.arm.name, f"{100 - 100 * accuracy.mean:.2f} +- {100 * accuracy.sd:.2f}")


def _machine() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def page(args: argparse.Namespace) -> None:
    measured: dict[str, Any] = json.loads(args.files[0].read_text())
    others = [json.loads(file.read_text()) for file in args.files[1:]]
    agreeing = [other for other in others if "step" in other]
    for other in (other for other in others if "comparison" in other):
        ours, theirs = (each["comparison"]["plan"]["in_common"] for each in (measured, other))
        if ours != theirs or other["commit"] != measured["commit"]:
            raise SystemExit("the runs differ in their settings or their commit; put those with the same on one page")
        for part in ("summary", "rows"):
            measured["comparison"][part] += other["comparison"][part]
        measured["selections"] += other["selections"]
    ways = {way: [each for each in agreeing if each["step"].startswith(way)] for way in ("captured", "plain")}
    if agreeing:
        measured["captured and plain"] = agreement(ways["captured"], ways["plain"])
    PLACE.mkdir(parents=True, exist_ok=True)
    (PLACE / "cifar10.json").write_text(json.dumps(measured, indent=1) + "\n")
    (PLACE / "cifar10.md").write_text("\n".join(_lines(measured)) + "\n")


def _points(gain: Difference) -> str:
    """A mean difference and its interval, which a single seed has not."""
    interval = "" if gain.low is None or gain.high is None else f" [{100 * gain.low:.2f}, {100 * gain.high:.2f}]"
    return f"{100 * gain.mean:+.2f}{interval}"


def agreement(captured: list[dict[str, Any]], plain: list[dict[str, Any]]) -> dict[str, Any]:
    """Test errors of both and their standard error; overlap (intersection over union) of the hard sets."""

    def overlap(a: dict[str, Any], b: dict[str, Any]) -> float:
        one, other = set(a["hard"]), set(b["hard"])
        return len(one & other) / len(one | other)

    errors = {"captured": [each["test_error"] for each in captured], "plain": [each["test_error"] for each in plain]}
    variances = [np.var(values, ddof=1) / len(values) for values in errors.values()]
    return {
        "paired": paired([a - b for a, b in zip(*errors.values(), strict=True)]).to_dict(),
        "seeds": [each["seed"] for each in captured], "epochs": len(captured[0]["losses"]), "test_errors": errors,
        "difference": float(np.mean(errors["captured"]) - np.mean(errors["plain"])),
        "standard_error": float(np.sqrt(sum(variances))),
        "overlap": [overlap(a, b) for a, b in zip(captured, plain, strict=True)],
        "overlap_of_seeds": [overlap(a, b) for way in (captured, plain) for a, b in combinations(way, 2)],
        "losses": {"captured": [each["losses"] for each in captured], "plain": [each["losses"] for each in plain]},
    }  # fmt: skip


def _lines(measured: dict[str, Any]) -> list[str]:
    table = Comparison.from_dict(measured["comparison"])
    common, seeds = table.plan.in_common, table.plan.seeds
    lines = [
        "# CIFAR-10: USEFUL with a pre-activation ResNet-18", "",
        f"Pre-activation ResNet-18, {common.epochs} epochs, {len(seeds)} seeds ({', '.join(map(str, seeds))}), "
        f"batch {common.batch_size}, learning rate {common.lr} divided by 10 at half and three quarters, "
        f"momentum {common.momentum}, weight decay {common.weight_decay}, zero padding of 4, crop and flip, "
        "bf16. The last epoch's weights; the test set selected nothing. USEFUL's early network is trained by the arm's "
        "own optimizer, and retraining starts from the same initial weights. "
        f"{measured['machine']}, torch {measured['torch']}, commit `{measured['commit'][:12]}`.", "",
        "| arm | test error, % | cost | paper, 200 epochs |", "|---|---|---|---|",
    ]  # fmt: skip
    for each in table.summary:
        arm, accuracy = each.arm, each.metrics["accuracy"]
        errors = ", ".join(f"{100 - 100 * value:.2f}" for value in accuracy.values)
        paper = PUBLISHED.get(arm.pair)
        name = f"{NAMES[arm.method]}, {arm.optimizer.upper()}"
        name += "" if arm.control_of is None else f", at the cost of {NAMES[arm.control_of.method]}"
        lines.append(
            f"| {name} | {100 - 100 * accuracy.mean:.2f} ± {100 * accuracy.sd:.2f} ({errors}) "
            f"| {each.cost_multiple:.2f}x | {f'{paper[0]:.2f} ± {paper[1]:.2f}' if paper else '–'} |"
        )
    lines += ["", "Differences in accuracy, in points, paired by seed, with 95% t-intervals:", ""]
    for each in table.summary:
        if each.control is not None and (difference := each.difference("accuracy")) is not None:
            lines.append(f"- {each.arm.name} against {each.control.name}: {_points(difference)}")
    for optimizer in dict.fromkeys(each.arm.optimizer for each in table.summary):
        pair = [table.by_arm(Arm(method, optimizer)) for method in ("erm", "useful")]
        erm, useful = ([] if each is None else each.metrics["accuracy"].values for each in pair)
        if len(erm) == len(useful) > 1:
            gain = paired([b - a for a, b in zip(erm, useful, strict=True)])
            lines.append(f"- useful+{optimizer} against erm+{optimizer}, which costs less: {_points(gain)}")
    controlled = [each.arm.control_of for each in table.summary]
    for each in table.arms:
        if each.cost_multiple > 1.01 and each.arm not in controlled:
            lines += [
                "",
                f"The control that costs as much as {each.arm.name} has not been run. These runs do not show how much "
                "of the difference from plain SGD its extra passes would have brought by themselves.",
            ]
    for each in measured["selections"]:
        course = ", ".join(f"{loss:.3f}" for loss in each["early_losses"])
        lines += ["", f"Seed {each['seed']}: separated after epoch {each['separating_epoch']} "
                  f"({'by the rule' if each['decided'] == 'rule' else each['decided']}), {each['share']:.1%} marked as "
                  f"hard; early training losses {course}."]  # fmt: skip
    if both := measured.get("captured and plain"):
        means = {way: 100 * float(np.mean(errors)) for way, errors in both["test_errors"].items()}
        lines += [
            "", f"Captured against plain steps, {both['epochs']} epochs, {len(both['seeds'])} seeds: test error "
            f"{means['captured']:.2f}% and {means['plain']:.2f}%, {100 * both['difference']:+.2f} points apart with a "
            f"standard error of {100 * both['standard_error']:.2f}; paired by seed, 95% interval "
            f"[{100 * both['paired']['low']:.2f}, {100 * both['paired']['high']:.2f}]. The hard sets after epoch 8 "
            f"overlap by {np.mean(both['overlap']):.0%} (of their union) for one seed, by "
            f"{np.mean(both['overlap_of_seeds']):.0%} between seeds: differences in rounding take "
            "two runs of this network apart within a few steps.",
        ]  # fmt: skip
    how = "collect` from an unfinished `run" if measured["unfinished"] else "run"
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
