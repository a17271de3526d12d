"""Pages of what `benchmarks/gpu.py` has measured: a Markdown file beside each JSON file."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from gpu_units import COMMANDS, UNITS, Unit

from evenly.errors import EvenlyError

TRAINING_IMAGES = 50_000
NETWORKS = {"preact_resnet18": "Pre-activation ResNet-18", "vgg19": "VGG-19"}
AUGMENTED = {
    "basic": "zero padding of 4, crop and flip",
    "basic+trivial": "zero padding of 4, crop and flip, then TrivialAugment",
}
REPEATED = {"useful": "about 30", "random_upsample": "about 30", "quantile": "–", "misclassification": "–"}
"""Methods that repeat images, with the published share in percent."""
TOP = tuple(f"lambda_{k}" for k in range(1, 6))
SPECTRUM_NOTE = """\
Eigenvalues are of the Hessian of the mean cross-entropy over 1,000 training images, the first 100 of each class, \
without augmentation, in eval mode and float32, and {}. The paper also takes 100 of each class. It \
does not say which ones, nor in which mode its network was. These runs do not show where the difference in λ_max \
comes from."""
FORGETTING_NOTE = """\
Training accuracy and forgetting are of all training images at the end of every epoch, without augmentation. The mean \
forgetting score is over the images that were right at least once;"""


def write_page(file: Path) -> None:
    """The page of a JSON file, beside it; another script's file has the page of that script."""
    measured = json.loads(file.read_text())
    if "unit" not in measured:
        scripts = [command.script for command in COMMANDS.values() if command.page == file.stem]
        if not scripts or not hasattr(script := importlib.import_module(scripts[0]), "write_page"):
            raise EvenlyError(f"{file} has no page here; give a file of a unit of benchmarks/gpu.py")
        script.write_page(file)
        return
    file.with_suffix(".md").write_text("\n".join(_lines(measured)) + "\n")


def _lines(measured: dict[str, Any]) -> list[str]:
    unit, rows, settings = UNITS[measured["unit"]], measured["rows"], measured["settings"]
    ours = _quantities(unit, rows, bool(measured["record_at"]))
    seeds = ", ".join(str(row["seed"]) for row in rows)
    options = "".join(f", {name} {value}" for name, value in unit.options.items() if name not in settings)
    radius = f" with rho {settings['rho']}" if unit.optimizer == "sam" else ""
    lines = [
        f"# {unit.title}", "",
        f"{NETWORKS[unit.model]}, {unit.method}{options}, {unit.optimizer}{radius}, {settings['epochs']} epochs, seeds "
        f"{seeds}, batch {settings['batch_size']}, learning rate {settings['lr']} divided by 10 at half and three "
        f"quarters, momentum {settings['momentum']}, weight decay {settings['weight_decay']}, "
        f"{AUGMENTED[settings['augment']]}, bf16. The last epoch's weights; the test set selected nothing. "
        f"{measured['machine']}, torch {measured['torch']}, commit `{measured['commit'][:12]}`.", "",
        "| at the end | mean ± standard deviation over seeds (each seed) | paper |", "|---|---|---|",
        *(f"| {name} | {mean_sd(values, digits)} | {paper} |" for name, (values, paper, digits) in ours.items()), "",
    ]  # fmt: skip
    columns = {"train_loss": "training loss, augmented", "right": "training accuracy, not augmented, %"}
    columns = {name: title for name, title in columns.items() if name in rows[0]}
    lines += ["Along the run, means over seeds:", "", "| epoch | " + " | ".join(columns.values()) + " |"]
    lines.append("|---" * (1 + len(columns)) + "|")
    for epoch in range(settings["epochs"] // 4, settings["epochs"] + 1, settings["epochs"] // 4):
        values = {name: mean(row[name][epoch - 1] for row in rows) for name in columns}
        cells = [f"{100 * value:.2f}" if name == "right" else f"{value:.4f}" for name, value in values.items()]
        lines.append(f"| {epoch} | " + " | ".join(cells) + " |")
    if measured["record_at"]:
        missing = sum(name not in row["recorded"][-1] for row in rows for name in TOP)
        lines += ["", SPECTRUM_NOTE.format(f"{missing} have not converged" if missing else "all have converged")]
    if unit.forgetting:
        lines += ["", f"{FORGETTING_NOTE} {sum(row['never_right'] for row in rows)} never were."]
    return [
        *lines, "", f"Made by `{measured['command']}`; every number is in `{unit.page}.json` beside this page.",
    ]  # fmt: skip


def _quantities(unit: Unit, rows: list[dict[str, Any]], recorded: bool) -> dict[str, tuple[list[float], str, int]]:
    """What the table of a page has: the value of each seed, the published one, and decimals."""
    published = "–" if unit.test_error is None else "{:.2f} ± {:.2f} (3 seeds)".format(*unit.test_error)
    ours: dict[str, tuple[list[float], str, int]] = {
        "test error, %": ([row["test_error"] for row in rows], published, 2),
        "cost, as a multiple of ERM's": ([row["cost_multiple"] for row in rows], "–", 2),
    }
    if unit.method in REPEATED:
        images = [100 * row["results"]["chosen"] / TRAINING_IMAGES for row in rows]
        ours["images repeated, %"] = (images, REPEATED[unit.method], 1)
    if recorded:
        last = [row["recorded"][-1] for row in rows]
        if all(name in row for row in last for name in TOP):
            ours["λ_max"] = ([row["lambda_1"] for row in last], f"{unit.lambda_max or '–'}", 1)
            ours["λ_max / λ_5"] = ([row["lambda_1"] / row["lambda_5"] for row in last], f"{unit.ratio or '–'}", 1)
        ours["l1 norm"] = ([row["l1_norm"] for row in last], "drawn in its Figure 5", 0)
    if unit.forgetting:
        drawn = "drawn in its Figure 8"
        ours["mean forgetting score"] = ([row["mean_forgetting"] for row in rows], drawn, 2)
        ours["never forgotten, %"] = ([_forgotten_share(row, 0, 0) for row in rows], drawn, 1)
        ours["forgotten 20 times or more, %"] = ([_forgotten_share(row, 20) for row in rows], drawn, 1)
    return ours


def _forgotten_share(row: dict[str, Any], low: int, high: int | None = None) -> float:
    """The percentage of the training images that were forgotten from `low` to `high` times."""
    counts: dict[int, int] = {int(times): count for times, count in row["forgotten_times"].items()}
    chosen = sum(count for times, count in counts.items() if low <= times and (high is None or times <= high))
    return 100 * chosen / (sum(counts.values()) + int(row["never_right"]))


def mean_sd(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation, then every value."""
    each = ", ".join(f"{value:.{digits}f}" for value in values)
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f} ({each})"
